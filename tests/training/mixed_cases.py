"""The network behind the numbers of PyTorch in `mixed.json`: two convolutions, a dense layer, two steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from poetc.graph import Array, Graph, Role, TensorType
from poetc.ops import Builder
from poetc.training import PRECISIONS
from poetc.training.precisions import Algorithm, Numbers

# The algorithms whose products are of rounded floats; NITI's are of integers.
ALGORITHMS = tuple(
    p.name for p in PRECISIONS.values() if p.algorithm is not None and p.algorithm.products != "integers"
)
NUMBERS = Path(__file__).with_name("mixed.json")
STEPS = 2
RATE = 2.0**-3
ROWS, CHANNELS, SIDE, WIDTH, CLASSES = 5, 2, 6, 4, 3
_SHAPES = {
    "w1": (WIDTH, CHANNELS, 3, 3),
    "b1": (WIDTH,),
    "w2": (WIDTH, WIDTH, 3, 3),
    "b2": (WIDTH,),
    "w3": (CLASSES, WIDTH * SIDE * SIDE),
    "b3": (CLASSES,),
}


def algorithm(name: str) -> Algorithm:
    """The row, where that can be told without its random numbers and its sums in chunks."""
    found = PRECISIONS[name].algorithm
    assert found is not None

    def nearest(numbers: Numbers | None) -> Numbers | None:
        return numbers and replace(numbers, rounding="nearest")

    factors = {name: replace(getattr(found, name), rounding="nearest") for name in ("weights", "activations", "errors")}
    rest = {name: nearest(getattr(found, name)) for name in ("gradients", "stored", "state")}
    return replace(found, **factors, **rest, sums=None)


def parameters() -> dict[str, Array]:
    random = np.random.default_rng(42)
    return {n: (random.standard_normal(s) / np.sqrt(np.prod(s[1:]))).astype(np.float32) for n, s in _SHAPES.items()}


def batches() -> list[tuple[Array, Array]]:
    random = np.random.default_rng(43)
    shape = (ROWS, CHANNELS, SIDE, SIDE)
    return [
        (random.standard_normal(shape).astype(np.float32), random.integers(0, CLASSES, ROWS).astype(np.int32))
        for _ in range(STEPS)
    ]


def network() -> Graph:
    b = Builder()
    x = b.add_tensor("x", TensorType((ROWS, CHANNELS, SIDE, SIDE)), Role.INPUT)
    for name, value in parameters().items():
        b.add_tensor(name, TensorType(value.shape), Role.PARAMETER, value)
    for k in "12":
        b.source = f"conv{k}"
        x = b.emit1("Relu", [b.emit1("Conv", [x, f"w{k}", f"b{k}"], {"pads": (1, 1, 1, 1)})])
    b.source = "dense"
    x = b.emit1("Reshape", [x], {"shape": (ROWS, WIDTH * SIDE * SIDE)})
    y = b.emit1("MatMul", [x, "w3", "b3"], {"trans_b": True}, hint="logits")
    return Graph("mixed", b.tensors, tuple(b.operators), ("x",), (y,), b.values)
