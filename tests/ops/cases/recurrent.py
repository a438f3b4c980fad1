from tests.support.kernels import Case, uniform


def lstm(batch: int, hidden: int) -> list[Case]:
    gates, state = (batch, 4 * hidden), (batch, hidden)
    kept = (uniform(gates, 0, 1), uniform(state, -2, 2))
    close = {"rtol": 2e-6, "atol": 2e-6, "outputs": (0, 1), "gradient": hidden < 20}
    cases = [Case("LstmCell", (gates,), **close), Case("LstmCell", (gates, gates, state), **close)]
    for before in (False, True):
        for hiddens in (0, 1, 2):
            for cells in (0, 1):
                inputs = (*kept, *(state,) * (before + hiddens + cells))
                cases.append(Case("LstmCellGrad", inputs, {"before": before, "gradients": hiddens}, 2e-6, 2e-6))
    return cases


def gru(batch: int, hidden: int) -> list[Case]:
    row, state = (batch, 3 * hidden), (batch, hidden)
    kept = (uniform((batch, 4 * hidden), 0, 1), state)
    forward = Case("GruCell", (row, row, state), {}, 2e-6, 2e-6, hidden < 20, outputs=(0,))
    return [
        forward,
        *(Case("GruCellGrad", (*kept, *(state,) * n), {"gradients": n}, 2e-6, 2e-6) for n in (1, 2, 3)),
    ]


CASES = [case for make in (lstm, gru) for sizes in ((1, 1), (2, 5), (3, 37)) for case in make(*sizes)]
