import numpy as np

from tests.support.kernels import Case, uniform

S = (3, 5, 4)
SPECIAL = np.float32([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-40, 0.5, 1.5, 2.5, -0.5, 3e38])

WITH_SPECIALS = (
    *("Relu", "LeakyRelu", "Elu", "Clip", "Sigmoid", "Tanh", "Softplus", "Exp", "Sqrt", "Reciprocal", "Log", "Abs"),
    *("Erf", "Sin", "Cos", "Atan", "Neg", "Sign", "Floor", "Ceil", "Round"),
)


def both(kind: str, low: float, high: float, avoid: tuple[float, ...] = (), **attributes: float | str) -> list[Case]:
    """The kind and its gradient on random numbers of [low, high]. Gradients cancel for some arguments, hence atol."""
    x = uniform(S, low, high, avoid)
    return [Case(kind, (x,), attributes), Case(f"{kind}Grad", (x, S), attributes, atol=2e-6)]


CASES = [
    *both("Relu", -2, 2, (0,)),
    *both("LeakyRelu", -2, 2, (0,)),
    *both("LeakyRelu", -2, 2, (0,), alpha=0.0),
    *both("LeakyRelu", -2, 2, (0,), alpha=-0.3),
    *both("Elu", -4, 4, (0,)),
    *both("Elu", -4, 4, (0,), alpha=0.7),
    *both("Selu", -4, 4, (0,)),
    *both("Celu", -4, 4, (0,), alpha=0.5),
    *both("Clip", -2, 8, (0, 6), min=0.0, max=6.0),
    *both("Clip", -2, 2, (0.5,), max=0.5),
    *both("HardSigmoid", -4, 4, (-3, 3), alpha=1 / 6, beta=0.5),
    *both("Sigmoid", -6, 6),
    *both("Tanh", -3, 3),
    *both("Softplus", -6, 6),
    *both("Softsign", -6, 6, (0,)),
    *both("Silu", -6, 6),
    *both("HardSwish", -5, 5, (-3, 3)),
    *both("Mish", -6, 6),
    *both("Gelu", -5, 5),
    *both("Gelu", -5, 5, approximate="tanh"),
    *both("Exp", -3, 3),
    *both("Sqrt", 0.1, 4),
    Case("SqrtGrad", (np.float32([0, 2, 0, 0.5]), np.float32([1, 2, -3, 4])), note="zero"),
    *both("Reciprocal", 0.3, 4),
    *both("Log", 0.1, 4),
    *both("Abs", -2, 2, (0,)),
    *both("Erf", -3, 3),
    *both("Sin", -9, 9),
    *both("Cos", -9, 9),
    *both("Atan", -9, 9),
    *both("Power", 0.2, 3, exponent=2.7),
    *(case for e in (-2.0, -1.0, 2.0, 3.0, 4.0) for case in both("Power", -2, 2, (0, -0.02, 0.02), exponent=e)),
    *(case for e in (-0.5, 0.0, 0.5, 1.0) for case in both("Power", 0.2, 2, exponent=e)),
    Case("Affine", (S,), {"alpha": -1.5, "beta": 0.25}),
    Case("Affine", (S,), {"alpha": 1.0, "beta": 3.0}),
    Case("Neg", (S,)),
    *(Case(kind, (uniform(S, -3, 3, (-0.5, 0.5)),)) for kind in ("Sign", "Floor", "Ceil", "Round")),
    Case("Not", (np.uint8([0, 1, 0, 255]),)),
    # scalars, and what lies outside the ordinary
    Case("Relu", ((),)),
    *(Case(kind, (SPECIAL,), gradient=False, note="special") for kind in WITH_SPECIALS),
]
