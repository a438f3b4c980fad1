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


def views(
    inputs: tuple[Input, ...],
    sizes: tuple[int, ...],
    a: tuple[int, ...],
    b: tuple[int, ...],
    y: tuple[int, ...],
    shape: tuple[int, ...],
    alpha: float = 1.0,
) -> Case:
    """`sizes` are (batch..., M, N, K); views begin with their first element."""
    attributes = {"sizes": sizes, "a": a, "b": b, "y": y, "shape": shape, "alpha": alpha, "terms": min(sizes[-1], 64)}
    return Case("MatMulOfViews", inputs, attributes, 1e-5, 2e-5, False)


# Queries and keys, three heads of five columns, within rows of 45; scores times values, which are written by rows of
# heads; a transposed left operand; one matrix for the whole batch, whose rows join and whose rows cannot; a bias.
QKV = (2, 14, 45)
SCORES, BY_HEAD = (0, 588, 196, 14, 1), (0, 210, 5, 15, 1)
CASES += [
    views((QKV,) * 2, (2, 3, 14, 14, 5), (0, 630, 5, 45, 1), (15, 630, 5, 1, 45), SCORES, (2, 3, 14, 14), 0.4),
    views(((2, 3, 14, 14), QKV), (2, 3, 14, 5, 14), SCORES, (30, 630, 5, 45, 1), BY_HEAD, (2, 14, 15)),
    views(((2, 3, 14, 14), QKV), (2, 3, 14, 5, 14), (0, 588, 196, 1, 14), (30, 630, 5, 45, 1), BY_HEAD, (2, 14, 15)),
    views(((2, 9, 30), (70, 8)), (2, 9, 8, 70 - 40), (0, 270, 30, 1), (80, 0, 8, 1), (0, 72, 8, 1), (2, 9, 8)),
    views(((9, 2, 30), (30, 8), (8,)), (2, 9, 8, 30), (0, 30, 60, 1), (0, 0, 8, 1), (0, 72, 8, 1), (2, 9, 8), 0.5),
    views(((10, 70), (70, 1)), (10, 1, 70), (0, 70, 1), (0, 1, 1), (0, 1, 1), (10, 1)),
    views(((9, 12), (2, 8, 16)), (2, 9, 16, 8), (96, 0, -12, 1), (0, 128, 16, 1), (0, 144, 16, 1), (2, 9, 16)),
    views(((70, 33), (6, 70)), (33, 6, 70), (0, 1, 33), (0, 1, 70), (0, 6, 1), (33, 6)),
]  # fmt: skip
