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


CASES = [
    *linear((2, 9), 8, 5, True),
    *linear((7,), 12, 7, False, "bias", "ignored"),
    *linear((3, 30), 16, 40, True, "smooth", "upstream"),
    *linear((130,), 20, 66, False, "bias", "upstream", "ignored", "smooth"),
]
