import numpy as np

from poetc.graph import Attribute
from tests.support.kernels import Case, distinct, integers

SHAPE = (2, 3, 7, 9)
GEOMETRIES: list[dict[str, Attribute]] = [
    {"kernel": (2, 2), "strides": (2, 2)},
    {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)},
    {"kernel": (3, 2), "strides": (2, 3), "pads": (1, 0, 2, 1)},
    {"kernel": (3, 3), "strides": (2, 2), "ceil_mode": True},
    {"kernel": (2, 3), "strides": (3, 4), "pads": (0, 2, 1, 0), "ceil_mode": True},
    {"kernel": (2, 3), "strides": (1, 2), "dilations": (3, 2), "pads": (1, 2, 1, 1)},
    {"kernel": (7, 9)},
    {"kernel": (1, 1), "strides": (2, 2)},
]
OUTPUTS = [(3, 4), (4, 5), (4, 3), (3, 4), (3, 3), (6, 4), (1, 1), (4, 5)]


def cases() -> list[Case]:
    result = []
    for geometry, output in zip(GEOMETRIES, OUTPUTS, strict=True):
        gy, image = (*SHAPE[:2], *output), {"input_size": SHAPE[2:]}
        # Tap 0 would lie in the leading pad of a first window, so only geometries without pads get random taps.
        if "pads" not in geometry and not geometry.get("ceil_mode"):
            kernel = geometry["kernel"]
            assert isinstance(kernel, tuple)
            where = integers(gy, 0, int(kernel[0] * kernel[1]), dtype=np.uint8)
            result.append(Case("MaxPoolGrad", (where, gy), {**geometry, **image}))
        result.append(Case("MaxPool", (distinct(SHAPE),), geometry))
        for include in (False, True):
            attributes = {**geometry, "count_include_pad": include}
            result.append(Case("AveragePool", (SHAPE,), attributes))
            result.append(Case("AveragePoolGrad", (gy,), {**attributes, **image}))
    return result


CASES = [
    *cases(),
    Case("MaxPool", (distinct((1, 2, 20, 18)),), {"kernel": (17, 16), "strides": (2, 1)}, note="wide"),
    Case("MaxPool", (integers((1, 2, 6, 6), 0, 3, np.float32),), {"kernel": (3, 3)}, gradient=False),
    Case(
        "MaxPool", (integers((2, 3, 9, 71), 0, 3, np.float32),), {"kernel": (2, 2), "strides": (2, 2)}, gradient=False
    ),
]
