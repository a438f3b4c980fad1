from typing import Any

import numpy as np

from poetc.graph import DType
from poetc.ops.narrow import stored
from tests.ops.cases.few_bits import FLOATS
from tests.support.kernels import Case, Make

CHUNKS: dict[str, Any] = {"dtype": "bf16", **FLOATS["fp16"]}


def eighths(shape: tuple[int, ...], narrow: bool, scale: float = 1.0) -> Make:
    """Floats of 3 bits of many magnitudes, so that most additions are rounded."""

    def make(random: np.random.Generator) -> Any:
        x = random.integers(-7, 8, shape) * 2.0 ** random.integers(-6, 3, shape) * scale
        return stored(x.astype(np.float32), DType.BF16) if narrow else x.astype(np.float32)

    return make


def case(of: str, operands: list[tuple[tuple[int, ...], int]], chunk: int = 64, power: int = 0, **more: Any) -> Case:
    *inputs, _ = operands
    makes = tuple(eighths(shape, form == 1, 2.0**power if i == 0 else 1.0) for i, (shape, form) in enumerate(inputs))
    forms = tuple(form for _, form in operands)
    given = {**CHUNKS, "of": of, "forms": forms, "scales": (0,) * len(forms), "chunk": chunk, "power": power}
    return Case("NarrowedChunks", makes, {**given, **more}, rtol=0, atol=0)


def convolutions() -> list[Case]:
    """Plain with a bias, strided with dilation, in groups, depthwise."""
    found: list[Case] = []
    for x, w, gy, more in (
        ((2, 3, 5, 6), (4, 3, 3, 3), (2, 4, 5, 6), {"pads": (1, 1, 1, 1)}),
        ((1, 2, 9, 7), (3, 2, 3, 2), (1, 3, 4, 3), {"pads": (2, 0, 1, 1), "strides": (2, 3), "dilations": (2, 1)}),
        ((2, 4, 4, 4), (6, 2, 3, 3), (2, 6, 4, 4), {"pads": (1, 1, 1, 1), "group": 2}),
        ((1, 3, 5, 5), (3, 1, 3, 3), (1, 3, 3, 3), {"group": 3}),
    ):
        found += [
            case("Conv", [(x, 1), (w, 0), ((w[0],), 0), (gy, 0)], 7, **more),
            case("ConvGradInput", [(gy, 1), (w, 1), (x, 0)], power=-10, **more, input_size=x[2:]),
            case("ConvGradWeight", [(x, 0), (gy, 1), (w, 0)], 16, **more, kernel=w[2:]),
        ]
    return found


CASES = [
    case("MatMul", [((3, 150), 1), ((150, 5), 1), ((5,), 0), ((3, 5), 0)]),
    case("MatMul", [((70, 3), 0), ((5, 70), 1), ((3, 5), 0)], 32, -10, trans_a=True, trans_b=True),
    case("MatMul", [((2, 4, 9), 1), ((9, 5), 1), ((2, 4, 5), 0)], 1),
    case("MatMul", [((4, 40), 1), ((40, 6), 1), ((4, 6), 0)], 5, low=-6, mantissa=0, largest=64.0),
    case("MatMul", [((4, 40), 1), ((40, 6), 1), ((4, 6), 0)], 5, low=0, mantissa=1, largest=48.0),
    case("MatMul", [((4, 40), 1), ((40, 6), 1), ((4, 6), 0)], 64, low=-30, mantissa=22),
    *convolutions(),
]
