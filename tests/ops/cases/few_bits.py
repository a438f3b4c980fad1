"""Formats of published algorithms: integers of 4 to 24 bits, floats of 5 to 16, groups, both roundings."""

from typing import Any

import numpy as np

from tests.support.kernels import Case, Make

INTEGERS: dict[int, dict[str, Any]] = {
    bits: {"low": 0, "mantissa": bits - 1, "largest": 1 - 2.0 ** (1 - bits), "top": 1 - 2.0 ** (1 - bits)}
    for bits in (4, 8, 16, 24)
}
FLOATS: dict[str, dict[str, Any]] = {
    "fp8": {"low": -14, "mantissa": 2, "largest": 57344.0},
    "fp16": {"low": -30, "mantissa": 9, "largest": (2 - 2.0**-9) * 2.0**31},
    "element": {"low": -3, "mantissa": 4, "largest": 1 - 2.0**-5},
}


def numbers(shape: tuple[int, ...], least: int = -20, most: int = 3) -> Make:
    """Of many magnitudes, halfway cases, both zeros."""

    def make(random: np.random.Generator) -> Any:
        x = random.standard_normal(shape) * 2.0 ** random.integers(least, most, shape)
        flat = x.ravel()
        flat[: min(7, flat.size)] = (0.0, -0.0, 1.0, -0.5, 1.5 / 128, 2.5 / 128, -1e-30)[: flat.size]
        return x.astype(np.float32)

    return make


def case(shape: tuple[int, ...], grid: dict[str, Any], kind: str = "FewBits", step: int = -1, **more: Any) -> Case:
    random = {"rounding": "stochastic", "seed": 11} if step >= 0 else {}
    makes = (numbers(shape), np.array([step], np.int32)) if step >= 0 else (numbers(shape),)
    return Case(kind, makes, {**grid, **random, **more}, rtol=0, atol=0)


CASES = [
    case(shape, grid, step=step, scale=scale)
    for shape in ((7, 9), (2, 3, 5, 5))
    for grid in (INTEGERS[4], INTEGERS[8], INTEGERS[16])
    for step in (-1, 3)
    for scale in ("fixed", "nearest-power", "power", "real")
]
CASES += [
    case((3, 41), grid, step=step, power=power)
    for grid in (*FLOATS.values(), INTEGERS[24])
    for step in (-1, 0)
    for power in (0, -10)
]
CASES += [
    case(shape, FLOATS["element"], step=step, scale=scale, groups=1, dtype="bf16")
    for shape in ((4, 5, 3, 3), (6, 7), (5,))
    for step in (-1, 2)
    for scale in ("real", "power")
]
CASES += [
    case((5, 7), INTEGERS[8], scale="power", dtype="bf16"),
    case((5, 7), INTEGERS[8], scale="nearest-power", range=0.95, unit=2.0**-7, step=9),
    case((5, 7), FLOATS["fp16"], kind="StoredFewBits", step=4),
    case((), INTEGERS[8], scale="real"),
    Case("FewBits", (np.zeros((3, 4), np.float32),), {**INTEGERS[8], "scale": "real", "groups": 1}, rtol=0, atol=0),
    Case("FewBits", (np.full((3,), 1e-35, np.float32),), {**INTEGERS[8], "scale": "power"}, rtol=0, atol=0),
    Case("FewBits", (np.full((3,), 3e38, np.float32),), {**INTEGERS[8], "scale": "power"}, rtol=0, atol=0),
]
CASES += [
    Case(
        "FewBits",
        (numbers((5, 9)), *steps, np.array([bits, power, 3, 0, 1], np.float32)),
        {"scale": "adapted", "rounding": "stochastic" if steps else "nearest", "seed": 5},
        rtol=0,
        atol=0,
    )
    for bits, power in ((8, -9), (16, -12), (16, 60), (24, -60))
    for steps in ((), (np.array([2], np.int32),))
]
