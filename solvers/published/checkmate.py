"""Checkmate: optimal rematerialization by a MILP.

Source: Jain, Jain, Nrusimha, Gholami, Abbeel, Gonzalez, Keutzer, Stoica, MLSys 2020, section 4.

To the stages of `_stages` it adds FREE[t,i,k], "i is freed right after k in stage t", with the number of hazards

    h = (1 - R[t,k]) + S[t+1,i] + sum of R[t,j] over the readers j > k of i,    h <= (largest h) (1 - FREE[t,i,k]),

The memory while k runs is U[t,k], all at most the budget (equations 2 to 9):

    U[t,0] = held at the start + made by 0,    U[t,k+1] = U[t,k] + made by k+1 - freed after k.

 The lower side, 1 - FREE <= h, only forbids freeing less, and is
left out.
"""

from __future__ import annotations

from poetc.scheduling import Problem, Repetition, Schedule, SolveOptions
from poetc.solvers.interface import Progress, SolverInfo
from poetc.solvers.published._rounding import start_of
from poetc.solvers.published._stages import Linear, StageModel, build, solve_exactly

INFO = SolverInfo(
    name="checkmate",
    title="Checkmate's MILP",
    citation="P. Jain et al., Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization, MLSys 2020",
    energy=True,
    proof=True,
    milp=True,
    most_operators=160,  # T^2 is some 25,000 binaries then
    notes="Of the order of T^2 binaries: up to 160 operators. Recomputation only, no optional in-place.",
    read="section 4",
    differs="state that is overwritten stays in RAM; layers",
    checked="equal to our optimum without paging",
)


class Checkmate(StageModel):
    def memory(self) -> None:
        self.FREE: list[tuple[int, int, int, int, list[int]]] = []  # column, t, i, k, the readers of i after k
        for t in range(self.n):
            used = self._start(t)
            for k in range(t + 1):
                if k == t or (t, k) in self.R:
                    used = self._step(t, k, used)

    def _start(self, t: int) -> int:
        """The column for the RAM that is held when the stage begins."""
        column = self.mip.column(integer=False)
        terms = [(self.held(t, i), self.weight[i]) for i in self.free_tensors]
        self.at_most(*terms, (([(column, 1.0)], 0.0), -1.0), limit=0.0)
        return column

    def _step(self, t: int, k: int, before: int) -> int:
        """The column for the RAM after k. Its outputs and workspace fit beside `before`; unneeded tensors are freed."""
        output_share = sum(self.weight[i] for i in self.outputs[k])
        extra = output_share + self.model.workspace[k] / self.room
        self.at_most((([(before, 1.0)], 0.0), 1.0), (self.executed(t, k), extra), limit=1.0)
        after = self.mip.column(integer=False)
        freed: Linear = []
        for i in dict.fromkeys((*self.inputs[k], *self.outputs[k])):
            free = self.mip.column()
            later = [j for j in self.model.consumers[i] if k < j <= t]
            self.FREE.append((free, t, i, k, later))
            hazards = [(self.executed(t, j), 1.0) for j in later]
            stays = self.held(t + 1, i)
            largest = 2.0 + len(later)
            self.at_most(
                (([], 1.0), 1.0),
                (self.executed(t, k), -1.0),
                (stays, 1.0),
                *hazards,
                (([(free, 1.0)], 0.0), largest),
                limit=largest,
            )
            freed.append((free, self.weight[i]))
        self.at_most(
            (([(before, 1.0)], 0.0), 1.0),
            (self.executed(t, k), output_share),
            ((freed, 0.0), -1.0),
            (([(after, 1.0)], 0.0), -1.0),
            limit=0.0,
        )
        return after

    def start(self, codes: list[int]) -> dict[int, float]:
        values = super().start(codes)

        def value_of(linear: tuple[Linear, float]) -> float:
            return linear[1] + sum(values[column] for column, _ in linear[0])

        for free, t, i, k, later in self.FREE:
            hazards = value_of(self.held(t + 1, i)) + sum(value_of(self.executed(t, j)) for j in later)
            values[free] = float(value_of(self.executed(t, k)) > 0 and hazards == 0)
        return values


def solve(problem: Problem, options: SolveOptions, progress: Progress | None = None) -> Schedule:
    """Raises UnsupportedProblemError (too large, tensors on the store), InfeasibleError, LimitError."""
    baseline, stages = build(INFO, Checkmate, problem, options, progress)
    start = start_of(INFO, Checkmate, problem, options)
    return solve_exactly(baseline, stages, Repetition.CHECKMATE, start)
