from poetc.graph import Attribute
from tests.support.kernels import Case, integers, uniform

TOLERANCE = 3e-6


def cases(shape: tuple[int, ...], axis: int, **attributes: Attribute) -> list[Case]:
    target = integers(shape[:axis] + shape[axis + 1 :], 0, shape[axis])
    inputs, attributes = (uniform(shape, -6, 6), target), {"axis": axis, **attributes}
    return [
        Case("Dice", inputs, attributes, TOLERANCE, TOLERANCE),
        Case("DiceGrad", inputs, attributes, TOLERANCE, TOLERANCE),
        Case("DiceGrad", (*inputs, ()), attributes, TOLERANCE, TOLERANCE),
    ]


CASES = [
    *cases((2, 5, 3, 4), 1),
    *cases((3, 4, 6), 2, smooth=0.5),
    *cases((4, 3), 1, smooth=0.0),
    *cases((1, 2, 9), 1),
]
