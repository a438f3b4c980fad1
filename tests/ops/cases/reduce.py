import numpy as np

from tests.support.kernels import Case, distinct, uniform

S = (2, 3, 4, 5)
AXES: list[tuple[int, ...]] = [(0, 1, 2, 3), (3,), (0,), (1, 2), (0, 2, 3), (0, 3), ()]
SMOOTH = ("ReduceSum", "ReduceMean", "ReduceL2", "ReduceLogSumExp")

CASES = [
    *(
        Case(kind, ((2, 3, 1, 2),), {"axes": axes, "keepdims": keep})
        for kind in SMOOTH
        for axes in AXES
        for keep in (0, 1)
    ),
    *(Case("ReduceL1", (uniform((2, 3, 4), avoid=(0,)),), {"axes": axes}) for axes in ((2,), (0,))),
    *(
        Case(kind, (distinct((2, 3, 4)),), {"axes": a})
        for kind in ("ReduceMax", "ReduceMin")
        for a in AXES[1:4]
        if max(a) < 3
    ),
    *(
        Case(kind, (distinct((2, 3, 4)),), {"axes": axes})
        for kind in ("ReduceMax", "ReduceMin")
        for axes in ((0,), (1, 2), (1,))
    ),
    Case("ReduceMaxGrad", (np.float32([[1, 2, 2], [3, 0, 1]]), np.float32([[2], [3]]), (2, 1)), {"axes": (1,)}),
    Case("ReduceProd", (uniform((2, 3, 4), 0.5, 2),), {"axes": (1,), "keepdims": False}),
    Case("ReduceProd", (np.float32([[1, 2, 3], [0, 2, 3], [0, 0, 3]]),), {"axes": (1,)}, note="zeros"),
    Case("ReduceProdGrad", (np.float32([[1, 2, 3], [0, 2, 3], [0, 0, 3]]), (3, 1)), {"axes": (1,)}),
    *(Case("ReduceSum", (S,), {"axes": axes}, gradient=False) for axes in AXES),
    Case("ReduceSum", ((),), {"axes": ()}),
    Case("ReduceSum", ((3, 4),), {}, note="all"),
    # long sums: 1e-6 of the terms' magnitude, whichever way they lie in memory
    Case("ReduceSum", (uniform((40_000, 2), 0, 1),), {"axes": (0,)}, gradient=False, atol=0),
    Case("ReduceSum", (uniform((2, 40_000), 0, 1),), {"axes": (1,)}, gradient=False, atol=0),
    Case("ReduceMean", (uniform((20_000, 2, 7), 0, 1),), {"axes": (0, 2)}, gradient=False, atol=0),
    Case("ReduceLogSumExp", (uniform((3, 20_000), 50, 90),), {"axes": (1,)}, gradient=False, atol=0),
    *(
        Case(kind, ((2, 3, 4),), {"axis": axis, "keepdims": keep})
        for kind in ("ArgMax", "ArgMin")
        for axis, keep in ((0, 1), (1, 0), (-1, 1))
    ),
    Case("ArgMax", (np.float32([[1, 3, 3, 2]]),), {"axis": 1}, note="ties"),
    *(
        Case("TopK", ((2, 5, 3),), {"axis": axis, "k": k, "largest": largest})
        for axis, k in ((0, 1), (1, 3), (2, 3), (-1, 2))
        for largest in (True, False)
    ),
    Case("TopK", (np.float32([[1, 3, 3, 2, 3, -np.inf]]),), {"axis": 1, "k": 6}, note="ties"),
]
