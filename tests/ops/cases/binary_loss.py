import numpy as np

from poetc.graph import Attribute
from tests.support.kernels import Case, uniform

TOLERANCE = 4e-6
WEIGHTS = (0.5, 3.0, 0.0)
KINDS = ("BceWithLogits", "BceWithLogitsGrad")


def cases(shape: tuple[int, ...], **attributes: Attribute) -> list[Case]:
    inputs = uniform(shape, -6, 6), uniform(shape, 0, 1)
    return [
        Case("BceWithLogits", inputs, attributes, TOLERANCE, TOLERANCE, wrt=(0,)),
        Case("BceWithLogitsGrad", inputs, attributes, TOLERANCE, TOLERANCE),
        Case("BceWithLogitsGrad", (*inputs, ()), attributes, TOLERANCE, TOLERANCE),
    ]


def sure(gamma: float) -> list[Case]:
    """Sigmoids that are 0 or 1 in 32 bits, right and wrong."""
    x, t = np.float32([200, -200, 200, -200, 0]), np.float32([1, 0, 0, 1, 1])
    attributes: dict[str, Attribute] = {"gamma": gamma, "alpha": 0.25}
    return [Case(kind, (x, t), attributes, TOLERANCE, TOLERANCE, gradient=False, note="sure") for kind in KINDS]


CASES = [
    *cases((4, 3), pos_weight=WEIGHTS, axis=-1),
    *cases((2, 3, 2, 2), pos_weight=WEIGHTS, axis=1),
    *cases((5,), pos_weight=(2.5,)),
    *cases((3, 4), gamma=2.0),
    *cases((3, 3), gamma=0.5, alpha=0.25, pos_weight=WEIGHTS, axis=1),
    *cases((6, 1), alpha=0.0),
    *sure(0.5),
    *sure(2.0),
]
