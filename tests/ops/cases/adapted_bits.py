from typing import Any

import numpy as np

from tests.support.kernels import Case, Make


def state(bits: float = 8, power: float = -7, left: float = 0, mean: float = -7, scans: float = 0) -> Any:
    return np.array([bits, power, left, mean, scans], np.float32)


def tailed(shape: tuple[int, ...], tail: float) -> Make:
    """Numbers of which a few are far larger than the others."""

    def make(random: np.random.Generator) -> Any:
        return (random.standard_normal(shape) * np.exp(tail * random.standard_normal(shape))).astype(np.float32)

    return make


def case(x: Any, most: int = 16, **given: float) -> Case:
    return Case("AdaptBits", (state(**given), x), {"most": most}, rtol=0, atol=0)


CASES = [
    *(case(tailed((7, 33), tail), most) for tail in (0.0, 1.0, 2.5, 4.0) for most in (8, 16, 24)),
    *(case(tailed((5, 5), 1.0), scans=9, mean=mean) for mean in (-7.25, -5.0, 3.0)),
    case(tailed((9,), 1.0), left=3, power=-9),
    case(np.zeros((4, 3), np.float32)),
    case(np.full((6,), 127.0, np.float32), 8),
    case(np.full((6,), 127.5, np.float32), 8, scans=4, mean=1),
    case(np.full((3,), 1e-38, np.float32)),
    case(np.full((3,), 3e38, np.float32)),
]
