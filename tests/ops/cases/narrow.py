from typing import Any

import numpy as np

from poetc.graph import DType
from poetc.ops.narrow import stored
from tests.ops.cases.encoding import ranges, special
from tests.support.kernels import Case, Make, integers

FORMATS = ("f16", "bf16")


def narrow(shape: tuple[int, ...], dtype: str, scale: int = 0) -> Make:
    """Numbers that are stored in 16 bits."""
    return lambda random: stored(random.standard_normal(shape).astype(np.float32), DType(dtype), scale)


def floats(shape: tuple[int, ...]) -> Make:
    return lambda random: random.standard_normal(shape).astype(np.float32)


def finite(shape: tuple[int, ...]) -> Make:
    """Of every magnitude that f16 can hold, down to those that it makes zero."""

    def make(random: np.random.Generator) -> Any:
        x = random.standard_normal(shape) * 2.0 ** random.integers(-30, 12, shape)
        x.ravel()[:2] = (0.0, -0.0)
        return x.astype(np.float32)

    return make


def case(of: str, dtype: str, operands: list[tuple[Any, int]], outputs: int = 1, **attributes: Any) -> Case:
    """`operands`: shapes with their forms, inputs, then outputs (whose shapes are not looked at)."""
    inputs = operands[:-outputs]
    scale = 3 if dtype == "f16" else 0
    scales = tuple(scale if form else 0 for _, form in operands)
    makes = tuple(
        shape if callable(shape) else narrow(shape, dtype, scale) if form == 1 else floats(shape)
        for shape, form in inputs
    )
    forms = tuple(form for _, form in operands)
    return Case(
        "Narrowed", makes, {"of": of, "dtype": dtype, "forms": forms, "scales": scales, **attributes}, rtol=0, atol=0
    )


def sgd(
    of: str, dtype: str, weight: tuple[int, ...], x: tuple[int, ...], gy: tuple[int, ...], **attributes: Any
) -> Case:
    makes = (floats(weight), narrow(x, dtype), narrow(gy, dtype), floats((1,)))
    given = {"of": of, "dtype": dtype, "forms": (1, 1, 0), "scales": (0, 0, 0), **attributes}
    return Case("NarrowedSgd", makes, given, rtol=0, atol=0)


def windows(*pads: int, strides: tuple[int, int] = (1, 1), dilations: tuple[int, int] = (1, 1), group: int = 1) -> Any:
    return {"pads": pads, "strides": strides, "dilations": dilations, "group": group}


def convolutions(dtype: str) -> list[Case]:
    """Plain, strided with dilation, in groups, depthwise, pointwise; taps and terms beyond a block."""
    found: list[Case] = []
    for n, channels, size, outputs, kernel, geometry in (
        (2, 3, (7, 9), 5, (3, 3), windows(1, 1, 1, 1)),
        (1, 4, (11, 8), 18, (3, 2), windows(2, 0, 1, 3, strides=(2, 3), dilations=(2, 1))),
        (2, 4, (6, 6), 6, (3, 3), windows(1, 1, 1, 1, group=2)),
        (1, 5, (8, 9), 5, (3, 3), windows(1, 1, 1, 1, strides=(2, 2), group=5)),
        (2, 3, (9, 5), 3, (7, 5), windows(3, 2, 3, 2, group=3)),
        (1, 2, (11, 42), 2, (3, 2), windows(2, 0, 1, 3, strides=(2, 3), dilations=(2, 1), group=2)),
        (2, 2, (8, 7), 2, (2, 3), windows(1, 3, 0, 2, strides=(3, 1), dilations=(3, 2), group=2)),
        (1, 70, (5, 7), 67, (1, 1), windows(0, 0, 0, 0)),
    ):
        extents = [(k - 1) * d + 1 for k, d in zip(kernel, geometry["dilations"], strict=True)]
        pads = geometry["pads"]
        out = tuple((size[i] + pads[i] + pads[i + 2] - extents[i]) // geometry["strides"][i] + 1 for i in range(2))
        x, w, gy = (n, channels, *size), (outputs, channels // geometry["group"], *kernel), (n, outputs, *out)
        found += [
            case("Conv", dtype, [(x, 1), (w, 2), ((outputs,), 0), (gy, 1)], **geometry),
            case("Conv", dtype, [(x, 2), (w, 2), (gy, 1)], **geometry),
            case("ConvGradInput", dtype, [(gy, 1), (w, 2), (x, 1)], **geometry, input_size=size),
            case("ConvGradWeight", dtype, [(x, 1), (gy, 1), (w, 0)], **geometry, kernel=kernel),
            case("ConvGradWeight", dtype, [(x, 2), (gy, 1), (w, 0)], **geometry, kernel=kernel),
            sgd("ConvGradWeight", dtype, w, x, gy, **geometry, kernel=kernel),
        ]
    return found


def products(dtype: str) -> list[Case]:
    return [
        case("MatMul", dtype, [((3, 130), 1), ((130, 40), 2), ((40,), 0), ((3, 40), 1)]),
        case("MatMul", dtype, [((9, 70), 1), ((10, 70), 2), ((9, 10), 0)], trans_b=True),
        case("MatMul", dtype, [((1, 70), 1), ((10, 70), 2), ((1, 10), 0)], trans_b=True),
        case("MatMul", dtype, [((2, 5, 8), 1), ((8, 33), 2), ((2, 5, 33), 1)]),
        case("MatMul", dtype, [((5, 66), 1), ((5, 9), 1), ((66, 9), 0)], trans_a=True),
        sgd("MatMul", dtype, (66, 9), (5, 66), (5, 9), trans_a=True),
        sgd("MatMul", dtype, (66, 9), (2, 66), (2, 9), trans_a=True),
    ]


def slices(dtype: str) -> list[Case]:
    """Sizes around a whole number of slices, with bytes that are read as they are."""
    pool = {"kernel": (2, 2), "strides": (2, 2)}
    found = [case("Add", dtype, [(shape, 1), (shape, 1), (shape, 1)]) for shape in [(7,), (2, 128), (3, 5, 43)]]
    found += [case("Relu", dtype, [(shape, 1), (shape, 1)]) for shape in [(1,), (2, 64), (257,)]]
    # The reference makes zeros with a sign, which the kernel does not: so the result is compared as floats.
    found += [case("ReluGrad", dtype, [((2, 3, 45), 1), ((2, 3, 45), form), ((2, 3, 45), 0)]) for form in (0, 1)]
    found.append(case("Clip", dtype, [((300,), 1), ((300,), 0)], min=0.0, max=0.5))
    for n, c, h, w in ((2, 5, 6, 10), (1, 1, 4, 4), (1, 33, 4, 6)):
        half = (n, c, h // 2, w // 2)
        where = integers(half, 0, 4, dtype=np.uint8)
        found += [
            case("MaxPool", dtype, [((n, c, h, w), 1), (half, 1), (half, 0)], 2, **pool),
            case("MaxPoolGrad", dtype, [(where, 0), (half, 1), ((n, c, h, w), 1)], **pool, input_size=(h, w)),
            case("AveragePool", dtype, [((n, c, h, w), 1), (half, 1)], **pool),
            case("AveragePoolGrad", dtype, [(half, 1), ((n, c, h, w), 1)], **pool, input_size=(h, w)),
        ]
    return found


def sums(dtype: str) -> list[Case]:
    return [
        case("ReduceSum", dtype, [((3, 5, 7, 13), 1), ((5,), 0)], axes=(0, 2, 3), keepdims=False),
        case("ReduceSum", dtype, [((70, 9), 1), ((9,), 0)], axes=(0,), keepdims=False),
    ]


CASES = [
    Case("Narrow", (ranges((5, 33)),), {"dtype": "bf16"}, rtol=0, atol=0),
    Case("Narrow", (special((2, 3, 7)),), {"dtype": "bf16"}, rtol=0, atol=0),
    *(Case("Narrow", (finite((5, 33)),), {"dtype": "f16", "scale": scale}, rtol=0, atol=0) for scale in (0, 3)),
    *(
        Case("Widen", (integers((5, 33), 0, 1 << 16, dtype=np.uint16),), {"dtype": dtype}, rtol=0, atol=0)
        for dtype in FORMATS
    ),
    Case("Widen", (narrow((3, 50), "f16", 10),), {"dtype": "f16", "scale": 10}, rtol=0, atol=0),
    *(made for dtype in FORMATS for make in (convolutions, products, slices, sums) for made in make(dtype)),
]
