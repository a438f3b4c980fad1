from tests.support.kernels import Case, uniform

POSITIVE = uniform((3,), 0.3, 2.0)
BIG = ((4, 3, 16, 17), (2, 3, 5), (6, 3))
TOLERANCE = 3e-6


def batch_norm(x: tuple[int, ...]) -> list[Case]:
    c, e = (3,), {"epsilon": 1e-3}
    small = len(x) < 4
    return [
        Case("BatchNormStats", (x,), {}, TOLERANCE, TOLERANCE),
        Case(
            "BatchNormApply", (x, c, POSITIVE, c, c), {**e, "training": False}, TOLERANCE, TOLERANCE, small, (0, 3, 4)
        ),
        Case("BatchNormGradParams", (x, c, POSITIVE, x), e, 1e-5, 2e-5),
        Case("BatchNormGradInput", (x, c, POSITIVE, c, c, c, x), e, TOLERANCE, TOLERANCE),
        Case("BatchNormGradInputFrozen", (POSITIVE, c, x), e, TOLERANCE, TOLERANCE),
    ]


def fused_batch_norm(x: tuple[int, ...], activation: str, **parameters: float) -> list[Case]:
    c, e = (3,), {"epsilon": 1e-3, "activation": activation, **parameters}
    vectors = (x, c, POSITIVE, c, c)
    return [
        Case("BatchNormActivate", vectors, e, TOLERANCE, TOLERANCE, note=activation),
        Case("BatchNormActivate", (*vectors, x), e, TOLERANCE, TOLERANCE, note=f"sum, {activation}"),
        Case("BatchNormActivateGradParams", (*vectors, x), e, 1e-5, 2e-5, note=activation),
        Case("BatchNormActivateGradInput", (*vectors, c, c, x), e, TOLERANCE, TOLERANCE, note=activation),
    ]


def layer_norm(x: tuple[int, ...], axis: int, bias: bool) -> list[Case]:
    e, scale = {"axis": axis, "epsilon": 1e-5}, x[axis:]
    statistic = (*x[:axis], *(1,) * len(scale))
    rstd = uniform(statistic, 0.5, 2.0)
    small = len(x) < 4
    row = {"axis": axis}
    inputs = (x, scale, scale) if bias else (x, scale)
    return [
        Case("LayerNorm", inputs, e, TOLERANCE, TOLERANCE, small, outputs=(0,)),
        Case("LayerNormGradInput", (x, statistic, rstd, scale, x), row, TOLERANCE, TOLERANCE),
        Case("LayerNormGradParams", (x, statistic, rstd, x), row, 1e-5, 2e-5),
        Case("RmsNorm", (x, scale), e, TOLERANCE, TOLERANCE, small, outputs=(0,)),
        Case("RmsNormGradInput", (x, rstd, scale, x), row, TOLERANCE, TOLERANCE),
        Case("RmsNormGradScale", (x, rstd, x), row, 1e-5, 2e-5),
    ]


def group_norm(x: tuple[int, ...], groups: int) -> list[Case]:
    n, c = x[:2]
    e, g = {"groups": groups, "epsilon": 1e-5}, {"groups": groups}
    rstd = uniform((n, groups), 0.5, 2.0)
    small = len(x) < 4
    return [
        Case("GroupNorm", (x, (c,), (c,)), e, TOLERANCE, TOLERANCE, small, outputs=(0,)),
        Case("GroupNormGradInput", (x, (n, groups), rstd, (c,), x), g, TOLERANCE, TOLERANCE),
        Case("GroupNormGradParams", (x, (n, groups), rstd, x), g, 1e-5, 2e-5),
    ]


def lrn(x: tuple[int, ...], size: int, bias: float = 1.0) -> list[Case]:
    attributes = {"size": size, "alpha": 0.3, "beta": 0.75, "bias": bias}
    return [
        Case("Lrn", (x,), attributes, TOLERANCE, TOLERANCE),
        Case("LrnGrad", (x, x), attributes, TOLERANCE, TOLERANCE),
    ]


CASES = [
    *(case for shape in BIG for case in batch_norm(shape)),
    Case("BatchNormActivate", ((2, 3, 33), (3,), POSITIVE, (3,), (3,), (2, 3, 33)), {"epsilon": 1e-3}),
    *(case for shape in BIG for case in fused_batch_norm(shape, "Relu")),
    *(case for shape in BIG for case in fused_batch_norm(shape, "Clip", min=-0.1, max=0.2)),
    *fused_batch_norm((2, 3, 300), "LeakyRelu", alpha=0.2),
    *fused_batch_norm((2, 3, 35), "LeakyRelu", alpha=-0.2),
    *fused_batch_norm((2, 3, 35), "HardSwish"),
    *fused_batch_norm((2, 3, 35), "Silu"),
    Case("BatchNormUpdate", ((5,), (5,), (5,), (5,)), {"momentum": 0.9}),
    *layer_norm((2, 3, 5), 2, bias=True),
    *layer_norm((2, 3, 5), 1, bias=False),
    *layer_norm((4, 6), 0, bias=True),
    *layer_norm((3, 5, 7, 100), 3, bias=True),
    *layer_norm((70, 2, 2, 33), 2, bias=False),
    *group_norm((2, 6, 5), 2),
    *group_norm((2, 4, 6), 4),
    *group_norm((3, 4), 1),
    *group_norm((2, 6, 9, 17), 3),
    *group_norm((2, 64, 2, 2), 2),
    *lrn((2, 7, 3, 2), 5),
    *lrn((1, 3, 4), 4, bias=2.0),
    *lrn((1, 2, 3), 9),
]
