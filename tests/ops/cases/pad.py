from tests.support.kernels import Case

CASES = [
    Case("Pad", ((2, 3),), {"pads": (1, 0, 2, 3), "mode": "constant", "value": -1.5}),
    Case("Pad", ((1, 2, 3, 3),), {"pads": (0, 0, 1, 1, 0, 0, 1, 1), "mode": "constant"}),
    Case("Pad", ((2, 3),), {"pads": (0, 0, 0, 0)}),
    *(
        Case("Pad", ((2, 2, 3, 4),), {"pads": (0, 0, 2, 1, 0, 0, 1, 3), "mode": mode})
        for mode in ("edge", "reflect", "wrap")
    ),
    Case("PadGrad", ((4, 2, 5),), {"pads": (0, 0, 0, 0, 1, 0), "mode": "wrap", "shape": (4, 1, 5)}),
    *(Case("Pad", ((3, 2, 2),), {"pads": (1, 0, 0, 2, 0, 0), "mode": mode}) for mode in ("edge", "reflect", "wrap")),
    *(
        Case("PadGrad", ((2, 6, 8),), {"pads": (0, 2, 1, 0, 1, 3), "mode": mode, "shape": (2, 3, 4)})
        for mode in ("edge", "reflect", "wrap")
    ),
]
