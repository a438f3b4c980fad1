"""Networks for tests of fusion, and their steps with and without it."""

from __future__ import annotations

from collections import Counter

import numpy as np

from poetc import measure
from poetc.graph import Array, Attribute, DType, Graph, Role, TensorType, TrainingGraph
from poetc.ops import Builder
from poetc.passes import run_standard
from poetc.program import lower
from poetc.scheduling import keep_all, pack
from poetc.training import TrainingOptions, build
from tests.program.models import make_problem


def network(activation: str = "HardSwish", tokens: int = 6) -> Graph:
    """Tokens, a dense layer, then convolutions with batch norms: the first with `activation`, the second added to
    what it reads.
    """
    random = np.random.default_rng(3)
    b = Builder()

    def parameter(name: str, *shape: int, role: Role = Role.PARAMETER, value: float = 0.0) -> str:
        array = random.normal(0, 0.4, shape).astype(np.float32) if value == 0 else np.full(shape, value, np.float32)
        return b.add_tensor(name, TensorType(shape), role, array)

    def norm(x: str, name: str, channels: int) -> str:
        inputs = [x, parameter(f"{name}.mean", channels, role=Role.STATISTIC)]
        inputs.append(parameter(f"{name}.var", channels, role=Role.STATISTIC, value=1.0))
        inputs += [parameter(f"{name}.scale", channels, value=0.7), parameter(f"{name}.bias", channels)]
        return b.emit1("BatchNormApply", inputs, {"epsilon": 1e-5, "momentum": 0.9}, hint=name)

    x = b.add_tensor("tokens", TensorType((tokens,), DType.I32), Role.INPUT)
    y = b.emit1("Gather", [parameter("table", 60, 8), x], {"axis": 0}, hint="read")
    y = b.emit1("MatMul", [y, parameter("dense", 8, 6 * 36)], {"trans_a": False, "trans_b": False, "alpha": 1.0})
    y = b.emit1("Reshape", [y], {"shape": (1, 36, tokens, 6)})
    geometry: dict[str, Attribute] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    y = b.emit1("Conv", [y, parameter("conv1", 32, 36, 3, 3)], geometry, hint="one")
    first = b.emit1(activation, [norm(y, "norm1", 32)], {}, hint="active")
    y = b.emit1("Conv", [first, parameter("conv2", 32, 32, 3, 3)], geometry, hint="two")
    y = b.emit1("Add", [first, norm(y, "norm2", 32)], hint="sum")
    y = b.emit1("Relu", [y], hint="last")
    y = b.emit1("ReduceMean", [y], {"axes": (2, 3), "keepdims": False})
    return Graph("network", b.tensors, tuple(b.operators), ("tokens",), (y,), b.values)


def tied(layers: int, name: str = "w") -> Graph:
    """Layers with one weight: each makes a part of the gradient."""
    b = Builder()
    w = b.add_tensor(name, TensorType((8, 8)), Role.PARAMETER, np.eye(8, dtype=np.float32))
    x = b.add_tensor("x", TensorType((2, 8)), Role.INPUT)
    for _ in range(layers):
        x = b.emit1("MatMul", [x, w], {"trans_a": False, "trans_b": False, "alpha": 1.0})
    return Graph("tied", b.tensors, tuple(b.operators), ("x",), (x,), b.values)


def recurrent(cell: str, batch: int = 2, hidden: int = 5, steps: int = 4) -> Graph:
    """Two layers of cells, each on rows of gates that the layer before makes; the loss reads the second."""
    random = np.random.default_rng(7)
    b = Builder()
    gates = {"LstmCell": 4, "GruCell": 3}[cell] * hidden

    def parameter(name: str, *shape: int) -> str:
        return b.add_tensor(name, TensorType(shape), Role.PARAMETER, random.normal(0, 0.5, shape).astype(np.float32))

    by_row = {"trans_b": True}
    states = [b.add_tensor(f"x{t}", TensorType((batch, 3)), Role.INPUT) for t in range(steps)]
    inputs = tuple(states)
    for layer, width in (("one", 3), ("two", hidden)):
        w, r = parameter(f"{layer}.w", gates, width), parameter(f"{layer}.r", gates, hidden)
        h = parameter(f"{layer}.start", batch, hidden)
        c, made = h, []
        for t, x in enumerate(states):
            row = b.emit1("MatMul", [x, w], by_row)
            if cell == "LstmCell":
                before = [b.emit1("MatMul", [h, r], by_row), c] if t else []
                h, c, _ = b.emit(cell, [row, *before])
            else:
                h = b.emit1(cell, [row, b.emit1("MatMul", [h, r], by_row), h])
            made.append(h)
        states = made
    y = b.emit1("Concat", states, {"axis": 1})
    return Graph(cell, b.tensors, tuple(b.operators), inputs, (y,), b.values)


def batched(batch: int) -> Graph:
    """Two tokens a sample, a dense layer, a convolution."""
    random = np.random.default_rng(4)
    b = Builder()

    def parameter(name: str, *shape: int) -> str:
        return b.add_tensor(name, TensorType(shape), Role.PARAMETER, random.normal(0, 0.4, shape).astype(np.float32))

    x = b.add_tensor("tokens", TensorType((batch, 2), DType.I32), Role.INPUT)
    y = b.emit1("Gather", [parameter("table", 60, 9), x], {"axis": 0})
    y = b.emit1("MatMul", [b.emit1("Reshape", [y], {"shape": (batch, 18)}), parameter("dense", 18, 6 * 36)])
    y = b.emit1("Reshape", [y], {"shape": (batch, 36, 3, 2)})
    geometry: dict[str, Attribute] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    y = b.emit1("Conv", [y, parameter("conv", 32, 36, 3, 3)], geometry)
    y = b.emit1("ReduceMean", [y], {"axes": (2, 3), "keepdims": False})
    return Graph("batched", b.tensors, tuple(b.operators), ("tokens",), (y,), b.values)


def attention(projections: str, batch: int = 2, tokens: int = 12, heads: int = 3, size: int = 10) -> Graph:
    """Queries, keys and values by three products ("apart") or one, which is cut by "split", "slices", or turned round
    as a whole and then sliced ("turned").
    """
    random = np.random.default_rng(11)
    b, width = Builder(), heads * size

    def product(x: str, name: str, outputs: int) -> str:
        weight = random.normal(0, 0.3, (width, outputs)).astype(np.float32)
        weights = b.add_tensor(name, TensorType(weight.shape), Role.PARAMETER, weight)
        bias = b.add_tensor(f"{name}.bias", TensorType((outputs,)), Role.PARAMETER, weight[0].copy())
        return b.emit1("MatMul", [x, weights, bias])

    x = b.add_tensor("x", TensorType((batch, tokens, width)), Role.INPUT)
    by_head = (0, 2, 1, 3)
    parts: list[str] = []
    if projections == "apart":
        parts = [product(x, name, width) for name in "qkv"]
    else:
        whole = product(x, "qkv", 3 * width)
        if projections == "split":
            parts = list(b.emit("Split", [whole], {"axis": 2, "sizes": (width,) * 3}))
        elif projections == "slices":
            for start in range(0, 3 * width, width):
                cut: dict[str, Attribute] = {"starts": (0, 0, start), "sizes": (batch, tokens, width)}
                parts.append(b.emit1("Slice", [whole], cut))
        else:
            whole = b.emit1("Reshape", [whole], {"shape": (batch, tokens, 3, heads, size)})
            whole = b.emit1("Transpose", [whole], {"perm": (2, 0, 3, 1, 4)})
            one = (1, batch, heads, tokens, size)
            for i in range(3):
                parts.append(b.emit1("Slice", [whole], {"starts": (i, 0, 0, 0, 0), "sizes": one}))
    if projections == "turned":
        q, k, v = (b.emit1("Reshape", [part], {"shape": one[1:]}) for part in parts)
    else:
        parts = [b.emit1("Reshape", [part], {"shape": (batch, tokens, heads, size)}) for part in parts]
        perms = (by_head, (0, 2, 3, 1) if projections == "apart" else by_head, by_head)
        q, k, v = (b.emit1("Transpose", [part], {"perm": perm}) for part, perm in zip(parts, perms, strict=True))
    scores = b.emit1("MatMul", [q, k], {"trans_b": projections != "apart", "alpha": 0.3})
    y = b.emit1("MatMul", [b.emit1("Softmax", [scores], {"axis": 3}), v])
    y = b.emit1("Transpose", [y], {"perm": by_head})
    y = product(b.emit1("Reshape", [y], {"shape": (batch, tokens, width)}), "out", width)
    y = b.emit1("ReduceMean", [y], {"axes": (1,), "keepdims": False})
    return Graph(projections, b.tensors, tuple(b.operators), ("x",), (y,), b.values)


def steps(graph: Graph, **options: object) -> tuple[TrainingGraph, TrainingGraph]:
    """Without and with fusion."""
    chosen = [TrainingOptions(fusion=fusion, **options) for fusion in (False, True)]  # type: ignore[arg-type]
    return run_standard(build(graph, chosen[0])), run_standard(build(graph, chosen[1]))


def kinds(graph: Graph) -> Counter[str]:
    return Counter(op.kind for op in graph.operators)


def gained(graph: Graph, **options: object) -> dict[str, int]:
    """How many operators of each kind fusion adds; negative: takes away."""
    without, fused = (kinds(step) for step in steps(graph, **options))
    return {kind: fused[kind] - without[kind] for kind in sorted(fused | without) if fused[kind] != without[kind]}


def trained(
    step: TrainingGraph, batches: list[dict[str, Array]], cflags: str = "-O2"
) -> tuple[list[float], dict[str, bytes]]:
    """Losses and state (without the constant of fusion) after the emitted C has run the step on `batches`."""
    problem = make_problem(step)
    schedule = keep_all(problem)
    program = lower(step, problem, schedule, pack(problem, schedule))
    with measure.build_host([program], step.values, cflags=cflags) as model:
        losses = [model.run(batch) for batch in batches]
        assert model.measure_high_water(batches[0]) == program.high_water_bytes
        for batch in batches:
            model.run(batch)
        return losses, {n: model.state(n).tobytes() for n in model.state_names() if n != "minus one"}


def random_batches(step: TrainingGraph, count: int, seed: int, below: int = 8) -> list[dict[str, Array]]:
    """Inputs and targets: normal floats, integers from 0 to `below`."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        batch: dict[str, Array] = {}
        for name in (*step.inputs, step.target):
            type = step.tensors[name].type
            whole = random.integers(0, below, type.shape).astype(np.int32)
            batch[name] = whole if type.dtype is DType.I32 else random.normal(0, 1, type.shape).astype(np.float32)
        found.append(batch)
    return found
