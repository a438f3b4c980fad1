"""Small forward graphs, made with the Builder, for tests of everything downstream of the importer."""

from __future__ import annotations

import numpy as np

from poetc.graph import Array, DType, Graph, Role, TensorType, materialize
from poetc.ops import Bound, Builder, spec


def small_cnn(batch: int = 4, channels: int = 4, classes: int = 3, seed: int = 0, *, conv_bias: bool = False) -> Graph:
    """conv-bn-relu, a residual conv-bn-relu block, max-pool, dense: fan-out, batch-norm, views, a shared shape."""
    random = np.random.default_rng(seed)
    b = Builder()

    def parameter(name: str, *shape: int, scale: float = 0.5) -> str:
        value = (random.standard_normal(shape) * scale).astype(np.float32)
        return b.add_tensor(name, TensorType(shape), Role.PARAMETER, value)

    def batch_norm(x: str, name: str) -> str:
        c = (b.type(x).shape[1],)
        mean = b.add_tensor(f"{name}.mean", TensorType(c), Role.STATISTIC, random.standard_normal(c).astype(np.float32))
        var = b.add_tensor(f"{name}.var", TensorType(c), Role.STATISTIC, random.uniform(0.5, 1.5, c).astype(np.float32))
        scale, bias = parameter(f"{name}.scale", *c), parameter(f"{name}.bias", *c)
        return b.emit1(
            "BatchNormApply", [x, mean, var, scale, bias], {"epsilon": 1e-5, "training": False, "momentum": 0.9}
        )

    def conv(x: str, name: str, out: int) -> str:
        weight = parameter(f"{name}.weight", out, b.type(x).shape[1], 3, 3)
        bias = [parameter(f"{name}.bias", out)] if conv_bias else []
        return b.emit1(
            "Conv", [x, weight, *bias], {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
        )

    x = b.add_tensor("x", TensorType((batch, 2, 6, 6)), Role.INPUT)
    h = b.emit1("Relu", [batch_norm(conv(x, "stem", channels), "bn0")])
    r = b.emit1("Relu", [batch_norm(conv(h, "block", channels), "bn1")])
    h = b.emit1("Add", [h, r])
    h = b.emit(
        "MaxPool",
        [h],
        {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1), "ceil_mode": False},
    )[0]
    h = b.emit1("Reshape", [h], {"shape": (batch, channels * 9)})
    weight, bias = parameter("fc.weight", classes, channels * 9), parameter("fc.bias", classes)
    y = b.emit1("MatMul", [h, weight, bias], {"trans_a": False, "trans_b": True, "alpha": 1.0}, hint="logits")
    return Graph("small_cnn", b.tensors, tuple(b.operators), ("x",), (y,), b.values)


def random_inputs(graph: Graph, seed: int = 1, classes: int = 3) -> dict[str, Array]:
    """Values for every INPUT and TARGET."""
    random = np.random.default_rng(seed)
    values: dict[str, Array] = {}
    for name, t in graph.tensors.items():
        if t.role in (Role.INPUT, Role.TARGET):
            if t.dtype is DType.I32:
                values[name] = random.integers(0, classes, t.shape).astype(np.int32)
            else:
                values[name] = random.standard_normal(t.shape).astype(np.float32)
    return values


def evaluate(graph: Graph, inputs: dict[str, Array], dtype: type = np.float64) -> dict[str, Array]:
    """Every tensor of the graph, operators run in order through the reference numerics in `dtype`."""

    def cast(a: Array) -> Array:
        return a.astype(dtype) if a.dtype.kind == "f" else a

    values = {name: cast(materialize(v, graph.tensors[name].type)) for name, v in graph.values.items()}
    values.update({name: cast(v) for name, v in inputs.items()})
    for op in graph.operators:
        bound = Bound(
            op.attributes,
            tuple(graph.tensors[t].type for t in op.inputs),
            tuple(graph.tensors[t].type for t in op.outputs),
        )
        values.update(zip(op.outputs, spec(op.kind).evaluate(bound, [values[t] for t in op.inputs]), strict=True))
    return values
