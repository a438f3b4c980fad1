"""Fused operators: which, and that nothing but memory changes: the weights keep their bits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetc import codegen, homes
from poetc.devices import build_problem, load_profile
from poetc.frontend import load
from poetc.graph import Array, Attribute, DType, Graph, Operator, Phase, Role, Tensor, TensorType, TrainingGraph
from poetc.ops import Builder, spec
from poetc.ops._elementwise import Differentiable
from poetc.ops.batch_norm_activation import ACTIVATIONS
from poetc.ops.convolution import NORM_ACTIVATIONS
from poetc.passes import _fusion, order_backward, run_standard
from poetc.scheduling import keep_all, keep_all_peak_bytes, pack
from poetc.training import TrainingOptions, build
from tests.codegen.models import make_problem
from tests.support.graphs import small_cnn
from tests.support.kernels import (
    AnyArray,
    Attributes,
    KernelError,
    Library,
    bind_kind,
    build_library,
    library,
    run_kernel,
)

DIGITS = Path(__file__).resolve().parents[2] / "demo" / "digits.onnx"
VECTORS = [library, lambda: build_library("-march=native"), lambda: build_library("-U__SSE2__", "-U__aarch64__")]
SPECIAL = np.float32([0.0, -0.0, 3.0, -3.0, 6.0, 1e-40, np.inf, -np.inf, np.nan])


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


# --- what is fused ----------------------------------------------------------------------------------------------------


def test_what_is_fused() -> None:
    assert gained(network()) == {
        "Add": -1,
        "BatchNormActivate": 2,
        "BatchNormActivateGradInput": 1,
        "BatchNormActivateGradParams": 1,
        "BatchNormApply": -2,
        "BatchNormGradInput": -1,
        "BatchNormGradParams": -1,
        "ConvGradWeight": -2,
        "ConvGradWeightSgd": 2,
        "GatherGrad": -1,
        "GatherGradSgd": 1,
        "HardSwish": -1,
        "HardSwishGrad": -1,
        "MatMul": -1,
        "MatMulSgd": 1,
        "Relu": -1,
        "Sgd": -4,
    }


@pytest.fixture
def however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are made again for gradients of weights."""
    monkeypatch.setattr(_fusion, "LEAST_BYTES", 0)


@pytest.mark.usefixtures("however_small")
def test_what_convolutions_read_is_made_again_by_their_gradients() -> None:
    """What the first rectifier makes is not kept, though the forward pass reads it twice; the last one's output is."""
    found = gained(network("Relu"))
    assert (found["BatchNormActivate"], found["Relu"]) == (2, -2)
    assert (found["ReluGrad"], found["BatchNormGradInput"], found["BatchNormActivateGradInput"]) == (-1, -1, 1)
    step = steps(network("Relu"))[1]
    made = next(op.outputs[0] for op in step.operators if op.kind == "BatchNormActivate")
    readers = [op for op in step.operators if made in op.inputs]
    assert {op.phase for op in readers} == {Phase.FORWARD}
    assert len(readers) == 2


@pytest.mark.usefixtures("however_small")
def test_what_is_viewed_is_kept() -> None:
    """A view is the same bytes; what reads it keeps them."""
    graph = network("Relu")
    active = next(op.outputs[0] for op in graph.operators if op.kind == "Relu")
    view = Operator("view", "Reshape", (active,), ("viewed",), {"shape": graph.tensors[active].shape})
    operators = [
        replace(op, inputs=tuple("viewed" if t == active else t for t in op.inputs)) if op.kind == "Add" else op
        for op in graph.operators
    ]
    at = next(i for i, op in enumerate(operators) if active in op.outputs) + 1
    tensors = {**graph.tensors, "viewed": Tensor("viewed", graph.tensors[active].type, Role.ACTIVATION)}
    graph = replace(graph, operators=(*operators[:at], view, *operators[at:]), tensors=tensors)
    assert "BatchNormActivateGradInput" not in gained(graph)


@pytest.mark.usefixtures("however_small")
def test_a_gradient_that_would_need_more_than_any_operator_does_not_make_its_input_again() -> None:
    """It needs workspace for that: the one convolution of this network, larger than all else."""
    random = np.random.default_rng(3)
    b = Builder()
    x = b.add_tensor("x", TensorType((4, 12, 12, 12)), Role.INPUT)
    vectors = [
        b.add_tensor(name, TensorType((12,)), role, random.uniform(0.5, 1, 12).astype(np.float32))
        for name, role in (
            ("mean", Role.STATISTIC),
            ("var", Role.STATISTIC),
            ("scale", Role.PARAMETER),
            ("bias", Role.PARAMETER),
        )
    ]
    first = b.add_tensor("first", TensorType((12, 12, 1, 1)), Role.PARAMETER, np.ones((12, 12, 1, 1), np.float32))
    y = b.emit1("Conv", [x, first], {"pads": (0, 0, 0, 0)})
    y = b.emit1("Relu", [b.emit1("BatchNormApply", [y, *vectors], {"epsilon": 1e-5, "momentum": 0.9})])
    second = b.add_tensor("second", TensorType((40, 12, 3, 3)), Role.PARAMETER, np.ones((40, 12, 3, 3), np.float32))
    y = b.emit1("Conv", [y, second], {"pads": (1, 1, 1, 1)})
    y = b.emit1("ReduceMean", [y], {"axes": (2, 3), "keepdims": False})
    graph = Graph("one", b.tensors, tuple(b.operators), ("x",), (y,), b.values)
    assert "BatchNormActivateGradInput" not in gained(graph, optimizer="adam")


def test_what_is_small_is_kept() -> None:
    assert "BatchNormActivateGradInput" not in gained(network("Relu"))


@pytest.mark.parametrize("options", [{"optimizer": "adam"}, {"optimizer": "momentum"}, {"weight_decay": 0.1}])
def test_only_plain_descent_takes_gradients_in(options: dict[str, object]) -> None:
    assert not [kind for kind in gained(network(), **options) if kind.endswith("Sgd")]


def test_without_fusion_nothing_changes() -> None:
    graph = build(network(), TrainingOptions(fusion=False))
    assert run_standard(graph) == order_backward(graph)


def tied(layers: int, name: str = "w") -> Graph:
    """Layers with one weight: each makes a part of the gradient."""
    b = Builder()
    w = b.add_tensor(name, TensorType((8, 8)), Role.PARAMETER, np.eye(8, dtype=np.float32))
    x = b.add_tensor("x", TensorType((2, 8)), Role.INPUT)
    for _ in range(layers):
        x = b.emit1("MatMul", [x, w], {"trans_a": False, "trans_b": False, "alpha": 1.0})
    return Graph("tied", b.tensors, tuple(b.operators), ("x",), (x,), b.values)


@pytest.mark.parametrize("name", ["w", "minus one"])
def test_gradients_are_added_up_where_the_first_is(name: str) -> None:
    assert gained(tied(4, name)) == {"Add": -3, "MatMul": -3, "MatMulSum": 3}
    assert gained(tied(4, name), optimizer="adam") == gained(tied(4, name))
    sums = [op for op in steps(tied(4, name))[1].operators if op.kind == "MatMulSum"]
    assert sums[0].inputs[-1] == ("minus one" if name == "w" else "minus one'")


def test_a_sum_that_is_read_elsewhere_stays() -> None:
    """Only the forward pass reads it, and the loss."""
    b = Builder()
    w = b.add_tensor("w", TensorType((8, 8)), Role.PARAMETER, np.eye(8, dtype=np.float32))
    x = b.add_tensor("x", TensorType((2, 8)), Role.INPUT)
    y = b.emit1("MatMul", [x, x], {"trans_a": True})
    y = b.emit1("Add", [b.emit1("Relu", [w]), y])
    y = b.emit1("Mul", [y, y])
    assert not [
        k for k in gained(Graph("forward", b.tensors, tuple(b.operators), ("x",), (y,), b.values)) if "Sum" in k
    ]


def test_what_is_small_stays() -> None:
    """A gradient smaller than what it is made of would keep that for longer."""
    assert "ConvGradWeightSgd" not in gained(small_cnn(batch=16))


@pytest.mark.usefixtures("however_small")
@pytest.mark.parametrize("graph", [network(), network("Silu", 3), small_cnn()], ids=str)
def test_memory_does_not_grow(graph: Graph) -> None:
    without, fused = (keep_all_peak_bytes(make_problem(step)) for step in steps(graph))
    assert fused <= without


def smallest_bytes(graph: TrainingGraph) -> int:
    """The smallest budget found on a microcontroller, wherever state lives, and a bound within a hundredth of it."""
    found = homes.smallest_ram(build_problem(graph, load_profile("stm32f746"), budget_bytes=0), "auto")
    assert found.ram_bytes is not None and found.ram_bytes <= 1.01 * found.bound_bytes
    return found.ram_bytes


@pytest.mark.usefixtures("however_small")
@pytest.mark.parametrize("batch", [1, 4, 8])
def test_the_smallest_budget_does_not_grow(batch: int) -> None:
    """Weights that come from the store for their update alone leave RAM while their gradient is made apart."""
    without, fused = steps(load(DIGITS, batch=batch))
    assert {"ConvGradWeightSgd", "MatMulSgd"} & kinds(fused).keys()
    assert smallest_bytes(fused) <= smallest_bytes(without)


def test_descent_stays_apart_where_it_sets_the_smallest_budget() -> None:
    """Even with the least workspace, weights beside what makes their gradient are the most that is there."""
    b = Builder()
    x = b.add_tensor("x", TensorType((1, 20, 11, 11)), Role.INPUT)
    w = b.add_tensor("w", TensorType((160, 20, 3, 3)), Role.PARAMETER, np.zeros((160, 20, 3, 3), np.float32))
    geometry: dict[str, Attribute] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    y = b.emit1("ReduceMean", [b.emit1("Conv", [x, w], geometry)], {"axes": (2, 3), "keepdims": False})
    alone = Graph("alone", b.tensors, tuple(b.operators), ("x",), (y,), b.values)
    without, fused = steps(alone)
    assert kinds(fused) == kinds(without)
    # The same layer before one that needs more anyway.
    v = b.add_tensor("v", TensorType((160, 500)), Role.PARAMETER, np.zeros((160, 500), np.float32))
    y = b.emit1("MatMul", [y, v])
    step = steps(Graph("before", b.tensors, tuple(b.operators), ("x",), (y,), b.values))[1]
    assert kinds(step)["ConvGradWeightSgd"] == 1


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


@pytest.mark.parametrize(("cell", "terms"), [("LstmCell", 2), ("GruCell", 3)])
def test_cells_take_in_the_sum_of_gradients(cell: str, terms: int) -> None:
    """From the second layer or the loss, the next step's product and, in a GRU, the next state; the last step: one."""
    step = steps(recurrent(cell))[1]
    sizes = Counter(op.attributes["gradients"] for op in step.operators if op.kind == f"{cell}Grad")
    assert sizes == {terms: 6, 1: 2}
    assert not {"Sigmoid", "Tanh", "Mul"} & kinds(step).keys()


def test_a_sum_that_makes_one_of_its_terms_is_not_taken_in() -> None:
    """The state is looked up and multiplied: the gradient of the lookup joins the other's without being stored."""
    b = Builder()
    x = b.add_tensor("x", TensorType((20, 3)), Role.INPUT)
    rows = b.add_tensor("rows", TensorType((2,), DType.I32), Role.CONSTANT, np.int32([3, 7]))
    weights = [
        b.add_tensor(name, TensorType(shape), Role.PARAMETER, np.ones(shape, np.float32))
        for name, shape in (("w", (20, 3)), ("v", (5, 5)))
    ]
    h = b.emit("LstmCell", [b.emit1("MatMul", [x, weights[0]], {"trans_b": True})])[0]
    first = b.emit1("Gather", [h, rows], {"axis": 0})
    y = b.emit1("Add", [first, b.emit1("Gather", [b.emit1("MatMul", [h, weights[1]]), rows], {"axis": 0})])
    step = steps(Graph("looked up", b.tensors, tuple(b.operators), ("x",), (y,), b.values))[1]
    assert kinds(step)["GatherGradSum"] == 1


@pytest.mark.parametrize("cell", ["LstmCell", "GruCell"])
def test_cells_have_the_bits_of_their_parts(cell: str) -> None:
    random = np.random.default_rng(8)
    without, fused = steps(recurrent(cell), learning_rate=0.1, loss="mse")
    assert not [kind for kind in kinds(without) if "Cell" in kind]
    batches = [
        {
            name: random.normal(0, 1, without.tensors[name].shape).astype(np.float32)
            for name in (*without.inputs, without.target)
        }
        for _ in range(2)
    ]
    assert trained(fused, batches) == trained(without, batches)


# --- the same bits ----------------------------------------------------------------------------------------------------


def trained(step: TrainingGraph, batches: list[dict[str, Array]]) -> tuple[list[float], dict[str, bytes]]:
    """Losses and state (without the constant of fusion) after the emitted C has run the step on `batches`."""
    problem = make_problem(step)
    schedule = keep_all(problem)
    program = codegen.lower(step, problem, schedule, pack(problem, schedule))
    with codegen.build_host([program], step.values) as model:
        losses = [model.run(batch) for batch in batches]
        assert model.measure_high_water(batches[0]) == program.high_water_bytes
        for batch in batches:
            model.run(batch)
        return losses, {n: model.state(n).tobytes() for n in model.state_names() if n != "minus one"}


@pytest.mark.usefixtures("however_small")
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_emitted_c_computes_the_same_bits(activation: str) -> None:
    random = np.random.default_rng(5)
    without, fused = steps(network(activation), learning_rate=0.05)
    target = without.tensors["target"].type
    batches: list[dict[str, Array]] = [
        {"tokens": random.integers(0, 60, 6).astype(np.int32), "target": random.integers(0, 32, target.shape, np.int32)}
        for _ in range(3)
    ]
    batches[1]["tokens"][:4] = 7
    assert trained(fused, batches) == trained(without, batches)


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


@pytest.mark.parametrize("parts", [1, 3])
def test_sums_of_gradients_have_the_same_bits(parts: int) -> None:
    """Of a weight that four layers share, and of micro-batches: convolutions, an embedding."""
    random = np.random.default_rng(9)
    graph = tied(4) if parts == 1 else batched(6)
    part = None if parts == 1 else batched(2)
    made = [
        run_standard(build(graph, TrainingOptions(fusion=fusion, micro_batches=parts, learning_rate=0.05), part))
        for fusion in (False, True)
    ]
    added = {kind for kind in kinds(made[1]) if kind.endswith("Sum") and kind != "ReduceSum"}
    assert added == ({"MatMulSum"} if parts == 1 else {"MatMulSum", "ConvGradWeightSum", "GatherGradSum"})
    batches = []
    for _ in range(2):
        batch: dict[str, Array] = {}
        for name in (*made[0].inputs, made[0].target):
            type = made[0].tensors[name].type
            whole = random.integers(0, 8, type.shape).astype(np.int32)
            batch[name] = whole if type.dtype is DType.I32 else random.normal(0, 1, type.shape).astype(np.float32)
        batches.append(batch)
    assert trained(made[1], batches) == trained(made[0], batches)


def numbers(random: np.random.Generator, *shape: int) -> AnyArray:
    """Normal ones; in a third of the arrays some are special."""
    x = random.normal(0, 2, shape).astype(np.float32)
    return np.where(random.random(shape) < random.choice([0, 0, 0.02]), random.choice(SPECIAL, shape), x)


def bits(x: AnyArray) -> bytes:
    """All NaNs are one: which of two that meet survives is up to the compiler."""
    return np.where(np.isnan(x), np.float32(np.nan), x).tobytes()


def one(kind: str, attributes: Attributes, inputs: list[AnyArray], lib: Library) -> AnyArray:
    return run_kernel(kind, attributes, inputs, lib=lib)[0]


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 300)),
    st.sampled_from(("", *ACTIVATIONS)),
    st.booleans(),
    st.sampled_from(VECTORS),
    st.integers(0, 2**32 - 1),
)
def test_batch_norm_has_the_bits_of_its_parts(
    shape: tuple[int, int, int], activation: str, add: bool, lib: object, seed: int
) -> None:
    assert callable(lib)
    made, random = lib(), np.random.default_rng(seed)
    limits: dict[str, dict[str, Attribute]] = {"LeakyRelu": {"alpha": 0.1}, "Clip": {"min": -0.5, "max": 1.5}}
    own = limits.get(activation, {})
    epsilon = {"epsilon": 1e-3}
    fused = {**epsilon, "activation": activation, **own}
    x, other, gz = numbers(random, *shape), numbers(random, *shape), numbers(random, *shape)
    vectors = [random.normal(0, 1, shape[1]).astype(np.float32) for _ in range(6)]
    mean, var, scale, bias, gscale, gbias = vectors[0], np.abs(vectors[1]), *vectors[2:]
    y = one("BatchNormApply", epsilon, [x, mean, var, scale, bias], made)
    total = one("Add", {}, [y, other], made) if add else y
    z = one(activation, own, [total], made) if activation else total
    more = [other] if add else []
    assert bits(one("BatchNormActivate", fused, [x, mean, var, scale, bias, *more], made)) == bits(z)
    if not activation or add:
        return
    kind = spec(activation)
    assert isinstance(kind, Differentiable)
    saved = z if kind.saves_output else y
    gy = one(f"{activation}Grad", own, [saved, gz], made)
    parts = run_kernel("BatchNormGradParams", epsilon, [x, mean, var, gy], lib=made)
    whole = run_kernel("BatchNormActivateGradParams", fused, [x, mean, var, scale, bias, gz], lib=made)
    assert [bits(p) for p in whole] == [bits(p) for p in parts]
    gx = one("BatchNormGradInput", epsilon, [x, mean, var, scale, gscale, gbias, gy], made)
    inputs = [x, mean, var, scale, bias, gscale, gbias, gz]
    assert bits(one("BatchNormActivateGradInput", fused, inputs, made)) == bits(gx)


LR = np.float32([0.0625 * 1.1])


# (image, outputs, kernel, strides, padding before and after, dilation, group) that bind each kernel that makes x again.
AGAIN: dict[str, list[tuple[tuple[int, ...], int, int, int, tuple[int, int], int, int]]] = {
    "winograd": [((2, 20, 60, 61), 35, 3, 1, (1, 1), 1, 1), ((3, 140, 16, 17), 70, 3, 1, (0, 2), 1, 1)],
    "packed": [
        ((2, 40, 9, 11), 20, 1, 1, (0, 0), 1, 1),
        ((9, 40, 3, 3), 38, 1, 1, (0, 0), 1, 2),
        ((1, 200, 17, 18), 40, 1, 1, (0, 0), 1, 1),
        ((2, 24, 20, 21), 33, 1, 2, (0, 0), 1, 1),
        ((2, 12, 12, 13), 20, 3, 1, (1, 1), 1, 1),
        ((2, 30, 12, 13), 40, 3, 2, (0, 1), 1, 2),
        ((1, 64, 15, 21), 40, 3, 2, (1, 1), 1, 1),
        ((2, 11, 14, 15), 8, 5, 1, (2, 2), 1, 1),
        ((1, 20, 12, 30), 40, 3, 1, (0, 0), 2, 1),
    ],
    "depthwise_grad_weight_norm": [
        ((2, 5, 9, 11), 5, 3, 1, (1, 1), 1, 5),
        ((2, 9, 40, 61), 9, 3, 1, (1, 1), 1, 9),
        ((2, 5, 13, 16), 5, 3, 2, (1, 1), 1, 5),
        ((1, 6, 40, 57), 6, 3, 2, (0, 1), 1, 6),
        ((3, 4, 7, 9), 4, 5, 1, (2, 2), 1, 4),
        ((2, 7, 14, 15), 7, 5, 2, (2, 2), 1, 7),
        ((1, 3, 16, 20), 3, 3, 3, (1, 1), 1, 3),
        ((2, 3, 17, 14), 3, 3, 1, (2, 1), 2, 3),
    ],
}


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([(name, case) for name, cases in AGAIN.items() for case in cases]),
    st.sampled_from(NORM_ACTIVATIONS),
    st.booleans(),
    st.sampled_from(VECTORS),
    st.integers(0, 2**32 - 1),
)
def test_a_gradient_of_weights_makes_what_it_reads_again(
    chosen: tuple[str, tuple[tuple[int, ...], int, int, int, tuple[int, int], int, int]],
    activation: str,
    descends: bool,
    lib: object,
    seed: int,
) -> None:
    """By the bits that the forward pass made; zeros around the image stay zeros."""
    assert callable(lib)
    made, random = lib(), np.random.default_rng(seed)
    name, (shape, outputs, kernel, stride, (before, after), dilation, group) = chosen
    limits: dict[str, dict[str, Attribute]] = {"LeakyRelu": {"alpha": 0.1}, "Clip": {"min": 0.5, "max": 1.5}}
    fused: dict[str, Attribute] = {"epsilon": 1e-3, "activation": activation, **limits.get(activation, {})}
    attributes: dict[str, Attribute] = {"strides": (stride, stride), "pads": (before, before, after, after)}
    attributes |= {"dilations": (dilation, dilation), "group": group, "kernel": (kernel, kernel)}
    x, channels = numbers(random, *shape), shape[1]
    size = [(n + before + after - dilation * (kernel - 1) - 1) // stride + 1 for n in shape[2:]]
    gy = numbers(random, shape[0], outputs, *size)
    mean, var, scale, bias = random.normal(0, 1, (4, channels)).astype(np.float32)
    vectors = [mean, np.abs(var), scale, bias]
    z = one("BatchNormActivate", fused, [x, *vectors], made)
    inputs, again = [z, gy], [x, gy, *vectors]
    kind = "ConvGradWeight"
    if descends and "depthwise" not in name and "lean" not in name:
        w = numbers(random, outputs, channels // group, kernel, kernel)
        kind, inputs, again = "ConvGradWeightSgd", [w, *inputs, LR], [w, *again, LR]
    found = spec(kind).kernel(bind_kind(kind, attributes | fused, again)).symbol
    assert found.endswith(name) and "norm" in found
    assert bits(one(kind, attributes | fused, again, made)) == bits(one(kind, attributes, inputs, made))


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(1, 130), st.integers(1, 300), st.integers(1, 140)),
    st.sampled_from(VECTORS),
    st.integers(0, 2**32 - 1),
)
def test_descent_on_a_product_has_the_bits_of_its_parts(sizes: tuple[int, int, int], lib: object, seed: int) -> None:
    assert callable(lib)
    (m, n, k), made, random = sizes, lib(), np.random.default_rng(seed)
    w, a, b = numbers(random, m, n), numbers(random, k, m), numbers(random, k, n)
    attributes = {"trans_a": True, "trans_b": False, "alpha": 1.0}
    expected = one("Sgd", {}, [w, one("MatMul", attributes, [a, b], made), LR], made)
    if k > 64 and not _packs(attributes, [a, b]):
        with pytest.raises(ValueError, match="no gradient"):
            one("MatMulSgd", attributes, [w, a, b, LR], made)
        return
    assert bits(one("MatMulSgd", attributes, [w, a, b, LR], made)) == bits(expected)


def _packs(attributes: Attributes, inputs: list[AnyArray]) -> bool:
    return spec("MatMul").kernel(bind_kind("MatMul", attributes, inputs)).symbol.endswith("_packed")


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([(8, 40, 3, 1), (33, 30, 3, 1), (16, 64, 1, 1), (24, 32, 3, 2), (12, 160, 2, 1), (32, 32, 3, 1)]),
    st.integers(1, 3),
    st.integers(3, 11),
    st.sampled_from(VECTORS),
    st.integers(0, 2**32 - 1),
)
def test_descent_on_a_convolution_has_the_bits_of_its_parts(
    sizes: tuple[int, int, int, int], batch: int, image: int, lib: object, seed: int
) -> None:
    assert callable(lib)
    (outputs, channels, kernel, group), made, random = sizes, lib(), np.random.default_rng(seed)
    attributes: dict[str, Attribute] = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "group": group}
    attributes["kernel"] = (kernel, kernel)
    w = numbers(random, outputs, channels // group, kernel, kernel)
    x, size = numbers(random, batch, channels, image, image), image + 1 - kernel
    gy = numbers(random, batch, outputs, size, size)
    try:
        found = one("ConvGradWeightSgd", attributes, [w, x, gy, LR], made)
    except ValueError:
        kernel_of = spec("ConvGradWeight").kernel(bind_kind("ConvGradWeight", attributes, [x, gy]))
        assert kernel_of.symbol == "poetc_op_conv_grad_weight"
        return
    expected = one("Sgd", {}, [w, one("ConvGradWeight", attributes, [x, gy], made), LR], made)
    assert bits(found) == bits(expected)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(-40, 39), min_size=1, max_size=9),
    st.integers(3, 40),
    st.sampled_from(VECTORS),
    st.integers(0, 2**32 - 1),
)
def test_descent_on_an_embedding_has_the_bits_of_its_parts(
    indices: list[int], width: int, lib: object, seed: int
) -> None:
    assert callable(lib)
    made, random = lib(), np.random.default_rng(seed)
    w, gy = numbers(random, 40, width), numbers(random, len(indices), width)
    attributes: dict[str, Attribute] = {"axis": 0, "shape": (40, width)}
    named = np.int32(indices)
    expected = one("Sgd", {}, [w, one("GatherGrad", attributes, [named, gy], made), LR], made)
    assert bits(one("GatherGradSgd", attributes, [w, named, gy, LR], made)) == bits(expected)


def test_a_bad_index_leaves_the_table_as_it_was() -> None:
    """State is old or new, never a mixture: indices are checked before anything is written."""
    w = np.ones((9, 4), np.float32)
    with pytest.raises(KernelError):
        run_kernel(
            "GatherGradSgd", {"axis": 0, "shape": (9, 4)}, [w, np.int32([1, 9]), np.ones((2, 4), np.float32), LR]
        )
