"""What a file may hold and what it may not: one line that names the file and the fault, never a traceback."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_node

from poetc.errors import PoetcError, UnsupportedModelError, UsageError
from poetc.frontend import load
from poetc.graph import Fill, materialize
from tests.frontend.support import assert_agrees, evaluate, kinds, make, normal, parameters, save
from tests.support import fuzzing
from tests.support.files import write_anew


def dense() -> onnx.ModelProto:
    weights = {"w": normal(4, 3), "b": normal(3)}
    nodes = [make_node("MatMul", ["x", "w"], ["p"]), make_node("Add", ["p", "b"], ["y"])]
    return make(nodes, {"x": (2, 4)}, ["y"], weights)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.onnx: no such file"):
        load(tmp_path / "nowhere.onnx")


@pytest.mark.parametrize("data", [b"", b"hello", b"\x00" * 100, b"\x08\x08"])
def test_not_a_model(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"model\.onnx: not an ONNX model"):
        load(path)


def test_truncated_file(tmp_path: Path) -> None:
    path = save(dense(), tmp_path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UsageError, match="cut off"):
        load(path)


def broken(change: Callable[[onnx.GraphProto], None]) -> onnx.ModelProto:
    model = dense()
    change(model.graph)
    return model


def nan_weight(graph: onnx.GraphProto) -> None:
    values = onnx.numpy_helper.to_array(graph.initializer[0]).copy()
    values[1, 1] = np.nan
    graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(values, "w"))


def set_dim(graph: onnx.GraphProto, length: int) -> None:
    graph.input[0].type.tensor_type.shape.dim[0].dim_value = length


FAULTS: list[tuple[Callable[[onnx.GraphProto], object], str]] = [
    (nan_weight, "'w' holds NaN"),
    (lambda g: g.node[0].input.__setitem__(1, "gone"), "reads tensor 'gone', which nothing makes"),
    (lambda g: g.node[0].input.__setitem__(0, "y"), "cycle"),
    (lambda g: g.node.append(make_node("Relu", ["x"], ["p"])), "'p' is made twice"),
    (lambda g: g.initializer.append(g.initializer[0]), "two initializers are named 'w'"),
    (lambda g: g.initializer[0].dims.__setitem__(0, -4), "negative dimension"),
    (lambda g: g.initializer[0].dims.__setitem__(0, 2**50), "impossibly large"),
    (lambda g: g.initializer[0].dims.__setitem__(0, 5), "does not hold the data"),
    (lambda g: g.initializer[0].__setattr__("data_type", 99), "unknown element type"),
    (lambda g: set_dim(g, -7), "negative dimension"),
    (lambda g: set_dim(g, 2**45), "impossibly large"),
    (lambda g: g.output.append(onnx.ValueInfoProto(name="z")), "nothing makes output 'z'"),
    (lambda g: g.node[0].ClearField("input"), "input 0 is missing"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_broken_graphs(tmp_path: Path, change: Callable[[onnx.GraphProto], None], message: str) -> None:
    path = save(broken(change), tmp_path)
    with pytest.raises(UsageError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_attribute_of_another_type(tmp_path: Path) -> None:
    model = make([make_node("Softmax", ["x"], ["y"], axis=1.5)], {"x": (2, 3)}, ["y"])
    with pytest.raises(UsageError, match="attribute 'axis' is not an integer"):
        load(save(model, tmp_path))


def test_everything_unsupported_is_listed_at_once(tmp_path: Path) -> None:
    nodes = [
        make_node("NonMaxSuppression", ["x", "x"], ["a"], name="nms"),
        make_node("Relu", ["a"], ["b"], name="fine"),
        make_node("TreeEnsembleRegressor", ["b"], ["c"], name="scale", domain="ai.onnx.ml"),
        make_node("Loop", ["x"], ["d"], name="again"),
        make_node("Add", ["c", "d"], ["y"]),
    ]
    with pytest.raises(UnsupportedModelError) as caught:
        load(save(make(nodes, {"x": (1, 2, 3)}, ["y"]), tmp_path))
    text = str(caught.value)
    assert "3 nodes" in text
    for part in ("'nms'", "'scale'", "ai.onnx.ml", "'again'", "a number of steps"):
        assert part in text
    assert "fine" not in text
    assert caught.value.exit_code == 3


# --- shapes and batches ---


def test_symbolic_batch_needs_batch(tmp_path: Path) -> None:
    model = make([make_node("Relu", ["x"], ["y"])], {"x": ("N", 3)}, ["y"])
    path = save(model, tmp_path)
    with pytest.raises(UsageError, match=r"'x' has shape \[N, 3\].*--batch N"):
        load(path)
    assert load(path, batch=5).tensors["y"].shape == (5, 3)


def test_other_symbolic_dimensions_are_named(tmp_path: Path) -> None:
    path = save(make([make_node("Relu", ["x"], ["y"])], {"x": ("N", "length")}, ["y"]), tmp_path)
    with pytest.raises(UsageError, match="length"):
        load(path, batch=2)


def test_batch_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        load(save(dense(), tmp_path), batch=0)


def reshaping(shape: list[int]) -> onnx.ModelProto:
    nodes = [make_node("Relu", ["x"], ["r"]), make_node("Reshape", ["r", "to"], ["y"])]
    return make(nodes, {"x": (2, 6, 4)}, ["y"], {"to": np.array(shape)})


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ([2, 24], (5, 24)),
        ([-1, 24], (5, 24)),
        ([0, -1], (5, 24)),
        ([2, -1], (5, 24)),
        ([12, 4], (30, 4)),
        ([2, 3, 2, 4], (5, 3, 2, 4)),
    ],
)
def test_another_batch_than_the_files(tmp_path: Path, shape: list[int], expected: tuple[int, ...]) -> None:
    graph = load(save(reshaping(shape), tmp_path), batch=5)
    assert graph.tensors["y"].shape == expected
    x = normal(5, 6, 4)
    np.testing.assert_array_equal(evaluate(graph, {"x": x})["y"], np.maximum(x, 0).reshape(expected))


def test_a_constant_that_holds_the_old_batch_is_refused(tmp_path: Path) -> None:
    nodes = [make_node("Add", ["x", "offsets"], ["y"])]
    model = make(nodes, {"x": (2, 3)}, ["y"], {"offsets": normal(2, 3)})
    with pytest.raises(UsageError, match="Add"):
        load(save(model, tmp_path), batch=5)


# --- weights ---


def external(model: onnx.ModelProto, name: str, location: str) -> None:
    for tensor in model.graph.initializer:
        if tensor.name == name:
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=location)


def test_external_weights_are_read(tmp_path: Path) -> None:
    model = dense()
    raw = model.graph.initializer[0].raw_data
    (tmp_path / "weights.bin").write_bytes(raw)
    external(model, "w", "weights.bin")
    x = normal(2, 4)
    y = evaluate(load(save(model, tmp_path)), {"x": x})["y"]
    np.testing.assert_allclose(y, x @ normal(4, 3) + normal(3), rtol=1e-5)
    (tmp_path / "weights.bin").write_bytes(raw[:-1])
    with pytest.raises(UsageError, match="cut off"):
        load(save(model, tmp_path))


def test_absent_weights_are_filled_the_same_every_time(tmp_path: Path) -> None:
    model = dense()
    external(model, "w", "absent.bin")
    graph = load(save(model, tmp_path), random_weights=0)
    fill = graph.values["w"]
    assert isinstance(fill, Fill)
    assert any("absent" in note for note in graph.notes)
    values = materialize(fill, graph.tensors["w"].type)
    assert float(values.std()) == pytest.approx(0.5, rel=0.6)
    np.testing.assert_array_equal(values, materialize(fill, graph.tensors["w"].type))
    other = materialize(load(save(model, tmp_path), random_weights=1).values["w"], graph.tensors["w"].type)
    assert not np.array_equal(values, other)


def test_absent_weights_are_refused_unless_asked_for(tmp_path: Path) -> None:
    model = dense()
    external(model, "w", "absent.bin")
    with pytest.raises(UsageError, match=r"'absent\.bin'.*put it beside the model, or pass --random-weights SEED"):
        load(save(model, tmp_path))


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "", "a\0b", "a" * 300])
def test_external_data_stays_in_the_models_folder(tmp_path: Path, location: str) -> None:
    model = dense()
    external(model, "w", location)
    with pytest.raises(UsageError, match="invalid external location"):
        load(save(model, tmp_path))


def test_weights_from_constant_nodes(tmp_path: Path) -> None:
    shape = onnx.numpy_helper.from_array(np.array([8, 2, 3, 3]), "s")
    nodes = [
        make_node("Constant", [], ["shape"], value=shape),
        make_node(
            "ConstantOfShape", ["shape"], ["w"], value=onnx.numpy_helper.from_array(np.array([0.02], np.float32))
        ),
        make_node("Constant", [], ["b"], value=onnx.numpy_helper.from_array(normal(8))),
        make_node("Conv", ["x", "w", "b"], ["y"]),
    ]
    graph = assert_agrees(make(nodes, {"x": (1, 2, 5, 5)}, ["y"]), {"x": normal(1, 2, 5, 5)}, tmp_path)
    assert parameters(graph) == {"w", "b"}


def test_unused_things_are_dropped_with_a_note(tmp_path: Path) -> None:
    model = dense()
    model.graph.input.append(onnx.helper.make_tensor_value_info("spare", TensorProto.FLOAT, ("?", 2)))
    model.graph.initializer.append(onnx.numpy_helper.from_array(normal(3), "left over"))
    model.graph.node.append(make_node("Loop", ["x"], ["nobody reads this"]))
    graph = load(save(model, tmp_path))
    assert graph.inputs == ("x",)
    assert [n for n in graph.notes if "spare" in n]
    assert [n for n in graph.notes if "left over" in n]


def test_initializers_that_are_also_inputs_are_weights(tmp_path: Path) -> None:
    model = dense()
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", TensorProto.FLOAT, (4, 3)))
    graph = load(save(model, tmp_path))
    assert graph.inputs == ("x",)
    assert "w" in parameters(graph)


def test_half_and_double_precision_become_f32(tmp_path: Path) -> None:
    nodes = [make_node("MatMul", ["x", "w"], ["p"]), make_node("Cast", ["p"], ["y"], to=TensorProto.FLOAT)]
    model = make(nodes, {"x": (TensorProto.FLOAT16, (2, 4))}, ["y"], {"w": normal(4, 3).astype(np.float16)})
    graph = load(save(model, tmp_path))
    assert kinds(graph) == ["MatMul"]
    assert {t.dtype.value for t in graph.tensors.values()} == {"f32"}
    assert any("f32" in note for note in graph.notes)


def test_a_lying_header_is_noticed(tmp_path: Path) -> None:
    weights = {"s": normal(4), "b": normal(4)}
    model = make([make_node("LayerNormalization", ["x", "s", "b"], ["y"])], {"x": (2, 4)}, ["y"], weights, opset=11)
    graph = load(save(model, tmp_path))
    assert kinds(graph) == ["LayerNorm"]
    assert any("declares operator set 11" in note for note in graph.notes)


def test_hard_names_survive(tmp_path: Path) -> None:
    odd = "model/act;bn:0/" + "x" * 200
    nodes = [make_node("MatMul", ["x", odd], ["a:0"], name=odd), make_node("Relu", ["a:0"], ["/y"])]
    graph = assert_agrees(make(nodes, {"x": (2, 4)}, ["/y"], {odd: normal(4, 3)}), {"x": normal(2, 4)}, tmp_path)
    assert parameters(graph) == {odd}
    assert graph.outputs == ("/y",)


def test_nodes_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    model = dense()
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    assert kinds(load(save(model, tmp_path))) == ["MatMul"]


def test_damaged_files_are_refused_or_read_never_a_traceback(tmp_path: Path) -> None:
    """Bytes changed, cut out and cut off at random, with a fixed seed."""
    weights = {"w": normal(4, 3), "to": np.array([2, -1]), "axes": np.array([1]), "k": normal(2, 3, 3, 3)}
    nodes = [
        make_node("Conv", ["image", "k"], ["c"], pads=[1, 1, 1, 1]),
        make_node("ReduceMean", ["c"], ["m"], axes=[2, 3], keepdims=0),
        make_node("Reshape", ["m", "to"], ["f"]),
        make_node("Pad", ["f", "pads"], ["p"]),
        make_node("MatMul", ["p", "w"], ["q"]),
        make_node("Unsqueeze", ["q", "axes"], ["y"]),
    ]
    weights["pads"] = np.array([0, 1, 0, 1])
    data = make(nodes, {"image": (2, 3, 5, 5)}, ["y"], weights).SerializeToString()
    draw = random.Random(7)
    path = tmp_path / "model.onnx"
    read = 0
    for _ in range(1500):
        damaged = bytearray(data)
        for _ in range(draw.choice((1, 1, 2, 6))):
            at = draw.randrange(len(damaged))
            if draw.random() < 0.7:
                damaged[at] = draw.randrange(256)
            elif draw.random() < 0.5:
                del damaged[at:]
            else:
                del damaged[at : at + draw.randrange(30)]
            damaged = damaged or bytearray(b"\0")
        write_anew(path, damaged)
        try:
            load(path)
            read += 1
        except PoetcError:
            pass
    assert 0 < read < 1500


def test_scalars_stay_scalars(tmp_path: Path) -> None:
    """Given in the file, computed at import, narrowed: the value's shape is its tensor's, and C can be emitted."""
    nodes = [
        make_node("Cast", ["wide"], ["cast"], to=TensorProto.FLOAT),
        make_node("Sqrt", ["cast"], ["root"]),
        make_node("Where", ["visible", "x", "root"], ["seen"]),
        make_node("Where", ["visible", "seen", "never"], ["masked"]),
        make_node("MatMul", ["masked", "w"], ["y"]),
    ]
    weights = {
        "wide": np.array(4.0), "visible": np.tri(3, dtype=bool), "never": np.array(-3.0, np.float32), "w": normal(3, 2),
    }  # fmt: skip
    graph = assert_agrees(make(nodes, {"x": (3, 3)}, ["y"], weights), {"x": normal(3, 3)}, tmp_path)
    scalars = [name for name, tensor in graph.tensors.items() if tensor.shape == ()]
    assert len(scalars) == 2
    for name in scalars:
        assert materialize(graph.values[name], graph.tensors[name].type).shape == ()


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_distorted_models_are_refused_or_mean_what_onnx_says(tmp_path: Path, first: int) -> None:
    """A slice of `make fuzz-models`."""
    ends = {fuzzing.examine(fuzzing.make_case(number), tmp_path) for number in range(first, first + 100)}
    assert ends == {"refused", "read", "agrees"}


def test_the_fuzzer_notices_a_wrong_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make([make_node("Relu", ["x"], ["y"])], {"x": (2, 3)}, ["y"])
    model.ir_version = 9
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 3)))
    assert fuzzing.examine(model.SerializeToString(), tmp_path) == "agrees"
    monkeypatch.setattr(fuzzing, "load", lambda path, **options: load(save(negated, tmp_path), **options))
    negated = make([make_node("Neg", ["x"], ["y"])], {"x": (2, 3)}, ["y"])
    with pytest.raises(fuzzing.WrongResult, match="'y'"):
        fuzzing.examine(model.SerializeToString(), tmp_path)


def test_messages_show_no_control_characters(tmp_path: Path) -> None:
    nodes = [make_node("Ad\x1bd", ["w", "w"], ["v"]), make_node("Mul", ["x", "v"], ["y"])]
    with pytest.raises(UnsupportedModelError, match=r"Ad\\x1bd 'v': this operator"):
        load(save(make(nodes, {"x": (3,)}, ["y"], {"w": normal(3)}), tmp_path))
    with pytest.raises(UsageError, match=r"Ad\\nd 'y' reads tensor 'none', which nothing makes"):
        load(save(make([make_node("Ad\nd", ["none", "x"], ["y"])], {"x": (3,)}, ["y"]), tmp_path))


def test_counts_that_outputs_deny(tmp_path: Path) -> None:
    node = make_node("Split", ["x"], ["y", "z"], num_outputs=2**40)
    with pytest.raises(UsageError, match="has 2 outputs"):
        load(save(make([node], {"x": (4,)}, ["y"], opset=18), tmp_path))
    nodes = [make_node("Expand", ["x", "to"], ["y"])]
    with pytest.raises(UsageError, match="Expand"):
        load(save(make(nodes, {"x": (1,)}, ["y"], {"to": np.ones(60, np.int64)}), tmp_path))


def test_an_output_that_no_kernel_can_count(tmp_path: Path) -> None:
    """Of no elements, so that its size alone is no reason to refuse it."""
    node = make_node("Identity", ["x"], ["y"])
    with pytest.raises(UsageError, match="output 'y': attribute 'shape' holds 2147483648"):
        load(save(make([node], {"x": (0, 2**31)}, ["y"]), tmp_path))


def test_outputs_that_are_given_are_dropped(tmp_path: Path) -> None:
    model = dense()
    model.graph.output.append(onnx.ValueInfoProto(name="x"))
    model.graph.output.append(onnx.ValueInfoProto(name="w"))
    graph = load(save(model, tmp_path))
    assert graph.outputs == ("y",)
    assert sum("is given, not computed" in note for note in graph.notes) == 2


def test_absent_integers(tmp_path: Path) -> None:
    """Indices that are not there are zeros, as a note says, but not at any length; a shape is not made up."""
    model = make([make_node("Gather", ["x", "i"], ["y"])], {"x": (4, 3)}, ["y"], {"i": np.zeros(7, np.int64)})
    external(model, "i", "absent.bin")
    assert any("integers: 0" in note for note in load(save(model, tmp_path), random_weights=0).notes)
    model.graph.initializer[0].dims[0] = 2**33
    with pytest.raises(UnsupportedModelError, match="8,589,934,592 elements"):
        load(save(model, tmp_path), random_weights=0)
    model = make([make_node("Reshape", ["x", "to"], ["y"])], {"x": (4, 3)}, ["y"], {"to": np.array([3, 4])})
    external(model, "to", "absent.bin")
    with pytest.raises(UnsupportedModelError, match=r"'to'.* is absent"):
        load(save(model, tmp_path), random_weights=0)


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_integers_beyond_32_bits_are_refused(tmp_path: Path, dtype: type[np.generic]) -> None:
    limit = {"limit": np.full((2, 3), 3_573_547_019, dtype)}
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = make([make_node("Greater", ["x", "limit"], ["y"])], {"x": (element, (2, 3))}, ["y"], limit)
    with pytest.raises(UsageError, match="do not fit in 32 bits"):
        load(save(model, tmp_path))


@pytest.mark.parametrize("dtype", [TensorProto.UINT32, TensorProto.UINT64])
def test_unsigned_subtraction_is_refused(tmp_path: Path, dtype: int) -> None:
    model = make([make_node("Sub", ["x", "x"], ["y"])], {"x": (dtype, (2, 3))}, ["y"])
    with pytest.raises(UnsupportedModelError, match="wrap around"):
        load(save(model, tmp_path))


def test_damaged_text_under_protobuf_in_python(tmp_path: Path) -> None:
    """Where protobuf has no compiled part, as in its old releases, it decodes text while it reads."""
    model = make([make_node("Relu", ["x"], ["odd_name"])], {"x": (2, 3)}, ["odd_name"]).SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(model.replace(b"odd_name", b"\xff" * 8))
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    script = (
        f"from pathlib import Path; from poetc.frontend._reading import parse_model; parse_model(Path({str(path)!r}))"
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "UsageError" in done.stderr and "not an ONNX model, or cut off" in done.stderr
