"""Codes with a scale and a zero point: every kernel has the bits of the reference."""

import numpy as np

from poetc.graph import Attribute
from tests.ops.cases.integer import CONVOLUTIONS, POOLED, POOLS, STEP, values
from tests.support.kernels import Case, integers, uniform

ROUNDINGS = ("nearest", "stochastic")
RATE = np.array([0.05], np.float32)
COUNT = np.array([2], np.int32)


def number(value: float) -> float:
    return float(np.float32(value))


def codes(scale: float, zero: int, prefix: str = "") -> dict[str, Attribute]:
    return {f"{prefix}scale": number(scale), f"{prefix}zero": zero}


def convolutions() -> list[Case]:
    found = []
    clipped: list[dict[str, Attribute]] = [{}, {"low": -20, "stops_low": 1}, {"low": -9, "high": 60, "stops_high": 1}]
    for k, (x, w, _, geometry) in enumerate(CONVOLUTIONS):
        attributes = {**geometry, **codes(0.02, (-128, 0, 5)[k % 3], "x_"), **codes(0.7, (-9, 0)[k % 2])}
        attributes |= clipped[k % 3]
        tensors = (values(*x), values(*w), uniform((w[0],), 0.001, 0.1))
        found.append(Case("QLinearConv", tensors, attributes))
        found.append(Case("QLinearConv", (*tensors, integers((w[0],), -30000, 30000)), attributes))
    # Products of -128 and -128: two of them do not fit into 16 bits.
    least = np.full((1, 37, 6, 7), -128, np.int8), np.full((11, 37, 3, 3), -128, np.int8), np.full(11, 1e-4, np.float32)
    attributes = {"pads": (1, 1, 1, 1), **codes(1.0, 0, "x_"), **codes(10.0, 0)}
    found.append(Case("QLinearConv", least, attributes, note="-128"))
    return found


def pools() -> list[Case]:
    found = []
    for geometry, _ in zip(POOLS, POOLED, strict=True):
        found.append(Case("QLinearMaxPool", (values(2, 3, 7, 9),), geometry))
        for include in (False, True):
            attributes = {**geometry, **codes(0.02, -3, "x_"), **codes(0.01, 4), "count_include_pad": include}
            found.append(Case("QLinearAveragePool", (values(2, 3, 7, 9),), attributes))
    return found


def layer_updates() -> list[Case]:
    """Sums of whole numbers, so that their order changes no bit."""
    found = []
    for k, (x, w, y, geometry) in enumerate(CONVOLUTIONS):
        attributes = {**geometry, **codes(2.0**-9, (-128, 0, 5)[k % 3], "x_"), "kernel": w[2:], "seed": 3}
        gy = np.random.default_rng(k).integers(-3, 4, y).astype(np.float32)
        tensors = (values(*w), COUNT, values(*x), gy, uniform((w[0],), 0.001, 0.1), RATE, STEP)
        found.append(Case("QLinearConvSgd", tensors, {**attributes, "rounding": ROUNDINGS[k % 2]}))
        back = (uniform(y, -1, 1), values(*w), uniform((w[0],), 0.001, 0.1))
        terms = w[0] // int(str(geometry.get("group", 1))) * w[2] * w[3]  # of a sum, each up to 12.7
        case = Case("QLinearConvGradInput", back, {**geometry, "input_size": x[2:]}, atol=max(2e-5, 3e-7 * terms))
        found.append(case)
    for inputs, group, plane in ((6, 1, (7, 7)), (10, 2, (5, 9))):  # one tap a pixel: four planes at once, and a rest
        outputs = 35 * group  # more than are made floats at once
        w = (outputs, inputs // group, 1, 1)
        back = (uniform((2, outputs, *plane), -1, 1), values(*w), uniform((outputs,), 0.001, 0.1))
        found.append(Case("QLinearConvGradInput", back, {"group": group, "input_size": plane}, atol=2e-5))
    return found


HALVES = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e9, -1e9, 0.49999997, 126.5, 127.49], np.float32)

CASES = [
    *convolutions(),
    *pools(),
    *layer_updates(),
    Case("QuantizeLinear", (HALVES,), codes(1, 0), note="halves"),
    Case("QuantizeLinear", (HALVES,), {**codes(1, -128), "low": -100, "high": 6}, note="clipped"),
    Case("QuantizeLinear", (uniform((7, 50), -3, 2),), codes(0.013, 17)),
    Case("DequantizeLinear", (values(7, 50),), codes(0.013, 17), rtol=0, atol=0),
    Case("DequantizeChannels", (values(7, 5, 3, 3), uniform((7,), 0.001, 0.1)), rtol=0, atol=0),
    Case("QLinearSlope", ((7, 50), values(7, 50)), {"low": -5, "high": 128}, rtol=0, atol=0, note="low"),
    Case("QLinearSlope", ((7, 50), values(7, 50)), {"low": -129, "high": 60}, rtol=0, atol=0, note="high"),
    Case("QLinearRescale", (values(7, 50),), {**codes(0.05, -128, "x_"), **codes(0.03, 3), "low": 3}),
    Case(
        "QLinearAdd",
        (values(7, 50), values(7, 50)),
        {**codes(0.02, -128, "a_"), **codes(0.03, 9, "b_"), **codes(0.06, -40), "low": -40},
    ),
    *(
        Case(
            "QLinearSgd",
            (values(6, 3, 3, 3), COUNT, uniform((6, 3, 3, 3), -2, 2), uniform((6,), 0.001, 0.1), RATE, STEP),
            {"rounding": rounding, "seed": -7},
        )
        for rounding in ROUNDINGS
    ),
    Case(
        "QLinearBiasSgd",
        (integers((50,), -9000, 9000), uniform((50,), -2, 2), uniform((50,), 0.001, 0.1), RATE),
        codes(0.02, 0, "x_"),
    ),
    Case(
        "QLinearBiasSgd",
        (
            integers((5,), -(2**30), 2**30),
            np.array([1e30, -1e30, 1e3, -1e3, 0], np.float32),
            uniform((5,), 0.1, 1),
            RATE,
        ),
        codes(1e-9, 0, "x_"),
        note="large",
    ),
]
