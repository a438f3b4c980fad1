from dataclasses import replace

import numpy as np

from poetc.ops import registry
from tests.ops.cases import optimizer
from tests.support.kernels import Case

W = (3, 7)


def gated(case: Case, left: int) -> Case:
    return replace(case, kind=f"Gated{case.kind}", inputs=(np.int32([left]), *case.inputs), note=f"{case.note} {left}")


CASES = [
    *(Case("StepsLeft", (np.int32([left]),), {"every": 3}) for left in (0, 1, 2)),
    *(Case("Accumulate", (W, W, np.int32([left])), {"every": 3}) for left in (0, 2)),
    *(gated(case, left) for case in optimizer.CASES for left in (0, 1) if f"Gated{case.kind}" in registry()),
]
