import numpy as np

from poetc.graph import Attribute
from tests.support.kernels import AnyArray, Case

CLASSES = np.int32([3, 0, 3, 1, 0, 3])


def cases(classes: AnyArray, note: str, **attributes: Attribute) -> list[Case]:
    shape, result = (len(classes), 4), []
    for kind in ("Triplet", "Contrastive"):
        result += [
            Case(kind, (shape, classes), attributes, 3e-6, 3e-6, note=note),
            Case(f"{kind}Grad", (shape, classes), attributes, 3e-6, 3e-6, note=note),
            Case(f"{kind}Grad", (shape, classes, ()), attributes, 3e-6, 3e-6, note=note),
        ]
    return result


CASES = [
    *cases(CLASSES, ""),
    *cases(CLASSES, "far apart", margin=2.5),
    *cases(np.int32([1, 1, 1]), "one class"),
    *cases(np.int32([1, 2]), "no pair of one class"),
    *cases(np.int32([1]), "one row"),
]
