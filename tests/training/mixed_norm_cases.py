"""The network behind the numbers of PyTorch in `mixed_norms.json`: a convolution, a batch norm, a dense layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from poetc.graph import Array, Graph, Role, TensorType
from poetc.ops import Builder

NUMBERS = Path(__file__).with_name("mixed_norms.json")
STEPS, RATE = 2, 2.0**-3
ROWS, CHANNELS, SIDE, WIDTH, RESULTS = 6, 2, 5, 4, 3
SHAPES = {
    "w1": (WIDTH, CHANNELS, 3, 3),
    "scale": (WIDTH,),
    "bias": (WIDTH,),
    "w2": (RESULTS, WIDTH * SIDE * SIDE),
}


def parameters() -> dict[str, Array]:
    """With outputs that spread by less than 1 and by far more, so that statistics lie on both sides of 1."""
    random = np.random.default_rng(7)
    found = {n: random.standard_normal(s).astype(np.float32) for n, s in SHAPES.items()}
    found["w1"] *= np.array([0.05, 0.3, 1.0, 3.0], np.float32).reshape(-1, 1, 1, 1)
    found["w2"] /= np.float32(10)
    return found


def batches() -> list[tuple[Array, Array]]:
    random = np.random.default_rng(8)
    shapes = (ROWS, CHANNELS, SIDE, SIDE), (ROWS, RESULTS)
    pairs = [[random.standard_normal(s).astype(np.float32) for s in shapes] for _ in range(STEPS)]
    return [(x + np.float32(0.5), y) for x, y in pairs]


def network() -> Graph:
    b = Builder()
    x = b.add_tensor("x", TensorType((ROWS, CHANNELS, SIDE, SIDE)), Role.INPUT)
    for name, value in parameters().items():
        b.add_tensor(name, TensorType(value.shape), Role.PARAMETER, value)
    for name, start in (("mean", 0.0), ("var", 1.0)):
        b.add_tensor(name, TensorType((WIDTH,)), Role.STATISTIC, np.full(WIDTH, start, np.float32))
    b.source = "conv"
    x = b.emit1("Conv", [x, "w1"], {"pads": (1, 1, 1, 1)})
    x = b.emit1("BatchNormApply", [x, "mean", "var", "scale", "bias"], {"epsilon": 1e-5, "momentum": 0.9})
    x = b.emit1("Relu", [x])
    b.source = "dense"
    x = b.emit1("Reshape", [x], {"shape": (ROWS, WIDTH * SIDE * SIDE)})
    y = b.emit1("MatMul", [x, "w2"], {"trans_b": True}, hint="y")
    return Graph("norm", b.tensors, tuple(b.operators), ("x",), (y,), b.values)
