from poetc.graph import Attribute
from tests.support.kernels import Case

LINEAR = [
    {"mode": "linear", "sizes": sizes, "coordinates": coordinates}
    for sizes in ((7, 9), (2, 3), (1, 1))
    for coordinates in ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
]
NEAREST: list[dict[str, Attribute]] = [
    {"mode": "nearest", "sizes": (7, 3), "coordinates": "half_pixel", "nearest": nearest}
    for nearest in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
] + [{"mode": "nearest", "sizes": (8, 10), "scales": (2.0, 2.0), "coordinates": "asymmetric", "nearest": "floor"}]

CASES = [
    *(Case("Resize", ((1, 2, 4, 5),), a) for a in (*LINEAR, *NEAREST)),
    *(Case("ResizeGrad", ((1, 2, *a["sizes"]),), {**a, "shape": (1, 2, 4, 5)}) for a in (*LINEAR, *NEAREST)),
    Case("Resize", ((2, 1, 1, 4),), {"mode": "linear", "sizes": (1, 7), "scales": (1.0, 1.8)}),
]
