from tests.support.kernels import Case

CASES = [
    Case("Rotary", ((2, 3, 5, 8), (5, 4), (5, 4)), {"axis": 2}, 2e-6, 2e-6, wrt=(0,)),
    Case("Rotary", ((2, 5, 3, 8), (1, 5, 3), (1, 5, 3)), {"axis": 1}, 2e-6, 2e-6, wrt=(0,)),
    Case("Rotary", ((2, 5, 3, 9), (2, 5, 2), (2, 5, 2)), {"axis": 1, "interleaved": True}, 2e-6, 2e-6, wrt=(0,)),
    Case("Rotary", ((2, 3, 5, 8), (2, 5, 4), (2, 5, 4)), {"axis": 2, "back": True}, 2e-6, 2e-6, wrt=(0,)),
]
