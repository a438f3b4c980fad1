from collections.abc import Mapping
from typing import Any

from poetc.graph import Attribute
from tests.support.kernels import Case

TOLERANCE = 1e-5

# (image, weight, attributes): strides, asymmetric pads, dilations, groups, depthwise, odd sizes, 1x1.
GEOMETRIES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Attribute]]] = [
    ((2, 3, 7, 9), (5, 3, 3, 3), {}),
    ((1, 1, 5, 5), (1, 1, 5, 5), {"pads": (2, 2, 2, 2)}),
    ((2, 4, 6, 11), (6, 4, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((2, 3, 9, 12), (4, 3, 3, 2), {"strides": (2, 3), "pads": (1, 0, 2, 1)}),
    ((1, 2, 11, 13), (5, 2, 3, 3), {"dilations": (2, 3), "pads": (0, 3, 1, 2)}),
    ((1, 2, 9, 10), (4, 2, 3, 4), {"strides": (2, 2), "dilations": (2, 3), "pads": (2, 4, 1, 5)}),
    ((1, 2, 10, 11), (3, 2, 2, 3), {"strides": (3, 4), "dilations": (2, 2), "pads": (1, 2, 0, 1)}),
    ((2, 6, 5, 6), (9, 2, 3, 3), {"group": 3, "pads": (1, 1, 1, 1)}),
    ((2, 8, 6, 7), (12, 4, 2, 2), {"group": 2, "strides": (2, 1)}),
    ((2, 5, 7, 9), (5, 1, 3, 3), {"group": 5, "pads": (1, 1, 1, 1)}),
    ((1, 3, 8, 8), (6, 1, 3, 3), {"group": 3, "strides": (2, 2), "pads": (0, 0, 1, 1)}),
    ((2, 6, 3, 5), (7, 6, 1, 1), {}),
    ((2, 6, 6, 5), (7, 6, 1, 1), {"strides": (2, 2)}),
    ((1, 3, 1, 17), (4, 3, 1, 5), {"pads": (0, 2, 0, 2), "strides": (1, 2)}),
    ((1, 2, 2, 2), (4, 2, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 2, 4, 1), (2, 2, 1, 3), {"strides": (1, 5), "pads": (0, 3, 0, 3)}),
    ((1, 2, 4, 2), (3, 2, 2, 1), {"strides": (3, 5)}),
]


def output_shape(
    image: tuple[int, ...], weight: tuple[int, ...], attributes: Mapping[str, Attribute]
) -> tuple[int, ...]:
    strides, dilations = attributes.get("strides", (1, 1)), attributes.get("dilations", (1, 1))
    pads = attributes.get("pads", (0, 0, 0, 0))
    assert isinstance(strides, tuple) and isinstance(dilations, tuple) and isinstance(pads, tuple)
    size = [
        int((image[2 + i] + pads[i] + pads[i + 2] - dilations[i] * (weight[2 + i] - 1) - 1) // strides[i]) + 1
        for i in (0, 1)
    ]
    return (image[0], weight[0], *size)


def three(
    image: tuple[int, ...], weight: tuple[int, ...], attributes: Mapping[str, Attribute], bias: bool, **options: Any
) -> list[Case]:
    """A convolution and both of its gradients."""
    y = output_shape(image, weight, attributes)
    operands: tuple[tuple[int, ...], ...] = (image, weight, (weight[0],)) if bias else (image, weight)
    size, kernel = {"input_size": image[2:]}, {"kernel": weight[2:]}
    return [
        Case("Conv", operands, attributes, TOLERANCE, TOLERANCE, **options),
        Case("ConvGradInput", (y, weight), {**attributes, **size}, TOLERANCE, TOLERANCE, **options),
        Case("ConvGradWeight", (image, y), {**attributes, **kernel}, TOLERANCE, TOLERANCE, **options),
    ]


def cases() -> list[Case]:
    return [case for i, geometry in enumerate(GEOMETRIES) for case in three(*geometry, bias=i % 2 == 0)]


CASES = [
    *cases(),
    Case("ConvTranspose", ((2, 3, 4, 5), (3, 4, 3, 3), (4,)), {}, TOLERANCE, TOLERANCE),
    Case(
        "ConvTranspose",
        ((1, 4, 3, 4), (4, 2, 3, 4), (4,)),
        {"strides": (2, 3), "pads": (1, 0, 0, 2), "group": 2, "output_padding": (1, 2)},
        TOLERANCE,
        TOLERANCE,
    ),
    Case(
        "ConvTranspose",
        ((1, 3, 4, 3), (3, 1, 2, 3)),
        {"strides": (3, 2), "dilations": (2, 2), "pads": (1, 1, 1, 1), "group": 3},
        TOLERANCE,
        TOLERANCE,
    ),
    Case("ConvTranspose", ((1, 2, 3, 3), (2, 5, 2, 2)), {"strides": (2, 2)}, TOLERANCE, TOLERANCE),
    Case("ConvTranspose", ((1, 4, 3, 3), (4, 3, 2, 2), (6,)), {"group": 2}, TOLERANCE, TOLERANCE),
    Case("ConvTranspose", ((1, 3, 4, 3), (3, 1, 2, 3), (3,)), {"group": 3, "strides": (2, 1)}, TOLERANCE, TOLERANCE),
    Case(
        "ConvTranspose",
        ((1, 2, 3, 4), (2, 3, 2, 3), (3,)),
        {"strides": (2, 1), "dilations": (5, 3), "pads": (1, 0, 0, 1), "output_padding": (4, 2)},
        TOLERANCE,
        TOLERANCE,
    ),
    Case("ConvTranspose", ((1, 2, 3, 3), (2, 5, 1, 1), (5,)), {"strides": (2, 2)}, TOLERANCE, TOLERANCE),
]
