import numpy as np

from tests.support.kernels import Case

CASES = [
    Case(kind, (shape, np.int32(step)), {"ratio": ratio, "seed": seed}, rtol=0, atol=0)
    for kind in ("Dropout", "DropoutGrad")
    for shape, step, ratio, seed in (
        ((7, 9), 0, 0.5, 0),
        ((4, 16), 3, 0.1, 123),
        ((5,), -1, 0.9, 2**31 + 5),
        ((), 1, 0.0, -7),
    )
]
CASES += [
    Case("RandomUniform", (np.int32(step),), {"shape": shape, "seed": seed}, rtol=0, atol=0)
    for shape, step, seed in (((7, 9), 0, 0), ((4, 16), 3, -5), ((), 1, 2**31 + 5))
]
CASES += [
    Case("RandomSite", ((3, 5),), {"mean": mean, "deviation": deviation, "width": width})
    for mean, deviation, width in ((0.0, 1.0, 0.0), (0.75, 0.0, 0.5))
]
