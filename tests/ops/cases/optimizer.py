from dataclasses import replace

import numpy as np

from poetc.graph import Attribute
from poetc.ops import registry, spec
from poetc.ops.optimizers import Update
from tests.support.kernels import Case, uniform

W = (3, 7)
LR = np.float32([0.05])
QUARTER = np.full(W, 0.25, np.float32)
MINUS_ONE = np.float32([-1])


def adam(step: int, **attributes: Attribute) -> Case:
    inputs = (W, W, uniform(W, 0, 1), W, LR, np.int32([step]))
    return Case("Adam", inputs, attributes, 2e-6, 1e-6, note=f"step {step}")


def rms_prop(suffix: str, states: int, **attributes: Attribute) -> Case:
    inputs = (W, uniform(W, 1, 2), *[W] * (states - 2), W, LR)
    return Case(f"RmsProp{suffix}", inputs, attributes, 2e-6)


def adafactor(step: int, shape: tuple[int, ...], **attributes: Attribute) -> Case:
    kind, states = "Adafactor", [shape[:-1], (*shape[:-2], shape[-1])]
    if len(shape) == 1:
        kind, states = "AdafactorVector", [shape]
    inputs = (shape, *(uniform(state, 0, 1) for state in states), shape, LR, np.int32([step]))
    return Case(kind, inputs, attributes, 2e-6, 1e-6, note=f"step {step}, {shape}")


def nadam(step: int, product: float, **attributes: Attribute) -> Case:
    inputs = (W, W, uniform(W, 0, 1), W, LR, np.int32([step]), np.float32([product]))
    return Case("Nadam", inputs, attributes, 2e-6, 1e-6, note=f"step {step}")


def matmul(m: int, n: int, k: int) -> Case:
    return Case("MatMulSgd", ((m, n), (k, m), (k, n), LR), {"trans_a": True}, 1e-5, 1e-5)


def gather(rows: int, *indices: int) -> Case:
    inputs = ((rows, 5), np.int32(indices), (len(indices), 5), LR)
    return Case("GatherGradSgd", inputs, {"axis": 0, "shape": (rows, 5)}, note=str(indices))


def convolution(outputs: int, channels: int, kernel: int, group: int = 1) -> Case:
    inputs = ((outputs, channels // group, kernel, kernel), (2, channels, 9, 9), (2, outputs, 10 - kernel, 10 - kernel))
    attributes = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "group": group, "kernel": (kernel, kernel)}
    return Case("ConvGradWeightSgd", (*inputs, LR), attributes, 1e-5, 2e-5, note=f"{outputs} {channels}")


DESCENTS = [
    *(matmul(*sizes) for sizes in ((3, 4, 1), (5, 131, 2), (7, 70, 8), (9, 3, 30), (50, 200, 130), (130, 70, 65))),
    convolution(8, 40, 3),
    convolution(13, 24, 5),
    convolution(16, 64, 1),
    convolution(24, 32, 3, group=2),
    gather(9, 2),
    gather(19, 2, 5, 2, -17, 18, 5),
]


def summed(case: Case) -> Case:
    """The operator that adds the same gradient to -1 times a total: terms of up to 30 cancel, and round as such."""
    return replace(case, kind=f"{case.kind[:-3]}Sum", inputs=(*case.inputs[:-1], MINUS_ONE), atol=5 * case.atol)


def plain(kind: str) -> Case:
    """An update whose states have the shape of the weight, and which reads the rate alone."""
    return Case(kind, (W, *[uniform(W, 0, 1)] * (spec(kind).states - 1), W, LR), {}, 2e-6)


PLAIN = [kind for kind in registry() if type(spec(kind)).infer is Update.infer and spec(kind).scalars == 1]

CASES = [
    *map(plain, PLAIN),
    Case("Sgd", (W, W, LR), {"weight_decay": 0.1}),
    Case("Momentum", (W, W, W, LR), {"momentum": 0.9}),
    Case("Momentum", (W, W, W, LR), {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    *(adam(step) for step in (1, 2, 3, 17, 1000, 2**31 - 1)),
    adam(4, beta1=0.8, beta2=0.99, epsilon=1e-3, weight_decay=0.1),
    adam(4, weight_decay=0.1, decoupled=True),
    Case("Adagrad", (W, uniform(W, 0, 1), W, LR), {"epsilon": 1e-3, "weight_decay": 0.1}, 2e-6),
    rms_prop("", 2),
    rms_prop("", 2, alpha=0.9, epsilon=1e-3, weight_decay=0.1),
    rms_prop("Centered", 3, weight_decay=0.1),
    rms_prop("Momentum", 3, momentum=0.9),
    rms_prop("CenteredMomentum", 4, alpha=0.9, momentum=0.8, weight_decay=0.1),
    Case(
        "RmsPropCentered",
        (W, np.full(W, 0.25, "f4"), np.full(W, 0.6, "f4"), W, LR),
        {"alpha": 1 - 1e-9},
        note="below zero",
    ),
    Case("Lion", (W, W, W, LR), {"beta1": 0.8, "beta2": 0.95, "weight_decay": 0.1}),
    *(adafactor(step, W) for step in (1, 2, 1000)),
    adafactor(3, (2, 3, 5, 4), weight_decay=0.1, update_limit=0.25, beta2_decay=-0.5),
    adafactor(7, (11,), weight_decay=0.1),
    nadam(1, 0.45),
    nadam(40, 1e-9),
    nadam(2**31 - 1, 0.0, beta1=0.8, beta2=0.99, epsilon=1e-3, momentum_decay=0.1, weight_decay=0.1),
    Case("NadamSchedule", (np.float32([0.45]), np.int32([2])), {}),
    Case("NadamSchedule", (np.float32([0.45]), np.int32([9])), {"beta1": 0.8, "momentum_decay": 0.5}),
    *DESCENTS,
    *map(summed, DESCENTS),
    Case("StepCount", (np.int32([41]),)),
]
