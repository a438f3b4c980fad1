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


def ranges(shape: tuple[int, ...]) -> Make:
    """Of every magnitude that f16 can hold, and of some that it rounds to zero."""

    def make(random: np.random.Generator) -> Any:
        x = random.standard_normal(shape) * 2.0 ** random.integers(-30, 20, shape)
        return np.clip(x, -65504.0, 65504.0).astype(np.float32)

    return make


def in_int8(shape: tuple[int, ...]) -> Make:
    """Bytes, and the scales of their blocks."""

    def make(random: np.random.Generator) -> Any:
        count = int(np.prod(shape))
        scales = random.uniform(1e-3, 2, -(-count // 128)).astype(np.float32)
        return np.concatenate([random.integers(0, 256, -(-count // 4) * 4).astype(np.uint8), scales.view(np.uint8)])

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
    *(
        Case("Encode", (make(shape),), {"format": form}, rtol=0, atol=0)
        for form in ("f16", "bf16", "int8")
        for make in (special, ranges)
        for shape in SHAPES
    ),
    *(
        Case("Decode", (integers((2 * int(np.prod(s)),), 0, 256, dtype=np.uint8),), {"format": form, "shape": s}, 0, 0)
        for form in ("f16", "bf16")
        for s in SHAPES
    ),
    *(Case("Decode", (in_int8(s),), {"format": "int8", "shape": s}, rtol=0, atol=0) for s in SHAPES),
    *(Case("PackNibbles", (integers(shape, 0, 16, dtype=np.uint8),)) for shape in SHAPES),
    *(
        Case("UnpackNibbles", (integers((-(-int(np.prod(s)) // 2),), 0, 256, dtype=np.uint8),), {"shape": s})
        for s in SHAPES
    ),
]
