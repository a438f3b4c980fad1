import numpy as np

from poetc.graph import Attribute
from tests.support.kernels import Case, uniform

LABELS = np.int32([[1, 2, 2], [3, -1, 9], [-1, 0, 0], [3, 0, 1], [2, 2, 2]])


def cases(steps: int, note: str, **attributes: Attribute) -> list[Case]:
    shape = (steps, 5, 4) if attributes.get("time_first") else (5, steps, 4)
    attributes = {"axis": 2, **attributes}
    result = [
        Case(kind, (uniform(shape, -4, 4), LABELS), attributes, 5e-6, 5e-6, note=note) for kind in ("Ctc", "CtcGrad")
    ]
    return [*result, Case("CtcGrad", (shape, LABELS, ()), attributes, 5e-6, 5e-6, note=note)]


CASES = [
    *cases(7, "", blank=0),
    *cases(6, "time first", blank=0, time_first=True),
    *cases(3, "too short for some", blank=0),
    *cases(1, "one step", blank=0),
    *(
        Case(kind, ((2, 40, 6), np.int32([[0, 1, 2, 3, 4], [4, 4, 1, 5, 0]])), {"axis": 2, "blank": 5}, 1e-5, 5e-6)
        for kind in ("Ctc", "CtcGrad")
    ),
]
