import numpy as np

from poetc.graph import Attribute
from tests.support.kernels import Case, integers, uniform

TOLERANCE = 2e-6
IGNORED = np.int32([[-1, 2, 0], [4, -1, -1]])


def index_cases() -> list[Case]:
    layouts = [((4, 10), -1, (4,)), ((3, 6, 5), 1, (3, 5)), ((5, 2, 3), 0, (2, 3))]
    options: list[dict[str, Attribute]] = [{}, {"label_smoothing": 0.1}, {"ignore_index": 1}]
    result = []
    for logits, axis, target in layouts:
        for extra in options:
            classes = integers(target, 0, logits[axis])
            for kind in ("CrossEntropy", "CrossEntropyGrad"):
                case = Case(kind, (uniform(logits, -6, 6), classes), {"axis": axis, **extra}, TOLERANCE, TOLERANCE)
                result.append(case)
            result.append(
                Case("CrossEntropyGrad", (logits, classes, ()), {"axis": axis, **extra}, TOLERANCE, TOLERANCE)
            )
    return result


WEIGHTS = (0.5, 2.0, 0.0, 1.0, 3.0, 0.25)


def weighted_cases() -> list[Case]:
    options: list[dict[str, Attribute]] = [
        {"class_weights": WEIGHTS},
        {"class_weights": WEIGHTS, "label_smoothing": 0.2, "ignore_index": 1},
        {"gamma": 2.0},
        {"gamma": 0.5, "class_weights": WEIGHTS, "ignore_index": -1},
    ]
    result = []
    for logits, axis, target in [((4, 6), -1, (4,)), ((3, 6, 5), 1, (3, 5))]:
        for extra in options:
            classes = integers(target, 0, 6)
            for kind in ("CrossEntropy", "CrossEntropyGrad"):
                case = Case(kind, (uniform(logits, -6, 6), classes), {"axis": axis, **extra}, 4e-6, 4e-6)
                result.append(case)
            result.append(Case("CrossEntropyGrad", (logits, classes, ()), {"axis": axis, **extra}, 4e-6, 4e-6))
    sure, ignored = np.float32([[90, 0, 0], [0, 0, -90]]), np.int32([[-1, 2, 0], [4, -1, -1]])
    for kind in ("CrossEntropy", "CrossEntropyGrad"):
        attributes: dict[str, Attribute] = {"axis": 1, "gamma": 1.5}
        result += [
            Case(kind, (sure, np.int32([0, 1])), attributes, 4e-6, 4e-6, gradient=False, note="sure and tied"),
            Case(kind, ((2, 5, 3), ignored), {**attributes, "ignore_index": -1}, 4e-6, 4e-6),
            Case(kind, ((2, 3), np.int32([2, 2])), {"axis": 1, "class_weights": (1.0, 1.0, 0.0)}, note="no weight"),
            Case(
                kind,
                ((2, 3), np.int32([2, 2])),
                {"axis": 1, "class_weights": (1.0, 1.0, 0.0), "label_smoothing": 0.1},
                note="no weight, smoothed",
            ),
        ]
    return result


def soft_cases() -> list[Case]:
    result = []
    for shape, axis in [((4, 5), 1), ((2, 5, 3), 1), ((3, 2), 0)]:
        for smoothing in (0.0, 0.2):
            attributes = {"axis": axis, "label_smoothing": smoothing}
            t = uniform(shape, 0, 1)
            result += [
                Case("SoftCrossEntropy", (shape, t), attributes, TOLERANCE, TOLERANCE, wrt=(0,)),
                Case("SoftCrossEntropyGrad", (shape, t), attributes, TOLERANCE, TOLERANCE),
                Case("SoftCrossEntropyGrad", (shape, t, ()), attributes, TOLERANCE, TOLERANCE),
            ]
    return result


def pointwise_cases() -> list[Case]:
    result = []
    for kind in ("MeanSquaredError", "MeanAbsoluteError", "Huber", "BceWithLogits"):
        for attributes in ({"delta": 0.4}, {"delta": 1.0}) if kind == "Huber" else ({},):
            for shape in ((3, 7), (2, 3, 2), (1,)):
                t = uniform(shape, 0, 1)
                result += [
                    Case(kind, (shape, t), attributes, TOLERANCE, TOLERANCE, wrt=(0,)),
                    Case(f"{kind}Grad", (shape, t), attributes, TOLERANCE, TOLERANCE),
                    Case(f"{kind}Grad", (shape, t, ()), attributes, TOLERANCE, TOLERANCE),
                ]
    return result


CASES = [
    *index_cases(),
    Case("CrossEntropy", ((2, 5, 3), IGNORED), {"axis": 1, "ignore_index": -1, "label_smoothing": 0.2}),
    Case("CrossEntropyGrad", ((2, 5, 3), IGNORED), {"axis": 1, "ignore_index": -1, "label_smoothing": 0.2}),
    Case("CrossEntropy", ((2, 5), np.int32([3, 3])), {"axis": 1, "ignore_index": 3}, note="all ignored"),
    Case("CrossEntropyGrad", ((2, 5), np.int32([3, 3])), {"axis": 1, "ignore_index": 3}, note="all ignored"),
    *weighted_cases(),
    *soft_cases(),
    *pointwise_cases(),
]
