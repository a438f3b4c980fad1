"""Files that expand: refused in one line before they take time or memory."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.helper import make_node

from poetc.commands import solve as solving
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.devices import build_problem, load_profile
from poetc.errors import PoetcError, UnsupportedModelError, UsageError
from poetc.frontend import load
from poetc.graph import Graph, Role, TensorType
from poetc.ops import Builder
from poetc.training import TrainingOptions
from tests.frontend.support import kinds, make, normal, save


def calls(depth: int, width: int) -> onnx.ModelProto:
    """Function k calls function k - 1 `width` times in a row; the last one is a Relu."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = [helper.make_function("own", "f0", ["a"], ["b"], [make_node("Relu", ["a"], ["b"])], imports)]
    for k in range(1, depth + 1):
        names = ["a", *(f"t{j}" for j in range(1, width)), "b"]
        nodes = [make_node(f"f{k - 1}", [names[j]], [names[j + 1]], domain="own") for j in range(width)]
        functions.append(helper.make_function("own", f"f{k}", ["a"], ["b"], nodes, imports))
    nodes = [make_node("MatMul", ["x", "w"], ["h"]), make_node(f"f{depth}", ["h"], ["y"], domain="own")]
    model = make(nodes, {"x": (2, 3)}, ["y"], {"w": normal(3, 3)})
    model.functions.extend(functions)
    model.opset_import.append(helper.make_opsetid("own", 1))
    return model


def test_functions_that_call_each_other(tmp_path: Path) -> None:
    assert kinds(load(save(calls(3, 2), tmp_path))) == ["MatMul"] + ["Relu"] * 8
    with pytest.raises(UsageError, match="stand for 1,099,511,627,777 nodes, more than 30,000"):
        load(save(calls(40, 2), tmp_path))
    with pytest.raises(UsageError, match=r"stand for 10\^47 nodes"):
        load(save(calls(99, 3), tmp_path))


def test_functions_that_call_themselves(tmp_path: Path) -> None:
    model = calls(2, 2)
    model.functions[1].node[0].op_type = "f2"
    with pytest.raises(UsageError, match="cannot be inlined"):
        load(save(model, tmp_path))


def test_functions_that_repeat_a_large_constant(tmp_path: Path) -> None:
    model = calls(12, 2)
    table = onnx.numpy_helper.from_array(np.zeros(2**17, np.float32), "table")
    model.functions[0].node.append(make_node("Constant", [], ["unused"], value=table))
    with pytest.raises(UsageError, match=r"stand for 2,\d+,\d+,\d+ bytes of nodes"):
        load(save(model, tmp_path))


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_constants_that_double(tmp_path: Path, dtype: type[np.generic]) -> None:
    nodes = [make_node("Concat", [f"c{k}", f"c{k}"], [f"c{k + 1}"], axis=0) for k in range(40)]
    nodes += [
        make_node("ReduceMax", ["c40"], ["r"]),
        make_node("Cast", ["r"], ["one"], to=TensorProto.FLOAT),
        make_node("Add", ["x", "one"], ["y"]),
    ]
    with pytest.raises(PoetcError, match=r"'c\d+'.* (a constant of [0-9,]+ bytes|elements; kernels count to)"):
        load(save(make(nodes, {"x": (2, 1)}, ["y"], {"c0": np.array([1, 2], dtype)}, opset=13), tmp_path))


def test_constants_that_are_many(tmp_path: Path) -> None:
    """Each is small enough; there is room for all of them together."""
    nodes = [make_node("Concat", ["c", *["c"] * 49], [f"d{k}"], axis=0) for k in range(12)]
    nodes += [make_node("Gather", [f"d{k}", "at"], [f"e{k}"]) for k in range(12)]
    nodes += [make_node("Sum", [f"e{k}" for k in range(12)], ["s"]), make_node("Reshape", ["x", "s"], ["y"])]
    weights = {"c": np.zeros(100_000, np.int64), "at": np.array([0])}
    with pytest.raises(UnsupportedModelError, match=r"\(Concat\) makes a constant of [0-9,]+ bytes"):
        load(save(make(nodes, {"x": (2, 3)}, ["y"], weights), tmp_path))


@pytest.mark.parametrize(
    ("op", "inputs"),
    [("MatMul", [(9000, 1), (1, 9000)]), ("Sum", [(9000, 1), (1, 9000)]), ("Gather", [(9, 9000), (9000,)])],
)
def test_products_of_constants(tmp_path: Path, op: str, inputs: list[tuple[int, ...]]) -> None:
    weights = {f"c{k}": np.zeros(shape, np.int64) for k, shape in enumerate(inputs)}
    nodes = [make_node(op, list(weights), ["d"]), make_node("Reshape", ["x", "d"], ["y"])]
    with pytest.raises(UnsupportedModelError, match=r"makes a constant of [0-9,]+ bytes"):
        load(save(make(nodes, {"x": (2, 3)}, ["y"], weights), tmp_path))


def recurrent(op: str, steps: int, **attributes: object) -> onnx.ModelProto:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    weights = {"w": normal(directions, gates * 3, 2), "r": normal(directions, gates * 3, 3)}
    node = make_node(op, ["x", "w", "r"], ["", "y"], hidden_size=3, **attributes)
    return make([node], {"x": (steps, 1, 2)}, ["y"], weights, opset=14)


@pytest.mark.parametrize(
    ("op", "steps", "attributes", "says"),
    [
        ("LSTM", 4000, {}, "4,000 time steps would be unrolled into about 8,000 operators"),
        ("LSTM", 1500, {"direction": "bidirectional"}, "1,500 time steps would be unrolled into about 6,000"),
        ("GRU", 1000, {}, "1,000 time steps would be unrolled into about 1[0-9],000 operators"),
        ("RNN", 10**6, {}, "1,000,000 time steps would be unrolled"),
    ],
)
def test_long_sequences(tmp_path: Path, op: str, steps: int, attributes: dict[str, object], says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"{says}.*train on shorter sequences"):
        load(save(recurrent(op, steps, **attributes), tmp_path))


def test_a_sequence_of_some_length_is_noted(tmp_path: Path) -> None:
    note, *_ = load(save(recurrent("GRU", 130), tmp_path)).notes
    assert "130 time steps become about 1,950 operators" in note


def test_very_many_operators(tmp_path: Path) -> None:
    names = ["h", *(f"t{k}" for k in range(5000)), "y"]
    nodes = [make_node("MatMul", ["x", "w"], ["h"])]
    nodes += [make_node("Relu", [a], [b]) for a, b in pairwise(names)]
    with pytest.raises(PoetcError, match="the model needs more than 5,000 operators") as caught:
        load(save(make(nodes, {"x": (2, 3)}, ["y"], {"w": normal(3, 3)}), tmp_path))
    assert "\n" not in str(caught.value)


NAN = float("nan")
INFINITE = float("inf")
ABSURD = [
    ("Elu", {"alpha": NAN}, 17),
    ("Elu", {"alpha": INFINITE}, 17),
    ("LeakyRelu", {"alpha": INFINITE}, 17),
    ("HardSigmoid", {"beta": -INFINITE}, 17),
    ("ThresholdedRelu", {"alpha": INFINITE}, 17),
    ("LRN", {"size": 3, "alpha": INFINITE}, 17),
    ("HardSigmoid", {"beta": NAN}, 17),
    ("LeakyRelu", {"alpha": NAN}, 17),
    ("Clip", {"min": NAN}, 10),
    ("Swish", {"alpha": NAN}, 24),
    ("LRN", {"size": 2**31}, 17),
    ("LRN", {"size": 3, "alpha": NAN}, 17),
    ("MaxPool", {"kernel_shape": [2, 2], "strides": [2**31, 1]}, 17),
    ("AveragePool", {"kernel_shape": [2**31, 1], "pads": [2**30, 0, 2**30, 0]}, 17),
    ("Conv", {"strides": [2**33, 2**33]}, 17),
    ("Conv", {"group": 2**32}, 17),
    ("ConvTranspose", {"strides": [2**31, 1]}, 17),
]


@pytest.mark.parametrize(("op", "attributes", "opset"), ABSURD)
def test_attributes_that_no_kernel_can_have(tmp_path: Path, op: str, attributes: dict[str, object], opset: int) -> None:
    inputs = ["h", "w"] if op.startswith("Conv") else ["h"]
    nodes = [make_node("Conv", ["x", "w"], ["h"]), make_node(op, inputs, ["y"], **attributes)]
    model = make(nodes, {"x": (1, 2, 5, 5)}, ["y"], {"w": normal(2, 2, 3, 3)}, opset)
    with pytest.raises(UsageError, match=r"is not a number|is infinite|does not fit in 32 bits") as caught:
        load(save(model, tmp_path))
    assert f"{op} 'y': attribute" in str(caught.value)


@pytest.mark.parametrize(
    ("op", "attributes", "says"),
    [
        ("Mod", {"fmod": 65}, "attribute 'fmod' is 65, not 0 or 1"),
        ("ConvTranspose", {"output_padding": [1000, 0], "strides": [3, 1]}, "output_padding 1000 is not below"),
        ("ConvTranspose", {"output_padding": [5, 1], "strides": [3, 2], "output_shape": [20, 9]}, "output_padding 5"),
    ],
)
def test_attributes_that_onnx_excludes(tmp_path: Path, op: str, attributes: dict[str, object], says: str) -> None:
    model = make(
        [make_node(op, ["x", "w"], ["y"], **attributes)], {"x": (1, 2, 3, 3)}, ["y"], {"w": normal(2, 2, 3, 3)}
    )
    with pytest.raises(UsageError, match=f"{op} 'y': {says}"):
        load(save(model, tmp_path))


def test_bounds_and_padding_may_be_infinite(tmp_path: Path) -> None:
    nodes = [
        make_node("MatMul", ["x", "w"], ["h"]),
        make_node("Clip", ["h", "low", "high"], ["c"]),
        make_node("Pad", ["c", "pads", "low"], ["p"]),
        make_node("ReduceMax", ["p"], ["y"], axes=[1]),
    ]
    weights = {"w": normal(3, 3), "low": np.array(-INFINITE, np.float32), "high": np.array(1, np.float32)}
    weights["pads"] = np.array([0, 1, 0, 1], np.int64)
    assert "Pad" in kinds(load(save(make(nodes, {"x": (2, 3)}, ["y"], weights), tmp_path)))


def test_a_constant_that_grows_by_expand(tmp_path: Path) -> None:
    nodes = [make_node("Expand", ["c", "to"], ["big"], name="grow"), make_node("ReduceSum", ["big"], ["sum"])]
    nodes.append(make_node("Add", ["x", "sum"], ["y"]))
    weights = {"c": normal(1, 1), "to": np.array([2**29, 3], np.int64)}  # one number is no weight
    with pytest.raises(UnsupportedModelError, match=r"node 'grow' \(Expand\) makes a constant of 6,442,450,944 bytes"):
        load(save(make(nodes, {"x": (2, 3)}, ["y"], weights), tmp_path))


@pytest.mark.parametrize("bound", ["low", "high"])
def test_bounds_and_exponents_that_are_no_numbers(tmp_path: Path, bound: str) -> None:
    clip = ["h", *([""] if bound == "high" else []), "bound"]
    for node in (make_node("Clip", clip, ["y"]), make_node("Pow", ["h", "bound"], ["y"])):
        nodes = [make_node("MatMul", ["x", "w"], ["h"]), node]
        weights = {"w": normal(3, 3), "bound": np.array(NAN, np.float32)}
        with pytest.raises(UsageError, match="is not a number"):
            load(save(make(nodes, {"x": (2, 3)}, ["y"], weights), tmp_path))


def test_names_that_no_string_of_c_can_hold(tmp_path: Path) -> None:
    name = "w" * 100_000
    with pytest.raises(UsageError, match="a name in it has 100,000 characters, more than 2,000"):
        load(
            save(make([make_node("MatMul", ["x", name], ["y"])], {"x": (2, 3)}, ["y"], {name: normal(3, 3)}), tmp_path)
        )


def test_tensors_that_no_kernel_can_count(tmp_path: Path) -> None:
    node = make_node("Conv", ["x", "w"], ["y"], pads=[2**30, 0, 2**30, 0])
    with pytest.raises(UnsupportedModelError, match="its output has 12,884,901,906 elements"):
        load(save(make([node], {"x": (1, 2, 5, 5)}, ["y"], {"w": normal(2, 2, 3, 3)}), tmp_path))


@pytest.mark.parametrize("batch", [2**28, 2**45])
def test_a_batch_that_no_kernel_can_count_is_named(tmp_path: Path, batch: int) -> None:
    """It is the option that is wrong, not the model: 2^31 - 1 elements are 268,435,455 samples of eight."""
    path = save(make([make_node("Relu", ["x"], ["y"])], {"x": ("n", 8)}, ["y"], {}), tmp_path)
    with pytest.raises(UsageError, match=rf"--batch {batch}: input 'x' .*; give at most --batch 268435455$"):
        load(path, batch=batch)
    assert load(path, batch=268435455).tensors["x"].shape == (268435455, 8)


def test_kernel_parameters_beyond_32_bits() -> None:
    b = Builder()
    x = b.add_tensor("x", TensorType((1, 2, 5, 5)), Role.INPUT)
    attributes = {
        "kernel": (2, 2),
        "strides": (2**31, 1),
        "pads": (0, 0, 0, 0),
        "dilations": (1, 1),
        "ceil_mode": False,
    }
    y = b.emit1("AveragePool", [x], attributes)
    graph = Graph("g", b.tensors, tuple(b.operators), ("x",), (y,), b.values)
    with pytest.raises(UnsupportedModelError, match=r"AveragePool.* its kernel would need 2,147,483,648"):
        build_problem(graph, load_profile("host"), budget_bytes=0)


@pytest.mark.parametrize("budget", ["100%", "5GB"])
def test_an_arena_beyond_its_offsets_is_refused_before_it_is_solved(tmp_path: Path, budget: str) -> None:
    nodes = [make_node("MatMul", ["x", "w"], ["h"]), make_node("Sigmoid", ["h"], ["s"]), make_node("Sin", ["s"], ["y"])]
    path = save(make(nodes, {"x": (2**18, 64)}, ["y"], {"w": normal(64, 2**11)}), tmp_path)
    request = SolveRequest(model=ModelRequest(source=path, training=TrainingOptions(loss="mse")), budget=budget)
    with pytest.raises(UsageError, match=r"GB of tensors.*give --budget 4GB or less, or a smaller --batch"):
        solving.solve(request)
