import numpy as np

from tests.support.kernels import Case, uniform

NORM = uniform((), 0, 2)

CASES = [
    Case("ClipScale", (NORM,), {"max_norm": 0.5}, gradient=False),
    Case("ClipScale", (uniform((1,), 1, 2), NORM, NORM), {"max_norm": 1.0}, gradient=False),
    Case("ClipScale", (NORM, NORM), {"max_norm": 9.0}, gradient=False, note="within"),
    Case("ClipScale", (np.float32(0),), {"max_norm": 1e-7}, gradient=False, note="zero"),
    Case("ClipScale", (np.float32(np.nan),), {"max_norm": 1.0}, gradient=False, note="NaN"),
    Case("ClipScale", (np.float32(np.inf),), {"max_norm": 1.0}, gradient=False, note="infinite"),
    Case("ClipScaleNext", (np.float32(0.5), NORM, NORM, NORM), {"max_norm": 1.0}, gradient=False),
]
