import numpy as np

from tests.support.kernels import Case, integers

LR = np.float32([0.05])
TUPLES = np.int32([[[1, 0], [-1, 3]], [[0, 2], [1, 0]]])

CASES = [
    Case("Gather", ((5, 3), integers((2, 4), -5, 5)), {"axis": 0}),
    Case("Gather", ((2, 5, 3), integers((4,), -5, 5)), {"axis": -2}),
    Case("Gather", ((2, 5), np.int32(3)), {"axis": 1}),
    Case("Gather", (integers((5, 3), 0, 99), integers((4,), 0, 5)), {"axis": 0}),
    Case("Gather", (integers((5, 3), 0, 99, np.uint8), integers((4,), 0, 5)), {"axis": 0}),
    Case("GatherGrad", (integers((2, 4), -5, 5), (2, 4, 3)), {"axis": 0, "shape": (5, 3)}),
    Case("GatherGrad", (np.int32([1, 1, 1, -4]), (2, 4, 3)), {"axis": 1, "shape": (2, 5, 3)}),
    Case("PutSlices", ((5, 3), np.int32([4, -4]), (2, 3)), {"axis": 0}),
    Case("PutSlices", ((2, 5, 3), np.int32([0, 3]), (2, 2, 3)), {"axis": 1}),
    Case("PutSlices", ((4, 6), np.int32([5, 0, 2]), (4, 3)), {"axis": -1}),
    Case("SgdSlices", ((3, 7), np.int32([2, 0]), (2, 7), LR), {"axis": 0}),
    Case("SgdSlices", ((3, 7), np.int32([1, 5, 6]), (3, 3), LR), {"axis": 1, "weight_decay": 0.1}),
    Case("SgdSlices", ((2, 5, 9), np.int32([3, 4]), (2, 2, 9), LR), {"axis": 1}),
    Case("GatherElements", ((3, 4), integers((2, 4), -3, 3)), {"axis": 0}),
    Case("GatherElements", ((2, 3, 4), integers((2, 2, 6), 0, 4)), {"axis": 2}),
    Case("GatherElements", (integers((3, 4), 0, 9), integers((3, 1), 0, 4)), {"axis": -1}),
    Case("GatherElementsGrad", (integers((2, 2, 6), -4, 4), (2, 2, 6)), {"axis": 2, "shape": (2, 3, 4)}),
    Case("GatherND", ((2, 4, 3), TUPLES)),
    Case("GatherND", ((2, 2, 4), TUPLES), {"batch_dims": 1}),
    Case("GatherND", ((2, 4, 3), integers((5, 1), -2, 2))),
    Case("GatherND", (integers((2, 4), 0, 9), TUPLES)),
    Case("GatherNDGrad", (TUPLES, (2, 2, 3)), {"shape": (2, 4, 3)}),
    Case("GatherNDGrad", (np.int32([[[1], [1]], [[0], [-1]]]), (2, 2, 4)), {"shape": (2, 3, 4), "batch_dims": 1}),
]
