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
