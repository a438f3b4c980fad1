from tests.support.kernels import Case

CASES = [
    Case("Reshape", ((2, 3, 4),), {"shape": (6, 4)}),
    Case("Reshape", ((),), {"shape": (1, 1)}),
    Case("DropoutSite", ((2, 3),), {"ratio": 0.25}),
]
