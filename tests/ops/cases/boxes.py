from collections.abc import Iterator

import numpy as np

from poetc.graph import Attribute
from tests.support.kernels import AnyArray, Case

TOLERANCE = 4e-6


def boxes(count: int, seed: int, format: str) -> AnyArray:
    """Of sizes from .3 to 1.3 with corners in 0 to 1: some meet, some do not, some are within another."""
    random = np.random.default_rng(seed)
    low, size = random.uniform(0, 1, (count, 2)), random.uniform(0.3, 1.3, (count, 2))
    first, second = {"xyxy": (low, low + size), "xywh": (low, size), "cxcywh": (low + size / 2, size)}[format]
    return np.concatenate([first, second], axis=1).astype(np.float32)


def cases() -> Iterator[Case]:
    for kind in ("Iou", "Giou", "Ciou"):
        for number, format in enumerate(("xyxy", "xywh", "cxcywh")):
            attributes: dict[str, Attribute] = {"format": format}
            inputs = boxes(9, number, format), boxes(9, number + 10, format)
            # The weight alpha of Ciou has no slope: tests/training has PyTorch's numbers for it.
            smooth = kind != "Ciou"
            yield Case(kind, inputs, attributes, TOLERANCE, TOLERANCE, gradient=smooth, wrt=(0,), note="nine")
            yield Case(f"{kind}Grad", inputs, attributes, TOLERANCE, TOLERANCE, note="nine")
            yield Case(f"{kind}Grad", (*inputs, ()), attributes, TOLERANCE, TOLERANCE, note="nine")
        # One edge, all edges and no inside in common.
        same = np.float32([[[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]]])
        other = np.float32([[[0, 0.2, 2, 3], [0, 0, 1, 1], [1, 0, 2, 1], [3, 3, 4, 5]]])
        for suffix in ("", "Grad"):
            yield Case(f"{kind}{suffix}", (same, other), {}, TOLERANCE, TOLERANCE, gradient=False, note="edges")


CASES = list(cases())
