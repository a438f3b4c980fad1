from typing import Any

import numpy as np

from tests.support.kernels import Case, Make, integers


def special(shape: tuple[int, ...]) -> Make:
    """Zeros of both signs, a NaN, infinities, and the smallest number among normal ones."""

    def make(random: np.random.Generator) -> Any:
        x = random.standard_normal(shape).astype(np.float32)
        x.ravel()[:7] = (0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45)
        return x

    return make


RECTIFIERS: list[dict[str, Any]] = [
    {"activation": "Relu"},
    {"activation": "LeakyRelu", "alpha": 0.25},
    {"activation": "LeakyRelu", "alpha": 0.0},
    {"activation": "Clip", "min": 0.0, "max": 0.5},
]
SHAPES = [(7,), (2, 3, 7), (1, 8, 16), (5, 33)]

CASES = [
    *(
        Case("SlopeBits", (special(shape),), attributes, rtol=0, atol=0)
        for attributes in RECTIFIERS
        for shape in SHAPES
    ),
    *(
        Case(
            "SlopeGrad",
            (integers((-(-int(np.prod(shape)) // 8),), 0, 256, dtype=np.uint8), shape),
            attributes,
            rtol=0,
            atol=0,
        )
        for attributes in RECTIFIERS
        for shape in SHAPES
    ),
    *(Case("PackNibbles", (integers(shape, 0, 16, dtype=np.uint8),)) for shape in SHAPES),
    *(
        Case("UnpackNibbles", (integers((-(-int(np.prod(s)) // 2),), 0, 256, dtype=np.uint8),), {"shape": s})
        for s in SHAPES
    ),
]
