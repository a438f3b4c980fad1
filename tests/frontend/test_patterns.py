"""What exporters spell out is recognised: fewer operators, the same numbers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.helper import make_node

from tests.frontend.support import assert_agrees, kinds, make, normal, parameters

f32 = np.float32


def scalar(value: float) -> np.ndarray:
    return np.array(value, f32)


GELUS: dict[str, list[tuple[str, list[str], str]]] = {
    # x · ½ · (1 + erf(x / √2)), the ½ in three places
    "erf-half-first": [("Mul", ["x", "half"], "h"), ("Div", ["x", "r2"], "d"), ("Erf", ["d"], "e"),
                       ("Add", ["e", "one"], "p"), ("Mul", ["h", "p"], "y")],
    "erf-half-last": [("Div", ["x", "r2"], "d"), ("Erf", ["d"], "e"), ("Add", ["one", "e"], "p"),
                      ("Mul", ["x", "p"], "m"), ("Mul", ["m", "half"], "y")],
    "erf-half-inside": [("Mul", ["x", "ir2"], "d"), ("Erf", ["d"], "e"), ("Add", ["e", "one"], "p"),
                        ("Mul", ["p", "half"], "q"), ("Mul", ["q", "x"], "y")],
    "tanh-cube": [("Pow", ["x", "three"], "c"), ("Mul", ["c", "k"], "ck"), ("Add", ["x", "ck"], "s"),
                  ("Mul", ["s", "s2pi"], "t"), ("Tanh", ["t"], "u"), ("Add", ["u", "one"], "p"),
                  ("Mul", ["x", "half"], "h"), ("Mul", ["h", "p"], "y")],
    "tanh-square": [("Mul", ["x", "x"], "s"), ("Mul", ["s", "k"], "ks"), ("Add", ["ks", "one"], "a"),
                    ("Mul", ["x", "a"], "xa"), ("Mul", ["xa", "s2pi"], "t"), ("Tanh", ["t"], "u"),
                    ("Add", ["u", "one"], "p"), ("Mul", ["x", "p"], "m"), ("Mul", ["m", "half"], "y")],
}  # fmt: skip
NUMBERS = {
    "half": 0.5, "one": 1.0, "r2": math.sqrt(2), "ir2": math.sqrt(0.5), "three": 3.0, "k": 0.044715,
    "s2pi": math.sqrt(2 / math.pi), "three_": 3.0, "six": 6.0, "zero": 0.0,
}  # fmt: skip


def chain(steps: list[tuple[str, list[str], str]]) -> list[onnx.NodeProto]:
    return [make_node(op, inputs, [output]) for op, inputs, output in steps]


@pytest.mark.parametrize("name", GELUS)
def test_gelu(tmp_path: Path, name: str) -> None:
    numbers = {n: scalar(v) for n, v in NUMBERS.items()}
    graph = assert_agrees(make(chain(GELUS[name]), {"x": (3, 8)}, ["y"], numbers), {"x": normal(3, 8)}, tmp_path)
    assert kinds(graph) == ["Gelu"]
    assert graph.operators[0].attributes["approximate"] == name.partition("-")[0].replace("erf", "none")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([("Sigmoid", ["x"], "s"), ("Mul", ["x", "s"], "y")], ["Silu"]),
        ([("Softplus", ["x"], "s"), ("Tanh", ["s"], "t"), ("Mul", ["t", "x"], "y")], ["Mish"]),
        (
            [("Add", ["x", "three"], "a"), ("Clip", ["a", "zero", "six"], "c"), ("Mul", ["x", "c"], "m"),
             ("Div", ["m", "six"], "y")],
            ["HardSwish", "Affine"],
        ),
        (
            [("Add", ["x", "three"], "a"), ("Clip", ["a", "zero", "six"], "c"), ("Div", ["c", "six"], "d"),
             ("Mul", ["x", "d"], "y")],
            ["HardSwish"],
        ),
    ],
)  # fmt: skip
def test_gated_activations(tmp_path: Path, steps: list[tuple[str, list[str], str]], expected: list[str]) -> None:
    numbers = {n: scalar(v) for n, v in NUMBERS.items()}
    graph = assert_agrees(make(chain(steps), {"x": (3, 8)}, ["y"], numbers), {"x": 3 * normal(3, 8)}, tmp_path)
    assert kinds(graph)[:1] == expected[:1]
    assert len(kinds(graph)) <= len(expected)


def layer_norm_steps(twice: bool) -> list[onnx.NodeProto]:
    nodes = [
        make_node("ReduceMean", ["x"], ["m"], axes=[-1]),
        make_node("Sub", ["x", "m"], ["d"]),
        make_node("Sub", ["x", "m"], ["d2"]),
        make_node("Pow", ["d2" if twice else "d", "two"], ["q"]),
        make_node("ReduceMean", ["q"], ["v"], axes=[-1]),
        make_node("Add", ["v", "eps"], ["ve"]),
        make_node("Sqrt", ["ve"], ["sd"]),
        make_node("Div", ["d", "sd"], ["n"]),
        make_node("Mul", ["n", "gamma"], ["g"]),
        make_node("Add", ["g", "beta"], ["y"]),
    ]
    return nodes if twice else [n for n in nodes if n.output[0] != "d2"]


@pytest.mark.parametrize("twice", [False, True])
def test_layer_norm_from_its_parts(tmp_path: Path, twice: bool) -> None:
    weights = {"two": scalar(2), "eps": scalar(1e-5), "gamma": normal(8), "beta": normal(8, seed=1)}
    model = make(layer_norm_steps(twice), {"x": (2, 3, 8)}, ["y"], weights)
    graph = assert_agrees(model, {"x": normal(2, 3, 8)}, tmp_path)
    assert kinds(graph) == ["LayerNorm"]
    assert parameters(graph) == {"gamma", "beta"}


def test_layer_norm_without_weights_trains_none(tmp_path: Path) -> None:
    nodes = layer_norm_steps(False)[:-2]
    model = make(nodes, {"x": (2, 3, 8)}, ["n"], {"two": scalar(2), "eps": scalar(1e-5)})
    graph = assert_agrees(model, {"x": normal(2, 3, 8)}, tmp_path)
    assert kinds(graph) == ["LayerNorm"]
    assert parameters(graph) == set()


def test_rms_norm_from_its_parts(tmp_path: Path) -> None:
    nodes = [
        make_node("Mul", ["x", "x"], ["q"]),
        make_node("ReduceMean", ["q"], ["v"], axes=[-1]),
        make_node("Add", ["v", "eps"], ["ve"]),
        make_node("Sqrt", ["ve"], ["sd"]),
        make_node("Reciprocal", ["sd"], ["r"]),
        make_node("Mul", ["x", "r"], ["n"]),
        make_node("Mul", ["gamma", "n"], ["y"]),
    ]
    graph = assert_agrees(
        make(nodes, {"x": (2, 8)}, ["y"], {"eps": scalar(1e-5), "gamma": normal(8)}), {"x": normal(2, 8)}, tmp_path
    )
    assert kinds(graph) == ["RmsNorm"]


def test_group_norm_written_as_instance_norm(tmp_path: Path) -> None:
    nodes = [
        make_node("Reshape", ["x", "grouped"], ["g"]),
        make_node("InstanceNormalization", ["g", "ones", "zeros"], ["i"]),
        make_node("Reshape", ["i", "back"], ["r"]),
        make_node("Mul", ["r", "scale"], ["s"]),
        make_node("Add", ["s", "bias"], ["y"]),
    ]
    weights = {
        "grouped": np.array([2, 2, -1]), "back": np.array([2, 6, 5]), "ones": np.ones(2, f32),
        "zeros": np.zeros(2, f32), "scale": normal(6, 1), "bias": normal(6, 1, seed=1),
    }  # fmt: skip
    graph = assert_agrees(make(nodes, {"x": (2, 6, 5)}, ["y"], weights), {"x": normal(2, 6, 5)}, tmp_path)
    assert kinds(graph) == ["GroupNorm"]
    assert parameters(graph) == {"scale", "bias"}


def test_a_norms_parameters_of_ones_and_zeros_are_not_lost(tmp_path: Path) -> None:
    """A factor behind a norm is another parameter; views around a norm do not make a group norm of it."""
    norm = make_node("InstanceNormalization", ["x", "n.weight", "n.bias"], ["i"])
    weights = {"n.weight": np.ones(3, f32), "n.bias": np.zeros(3, f32)}
    behind = make([norm, make_node("Mul", ["i", "s.factor"], ["y"])], {"x": (2, 3, 4, 4)}, ["y"],
                  weights | {"s.factor": np.full((3, 1, 1), 1.5, f32)})  # fmt: skip
    graph = assert_agrees(behind, {"x": normal(2, 3, 4, 4)}, tmp_path)
    assert parameters(graph) == {"n.weight", "n.bias", "s.factor"}
    views = {"line": np.array([2, 3, -1]), "plane": np.array([2, 3, 4, 4])}
    nodes = [make_node("Reshape", ["given", "line"], ["x"]), norm, make_node("Reshape", ["i", "plane"], ["y"])]
    seen = make(nodes, {"given": (2, 3, 4, 4)}, ["y"], weights | views)
    assert parameters(assert_agrees(seen, {"given": normal(2, 3, 4, 4)}, tmp_path)) == {"n.weight", "n.bias"}


def test_batch_norm_written_out(tmp_path: Path) -> None:
    nodes = [
        make_node("Sub", ["x", "mean"], ["d"]),
        make_node("Add", ["var", "eps"], ["ve"]),
        make_node("Sqrt", ["ve"], ["sd"]),
        make_node("Div", ["d", "sd"], ["n"]),
        make_node("Mul", ["n", "gamma"], ["g"]),
        make_node("Add", ["g", "beta"], ["y"]),
    ]
    names = ("mean", "gamma", "beta")
    weights = {n: normal(3, 1, 1, seed=k) for k, n in enumerate(names)} | {
        "var": np.abs(normal(3, 1, 1, seed=9)) + f32(0.5),
        "eps": scalar(1e-3),
    }
    # Behind a ReLU: a factor on the raw input would count as standardising it.
    nodes = [make_node("Relu", ["image"], ["x"]), *nodes]
    graph = assert_agrees(make(nodes, {"image": (2, 3, 4, 4)}, ["y"], weights), {"image": normal(2, 3, 4, 4)}, tmp_path)
    assert kinds(graph) == ["Relu", "BatchNormApply"]
    assert parameters(graph) == {"gamma", "beta"}
    assert {t.name for t in graph.tensors.values() if t.role == "statistic"} == {"mean", "var"}


def test_biases_join_their_products(tmp_path: Path) -> None:
    nodes = [
        make_node("Conv", ["x", "w"], ["c"]),
        make_node("Add", ["cb", "c"], ["d"]),
        make_node("Flatten", ["d"], ["f"]),
        make_node("Transpose", ["m"], ["mt"]),
        make_node("MatMul", ["f", "mt"], ["p"]),
        make_node("Add", ["p", "mb"], ["y"]),
    ]
    weights = {"w": normal(2, 3, 3, 3), "cb": normal(2, 1, 1), "m": normal(5, 8), "mb": normal(5)}
    graph = assert_agrees(make(nodes, {"x": (1, 3, 4, 4)}, ["y"], weights), {"x": normal(1, 3, 4, 4)}, tmp_path)
    assert kinds(graph) == ["Conv", "MatMul"]
    # Weights keep their names and shapes: the transposition became a flag.
    assert parameters(graph) == {"w", "cb", "m", "mb"}
    assert graph.tensors["m"].shape == (5, 8)


def test_bias_of_a_product_that_is_read_elsewhere_stays_apart(tmp_path: Path) -> None:
    nodes = [
        make_node("MatMul", ["x", "m"], ["p"]),
        make_node("Add", ["p", "b"], ["q"]),
        make_node("Mul", ["p", "q"], ["y"]),
    ]
    graph = assert_agrees(
        make(nodes, {"x": (2, 4)}, ["y"], {"m": normal(4, 3), "b": normal(3)}), {"x": normal(2, 4)}, tmp_path
    )
    assert kinds(graph) == ["MatMul", "Add", "Mul"]


@pytest.mark.parametrize("shape", [(1, 2, 5), (1, 2, 5, 4)])
def test_zero_padding_joins_the_convolution(tmp_path: Path, shape: tuple[int, ...]) -> None:
    spatial = len(shape) - 2
    pads = [0, 0, *([2] * spatial), 0, 0, *([1] * spatial)]
    nodes = [make_node("Pad", ["x", "pads"], ["p"]), make_node("Conv", ["p", "w"], ["y"])]
    weights = {"pads": np.array(pads), "w": normal(3, 2, *([3] * spatial))}
    graph = assert_agrees(make(nodes, {"x": shape}, ["y"], weights), {"x": normal(*shape)}, tmp_path)
    assert kinds(graph) == ["Conv"]


def test_scaled_attention_is_one_product(tmp_path: Path) -> None:
    nodes = [
        make_node("Mul", ["q", "s"], ["qs"]),
        make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        make_node("Mul", ["kt", "s"], ["ks"]),
        make_node("MatMul", ["qs", "ks"], ["y"]),
    ]
    feeds = {"q": normal(2, 3, 4), "k": normal(2, 5, 4)}
    graph = assert_agrees(
        make(nodes, {n: v.shape for n, v in feeds.items()}, ["y"], {"s": scalar(0.5)}), feeds, tmp_path
    )
    assert kinds(graph) == ["MatMul"]
    assert graph.operators[0].attributes["alpha"] == pytest.approx(0.25)


def test_similar_but_different_chains_are_left_alone(tmp_path: Path) -> None:
    nodes = [
        make_node("Sigmoid", ["x"], ["s"]),
        make_node("Mul", ["s", "z"], ["m"]),
        make_node("Div", ["x", "r2"], ["d"]),
        make_node("Erf", ["d"], ["e"]),
        make_node("Add", ["e", "two"], ["p"]),
        make_node("Mul", ["m", "p"], ["y"]),
    ]
    weights = {"r2": scalar(math.sqrt(2)), "two": scalar(2)}
    feeds = {"x": normal(2, 3), "z": normal(2, 3, seed=1)}
    graph = assert_agrees(make(nodes, {n: v.shape for n, v in feeds.items()}, ["y"], weights), feeds, tmp_path)
    assert "Gelu" not in kinds(graph)
    assert "Silu" not in kinds(graph)


VIEWS: list[tuple[list[tuple[str, object]], list[int], list[int], int]] = [
    # what is done to three tensors [2, 4] joined to [6, 4]; starts, ends; how many of the three are needed
    ([], [2, 0], [4, 4], 1),
    ([], [3, 1], [4, 3], 1),
    ([], [1, 0], [3, 4], 3),
    ([("Reshape", [3, 1, 2, 4]), ("Reshape", [3, 2, 4]), ("Transpose", [1, 0, 2])], [0, 2, 0], [2, 3, 4], 1),
    ([("Transpose", [1, 0]), ("Reshape", [2, 2, 6])], [0, 0, 4], [2, 2, 6], 1),
    ([("Transpose", [1, 0]), ("Reshape", [2, 2, 6])], [0, 1, 4], [2, 2, 6], 3),
    ([("Reshape", [3, 2, 4])], [1, 0, 0], [3, 2, 4], 3),
    ([("Reshape", [2, 3, 4]), ("Transpose", [1, 0, 2])], [2, 0, 0], [3, 2, 4], 3),
    ([("Reshape", [24])], [8], [16], 1),
    ([("Reshape", [24])], [12], [16], 1),
    ([("Reshape", [24])], [9], [15], 3),
]


@pytest.mark.parametrize(("steps", "starts", "ends", "needed"), VIEWS)
def test_slice_of_what_was_joined_reads_its_part(
    tmp_path: Path, steps: list[tuple[str, object]], starts: list[int], ends: list[int], needed: int
) -> None:
    nodes = [make_node("Relu", [f"x{i}"], [f"r{i}"]) for i in range(3)]
    nodes.append(make_node("Concat", ["r0", "r1", "r2"], ["joined"], axis=0))
    numbers: dict[str, np.ndarray] = {"starts": np.int64(starts), "ends": np.int64(ends)}
    at = "joined"
    for number, (kind, value) in enumerate(steps):
        if kind == "Reshape":
            numbers[f"s{number}"] = np.int64(value)
            nodes.append(make_node("Reshape", [at, f"s{number}"], [f"t{number}"]))
        else:
            nodes.append(make_node("Transpose", [at], [f"t{number}"], perm=value))
        at = f"t{number}"
    nodes += [make_node("Slice", [at, "starts", "ends"], ["part"]), make_node("Neg", ["part"], ["y"])]
    feeds = {f"x{i}": normal(2, 4, seed=i) for i in range(3)}
    model = make(nodes, dict.fromkeys(feeds, (2, 4)), ["y"], numbers)
    graph = assert_agrees(model, feeds, tmp_path)
    assert kinds(graph).count("Relu") == needed
    assert ("Concat" in kinds(graph)) == (needed == 3)
