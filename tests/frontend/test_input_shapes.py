"""Lengths of symbolic dimensions: --batch, --dim and --shape, and what contradicts the file or each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.helper import make_node

from poetc.commands.export import imported_with
from poetc.commands.locking import options_of, request_of
from poetc.commands.requests import ModelRequest, SolveRequest, inference_model, load_model, training_graph
from poetc.commands.solve import solve
from poetc.errors import UsageError
from poetc.frontend import Sizes, load
from poetc.scheduling import SolveOptions
from poetc.training import TrainingOptions
from tests.frontend.support import evaluate, make, normal, save


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """x [batch, length, 4] and m [batch, length] open; z [batch, ?, 4] has a dimension without a name."""
    nodes = [
        make_node("MatMul", ["x", "w"], ["p"]),
        make_node("Unsqueeze", ["m", "last"], ["mask"]),
        make_node("Mul", ["p", "mask"], ["q"]),
        make_node("ReduceMean", ["z"], ["r"], axes=[1], keepdims=1),
        make_node("Add", ["q", "r"], ["y"]),
    ]
    inputs = {"x": ("batch", "length", 4), "m": ("batch", "length"), "z": ("batch", None, 4)}
    return save(make(nodes, inputs, ["y"], {"w": normal(4, 4), "last": np.int64([2])}), tmp_path)


def shapes(path: Path, **given: Any) -> list[tuple[int, ...]]:
    graph = load(path, **given)
    return [graph.tensors[i].shape for i in graph.inputs]


def test_lengths_by_name_and_whole_shapes(path: Path) -> None:
    wanted = [(2, 5, 4), (2, 5), (2, 7, 4)]
    assert shapes(path, batch=2, dims={"length": 5}, shapes={"z": (2, 7, 4)}) == wanted
    assert shapes(path, dims={"length": 5}, shapes={"z": (2, 7, 4)}) == wanted
    assert shapes(path, shapes={"x": (2, 5, 4), "z": (2, 7, 4)}) == wanted
    assert shapes(path, batch=8, rows=2, dims={"length": 5}, shapes={"z": (8, 7, 4)}) == wanted
    assert shapes(path, rows=2, dims={"length": 5, "batch": 5}, shapes={"z": (5, 7, 4)}) == wanted


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"batch": 2}, r"pass --dim length=N --shape z=N,N,N$"),
        ({}, r"--batch N sets the leading one\); pass --dim batch=N --dim length=N --shape z=N,N,N$"),
        (
            {"dims": {"batch": 2}, "shapes": {"z": (2, 7, 4)}},
            r"symbolic dimension length has no length; pass --dim length=N$",
        ),
        ({"dims": {"lenght": 5}}, r"--dim lenght=5: .*the model has 'batch', 'length'$"),
        ({"shapes": {"w": (4, 4)}}, r"--shape w=4,4: .* it has 'x', 'm', 'z'$"),
        ({"shapes": {"x": (2, 5)}}, r"--shape x=2,5: the file has shape \[batch, length, 4\]"),
        ({"shapes": {"x": (2, 5, 3)}}, r"--shape x=2,5,3: the file fixes axis 2 at 4"),
        ({"dims": {"length": 5}, "shapes": {"m": (2, 6)}}, r"dimension 'length' would be 6, but --dim length=5 makes"),
        ({"shapes": {"x": (2, 5, 4), "z": (3, 7, 4)}}, r"'batch' would be 3, but --shape x=2,5,4 makes it 2$"),
        ({"batch": 3, "dims": {"batch": 2}}, r"--batch 3: dimension 'batch' would be 3, but --dim batch=2"),
    ],
)
def test_refused(path: Path, given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as error:
        load(path, **given)
    assert "\n" not in str(error.value)


def test_a_fixed_shape_is_not_to_be_given(tmp_path: Path) -> None:
    path = save(make([make_node("Relu", ["x"], ["y"])], {"x": (2, 3)}, ["y"]), tmp_path)
    assert shapes(path, shapes={"x": (2, 3)}) == [(2, 3)]
    with pytest.raises(UsageError, match=r"--dim n=2: no input .*; the model has none$"):
        load(path, dims={"n": 2})
    with pytest.raises(UsageError, match=r"fixes axis 0 at 2 \(shape \[2, 3\]\); --batch 4 changes a batch$"):
        load(path, shapes={"x": (4, 3)})


@pytest.mark.parametrize("text", ["length", "=3", "length=", "length=0", "length=-1", "length=x", "length=1,2", "a=²"])
def test_dim_as_typed(text: str) -> None:
    with pytest.raises(UsageError, match=r"--dim .*: write NAME=N"):
        Sizes.parse(None, [text])


def test_shape_as_typed() -> None:
    assert Sizes.parse(None, ["a=b=3"], ["x:0=1,3"]) == Sizes(dims={"a=b": 3}, shapes={"x:0": (1, 3)})
    for text in ("x", "x=", "x=1,,2", "x=1,-1", "x=99999999999999999999"):
        with pytest.raises(UsageError, match=r"--shape .*: write INPUT=N,N"):
            Sizes.parse(None, [], [text])
    with pytest.raises(UsageError, match="'n' has two lengths, 2 and 3"):
        Sizes.parse(None, ["n=2", "n=3"])


def test_predictions_parts_and_locks_keep_them(path: Path, tmp_path: Path) -> None:
    options = TrainingOptions(dim=("length=5", "batch=4"), shape=("z=4,7,4",), micro_batches=2)
    request = ModelRequest(source=path, infer_batch=1, training=options)
    whole = load_model(request)
    assert inference_model(request, whole).tensors["x"].shape == (1, 5, 4)
    assert training_graph(request)[0].batch == 4
    locked = options_of(SolveRequest(model=request), tmp_path)
    assert request_of(locked, tmp_path).model.training.dim == options.dim


def test_a_solved_directory_keeps_them(path: Path) -> None:
    options = TrainingOptions(dim=("length=3",), shape=("z=2,3,4",))
    request = ModelRequest(source=path, batch=2, infer_batch=1, training=options)
    solved = solve(SolveRequest(model=request, options=SolveOptions(time_limit_s=1)))
    again = load(path, **{k: v for k, v in imported_with(solved).items() if k != "new_head"})
    assert [again.tensors[i].shape for i in again.inputs] == [(1, 3, 4), (1, 3), (1, 3, 4)]


def with_reshape(folder: Path, target: list[int], weight: tuple[int, int]) -> Path:
    """y = Reshape(Relu(x w), target) v: x [batch, 3, 4] with a symbolic batch, and the target a constant."""
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"]),
        make_node("Relu", ["a"], ["r"]),
        make_node("Reshape", ["r", "target"], ["flat"], name="flatten"),
        make_node("MatMul", ["flat", "v"], ["y"]),
    ]
    weights = {"w": normal(4, 4), "v": normal(*weight), "target": np.array(target)}
    return save(make(nodes, {"x": ("batch", 3, 4)}, ["y"], weights), folder)


@pytest.mark.parametrize(("target", "old"), [([1, -1], 1), ([1, 12], 1), ([8, 12], 8), ([8, -1], 8)])
def test_a_constant_with_the_batch_of_the_export_is_mended(tmp_path: Path, target: list[int], old: int) -> None:
    path = with_reshape(tmp_path, target, (12, 5))
    graph = load(path, batch=4)
    assert any(f"constants of Reshape hold batch {old}; imported at 4" in note for note in graph.notes)
    right = load(with_reshape(tmp_path, [-1, 12], (12, 5)), batch=4)
    x = {"x": normal(4, 3, 4)}
    np.testing.assert_array_equal(evaluate(graph, x)["y"], evaluate(right, x)["y"])


def test_a_constant_that_merges_samples_is_mended_where_the_outputs_show_it(tmp_path: Path) -> None:
    graph = load(with_reshape(tmp_path, [1, -1, 4], (4, 5)), batch=2)
    assert graph.tensors[graph.outputs[0]].shape == (2, 3, 5)
    assert any("hold batch 1; imported at 2" in note for note in graph.notes)


def test_constants_that_fit_no_batch_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Reshape 'flatten': \[4, 3, 4\] does not fit into shape \[5, 7\]$"):
        load(with_reshape(tmp_path, [5, 7], (7, 5)), batch=4)
