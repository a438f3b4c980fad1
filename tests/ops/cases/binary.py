import numpy as np

from tests.support.kernels import Case, Make, distinct, integers, uniform

SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((2, 3, 4), (2, 3, 4)),  # one loop
    ((2, 3, 4), ()),  # scalar
    ((3, 1), (1, 5)),  # outer product
    ((4,), (2, 3, 4)),  # a vector along the last dimension
    ((2, 3, 2, 2), (3, 1, 1)),  # one value a channel
    ((2, 1, 3, 1), (4, 1, 2)),
]
B = ((2, 3, 4), (3, 1))


def u8(shape: tuple[int, ...]) -> Make:
    return integers(shape, 0, 2, np.uint8)


CASES = [
    *(Case("Add", s) for s in SHAPES),
    Case("Sub", B),
    Case("Sub", ((4,), (2, 3, 4))),
    *(Case("Mul", s) for s in SHAPES),
    Case("Div", ((2, 3, 4), uniform((3, 1), 0.5, 2))),
    Case("Div", ((4,), uniform((2, 3, 4), 0.5, 2))),
    Case("DivOrZero", (np.float32([1, 2, 0, -3]), np.float32([2, 0, 0, 4]))),
    Case("Pow", (uniform((2, 3, 4), 0.2, 3), uniform((3, 1), -2, 3))),
    Case("Pow", (np.float32([0, 0, 2, 2]), np.float32([2, 3, 0, 1])), wrt=(0,), note="edges"),
    Case("PowGradBase", (uniform((2, 3, 4), 0.2, 3), uniform((3, 1), -2, 3), (2, 3, 4)), atol=2e-5, rtol=2e-6),
    Case("PowGradBase", (np.float32([0, 0, 2]), np.float32([0, 1, 0]), np.float32([1, 1, 1])), note="edges"),
    Case("PowGradExponent", (uniform((2, 3, 4), 0.2, 3), (2, 3, 4), (2, 3, 4))),
    Case("PowGradExponent", (np.float32([0, 1]), np.float32([0, 1]), np.float32([1, 1])), note="edges"),
    *(Case(kind, (distinct((2, 3, 4)), uniform((3, 1), 0.101, 0.102))) for kind in ("Maximum", "Minimum")),
    *(Case(kind, (distinct((3, 4)), uniform((3, 4), 0.101, 0.102))) for kind in ("Maximum", "Minimum")),
    Case("MaximumGrad", (np.float32([1, 2, 3]), np.float32([2, 2, 2]), np.float32([5, 7, 9]))),
    Case("PRelu", (uniform((2, 3, 4), avoid=(0,)), (3, 1))),
    Case("PReluGradInput", ((2, 3, 4), (3, 1), (2, 3, 4))),
    Case("PReluGradSlope", ((2, 3, 4), (2, 3, 4))),
    Case("Where", (u8((2, 1, 4)), (2, 3, 4), ())),
    Case("Where", (u8((2, 3, 4)), (2, 3, 4), (2, 3, 4))),
    Case("Where", (u8((4,)), integers((3, 4), -5, 5), integers((1,), -5, 5))),
    Case("Where", (u8((4,)), u8((3, 4)), u8((1,)))),
    *(
        Case(kind, (integers((3, 4), -(2**31), 2**31), integers((4,), -(2**31), 2**31)))
        for kind in ("Add", "Sub", "Mul", "Maximum", "Minimum")
    ),
    *(
        Case("Mod", (integers((3, 4), -(2**31), 2**31), integers((4,), -9, 9)), {"fmod": fmod})
        for fmod in (False, True)
    ),
    *(
        Case("Mod", (np.int32([-(2**31), 7, -7, 7, -7]), np.int32([-1, 0, 3, -3, -3])), {"fmod": f}, note="edges")
        for f in (False, True)
    ),
    Case("Mask", (u8((3, 1)), (2, 3, 4))),
    Case("MaskNot", (u8((3, 1)), (2, 3, 4))),
    *(
        Case(kind, (integers((3, 4), -2, 2, dtype), integers((4,), -2, 2, dtype)))
        for kind in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
        for dtype in (np.float32, np.int32)
    ),
    *(Case(kind, (u8((3, 4)), u8((4,)))) for kind in ("Equal", "And", "Or", "Xor")),
]
