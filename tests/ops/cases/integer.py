import numpy as np

from poetc.graph import Attribute
from tests.support.kernels import Case, Make, integers, uniform

ROUNDINGS = ("nearest", "stochastic")
RATE = np.array([0.25], np.float32)
STEP = np.array([3], np.int32)


def values(*shape: int) -> Make:
    return integers(shape, -127, 128, np.int8)


def scale(exponent: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array([exponent, 0, 0, 0], np.int32)


def rate_of(rate: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array([rate], np.float32)


def exponent(number: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array([number], np.int32)


Shape = tuple[int, ...]
CONVOLUTIONS: list[tuple[Shape, Shape, Shape, dict[str, Attribute]]] = [
    ((2, 3, 7, 9), (5, 3, 3, 3), (2, 5, 7, 9), {"pads": (1, 1, 1, 1)}),
    ((2, 4, 7, 8), (6, 2, 3, 2), (2, 6, 4, 3), {"strides": (2, 3), "pads": (1, 0, 2, 1), "group": 2}),
    ((2, 6, 9, 5), (6, 1, 3, 3), (2, 6, 5, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "group": 6}),
    ((1, 2, 11, 12), (3, 2, 3, 2), (1, 3, 9, 8), {"dilations": (2, 4), "pads": (1, 0, 1, 0)}),
    ((2, 3, 7, 9), (3, 1, 3, 3), (2, 3, 7, 9), {"pads": (1, 1, 1, 1), "group": 3}),
    ((2, 1, 9, 8), (4, 1, 5, 5), (2, 4, 8, 5), {"pads": (1, 0, 2, 1)}),
    ((5, 37, 1, 1), (11, 37, 1, 1), (5, 11, 1, 1), {}),
    ((3, 8, 13, 11), (9, 8, 1, 1), (3, 9, 7, 6), {"strides": (2, 2)}),
    ((2, 5, 9, 13), (5, 1, 5, 5), (2, 5, 5, 7), {"strides": (2, 2), "pads": (2, 2, 2, 2), "group": 5}),
    ((1, 4, 6, 8), (4, 1, 7, 7), (1, 4, 6, 8), {"pads": (3, 3, 3, 3), "group": 4}),
    ((3, 3, 1, 11), (3, 1, 1, 4), (3, 3, 1, 4), {"strides": (1, 2), "group": 3}),
    ((2, 70, 5, 4), (66, 70, 3, 3), (2, 66, 5, 4), {"pads": (1, 1, 1, 1)}),  # sums in parts
    ((2, 5, 9, 1), (6, 5, 3, 1), (2, 6, 7, 1), {"strides": (1, 2)}),  # a stride beyond the image
    ((1, 9, 7, 21), (13, 9, 3, 5), (1, 13, 7, 11), {"strides": (1, 2), "pads": (1, 2, 1, 2)}),
    # Few pixels beside the weights, which AVX-512 then reads where they are, or interleaved.
    ((1, 64, 4, 4), (72, 64, 3, 3), (1, 72, 4, 4), {"pads": (1, 1, 1, 1)}),
    ((2, 24, 8, 8), (40, 24, 3, 3), (2, 40, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((1, 16, 16, 16), (8, 16, 3, 3), (1, 8, 8, 8), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((2, 32, 8, 8), (16, 16, 3, 3), (2, 16, 8, 8), {"pads": (1, 1, 1, 1), "group": 2}),
]


def convolutions() -> list[Case]:
    found = []
    for (x, w, y, attributes), rounding in zip(CONVOLUTIONS, 9 * ROUNDINGS, strict=True):
        more: dict[str, Attribute] = {**attributes, "rounding": rounding}
        image, error = (values(*x), scale(-7)), (values(*y), scale(-9))
        weight, bias = (values(*w), exponent(-8)), (values(w[0]), exponent(-6))
        found.append(Case("IntegerConv", (*image, *weight), more))
        found.append(Case("IntegerConv", (*image, *weight, *bias), more))
        found.append(Case("IntegerConvGradInput", (*error, *weight), {**more, "input_size": x[2:]}))
        found.append(Case("IntegerConvGradWeight", (image[0], error[0], RATE), {**more, "kernel": w[2:]}))
        found.append(Case("IntegerBiasGrad", (error[0], RATE), {"rounding": rounding}))
    return found


def stored_updates() -> list[Case]:
    """Of weights that are what is stored, but for the last row, whose w somebody replaced."""
    stored = np.random.default_rng(0).integers(-(127 << 16), (127 << 16) + 1, (7, 9), dtype=np.int32)
    stored.flat[:6] = 0, 1 << 15, -(1 << 15), 127 << 16, -(127 << 16), (1 << 15) - 1
    w = ((stored + (1 << 15)) >> 16).astype(np.int8)
    w[-1] = np.arange(-120, 120, 27)[:9]
    return [
        Case("IntegerStoredUpdate", (w, stored, exponent(3), values(7, 9), rate_of(rate)), note=f"{rate}")
        for rate in (1e-9, 2.0**-16, 0.0123, 0.25, 1.0, 3.7, 130.0, 1e12)
    ]


def largest_values() -> list[Case]:
    """All products are as large as they can be, of both signs, over rows and columns that fill up no block."""
    found = []
    x, w, y, attributes = (1, 37, 6, 7), (11, 37, 3, 3), (1, 11, 6, 7), {"pads": (1, 1, 1, 1)}
    for first, second in ((-127, -127), (127, -127)):
        image, error = np.full(x, first, np.int8), np.full(y, first, np.int8)
        weight, note = np.full(w, second, np.int8), f"{first},{second}"
        more: dict[str, Attribute] = {**attributes}
        found.append(Case("IntegerConv", (image, scale(-7), weight, exponent(-8)), more, note=note))
        back = {**more, "input_size": x[2:]}
        found.append(Case("IntegerConvGradInput", (error, scale(-9), weight, exponent(-8)), back, note=note))
        errors = np.full(y, second, np.int8)
        found.append(Case("IntegerConvGradWeight", (image, errors, RATE), {**more, "kernel": w[2:]}, note=note))
    return found


def histories() -> list[Case]:
    """Bits that are reused, too many or too few, and those that are looked for."""
    found = []
    x, w, y, attributes = CONVOLUTIONS[0]
    more: dict[str, Attribute] = {**attributes, "rescale": "interval"}
    image, error, weight = (values(*x), scale(-7)), (values(*y), scale(-9)), (values(*w), exponent(-8))
    for bits, left in ((14, 3), (17, 1), (22, 64), (9, 0)):
        history, note = np.array([bits, left, 8, 5], np.int32), f"{bits},{left}"
        bias = (values(w[0]), exponent(-6))
        found.append(Case("IntegerConv", (*image, *weight, *bias, history), more, note=note))
        found.append(Case("IntegerConvGradInput", (*error, *weight, history), {**more, "input_size": x[2:]}, note=note))
        found.append(
            Case("IntegerConvGradWeight", (image[0], error[0], RATE, history), {**more, "kernel": w[2:]}, note=note)
        )
    for bits, left in ((14, 3), (16, 1), (22, 2), (9, 0)):  # of updates that AVX-512 makes twice
        history, note = np.array([bits, left, 8, 5], np.int32), f"{bits},{left}, wide"
        arrays = values(1, 64, 4, 4), values(1, 16, 4, 4), RATE, history
        kernel: dict[str, Attribute] = {"pads": (1, 1, 1, 1), "rescale": "interval", "kernel": (3, 3)}
        found.append(Case("IntegerConvGradWeight", arrays, kernel, note=note))
    for history, found_scale in (
        ([0, 0, 0, 0], [3, 0, 17, 10, 1, 7]),
        ([17, 3, 16, 5], [3, 9, 18, 11, 1, 7]),
        ([17, 4, 0, 5], [3, 2, 17, 10, 0, 6]),
        ([17, 2, 15, 5], [3, 2, 17, 10, 0, 4]),
        ([17, 1, 15, 5], [3, 0, 17, 10, 0, 4]),
        ([17, 1, 15, 5], [3, 0, 17, 10, 0, 7]),
        ([3, 1, 1, 2**31 - 1], [3, 0, 3, -2, 0, 2]),
        ([17, 0, 15, 2**31 - 1], [3, 0, 17, 10, 1, 7]),
    ):
        arrays = np.array(history, np.int32), np.array(found_scale, np.int32)
        found.append(Case("IntegerRescale", arrays, {}, note=str(history + found_scale)))
    counted = (np.array([3], np.int32), np.array([1, 5, 9, 2], np.int32), np.array([1, 7, 9, 2, 0, 7], np.int32))
    found.append(Case("ClippedCount", counted))
    found.append(Case("ClippedCount", (np.array([2**31 - 3], np.int32), *counted[1:]), note="full"))
    return found


def long_sums() -> list[Case]:
    """More terms than sums of 32 bits hold: the largest products, both signs, in two parts and in three."""
    found = []
    kernel: dict[str, Attribute] = {"kernel": (1, 1)}
    for rows in (1, 2):  # images
        x, gy = (integers((rows, channels, 400, 380), -127, 128, np.int8) for channels in (2, 3))
        for rate, rounding in ((0.25, "nearest"), (0.25, "stochastic"), (2.0**-20, "stochastic")):
            arrays = x, gy, np.array([rate], np.float32)
            found.append(
                Case("IntegerConvGradWeight", arrays, {**kernel, "rounding": rounding}, note=f"64 bits, {rows}, {rate}")
            )
    ends = np.full((1, 2, 400, 380), 127, np.int8), np.full((1, 3, 400, 380), 127, np.int8)
    ends[1][:, 1] = -127
    found.append(Case("IntegerConvGradWeight", (*ends, RATE), kernel, note="64 bits, largest"))
    for history in ([32, 3, 16, 5], [20, 3, 16, 5], [32, 0, 16, 5]):  # reused, too few bits, scanned
        arrays = *ends, RATE, np.array(history, np.int32)
        more: dict[str, Attribute] = {**kernel, "rescale": "interval"}
        found.append(Case("IntegerConvGradWeight", arrays, more, note=f"64 bits {history}"))
    apart: dict[str, Attribute] = {"kernel": (3, 3), "pads": (1, 1, 1, 1), "group": 2, "rounding": "stochastic"}
    found.append(Case("IntegerConvGradWeight", (ends[0], ends[0], RATE), apart, note="64 bits, depthwise"))
    return found


POOLS: list[dict[str, Attribute]] = [
    {"kernel": (2, 2), "strides": (2, 2)},
    {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)},
    {"kernel": (7, 9)},
    {"kernel": (2, 3), "strides": (1, 2), "dilations": (3, 2), "pads": (1, 2, 1, 1)},
]
POOLED = [(3, 4), (4, 5), (1, 1), (6, 4)]


def pools() -> list[Case]:
    found = []
    for geometry, output, rounding in zip(POOLS, POOLED, 2 * ROUNDINGS, strict=True):
        x, gy = values(2, 3, 7, 9), values(2, 3, *output)
        more: dict[str, Attribute] = {**geometry, "input_size": (7, 9), "rounding": rounding}
        found.append(Case("IntegerMaxPool", (x,), geometry))
        if "pads" not in geometry:
            kernel = geometry["kernel"]
            assert isinstance(kernel, tuple)
            where = integers((2, 3, *output), 0, int(kernel[0] * kernel[1]), np.uint8)
            found.append(Case("IntegerMaxPoolGrad", (where, gy, scale(3)), more))
        for include in (False, True):
            counted: dict[str, Attribute] = {**geometry, "count_include_pad": include, "rounding": rounding}
            found.append(Case("IntegerAveragePool", (x, scale(-5)), counted))
            found.append(Case("IntegerAveragePoolGrad", (gy, scale(-5)), {**counted, "input_size": (7, 9)}))
    return found


CASES = [
    *convolutions(),
    *largest_values(),
    *histories(),
    *long_sums(),
    *pools(),
    *(
        Case("IntegerConv", (values(2, 3, 4, 5), scale(e), values(4, 3, 1, 1), exponent(-8), values(4), exponent(b)))
        for e, b in ((-7, 30), (-7, -40), (0, -8), (2, -30))
    ),
    *(  # errors that vanish on their way to the first layers
        Case(
            "IntegerConvGradInput",
            (error, scale(-97), values(4, 3, 3, 3), exponent(-8)),
            {"pads": (1, 1, 1, 1), "input_size": (4, 5)},
            note=f"vanished {k}",
        )
        for k, error in enumerate((np.zeros((2, 4, 4, 5), np.int8), values(2, 4, 4, 5)))
    ),
    Case("IntegerConvGradWeight", (values(9, 3, 8, 9), values(9, 5, 8, 9), RATE), {"kernel": (1, 1)}, note="long"),
    *(
        Case(
            "IntegerBiasGrad",
            (values(2, 5, 3, 1), np.array([rate], np.float32)),
            {"rounding": rounding},
            note=f"{rate}",
        )
        for rate in (0.0, 0.3, 1.0, 2.0**-20)
        for rounding in ROUNDINGS
    ),
    Case("Quantize", (uniform((3, 50), -3, 2),)),
    Case("Quantize", (np.array([[0.5, -0.5, 0.25 + 2**-9, 0.25 + 3 * 2**-9, 1e-30]], np.float32),), note="halves"),
    Case("Quantize", (np.zeros((4,), np.float32),), note="zeros"),
    Case("Quantize", (np.array([1e-35, -1e-38], np.float32),), note="small"),
    Case("Dequantize", (values(3, 50), scale(-4)), rtol=0, atol=0),
    *(Case("IntegerRelu", (values(3, 50), scale(-5)), {"limit": limit}, note=str(limit)) for limit in (0.0, 2.3, 6.0)),
    *(
        Case("IntegerReluGrad", (values(3, 50), integers((3, 50), 0, 127, np.int8), scale(-5)), {"limit": limit})
        for limit in (0.0, 2.3)
    ),
    *(
        Case("IntegerAdd", (values(3, 50), scale(a), values(3, 50), scale(b)), {"rounding": rounding}, note=f"{a},{b}")
        for a, b in ((-5, -5), (-3, -7), (-9, 4), (20, -20))
        for rounding in ROUNDINGS
    ),
    *(
        Case(
            "IntegerAlign",
            (values(3, 50), *(scale(e) for e in exponents)),
            {"rounding": rounding},
            note=f"{exponents}",
        )
        for exponents in ((-5,), (-5, -5), (-7, -3, -6), (4, -9), (-20, 20, -30), (-40, -9))
        for rounding in ROUNDINGS
    ),
    Case("IntegerDropout", (values(7, 9), scale(-4), STEP), {"seed": 5}),
    Case("IntegerDropoutGrad", (values(7, 9), scale(-4), STEP), {"seed": -5}),
    Case("IntegerUpdate", (values(7, 9), exponent(3), values(7, 9))),
    *stored_updates(),
    *(
        Case(
            "IntegerCrossEntropyError",
            (values(6, 10), scale(e), integers((6,), 0, 10)),
            {"axis": -1},
            note=str(e),
        )
        for e in (-40, -20, -8, -7, -6, -3, 0, 2, 30)
    ),
    Case("IntegerCrossEntropyError", (values(2, 3, 4), scale(-5), integers((2, 4), 0, 3)), {"axis": 1}),
]
