import numpy as np

from poetc.graph import Attribute
from tests.support.kernels import Case, Input, integers

S = (2, 3, 4)


def types(kind: str, of: tuple[int, ...], /, **attributes: Attribute) -> list[Case]:
    """As floats, 32-bit integers and bytes."""
    inputs: list[Input] = [of, integers(of, -9, 9), integers(of, 0, 9, np.uint8)]
    return [Case(kind, (x,), attributes) for x in inputs]


CASES = [
    *types("Transpose", S, perm=(2, 0, 1)),
    *(Case("Transpose", (S,), {"perm": p}) for p in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 1, 0))),
    # squares of rows that are columns of x, and what is left beside them
    *(
        Case("Transpose", ((3, 9, 6, 10),), {"perm": p})
        for p in ((0, 1, 3, 2), (0, 2, 3, 1), (3, 0, 1, 2), (2, 3, 1, 0))
    ),
    Case("Transpose", ((),), {"perm": ()}),
    *types("Slice", (5, 6), starts=(1, 5), sizes=(2, 3), steps=(3, -2)),
    Case("Slice", ((5, 6),), {"starts": (1, 0), "sizes": (3, 6)}),
    Case("Slice", ((4, 5, 6),), {"starts": (0, 3, 0), "sizes": (4, 1, 6)}),
    Case("Slice", ((5, 6),), {"starts": (4, 2), "sizes": (5, 1), "steps": (-1, 1)}),
    Case("SliceGrad", ((2, 3),), {"starts": (1, 5), "sizes": (2, 3), "steps": (3, -2), "shape": (5, 6)}),
    Case("Concat", ((2, 3), (2, 1), (2, 2)), {"axis": 1}),
    Case("Concat", ((2, 3), (1, 3)), {"axis": -2}),
    Case("Concat", (integers((2, 3), 0, 9, np.uint8), integers((2, 2), 0, 9, np.uint8)), {"axis": 1}),
    Case("Split", ((2, 6),), {"axis": 1, "sizes": (1, 3, 2)}),
    Case("Split", ((4, 3),), {"axis": 0, "sizes": (1, 3)}),
    Case("Split", ((4, 3, 5),), {"axis": 1, "sizes": (1, 2)}),
    Case("Split", ((2, 3),), {"axis": -1, "sizes": (3,)}),
    *types("Expand", (3, 1), shape=(2, 3, 4)),
    Case("Expand", ((),), {"shape": (2, 2)}),
    Case("Expand", ((1, 4),), {"shape": (3, 4)}),
    *types("Tile", (2, 3), repeats=(3, 2)),
    Case("Tile", ((2, 3),), {"repeats": (1, 1)}),
    Case("Tile", ((2, 1, 3),), {"repeats": (1, 4, 2)}),
    *(case for to in ("f32", "i32", "u8") for case in types("Cast", S, to=to) if to == "f32" or case.inputs[0] != S),
    *(Case("Cast", (np.float32([0, 0.4, -1.7, 2.5, 3e9, -3e9, np.nan]),), {"to": to}) for to in ("i32", "u8")),
    *(
        Case("CumSum", ((2, 4, 3),), {"axis": axis, "exclusive": exclusive, "reverse": reverse})
        for axis, exclusive, reverse in ((0, 0, 0), (1, 1, 0), (-1, 0, 1), (1, 1, 1))
    ),
]
