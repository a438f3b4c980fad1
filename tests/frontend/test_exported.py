"""What PyTorch's exporters do to parameters: files as they write them, in small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from poetc.frontend import load
from tests.frontend.support import make, normal, parameters, save

FX = "pkg.torch.onnx.fx_node"
SCOPES = "pkg.torch.onnx.name_scopes"


def node(
    op: str, inputs: list[str], outputs: list[str], call: str = "", scope: str = "", **attributes: object
) -> onnx.NodeProto:
    """A node of the default exporter, with the call that it stands for."""
    made = helper.make_node(op, inputs, outputs, **attributes)
    if call:
        text = f"%y : [num_users=1] = call_function[target=torch.ops.aten.{call}, kwargs = {{}})"
        made.metadata_props.add(key=FX, value=text)
        made.metadata_props.add(key=SCOPES, value=str(["", scope, "y"]))
    return made


def norm(number: int, x: str, y: str, weight: str, bias: str) -> onnx.NodeProto:
    call = f"layer_norm.default](args = (%x, [4], %p_n{number}_weight, %p_n{number}_bias, 1e-05, False)"
    return node("LayerNormalization", [x, weight, bias], [y], call, f"n{number}")


ONES, ZEROS = np.ones(4, np.float32), np.zeros(4, np.float32)


def test_norms_that_share_ones_and_zeros_are_trained_apart(tmp_path: Path) -> None:
    nodes = [norm(1, "x", "a", "n1.weight", "n1.bias"), norm(2, "a", "y", "n1.weight", "n1.bias")]
    graph = load(save(make(nodes, {"x": (2, 4)}, ["y"], {"n1.weight": ONES, "n1.bias": ZEROS}), tmp_path))
    assert parameters(graph) == {"n1.weight", "n1.bias", "n2.weight", "n2.bias"}
    assert any("2 parameters ('n2.weight', 'n2.bias')" in note and "apart again" in note for note in graph.notes)


def test_a_norm_that_is_called_twice_stays_one(tmp_path: Path) -> None:
    nodes = [norm(1, "x", "a", "n1.weight", "n1.bias"), norm(1, "a", "y", "n1.weight", "n1.bias")]
    graph = load(save(make(nodes, {"x": (2, 4)}, ["y"], {"n1.weight": ONES, "n1.bias": ZEROS}), tmp_path))
    assert parameters(graph) == {"n1.weight", "n1.bias"}


def test_copied_layers_are_trained_apart(tmp_path: Path) -> None:
    """`copy.deepcopy`, as torch.nn.TransformerEncoder does: equal numbers that are no ones or zeros."""
    nodes = [norm(1, "x", "a", "n1.weight", "n1.bias"), norm(2, "a", "y", "n1.weight", "n1.bias")]
    weights = {"n1.weight": normal(4), "n1.bias": normal(4, seed=1)}
    graph = load(save(make(nodes, {"x": (2, 4)}, ["y"], weights), tmp_path))
    assert parameters(graph) == {"n1.weight", "n1.bias", "n2.weight", "n2.bias"}


def test_trained_norms_with_one_scale_stay_tied(tmp_path: Path) -> None:
    """A file that does not say whose they are: equal numbers are one weight, unless they are all ones or zeros."""
    nodes = [
        helper.make_node("LayerNormalization", ["x", "n1.weight", "n1.bias"], ["a"], name="/n1/LayerNormalization"),
        helper.make_node("LayerNormalization", ["a", "n1.weight", "n1.bias"], ["y"], name="/n2/LayerNormalization"),
    ]
    weights = {"n1.weight": normal(4), "n1.bias": ZEROS}
    graph = load(save(make(nodes, {"x": (2, 4)}, ["y"], weights), tmp_path))
    assert parameters(graph) == {"n1.weight", "n1.bias", "n2.bias"}


def test_equal_norms_of_numbered_layers_are_trained_apart(tmp_path: Path) -> None:
    """Copied layers: the older exporter holds their trained scale and shift once."""
    places = [f"/layers/layers.{k}/norm/LayerNormalization" for k in (0, 1)]
    names = ["layers.0.norm.weight", "layers.0.norm.bias"]
    nodes = [
        helper.make_node("LayerNormalization", ["x", *names], ["a"], name=places[0]),
        helper.make_node("LayerNormalization", ["a", *names], ["y"], name=places[1]),
    ]
    weights = {names[0]: normal(4), names[1]: normal(4, seed=1)}
    graph = load(save(make(nodes, {"x": (2, 4)}, ["y"], weights), tmp_path))
    assert parameters(graph) == {*names, "layers.1.norm.weight", "layers.1.norm.bias"}
    nodes[1].name = places[0]  # the same layer, called twice
    assert parameters(load(save(make(nodes, {"x": (2, 4)}, ["y"], weights), tmp_path))) == set(names)


def test_a_folded_norm_whose_shift_is_zero_has_one(tmp_path: Path) -> None:
    """A fresh norm in front of no bias: the exporter leaves its zeros out, and the file says that they were there."""
    call = "_native_batch_norm_legit_no_training.default](args = (%conv, %p_1_weight, %p_1_bias, %b_1_running_mean)"
    nodes = [node("Conv", ["x", "0.weight"], ["a"], call, "1"), helper.make_node("Relu", ["a"], ["y"])]
    graph = load(save(make(nodes, {"x": (1, 2, 5, 5)}, ["y"], {"0.weight": normal(4, 2, 3, 3)}), tmp_path))
    assert parameters(graph) == {"0.weight", "1.bias"} and not np.asarray(graph.values["1.bias"]).any()


def test_the_older_exporter_names_merged_parameters_by_identity(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Identity", ["n1.weight"], ["n2.weight"]),
        helper.make_node("LayerNormalization", ["x", "n1.weight", "n1.bias"], ["a"], name="/n1/LayerNormalization"),
        helper.make_node("LayerNormalization", ["a", "n2.weight", "n1.bias"], ["y"], name="/n2/LayerNormalization"),
    ]
    graph = load(save(make(nodes, {"x": (2, 4)}, ["y"], {"n1.weight": ONES, "n1.bias": ZEROS}), tmp_path))
    assert parameters(graph) == {"n1.weight", "n1.bias", "n2.weight", "n2.bias"}


def test_what_the_older_exporter_made_of_a_parameter_is_apart_by_module(tmp_path: Path) -> None:
    """A group norm's scale of ones with two more axes, of two modules; one module called twice has one."""
    for second, expected in (("/body/body.1/Mul", 2), ("/body/body.0_1/Mul", 1)):
        nodes = [
            helper.make_node("Identity", ["onnx::Mul_8"], ["onnx::Mul_9"]),
            helper.make_node("Mul", ["x", "onnx::Mul_8"], ["a"], name="/body/body.0/Mul"),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("Mul", ["b", "onnx::Mul_9"], ["c"], name=second),
            helper.make_node("Mul", ["c", "body.0.other"], ["y"], name="/body/body.0/Mul_2"),
        ]
        nodes.insert(1, helper.make_node("Abs", ["given"], ["x"]))
        weights = {"onnx::Mul_8": np.ones((4, 1, 1), np.float32), "body.0.other": normal(4, 1, 1)}
        graph = load(save(make(nodes, {"given": (2, 4, 3, 3)}, ["y"], weights), tmp_path))
        assert len(parameters(graph) - {"body.0.other"}) == expected


def test_copied_recurrent_layers_are_trained_apart(tmp_path: Path) -> None:
    """Their weights are packed: no tensor is a parameter of the model as it was."""
    nodes = []
    for number, (x, y) in enumerate((("x", "a"), ("b", "c"))):
        reads = ", ".join(f"%p_rnn{number}_{name}_l0" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        call = f"rnn_tanh.input](args = (%x, %zeros, [{reads}], True, 1, 0.0, True, False, True)"
        inputs = [x, "val_1", "val_2", "val_3"]
        nodes.append(node("RNN", inputs, [y], call, f"rnn{number}", hidden_size=3))
        nodes.append(node("Squeeze", [y, "one"], [{"a": "b", "c": "y"}[y]], call, f"rnn{number}"))
    weights = {"val_1": normal(1, 3, 3), "val_2": normal(1, 3, 3, seed=1), "val_3": normal(1, 6), "one": np.array([1])}
    graph = load(save(make(nodes, {"x": (2, 2, 3)}, ["y"], weights), tmp_path))
    assert parameters(graph) == {"val_1", "val_2", "val_3", "rnn1.W", "rnn1.R", "rnn1.B"}


def test_a_batch_norms_scale_that_is_its_variance_too(tmp_path: Path) -> None:
    """Ones and zeros: as before any training. Taken for statistics, nothing of it was trained."""
    inputs = ["x", "0.weight", "0.bias", "0.bias", "0.weight"]
    nodes = [helper.make_node("BatchNormalization", inputs, ["y"], name="/0/BatchNormalization")]
    graph = load(save(make(nodes, {"x": (2, 4, 3, 3)}, ["y"], {"0.weight": ONES, "0.bias": ZEROS}), tmp_path))
    assert parameters(graph) == {"0.weight", "0.bias"}
    assert {n for n, t in graph.tensors.items() if t.role == "statistic"} == {"0.running_mean", "0.running_var"}


def test_a_shift_of_zeros_that_was_left_out_is_trained(tmp_path: Path) -> None:
    call = "linear.default](args = (%x, %p_0_out_proj_weight, %p_0_out_proj_bias)"
    for op, weight in (("Gemm", normal(4, 3)), ("MatMul", normal(4, 3))):
        nodes = [node(op, ["x", "0.out_proj.weight"], ["y"], call, "0")]
        graph = load(save(make(nodes, {"x": (2, 4)}, ["y"], {"0.out_proj.weight": weight}), tmp_path))
        assert parameters(graph) == {"0.out_proj.weight", "0.out_proj.bias"}
        assert graph.tensors["0.out_proj.bias"].shape == (3,)


def loop(first: str) -> list[onnx.NodeProto]:
    """Two steps of h = tanh(x + W h + b) from zeros; `first` is W·0 + b of the first."""
    hidden = "linear.default](args = (%h, %p_cell_inner_weight, %p_cell_inner_bias)"
    return [
        node("Add", ["x", first], ["a"], "add.Tensor](args = (%linear, %linear_1)", "cell"),
        node("Tanh", ["a"], ["h"], "tanh.default](args = (%add,)", "cell"),
        node("Gemm", ["h", "cell.inner.weight", "cell.inner.bias"], ["b"], hidden, "cell.inner", transB=1),
        node("Add", ["x", "b"], ["c"], "add.Tensor](args = (%linear_2, %linear_3)", "cell"),
        node("Tanh", ["c"], ["y"], "tanh.default](args = (%add_1,)", "cell"),
    ]


def test_a_first_step_computed_beforehand_reads_the_bias_again(tmp_path: Path) -> None:
    bias = normal(3)
    folded = np.broadcast_to(bias, (2, 3)).copy()
    weights = {"cell.inner.weight": normal(3, 3), "cell.inner.bias": bias, "linear_1": folded}
    graph = load(save(make(loop("linear_1"), {"x": (2, 3)}, ["y"], weights), tmp_path))
    assert parameters(graph) == {"cell.inner.weight", "cell.inner.bias"}
    assert sum("cell.inner.bias" in op.inputs for op in graph.operators) == 2
    assert any("added up beforehand" in note for note in graph.notes)


def test_an_embedding_that_was_copied_for_the_last_layer_is_one_again(tmp_path: Path) -> None:
    table = normal(7, 4)
    nodes = [
        node("Gather", ["0.weight", "tokens"], ["e"], "embedding.default](args = (%p_0_weight, %tokens)", "0"),
        node("MatMul", ["e", "val_1"], ["y"], "linear.default](args = (%embedding, %p_0_weight)", "head"),
    ]
    inputs = {"tokens": (onnx.TensorProto.INT64, (2, 3))}
    graph = load(save(make(nodes, inputs, ["y"], {"0.weight": table, "val_1": table.T.copy()}), tmp_path))
    assert parameters(graph) == {"0.weight"}


def test_what_the_file_calls_a_parameter_is_trained_whatever_it_looks_like(tmp_path: Path) -> None:
    """A single number, a table of zeros; and a buffer is not, though it stands where weights do."""
    nodes = [
        node("Mul", ["x", "0.gain"], ["a"], "mul.Tensor](args = (%x, %p_0_gain)", "0"),
        node("Add", ["a", "1.table"], ["b"], "add.Tensor](args = (%mul, %p_1_table)", "1"),
        node("Add", ["b", "2.offset"], ["y"], "add.Tensor](args = (%add, %b_2_offset)", "2"),
    ]
    weights = {"0.gain": np.array(0.7, np.float32), "1.table": np.zeros((3, 4), np.float32), "2.offset": normal(3, 4)}
    graph = load(save(make(nodes, {"x": (2, 3, 4)}, ["y"], weights), tmp_path))
    assert parameters(graph) == {"0.gain", "1.table"}


def test_a_listed_parameter_that_no_call_reads_is_named(tmp_path: Path) -> None:
    """A factor of ones, which the exporter leaves out. Of tied parameters it lists both names, and reads one."""
    nodes = [
        node("Gather", ["h.weight", "tokens"], ["e"], "embedding.default](args = (%p_h_weight, %tokens)", "emb"),
        node("MatMul", ["e", "f.weight"], ["y"], "linear.default](args = (%e, %p_f_weight)", "f"),
    ]
    inputs = {"tokens": (onnx.TensorProto.INT64, (2, 3))}
    model = make(nodes, inputs, ["y"], {"h.weight": normal(7, 4), "f.weight": normal(4, 4, seed=1)})
    listed = ("h.weight", "f.weight", "emb.weight", "scale")
    text = "".join(f"p_{name.replace('.', '_')}: PARAMETER target='{name}'\n" for name in listed)
    model.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=text)
    graph = load(save(model, tmp_path))
    assert parameters(graph) == {"h.weight", "f.weight"}
    told = [note.split(" of ")[0] for note in graph.notes if "not in the file" in note]
    assert told == ["not in the file: 1 parameter ('scale')"]


def test_a_single_number_of_the_model_itself_is_told_apart_from_constants(tmp_path: Path) -> None:
    """By the older exporter: it names its own constants otherwise."""
    nodes = [
        helper.make_node("Exp", ["logit_scale"], ["/Exp_output_0"], name="/Exp"),
        helper.make_node("Mul", ["x", "/Exp_output_0"], ["a"], name="/Mul"),
        helper.make_node("Mul", ["a", "onnx::Mul_7"], ["y"], name="/Mul_1"),
    ]
    number = np.array(0.7, np.float32)
    graph = load(save(make(nodes, {"x": (2, 4)}, ["y"], {"logit_scale": number, "onnx::Mul_7": number}), tmp_path))
    assert "taken for constants, not trained: 1 tensor ('logit_scale')" in graph.notes


def test_a_slope_of_one_number_is_trained(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Unsqueeze", ["act.weight", "axes"], ["slope"]),
        helper.make_node("PRelu", ["x", "slope"], ["y"], name="/act/PRelu"),
    ]
    weights = {"act.weight": np.array([0.25], np.float32), "axes": np.array([1, 2])}
    graph = load(save(make(nodes, {"x": (2, 3, 4, 4)}, ["y"], weights), tmp_path))
    assert parameters(graph) == {"act.weight"}


def test_zeros_and_ones_of_constant_nodes_are_not_trained(tmp_path: Path) -> None:
    """The initial state of a loop, the scale of a norm that has none."""
    zeros = helper.make_node(
        "Constant", [], ["zeros"], value=onnx.numpy_helper.from_array(np.zeros((2, 3), np.float32))
    )
    nodes = [
        zeros,
        *(helper.make_node("Gemm", ["zeros", "w.w", "w.b"], ["h"]), helper.make_node("Add", ["x", "h"], ["y"])),
    ]
    graph = load(save(make(nodes, {"x": (2, 3)}, ["y"], {"w.w": normal(3, 3), "w.b": normal(3)}), tmp_path))
    assert parameters(graph) == {"w.w", "w.b"}


def test_parameters_that_the_file_does_not_hold_are_named(tmp_path: Path) -> None:
    """A batch norm folded into the convolution before it, a product of two parameters, a transposed matrix."""
    folded = "batch_norm.default](args = (%conv, %p_1_weight, %p_1_bias, %b_1_running_mean, %b_1_running_var, False)"
    nodes = [
        node("Conv", ["x", "0.weight", "0.bias"], ["a"], folded, "1"),
        node("Flatten", ["a"], ["b"], "flatten.using_ints](args = (%a, 1)", ""),
        node("MatMul", ["b", "val_3"], ["c"], "linear.default](args = (%b, %p_2_weight)", "2"),
        node("MatMul", ["c", "val_4"], ["y"], "linear.default](args = (%c, %matmul)", "3"),
    ]
    weights = {"0.weight": normal(2, 1, 1, 1), "0.bias": normal(2), "val_3": normal(8, 5), "val_4": normal(5, 4)}
    graph = load(save(make(nodes, {"x": (2, 1, 2, 2)}, ["y"], weights), tmp_path))
    notes = "\n".join(graph.notes)
    assert "not in the file, so not trained: 2 parameters ('1.bias', '1.weight') of the PyTorch model" in notes
    assert "'val_3 = 2.weight'" in notes
    assert "trained, with numbers that the exporter computed or moved: 1 tensor ('val_4 of 3')" in notes


def test_the_older_exporters_folded_batch_norms_are_named(tmp_path: Path) -> None:
    nodes = [helper.make_node("Conv", ["x", "onnx::Conv_9", "onnx::Conv_10"], ["y"], name="/0/Conv")]
    weights = {"onnx::Conv_9": normal(2, 1, 1, 1), "onnx::Conv_10": normal(2)}
    graph = load(save(make(nodes, {"x": (2, 1, 2, 2)}, ["y"], weights), tmp_path))
    assert any("batch norms that the exporter folded into 1 convolution ('/0/Conv')" in note for note in graph.notes)


def test_a_weight_whose_shift_was_left_out_is_its_modules(tmp_path: Path) -> None:
    """Both readers have one copied weight and no shift: as attention's last layer before training."""
    nodes = []
    for number, (x, y) in enumerate((("x", "a"), ("a", "y"))):
        call = f"linear.default](args = (%x, %p_{number}_out_weight, %p_{number}_out_bias)"
        nodes.append(node("Gemm", [x, "0.out.weight"], [y], call, f"{number}.out"))
    graph = load(save(make(nodes, {"x": (2, 4)}, ["y"], {"0.out.weight": normal(4, 4)}), tmp_path))
    assert parameters(graph) == {"0.out.weight", "0.out.bias", "1.out.weight", "1.out.bias"}


def test_a_norm_without_scale_shares_no_parameter(tmp_path: Path) -> None:
    """The ones and zeros that the exporter writes for it equal another norm's."""
    call = "layer_norm.default](args = (%x, [4], None, None, 1e-05, False)"
    plain = node("LayerNormalization", ["x", "n1.weight", "n1.bias"], ["a"], call, "n0")
    model = make([plain, norm(1, "a", "y", "n1.weight", "n1.bias")], {"x": (2, 4)}, ["y"],
                 {"n1.weight": ONES, "n1.bias": ZEROS})  # fmt: skip
    graph = load(save(model, tmp_path))
    assert parameters(graph) == {"n1.weight", "n1.bias"}
    assert not any("tied" in note for note in graph.notes)
    assert next(op for op in graph.operators if op.kind == "LayerNorm").inputs[1] != "n1.weight"


def test_numbers_of_a_program_without_a_lost_parameter_are_constants(tmp_path: Path) -> None:
    """A factor of a resize, computed beforehand; where a parameter is lost, it may have been made of that."""
    nodes = [
        node("Abs", ["x"], ["a"], "abs.default](args = (%x,)"),
        node("Mul", ["a", "clamp_2"], ["b"], "mul.Tensor](args = (%abs, %clamp_2)"),
        node("Gemm", ["b", "f.out.weight"], ["y"], "linear.default](args = (%b, %p_f_out_weight)", "f.out"),
    ]
    for more, expected in (("", {"f.out.weight"}), ("p_g: PARAMETER target='g'\n", {"f.out.weight", "clamp_2"})):
        model = make(nodes, {"x": (2, 4)}, ["y"], {"clamp_2": normal(4), "f.out.weight": normal(4, 4)})
        signature = f"# inputs\np_f_out_weight: PARAMETER target='f.out.weight'\n{more}x: USER_INPUT\n"
        key = "pkg.torch.export.ExportedProgram.graph_signature"
        model.graph.metadata_props.add(key=key, value=signature)
        assert parameters(load(save(model, tmp_path))) == expected


def test_a_slope_of_one_number_behind_an_identity_is_trained(tmp_path: Path) -> None:
    """Two modules have two; a module that is called twice has one."""
    for second, expected in (("/1/PRelu", 2), ("/0_1/PRelu", 1)):
        nodes = [
            helper.make_node("Identity", ["onnx::PRelu_15"], ["onnx::PRelu_16"]),
            helper.make_node("PRelu", ["x", "onnx::PRelu_15"], ["a"], name="/0/PRelu"),
            helper.make_node("PRelu", ["a", "onnx::PRelu_16"], ["y"], name=second),
        ]
        weights = {"onnx::PRelu_15": np.full((1, 1, 1), 0.25, np.float32)}
        graph = load(save(make(nodes, {"x": (2, 4, 3, 3)}, ["y"], weights), tmp_path))
        assert len(parameters(graph)) == expected


def test_copied_recurrent_layers_of_the_older_exporter_are_told(tmp_path: Path) -> None:
    """Of both directions: their weights are parts of one tensor."""
    nodes = [helper.make_node("Identity", ["onnx::RNN_1"], ["onnx::RNN_2"])]
    for k, (x, y, weight) in enumerate((("x", "a", "onnx::RNN_1"), ("b", "c", "onnx::RNN_2"))):
        names, name = [x, weight, f"onnx::RNN_{7 + k}"], f"/body/{k}/cell/RNN"
        nodes.append(helper.make_node("RNN", names, [y], name=name, hidden_size=3, direction="bidirectional"))
        nodes.append(helper.make_node("ReduceSum", [y, "one"], [{"a": "b", "c": "y"}[y]], keepdims=0))
    weights = {"onnx::RNN_1": normal(2, 3, 3), "one": np.array([1])}
    weights |= {f"onnx::RNN_{k}": normal(2, 3, 3, seed=k) for k in (7, 8)}
    graph = load(save(make(nodes, {"x": (2, 2, 3)}, ["y"], weights), tmp_path))
    layers = "is the weight of 2 operators (/body/0/cell/RNN, /body/1/cell/RNN): kept as one, tied weight"
    assert [n for n in graph.notes if "tied" in n] == [f"'onnx::RNN_1' {layers}"]


def test_metadata_that_is_nonsense_is_ignored(tmp_path: Path) -> None:
    """Whoever wrote it: strings in a file are anything."""
    for text in ("", "%p_", "target=torch.ops.aten.linear](" + "%p_w, " * 50_000, "target=torch.ops.aten.\0(%p_\n"):
        gemm = helper.make_node("Gemm", ["x", "w.w"], ["y"])
        gemm.metadata_props.add(key=FX, value=text)
        gemm.metadata_props.add(key=SCOPES, value="['" * 10_000)
        graph = load(save(make([gemm], {"x": (2, 4)}, ["y"], {"w.w": normal(4, 3)}), tmp_path))
        assert parameters(graph) == {"w.w"}
