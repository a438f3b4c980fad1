"""Numbers that a file computes from parameters: none becomes a constant, whichever operator reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.helper import make_node

from poetc import training
from poetc.errors import UnsupportedModelError
from poetc.frontend import load
from poetc.training import TrainingOptions
from tests.frontend.support import assert_agrees, make, parameters, save
from tests.frontend.test_node_gradients import double, run

CASES = sorted((Path(__file__).parent / "scalars").glob("*.onnx"))
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"


def with_signature(path: Path, trained: set[str], folder: Path) -> Path:
    """The file with the list of parameters that PyTorch's default exporter writes."""
    model = onnx.load(path)
    lines = [f"p_{name.replace('.', '_')}: PARAMETER target='{name}'" for name in sorted(trained)]
    model.graph.metadata_props.add(key=SIGNATURE, value="\n".join(lines))
    return save(model, folder)


def test_a_factor_of_the_input_that_is_no_known_parameter_is_told(tmp_path: Path) -> None:
    """It may standardise the input, or be a parameter: only some exporters list those."""
    path = next(path for path in CASES if path.stem == "mean_sub")
    told = "taken for constants that standardise the input, not trained: 1 tensor ('q')"
    assert told in load(path).notes
    assert not any("standardise" in note for note in load(with_signature(path, {"p", "q"}, tmp_path)).notes)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_gradients_are_pytorchs(path: Path, tmp_path: Path) -> None:
    """PyTorch's exporter wrote the files: values of one element and matrices that are made of parameters."""
    with np.load(path.with_suffix(".npz")) as archive:
        given = {name: np.asarray(archive[name], np.float64) for name in archive.files}
    expected = {name.removeprefix("g:"): g for name, g in given.items() if name.startswith("g:") or name in ("p", "q")}
    guessed = load(path)
    assert expected.keys() - parameters(guessed) <= {"q"}  # a factor of the input may standardise it
    for graph in (guessed, load(with_signature(path, set(expected), tmp_path))):
        step = training.build(graph, TrainingOptions(loss="mse"))
        held = run(step, {"x": given["x"], step.target: given["t"]})
        assert float(held[step.loss]) == pytest.approx(float(given["loss"]), rel=1e-6)
        for name in expected.keys() & parameters(graph):
            np.testing.assert_allclose(held[step.gradients[name]], expected[name], 1e-5, 1e-7, err_msg=name)
    assert parameters(graph) == expected.keys()


# Each operator that reads numbers, on `x` [2, 3] and a number `n` made of a parameter.
READERS: dict[str, tuple[list[tuple[str, list[str], list[str], dict[str, Any]]], dict[str, Any]]] = {
    "add": ([("Add", ["x", "n"], ["y"], {})], {}),
    "sub": ([("Sub", ["n", "x"], ["y"], {})], {}),
    "mul": ([("Mul", ["n", "x"], ["y"], {})], {}),
    "div": ([("Div", ["x", "n"], ["y"], {})], {}),
    "div from": ([("Div", ["n", "x"], ["y"], {})], {}),
    "pow": ([("Abs", ["x"], ["a"], {}), ("Pow", ["a", "n"], ["y"], {})], {}),
    "pow of": ([("Pow", ["n", "x"], ["y"], {})], {}),
    "mod": ([("Mod", ["x", "n"], ["y"], {"fmod": 1})], {}),
    "clip low": ([("Clip", ["x", "n"], ["y"], {})], {}),
    "clip high": ([("Clip", ["x", "", "n"], ["y"], {})], {}),
    "clip both": ([("Neg", ["n"], ["minus"], {}), ("Clip", ["x", "minus", "n"], ["y"], {})], {}),
    "max": ([("Max", ["x", "n"], ["y"], {})], {}),
    "min of three": ([("Min", ["x", "n", "two"], ["y"], {})], {"two": np.array(4, np.float32)}),
    "mean": ([("Mean", ["x", "n"], ["y"], {})], {}),
    "pad": ([("Pad", ["x", "around", "n"], ["y"], {})], {"around": np.array([1, 0, 0, 2])}),
    "where": ([("Greater", ["x", "n"], ["b"], {}), ("Where", ["b", "n", "x"], ["y"], {})], {}),
    "where of weights": (
        [
            ("Mul", ["w", "two"], ["wide"], {}),
            ("Greater", ["wide", "n"], ["b"], {}),
            ("Where", ["b", "w", "n"], ["v"], {}),
            ("Mul", ["x", "v"], ["y"], {}),
        ],
        {"two": np.array(4, np.float32)},
    ),
    "expand": ([("Expand", ["n", "to"], ["e"], {}), ("Mul", ["x", "e"], ["y"], {})], {"to": np.array([2, 3])}),
    "tile": (
        [("Reshape", ["n", "one"], ["r"], {}), ("Tile", ["r", "three"], ["e"], {}), ("Mul", ["x", "e"], ["y"], {})],
        {"one": np.array([1]), "three": np.array([3])},
    ),
    "concat": (
        [
            ("Reshape", ["n", "one"], ["r"], {}),
            ("Concat", ["r", "r", "r"], ["e"], {"axis": 0}),
            ("Mul", ["x", "e"], ["y"], {}),
        ],
        {"one": np.array([1])},
    ),
    "one hot": (
        [
            ("Reshape", ["n", "one"], ["r"], {}),
            ("Neg", ["r"], ["minus"], {}),
            ("Concat", ["minus", "r"], ["v"], {"axis": 0}),
            ("OneHot", ["at", "three", "v"], ["h"], {}),
            ("Mul", ["x", "h"], ["y"], {}),
        ],
        {"one": np.array([1]), "at": np.array([2, 0]), "three": np.array(3)},
    ),
    "trilu": ([("Mul", ["w", "n"], ["v"], {}), ("Trilu", ["v"], ["t"], {}), ("Add", ["x", "t"], ["y"], {})], {}),
    "prelu": ([("Reshape", ["n", "one"], ["r"], {}), ("PRelu", ["x", "r"], ["y"], {})], {"one": np.array([1])}),
    "gemm": (
        [("Gemm", ["x", "v", "n"], ["y"], {"beta": 0.5, "transB": 1})],
        {"v": np.arange(9, dtype=np.float32).reshape(3, 3) / 9},
    ),
    "batch norm": (
        [
            ("Reshape", ["n", "one"], ["r"], {}),
            ("Expand", ["r", "three"], ["s"], {}),
            ("BatchNormalization", ["x", "s", "s", "zeros", "ones"], ["y"], {}),
        ],
        {
            "one": np.array([1]),
            "three": np.array([3]),
            "zeros": np.zeros(3, np.float32),
            "ones": np.ones(3, np.float32),
        },
    ),
    "softmax": (
        [("Mul", ["w", "n"], ["v"], {}), ("Softmax", ["v"], ["s"], {}), ("Mul", ["x", "s"], ["y"], {})],
        {},
    ),
}  # fmt: skip
MAKERS = {
    "exp": [("Exp", ["p"], ["n"], {})],
    "sigmoid": [("Sigmoid", ["p"], ["n"], {})],
    "softplus": [("Softplus", ["p"], ["n"], {})],
    "mean": [("ReduceMean", ["w"], ["made"], {"keepdims": 0}), ("Abs", ["made"], ["n"], {})],
    "norm": [("ReduceL2", ["w"], ["n"], {"keepdims": 0})],
    "gathered": [("Exp", ["w"], ["m"], {}), ("Gather", ["m", "row"], ["f"], {}), ("Gather", ["f", "row"], ["n"], {})],
    "itself": [("Identity", ["p"], ["n"], {})],
}


def model_of(maker: str, reader: str) -> onnx.ModelProto:
    nodes, weights = READERS[reader]
    rng = np.random.default_rng(5)
    weights = {
        "p": np.array(0.37, np.float32),
        "w": rng.standard_normal((2, 3)).astype(np.float32),
        "row": np.array(1),
        **weights,
    }
    listed = [make_node(op, i, o, **a) for op, i, o, a in (*MAKERS[maker], *nodes)]
    # In a new shape too, so that `w` has a place of its own.
    listed.append(make_node("Mul", ["y", "y"], ["z"]))
    read = {i for node in listed for i in node.input}
    model = make(listed, {"x": (2, 3)}, ["z"], {k: v for k, v in weights.items() if k in read})
    lines = [f"p_{name}: PARAMETER target='{name}'" for name in ("p", "w") if name in read]
    model.graph.metadata_props.add(key=SIGNATURE, value="\n".join(lines))
    return model


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("reader", READERS)
def test_gradients_of_numbers_made_of_parameters(maker: str, reader: str, tmp_path: Path) -> None:
    """Forward beside onnx's reference, gradients beside differences."""
    model = model_of(maker, reader)
    x = np.array([[0.31, -2.3, 2.7], [1.9, -0.2, 4.1]], np.float32)
    graph = assert_agrees(model, {"x": x}, tmp_path)
    wanted = {t.name for t in model.graph.initializer} & {"p", "w"}
    assert parameters(graph) >= wanted
    step = training.build(graph, TrainingOptions(loss="mse"))
    at = {name: double(step.values[name]) for name in wanted}
    at |= {"x": double(x), step.target: np.random.default_rng(9).standard_normal(graph.tensors["z"].shape)}
    held = run(step, at)
    for name in wanted:
        direction = np.random.default_rng(7).standard_normal(at[name].shape)
        above, below = (float(run(step, {**at, name: at[name] + e * direction})[step.loss]) for e in (1e-5, -1e-5))
        exact = float(np.sum(held[step.gradients[name]] * direction))
        assert exact == pytest.approx((above - below) / 2e-5, rel=2e-4, abs=1e-6), name
        assert exact != 0


@pytest.mark.parametrize(
    ("nodes", "weights"),
    [
        ([("Resize", ["x4", "", "e"], ["y"], {})], {"scales": np.array([1, 1, 2, 2], np.float32)}),
        (
            [("NonZero", ["e"], ["nz"], {}), ("Gather", ["x4", "nz"], ["y"], {"axis": 3})],
            {"scales": np.array([0, 1], np.float32)},
        ),
        (
            [("Range", ["zero", "n", "one"], ["r"], {}), ("Mul", ["x4", "r"], ["y"], {})],
            {k: np.array(v, np.float32) for k, v in {"scales": np.log(1.5), "zero": 0, "one": 1}.items()},
        ),
    ],
    ids=["Resize", "NonZero", "Range"],
)  # fmt: skip
def test_shapes_made_of_parameters_are_refused(nodes: Any, weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    """What would change the model's shapes as it trains."""
    ops = {node[0] for node in nodes}
    listed = [make_node("Abs", ["scales"], ["e"]), make_node("Exp", ["scales"], ["n"])]
    listed += [make_node(op, i, o, **a) for op, i, o, a in nodes]
    model = make(listed, {"x4": (1, 1, 2, 2)}, ["y"], weights, opset=18)
    model.graph.metadata_props.add(key=SIGNATURE, value="p_scales: PARAMETER target='scales'")
    with pytest.raises(
        UnsupportedModelError, match=f"({'|'.join(ops)}) .* is trained; export the model with"
    ) as raised:
        load(save(model, tmp_path))
    assert "'scales'" in str(raised.value)
    del model.graph.metadata_props[:]
    assert parameters(load(save(model, tmp_path))) == set()
