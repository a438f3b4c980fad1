from poetc.graph import Attribute
from poetc.ops.resize import COORDINATES
from poetc.ops.resize import NEAREST as NEAREST_ROUNDINGS
from tests.support.kernels import Case

LINEAR: list[dict[str, Attribute]] = [
    {"mode": "linear", "sizes": sizes, "coordinates": coordinates}
    for sizes in ((7, 9), (2, 3), (1, 1))
    for coordinates in COORDINATES
] + [{"mode": "linear", "sizes": (6, 7), "scales": (1.5, 1.5), "coordinates": "align_corners"}]
NEAREST: list[dict[str, Attribute]] = [
    {"mode": "nearest", "sizes": (7, 3), "coordinates": "half_pixel", "nearest": nearest}
    for nearest in NEAREST_ROUNDINGS
] + [{"mode": "nearest", "sizes": (8, 10), "scales": (2.0, 2.0), "coordinates": "asymmetric", "nearest": "floor"}]

CASES = [
    *(Case("Resize", ((1, 2, 4, 5),), a) for a in (*LINEAR, *NEAREST)),
    *(Case("ResizeGrad", ((1, 2, *a["sizes"]),), {**a, "shape": (1, 2, 4, 5)}) for a in (*LINEAR, *NEAREST)),
    Case("Resize", ((2, 1, 1, 4),), {"mode": "linear", "sizes": (1, 7), "scales": (1.0, 1.8)}),
]
