import numpy as np

from poetc.graph import Attribute
from tests.support.kernels import Case, uniform

W = (3, 7)
LR = np.float32([0.05])


def adam(step: int, **attributes: Attribute) -> Case:
    inputs = (W, W, uniform(W, 0, 1), W, LR, np.int32([step]))
    return Case("Adam", inputs, attributes, 2e-6, 1e-6, note=f"step {step}")


CASES = [
    Case("Sgd", (W, W, LR)),
    Case("Sgd", (W, W, LR), {"weight_decay": 0.1}),
    Case("Momentum", (W, W, W, LR), {"momentum": 0.9}),
    Case("Momentum", (W, W, W, LR), {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    *(adam(step) for step in (1, 2, 3, 17, 1000, 2**31 - 1)),
    adam(4, beta1=0.8, beta2=0.99, epsilon=1e-3, weight_decay=0.1),
    adam(4, weight_decay=0.1, decoupled=True),
    Case("Adagrad", (W, uniform(W, 0, 1), W, LR), {}, 2e-6),
    Case("Adagrad", (W, uniform(W, 0, 1), W, LR), {"epsilon": 1e-3, "weight_decay": 0.1}, 2e-6),
    Case("StepCount", (np.int32([41]),)),
]
