from tests.support.kernels import Case, uniform

LAYOUTS = [((3, 7), -1), ((2, 5, 3), 1), ((4, 2), 0), ((1, 1), 1), ((2, 130), 1)]

CASES = [
    case
    for shape, axis in LAYOUTS
    for kind in ("Softmax", "LogSoftmax")
    for case in (
        Case(kind, (uniform(shape, -8, 8),), {"axis": axis}, 2e-6, 2e-6),
        Case(
            f"{kind}Grad",
            (uniform(shape, 0, 0.5) if kind == "Softmax" else uniform(shape, -5, 0), shape),
            {"axis": axis},
            3e-6,
            3e-6,
        ),
    )
]
CASES.append(Case("Softmax", (uniform((2, 6), -1e4, 1e4),), {"axis": 1}, gradient=False, note="far apart"))
