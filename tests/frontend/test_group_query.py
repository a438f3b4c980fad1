"""Decoders of language models: grouped queries, rotary embedding, tables of few bits, caches; as onnxruntime does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.helper import make_node, make_opsetid, make_tensor_value_info

from poetc.errors import UnsupportedModelError
from poetc.frontend import load, write_back
from poetc.graph import materialize
from tests.frontend.support import evaluate, make, normal, save
from tests.frontend.test_microsoft import session
from tests.frontend.test_node_gradients import disagreements

BATCH, LENGTH, HEADS, GROUPS, SIZE = 2, 5, 4, 2, 16
ANGLES = np.arange(9)[:, None] * 0.3 ** np.arange(8)
TABLES = {"cos": np.cos(ANGLES).astype(np.float32), "sin": np.sin(ANGLES).astype(np.float32)}
INPUTS = [
    "q",
    "k",
    "v",
    "past_key",
    "past_value",
    "lengths",
    "total",
    "cos",
    "sin",
    "places",
    "bias",
    "sinks",
    "ks",
    "vs",
    "qn",
    "kn",
]
PLACES = np.array([[3, 1, 2, 8, 0], [0, 1, 2, 3, 4]], np.int64)

# name → (attributes, further inputs)
GROUP_QUERY: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "scale": ({"scale": 0.2}, {}),
    "window": ({"local_window_size": 2}, {}),
    "cap": ({"softcap": 0.7}, {}),
    "smooth": ({"smooth_softmax": 1}, {}),
    "sinks": ({}, {"sinks": normal(HEADS)}),
    "bias": ({}, {"bias": normal(BATCH, HEADS, LENGTH, LENGTH)}),
    "rotary": ({"do_rotary": 1}, TABLES),
    "rotary_places": ({"do_rotary": 1, "rotary_interleaved": 1}, {**TABLES, "places": PLACES}),
}


def with_domains(model: onnx.ModelProto) -> onnx.ModelProto:
    model.ir_version = 10
    model.opset_import.append(make_opsetid("com.microsoft", 1))
    return model


def group_query(
    attributes: dict[str, Any], further: dict[str, Any], packed: bool = False
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node with queries, keys and values as inputs; tables are weights, the cache is empty."""
    width = (HEADS + 2 * GROUPS) * SIZE if packed else HEADS * SIZE
    feeds = {"q": normal(BATCH, LENGTH, width)}
    if not packed:
        feeds |= {"k": normal(BATCH, LENGTH, GROUPS * SIZE, seed=1), "v": normal(BATCH, LENGTH, GROUPS * SIZE, seed=2)}
    weights = {"past_key": np.zeros((BATCH, GROUPS, 0, SIZE), np.float32)}
    weights |= {"past_value": weights["past_key"], "lengths": np.full(BATCH, LENGTH - 1, np.int32)}
    weights["total"] = np.array(LENGTH, np.int32)
    feeds |= {k: v for k, v in further.items() if k in ("bias", "sinks")}
    weights |= {k: v for k, v in further.items() if k not in feeds}
    names = [n if n in feeds or n in weights else "" for n in INPUTS]
    while not names[-1]:
        names.pop()
    heads = {"num_heads": HEADS, "kv_num_heads": GROUPS}
    node = make_node("GroupQueryAttention", names, ["y", "pk", "pv"], domain="com.microsoft", **heads, **attributes)
    return with_domains(make([node], {k: v.shape for k, v in feeds.items()}, ["y", "pk", "pv"], weights)), feeds


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", GROUP_QUERY)
def test_group_query_attention(tmp_path: Path, name: str, packed: bool) -> None:
    model, feeds = group_query(*GROUP_QUERY[name], packed)
    expected = session(model).run(None, feeds)
    graph = load(save(model, tmp_path))
    assert graph.outputs == ("y",)
    assert any("2 outputs are dropped (pk, pv)" in note for note in graph.notes)
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], expected[0], rtol=1e-4, atol=1e-5)
    assert disagreements(graph, feeds) == (len(feeds), [])


def test_norms_of_queries_and_keys(tmp_path: Path) -> None:
    """onnxruntime has them for a GPU alone: compared with a norm of its own before the node."""
    norms = {"qn": normal(SIZE), "kn": normal(SIZE, seed=1)}
    fused, feeds = group_query({"do_rotary": 1, "qk_norm_epsilon": 1e-3}, {**TABLES, **norms})
    apart, _ = group_query({"do_rotary": 1}, TABLES)
    nodes = []
    for x, scale, heads in (("q", "qn", HEADS), ("k", "kn", GROUPS)):
        apart.graph.initializer.append(numpy_helper.from_array(norms[scale], scale))
        shapes = {"split": (BATCH, LENGTH, heads, SIZE), "join": (BATCH, LENGTH, heads * SIZE)}
        for what, shape in shapes.items():
            apart.graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), f"{x}.{what}"))
        nodes += [
            make_node("Reshape", [x, f"{x}.split"], [f"{x}.heads"]),
            make_node("SimplifiedLayerNormalization", [f"{x}.heads", scale], [f"{x}.normed"], axis=-1, epsilon=1e-3),
            make_node("Reshape", [f"{x}.normed", f"{x}.join"], [f"{x}.joined"]),
        ]
    node = apart.graph.node[0]
    node.input[0], node.input[1] = "q.joined", "k.joined"
    nodes.append(node)
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del apart.graph.node[:]
    apart.graph.node.extend(nodes)
    (expected, *_) = session(apart).run(None, feeds)
    graph = load(save(fused, tmp_path))
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], expected, rtol=1e-4, atol=1e-5)
    assert disagreements(graph, feeds) == (3, [])


ROTARY: dict[str, tuple[str, tuple[int, ...], list[str], dict[str, Any]]] = {
    "microsoft_four": ("com.microsoft", (2, 3, 5, 16), ["places", "cos", "sin"], {}),
    "microsoft_three": ("com.microsoft", (2, 5, 48), ["places", "cos", "sin"], {"interleaved": 1}),
    "microsoft_first": ("com.microsoft", (2, 5, 48), ["first", "cos", "sin"], {}),
    "microsoft_part": (
        "com.microsoft", (2, 5, 54), ["places", "cos", "sin"], {"num_heads": 3, "rotary_embedding_dim": 16},
    ),
    "four": ("", (2, 3, 5, 16), ["cos", "sin", "places"], {}),
    "three": ("", (2, 5, 48), ["cos", "sin", "places"], {"num_heads": 3, "interleaved": 1}),
    "rows": ("", (2, 3, 5, 16), ["cos_rows", "sin_rows"], {}),
    "part": ("", (2, 3, 5, 20), ["cos", "sin", "places"], {"rotary_embedding_dim": 16}),
}  # fmt: skip


@pytest.mark.parametrize("given", [False, True], ids=["constant", "given"])
@pytest.mark.parametrize("name", ROTARY)
def test_rotary_embedding(tmp_path: Path, name: str, given: bool) -> None:
    domain, shape, names, attributes = ROTARY[name]
    held = {**TABLES, "places": PLACES, "first": np.array([2], np.int64)}
    held |= {f"{k}_rows": v[PLACES] for k, v in TABLES.items()}
    node = make_node("RotaryEmbedding", ["x", *names], ["y"], domain=domain, **attributes)
    inputs: dict[str, Any] = {"x": shape}
    feeds = {"x": normal(*shape)}
    if given and "places" in names:
        inputs["places"] = (TensorProto.INT64, PLACES.shape)
        feeds["places"] = PLACES
    weights = {n: held[n] for n in names if n not in feeds}
    model = with_domains(make([node], inputs, ["y"], weights, opset=23))
    (expected,) = session(model).run(None, feeds)
    graph = load(save(model, tmp_path))
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], expected, rtol=1e-4, atol=1e-5)
    assert disagreements(graph, feeds) == (1, [])


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_a_table_of_few_bits(tmp_path: Path, bits: int, zero: bool) -> None:
    draw = np.random.default_rng(1)
    codes, zeros = (draw.integers(0, 2**bits, (6, n), dtype=np.uint8) for n in (64, 4))
    weights = {"t": packed(codes, bits), "s": draw.random((6, 4), np.float32)}
    names = ["t", "i", "s"]
    if zero:
        names.append("z")
        weights["z"] = packed(zeros, bits)
    attributes = {"bits": bits, "block_size": 16, "quantize_axis": 1, "gather_axis": 0}
    node = make_node("GatherBlockQuantized", names, ["y"], domain="com.microsoft", **attributes)
    feeds = {"i": np.array([[0, 5], [2, 2]], np.int64)}
    model = with_domains(make([node], {"i": (TensorProto.INT64, (2, 2))}, ["y"], weights, opset=21))
    (expected,) = session(model).run(None, feeds)
    np.testing.assert_allclose(evaluate(load(save(model, tmp_path)), feeds)["y"], expected, rtol=1e-6)


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    return codes[..., ::2] | codes[..., 1::2] << 4 if bits == 4 else codes


def decoder() -> onnx.ModelProto:
    """As the builder of onnxruntime-genai writes one: tokens, mask, caches in; logits, caches out."""
    heads = {"num_heads": HEADS, "kv_num_heads": GROUPS, "do_rotary": 1}
    ms = {"domain": "com.microsoft"}
    nodes = [
        make_node("Gather", ["embed", "input_ids"], ["h"]),
        make_node("SimplifiedLayerNormalization", ["h", "norm"], ["n"], axis=-1),
        *(make_node("MatMul", ["n", f"w{k}"], [k]) for k in "qkv"),
        make_node("ReduceSum", ["attention_mask", "one"], ["sum"], keepdims=0),
        make_node("Sub", ["sum", "one"], ["less"]),
        make_node("Cast", ["less"], ["seqlens_k"], to=TensorProto.INT32),
        make_node("Shape", ["attention_mask"], ["shape"]),
        make_node("Gather", ["shape", "one0"], ["length"]),
        make_node("Cast", ["length"], ["total"], to=TensorProto.INT32),
        make_node(
            "GroupQueryAttention",
            ["q", "k", "v", "past_key_values.0.key", "past_key_values.0.value", "seqlens_k", "total", "cos", "sin"],
            ["a", "present.0.key", "present.0.value"], **heads, **ms,
        ),
        make_node("SkipSimplifiedLayerNormalization", ["h", "a", "norm"], ["s", "", "", "r"], **ms),
        make_node("MatMul", ["s", "head"], ["logits"]),
    ]  # fmt: skip
    width = HEADS * SIZE
    weights = {"embed": normal(11, width), "norm": normal(width), "head": normal(width, 11), **TABLES}
    weights |= {"wq": normal(width, width), "wk": normal(width, GROUPS * SIZE), "wv": normal(width, GROUPS * SIZE)}
    weights |= {"one": np.array([1], np.int64), "one0": np.array(1, np.int64)}
    model = with_domains(make(nodes, {}, ["logits", "present.0.key", "present.0.value"], weights, opset=18))
    cache = ["batch_size", GROUPS, "past_sequence_length", SIZE]
    declared = {
        "input_ids": (TensorProto.INT64, ["batch_size", "sequence_length"]),
        "attention_mask": (TensorProto.INT64, ["batch_size", "total_sequence_length"]),
        "past_key_values.0.key": (TensorProto.FLOAT, cache),
        "past_key_values.0.value": (TensorProto.FLOAT, cache),
    }
    model.graph.input.extend(make_tensor_value_info(n, *what) for n, what in declared.items())
    return model


def test_a_decoder_begins_with_empty_caches(tmp_path: Path) -> None:
    model = decoder()
    tokens = np.array([[1, 4, 2, 0, 7], [3, 3, 10, 2, 4]], np.int64)
    empty = np.zeros((2, GROUPS, 0, SIZE), np.float32)
    feeds = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
    feeds |= {f"past_key_values.0.{k}": empty for k in ("key", "value")}
    (expected, *_) = session(model).run(None, feeds)
    graph = load(save(model, tmp_path), dims={"batch_size": 2, "sequence_length": 5})
    assert (graph.inputs, graph.outputs) == (("input_ids",), ("logits",))
    assert any("'attention_mask' is all ones" in note for note in graph.notes)
    np.testing.assert_allclose(evaluate(graph, {"input_ids": tokens})["logits"], expected, rtol=1e-4, atol=1e-5)


def test_caches_that_are_joined(tmp_path: Path) -> None:
    """As torch writes them: the cache and the new keys, one behind the other; positions are an input."""
    nodes = [
        make_node("Concat", ["past_key_values.0.key", "k"], ["present.0.key"], axis=2),
        make_node("Cast", ["position_ids"], ["places"], to=TensorProto.FLOAT),
        make_node("Unsqueeze", ["places", "axes"], ["column"]),
        make_node("Mul", ["present.0.key", "column"], ["m"]),
        make_node("Add", ["m", "input_ids_float"], ["y"]),
        make_node("Cast", ["tokens"], ["input_ids_float"], to=TensorProto.FLOAT),
        make_node("Unsqueeze", ["input_ids", "axes"], ["tokens"]),
    ]
    model = make(nodes, {"k": (1, 1, 3, 4)}, ["y", "present.0.key"], {"axes": np.array([1, 3], np.int64)})
    cache = make_tensor_value_info("past_key_values.0.key", TensorProto.FLOAT, ["b", 1, "past", 4])
    ids = [make_tensor_value_info(n, TensorProto.INT64, [1, 3]) for n in ("input_ids", "position_ids")]
    model.graph.input.extend([cache, *ids])
    k = normal(1, 1, 3, 4)
    feeds = {"k": k, "input_ids": np.array([[4, 5, 6]])}
    found = evaluate(load(save(model, tmp_path)), feeds)
    expected = k * np.arange(3.0)[:, None] + np.array([4, 5, 6])[:, None]
    assert list(found) == ["y"]
    np.testing.assert_allclose(found["y"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("attributes", "further", "message"),
    [
        ({"kv_cache_bit_width": 4}, {}, "quantised cache"),
        ({"new_thing": 1}, {}, "new_thing"),
        ({}, {"past_key": np.zeros((BATCH, GROUPS, 3, SIZE), np.float32)}, "not empty, of shape [2, 2, 3, 16]"),
    ],
)
def test_refused(tmp_path: Path, attributes: dict[str, Any], further: dict[str, Any], message: str) -> None:
    model, _ = group_query(attributes, further)
    with pytest.raises(UnsupportedModelError) as error:
        load(save(model, tmp_path))
    assert message in str(error.value)


def test_pages_are_refused_by_name(tmp_path: Path) -> None:
    node = make_node("PagedAttention", ["x", "x", "x"], ["y"], domain="com.microsoft", num_heads=1)
    with pytest.raises(UnsupportedModelError, match=r"PagedAttention.*cache of keys and values in pages"):
        load(save(with_domains(make([node], {"x": (4, 4)}, ["y"])), tmp_path))


def test_codes_that_did_not_change_stay_in_the_file(tmp_path: Path) -> None:
    """A tied table keeps its operators; the head that was trained is floats."""
    draw = np.random.default_rng(4)
    width, block, words = 32, 16, 20
    weights: dict[str, Any] = {"flat": np.array([words, width // 2], np.int64)}
    for name in ("table", "head"):
        weights[f"{name}_Q4"] = packed(draw.integers(0, 16, (words, width), dtype=np.uint8), 4)
        weights[f"{name}_s"] = draw.uniform(0.02, 0.05, (words, width // block)).astype(np.float32)
        weights[f"{name}_Q4"] = weights[f"{name}_Q4"].reshape(words, width // block, block // 2)
    ms = {"domain": "com.microsoft"}
    few = {"K": width, "N": words, "bits": 4, "block_size": block, **ms}
    nodes = [
        make_node("Reshape", ["table_Q4", "flat"], ["rows"]),
        make_node("GatherBlockQuantized", ["rows", "ids", "table_s"], ["h"], bits=4, block_size=block, **ms),
        make_node("MatMulNBits", ["h", "table_Q4", "table_s"], ["y"], **few),
        make_node("MatMulNBits", ["h", "head_Q4", "head_s"], ["z"], **few),
    ]
    inputs = {"ids": (TensorProto.INT64, (2, 3))}
    path = save(with_domains(make(nodes, inputs, ["y", "z"], weights, opset=21)), tmp_path)
    graph, feeds = load(path), {"ids": np.array([[1, 2, 19], [0, 0, 4]], np.int64)}
    head = next(n for n in graph.values if n.startswith("head"))
    moved = np.asarray(materialize(graph.values[head], graph.tensors[head].type)) + np.float32(0.5)
    write_back(path, tmp_path / "out.onnx", graph, {head: moved})
    written = onnx.load(tmp_path / "out.onnx")
    assert [n.op_type for n in written.graph.node if n.domain] == ["GatherBlockQuantized", "MatMulNBits"]
    held = {t.name: numpy_helper.to_array(t) for t in written.graph.initializer}
    np.testing.assert_array_equal(held["table_Q4"], weights["table_Q4"])
    before, after = (dict(zip("yz", session(p).run(None, feeds), strict=True)) for p in (path, tmp_path / "out.onnx"))
    np.testing.assert_array_equal(before["y"], after["y"])
    expected = evaluate(replace(graph, values={**graph.values, head: moved}), feeds)["z"]
    np.testing.assert_allclose(after["z"], expected, rtol=1e-4, atol=1e-5)
