"""Loop and Scan with a known number of steps are unrolled, and an If whose condition is known is its branch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node

from poetc.commands.export import export_onnx, imported_with
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.commands.solve import solve
from poetc.errors import UnsupportedModelError, UsageError
from poetc.frontend import Sizes, _control_flow, load
from poetc.graph import Graph
from poetc.training import TrainingOptions
from tests.frontend.support import evaluate, kinds, make, normal, parameters, save
from tests.frontend.test_microsoft import session

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def assert_agrees(model: onnx.ModelProto, feeds: dict[str, np.ndarray], folder: Path) -> Graph:
    """The imported graph, whose outputs are onnxruntime's."""
    model.ir_version = 10
    graph = load(save(model, folder))
    expected = dict(zip((o.name for o in model.graph.output), session(model).run(None, feeds), strict=True))
    for name, value in evaluate(graph, feeds).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
    return graph


def body(
    nodes: list[onnx.NodeProto], inputs: list[tuple[str, int]], outputs: list[tuple[str, int]], **weights: np.ndarray
) -> onnx.GraphProto:
    def info(pairs: list[tuple[str, int]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, dtype, None if dtype == FLOAT else ()) for name, dtype in pairs]

    initializers = [numpy_helper.from_array(w, name) for name, w in weights.items()]
    return helper.make_graph(nodes, "body", info(inputs), info(outputs), initializers)


def cell() -> list[onnx.NodeProto]:
    """h' = tanh(x w + h' u + b): w and u around the loop, b in its body, w turned by a node that every step shares."""
    return [
        make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        make_node("MatMul", ["row", "wt"], ["xw"]),
        make_node("MatMul", ["h", "u"], ["hu"]),
        make_node("Add", ["xw", "hu"], ["total"]),
        make_node("Add", ["total", "b"], ["shifted"]),
        make_node("Tanh", ["shifted"], ["new"]),
    ]


WEIGHTS = {"w": normal(4, 3), "u": normal(4, 4), "start": np.zeros((2, 4), np.float32)}


@pytest.mark.parametrize("backwards", [0, 1])
def test_scan(tmp_path: Path, backwards: int) -> None:
    nodes = [*cell(), make_node("Mul", ["new", "new"], ["squared"])]
    step = body(nodes, [("h", FLOAT), ("row", FLOAT)], [("new", FLOAT), ("squared", FLOAT)], b=normal(4))
    scan = make_node(
        "Scan", ["start", "x"], ["last", "all"], body=step, num_scan_inputs=1, scan_input_directions=[backwards],
        scan_output_directions=[backwards],
    )  # fmt: skip
    model = make([scan], {"x": (5, 2, 3)}, ["last", "all"], WEIGHTS)
    graph = assert_agrees(model, {"x": normal(5, 2, 3)}, tmp_path)
    assert parameters(graph) == {"w", "u", "b"}
    assert kinds(graph).count("Tanh") == 5
    assert any("is unrolled into its 5 steps" in n for n in graph.notes)


def test_loop_that_ends_by_its_condition(tmp_path: Path) -> None:
    """As converters write a while loop: the step's number chooses the row, and is compared with the length."""
    nodes = [
        make_node("Gather", ["x", "t"], ["row"], axis=0),
        *cell(),
        make_node("Add", ["t", "one"], ["next"]),
        make_node("Less", ["next", "three"], ["going"]),
    ]
    inputs = [("t", INT), ("condition", BOOL), ("h", FLOAT)]
    step = body(nodes, inputs, [("going", BOOL), ("new", FLOAT), ("new", FLOAT)], b=normal(4))
    loop = make_node("Loop", ["", "true", "start"], ["last", "all"], body=step)
    constants = {"one": np.array(1), "three": np.array(3), "true": np.array(True)}
    model = make([loop], {"x": (5, 2, 3)}, ["last", "all"], {**WEIGHTS, **constants})
    graph = assert_agrees(model, {"x": normal(5, 2, 3)}, tmp_path)
    assert kinds(graph).count("Tanh") == 3
    assert parameters(graph) == {"w", "u", "b"}


def test_loop_with_a_branch_in_its_body(tmp_path: Path) -> None:
    yes = body([make_node("MatMul", ["h", "u"], ["r"])], [], [("r", FLOAT)])
    no = body([make_node("Relu", ["h"], ["r"])], [], [("r", FLOAT)])
    nodes = [
        make_node("Less", ["t", "one"], ["first"]),
        make_node("If", ["first"], ["new"], then_branch=yes, else_branch=no),
        make_node("Identity", ["condition"], ["going"]),
    ]
    step = body(nodes, [("t", INT), ("condition", BOOL), ("h", FLOAT)], [("going", BOOL), ("new", FLOAT)])
    loop = make_node("Loop", ["count", "", "x"], ["y"], body=step)
    model = make([loop], {"x": (2, 4)}, ["y"], {"u": WEIGHTS["u"], "one": np.array(1), "count": np.array(2)})
    assert kinds(assert_agrees(model, {"x": normal(2, 4)}, tmp_path)) == ["MatMul", "Relu"]


def refused(case: str) -> onnx.NodeProto:
    going: list[Any] = [make_node("Identity", ["condition"], ["going"])]
    states = [("t", INT), ("condition", BOOL), ("h", FLOAT)]
    if case == "steps":
        nodes = [*going, make_node("Relu", ["h"], ["new"])]
        return make_node("Loop", ["n", "", "x"], ["y"], body=body(nodes, states, [("going", BOOL), ("new", FLOAT)]))
    if case == "condition":
        nodes = [make_node("ReduceSum", ["h"], ["s"], keepdims=0), make_node("Less", ["s", "zero"], ["going"])]
        nodes += [make_node("Relu", ["h"], ["new"])]
        return make_node("Loop", ["count", "", "x"], ["y"], body=body(nodes, states, [("going", BOOL), ("new", FLOAT)]))
    if case in ("endless", "empty", "pair"):
        nodes, count = [*going, make_node("Relu", ["h"], ["new"])], case if case != "endless" else "most"
        step = body(nodes, states, [("going", BOOL), ("new", FLOAT)])
        return make_node("Loop", [count, "true", "x"], ["y"], body=step)
    if case == "operator":
        nodes = [*going, make_node("Unique", ["h"], ["new"])]
        return make_node("Loop", ["count", "", "x"], ["y"], body=body(nodes, states, [("going", BOOL), ("new", FLOAT)]))
    branch = body([make_node("Relu", ["x"], ["r"])], [], [("r", FLOAT)])
    return make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("steps", "Loop 'y': a number of steps that depends on the model's inputs"),
        ("condition", "Loop 'y': a condition that depends on the model's inputs"),
        ("endless", "Loop 'y': more than 5,000 steps of 1 operator, and the model may have 5,000"),
        ("empty", "Loop 'y': a number of steps of 0 elements, not of one"),
        ("pair", "Loop 'y': a number of steps of 2 elements, not of one"),
        ("operator", "Loop 'y': Unique 'new.0' in its body: this operator"),
        ("branch", "If 'y': a branch that depends on the model's inputs"),
    ],
)
def test_refusals_name_the_node(tmp_path: Path, case: str, message: str) -> None:
    inputs = {"x": (4, 4), "n": (INT, (1,)), "c": (BOOL, (1,))}
    known = {"count": np.array(2), "zero": np.array(0, np.float32), "true": np.array(True)}
    known |= {"most": np.array(2**63 - 1), "empty": np.zeros(0, np.int64), "pair": np.array([5, 6])}
    model = make([refused(case)], inputs, ["y"], known)
    with pytest.raises((UnsupportedModelError, UsageError), match=message) as error:
        load(save(model, tmp_path))
    assert len(str(error.value).splitlines()) <= 2


def counter(steps: int) -> onnx.ModelProto:
    """h = tanh(h u), as often as a state counts up to `steps`."""
    nodes = [
        make_node("MatMul", ["h", "u"], ["hu"]),
        make_node("Tanh", ["hu"], ["new"]),
        make_node("Add", ["k", "one"], ["next"]),
        make_node("Less", ["next", "most"], ["going"]),
    ]
    states = [("t", INT), ("condition", BOOL), ("k", INT), ("h", FLOAT)]
    step = body(nodes, states, [("going", BOOL), ("next", INT), ("new", FLOAT)])
    loop = make_node("Loop", ["", "true", "zero", "x"], ["last", "y"], body=step)
    known = {"true": np.array(True), "zero": np.array(0), "one": np.array(1), "most": np.array(steps)}
    return make([loop], {"x": (2, 4)}, ["y"], {"u": WEIGHTS["u"], **known})


def test_too_many_steps_are_refused_before_they_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps are made, and the condition alone tells that there are more than the model has room for."""
    made, step = [], _control_flow._Body.step

    def counted(*arguments: Any) -> list[str]:
        made.append(arguments)
        return step(*arguments)

    monkeypatch.setattr(_control_flow._Body, "step", counted)
    with pytest.raises(UnsupportedModelError, match="Loop 'y': more than 2,500 steps of 2 operators"):
        load(save(counter(20_000), tmp_path))
    assert len(made) == 2
    monkeypatch.setattr(_control_flow, "MOST_OPERATORS", 10)
    assert len(load(save(counter(5), tmp_path)).operators) == 10
    with pytest.raises(UnsupportedModelError, match="Loop 'y': more than 5 steps of 2 operators"):
        load(save(counter(6), tmp_path))


def two_rates() -> onnx.ModelProto:
    """y = x w + b, and an integer input chooses the branch that holds w and b."""

    def branch(factor: int) -> onnx.GraphProto:
        weight = numpy_helper.from_array(np.full((4, 3), factor, np.float32), f"w{factor}")
        bias = numpy_helper.from_array(np.arange(3, dtype=np.float32))
        nodes = [
            make_node("Constant", [], [f"b{factor}"], value=bias),
            make_node("MatMul", ["x", weight.name], [f"p{factor}"]),
            make_node("Add", [f"p{factor}", f"b{factor}"], [f"r{factor}"]),
        ]
        made = helper.make_tensor_value_info(f"r{factor}", FLOAT, None)
        return helper.make_graph(nodes, "branch", [], [made], [weight])

    nodes = [
        make_node("Equal", ["rate", "fast"], ["is_fast"]),
        make_node("If", ["is_fast"], ["y"], then_branch=branch(2), else_branch=branch(3)),
    ]
    return make(nodes, {"x": (2, 4), "rate": (INT, ())}, ["y"], {"fast": np.array(16000)})


def test_a_bound_input_chooses_the_branch(tmp_path: Path) -> None:
    model, x = two_rates(), normal(2, 4)
    model.ir_version = 10
    path = save(model, tmp_path)
    for rate, weight in ((16000, "w2"), (8000, "w3")):
        graph = load(path, constants={"rate": rate})
        assert graph.inputs == ("x",) and weight in parameters(graph)
        assert f"input 'rate' is the constant {rate}" in graph.notes
        (expected,) = session(model).run(None, {"x": x, "rate": np.array(rate)})
        np.testing.assert_allclose(evaluate(graph, {"x": x})["y"], expected, rtol=1e-5)
    with pytest.raises(UnsupportedModelError, match=r"a branch that depends on .*; --constant NAME=VALUE binds"):
        load(path)


@pytest.mark.parametrize(
    ("constants", "says"),
    [
        ({"sr": 1}, r"--constant sr=1: the model has no input of that name; it has 'x', 'rate'$"),
        ({"x": 1}, r"--constant x=1: only an input of one integer or truth value can be bound$"),
        ({"rate": 2**63}, r"--constant rate=9223372036854775808: the input holds int64, from -9223372036854775808 to"),
    ],
)
def test_constants_that_cannot_be(tmp_path: Path, constants: dict[str, int], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load(save(two_rates(), tmp_path), constants=constants)


def test_constants_as_typed() -> None:
    assert Sizes.parse(None, constants=["a=b=-3"]).constants == {"a=b": -3}
    for text in ("rate", "rate=", "=1", "rate=1.5", "rate=x"):
        with pytest.raises(UsageError, match=r"--constant .*: write NAME=VALUE with a whole number"):
            Sizes.parse(None, constants=[text])
    with pytest.raises(UsageError, match="--constant: 'rate' has two values, 1 and 2"):
        Sizes.parse(None, constants=["rate=1", "rate=2"])


def test_trained_weights_go_back_into_the_branch(tmp_path: Path) -> None:
    """Of the branch that was trained, whether an initializer or a Constant holds them; the other stays as it is."""
    path, out = save(two_rates(), tmp_path), tmp_path / "out.onnx"
    options = TrainingOptions(constant=("rate=16000",), loss="mse")
    solved = solve(SolveRequest(model=ModelRequest(source=path, training=options), solver="keep_all"))
    graph = load(path, constants={"rate": 16000})
    assert parameters(graph) == {"w2", "b2"}
    new = {n: np.full(graph.tensors[n].shape, 5, np.float32) for n in parameters(graph)}
    export_onnx(solved, new, out)
    again = load(out, **imported_with(solved))
    for name, value in new.items():
        np.testing.assert_array_equal(again.values[name], value)
    np.testing.assert_array_equal(load(out, constants={"rate": 1}).values["w3"], np.full((4, 3), 3, np.float32))
