import numpy as np

from tests.ops.cases.coded import coded
from tests.support.kernels import Case, integers

TOLERANCE = 4e-6


def linear(rows: tuple[int, ...], features: int, classes: int, trans_b: bool, *more: str) -> list[Case]:
    weight = (classes, features) if trans_b else (features, classes)
    target = integers(rows, 0, classes)
    bias, upstream = ((classes,),) * ("bias" in more), ((),) * ("upstream" in more)
    attributes = {"trans_b": trans_b, "alpha": 0.5, "has_bias": bool(bias), "classes": classes}
    if "ignored" in more:
        attributes["ignore_index"] = 1
    if "smooth" in more:
        attributes["label_smoothing"] = 0.1
    inputs = ((*rows, features), weight, *bias, target, *upstream)
    return [Case("LinearCrossEntropy", inputs, attributes, TOLERANCE, TOLERANCE, gradient=False)]


def coded_linear(rows: int, form: str, features: int, classes: int, block: int, zeros: int) -> Case:
    """Classes are rows of codes."""
    operands, attributes = coded(form, classes, features, block, zeros)
    attributes |= {"trans_b": True, "has_bias": False, "classes": classes, "ignore_index": 0}
    inputs = ((rows, features), *operands, integers((rows,), 0, classes))
    return Case("LinearCrossEntropy", inputs, attributes, 2e-5, 5e-5, gradient=False, note=form)


def left_out(rows: int, features: int, classes: int) -> Case:
    """The first part of the classes, and some behind it, have logits of -infinity."""
    bias = np.where(np.arange(classes) < 1100, -np.inf, 0.0).astype(np.float32)
    target = np.full(rows, classes - 1, np.int32)
    attributes = {"trans_b": True, "has_bias": True, "classes": classes}
    inputs = ((rows, features), (classes, features), bias, target)
    return Case("LinearCrossEntropy", inputs, attributes, TOLERANCE, TOLERANCE, gradient=False, note="left out")


CASES = [
    *linear((2, 9), 8, 5, True),
    *linear((7,), 12, 7, False, "bias", "ignored"),
    *linear((3, 30), 16, 40, True, "smooth", "upstream"),
    *linear((7,), 6, 2090, True, "bias", "ignored"),
    *linear((30,), 12, 3172, True, "smooth", "upstream"),
    *linear((12,), 20, 2052, False, "bias", "smooth"),
    # Vectors see four parts of the classes at once, behind the first one.
    *linear((5,), 6, 6190, True, "smooth", "ignored"),
    *linear((3,), 4, 10300, False, "bias", "upstream"),
    *linear((130,), 20, 66, False, "bias", "upstream", "ignored", "smooth"),
    coded_linear(9, "int4", 10, 2060, 4, 1),
    coded_linear(5, "int8", 12, 1100, 12, 2),
    coded_linear(12, "bf16", 7, 2049, 0, 0),
    left_out(9, 8, 2300),
    left_out(3, 8, 6200),
]
