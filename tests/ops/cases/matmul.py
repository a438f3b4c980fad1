from tests.support.kernels import Case, Input

# (M, K, N) around the 4 x 4 and 2 x 2 register blocks, and sums longer than a partial sum.
SIZES = [(4, 8, 4), (1, 5, 1), (3, 7, 2), (5, 3, 9), (6, 1, 6), (2, 4, 11), (13, 10, 3)]
BATCHES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((2,), (2,)),
    ((3,), ()),
    ((), (3,)),
    ((3,), (1,)),
    ((2, 3), (3,)),
    ((2, 1), (1, 3)),
    ((2, 1, 2), (3, 1)),
]


def product(
    m: int,
    k: int,
    n: int,
    trans_a: bool,
    trans_b: bool,
    batch: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
    bias: bool = False,
    alpha: float = 1.0,
    gradient: bool = True,
) -> Case:
    a = (*batch[0], k, m) if trans_a else (*batch[0], m, k)
    b = (*batch[1], n, k) if trans_b else (*batch[1], k, n)
    inputs: tuple[Input, ...] = (a, b, (n,)) if bias else (a, b)
    attributes = {"trans_a": trans_a, "trans_b": trans_b, "alpha": alpha}
    return Case("MatMul", inputs, attributes, 1e-5, 2e-5, gradient)


CASES = [
    product(*size, trans_a, trans_b, bias=i % 2 == 0, alpha=0.5 if i % 3 == 0 else 1.0)
    for trans_a in (False, True)
    for trans_b in (False, True)
    for i, size in enumerate(SIZES)
]
CASES += [
    product(3, 5, 4, trans_a, trans_b, batch, bias=i % 2 == 0)
    for trans_a in (False, True)
    for trans_b in (False, True)
    for i, batch in enumerate(BATCHES)
]
CASES += [
    product(5, 1030, 6, trans_a, trans_b, gradient=False) for trans_a in (False, True) for trans_b in (False, True)
]
CASES.append(Case("MatMul", ((2, 3), (3, 4)), {}, 1e-5, 1e-5))
