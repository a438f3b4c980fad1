"""A tiny language model with its tokenizer, as files that lie beside each other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END = "<|end|>"
SPECIAL = (END, "<|start|>")
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
WIDTH, HEADS, GROUPS, SIZE, INNER = 32, 2, 1, 16, 48
DOMAINS = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]


def write_tokenizer(folder: Path, template: str | None = TEMPLATE) -> Tokenizer:
    """tokenizer.json and tokenizer_config.json of bytes, with no merges: 258 tokens, the last two special."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": END, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer


def write_decoder(
    path: Path, *, layers: int = 1, vocabulary: int = 258, seed: int = 0, tied: bool = False, bias: bool = False
) -> Path:
    """A decoder as the builder of onnxruntime-genai writes it, without caches: tokens [batch, length] to logits.

    `bias`: numbers [batch, 1, length, length], which are added to the scores of attention, are an input too.
    """
    random = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    held: list[onnx.TensorProto] = []

    def weight(name: str, *shape: int, scale: float = 0.3) -> str:
        held.append(numpy_helper.from_array((scale * random.standard_normal(shape)).astype(np.float32), name))
        return name

    def ones(name: str) -> str:
        held.append(numpy_helper.from_array(np.ones(WIDTH, np.float32), name))
        return name

    def add(kind: str, inputs: list[str], name: str, **attributes: object) -> str:
        domain = "com.microsoft" if kind == "GroupQueryAttention" else ""
        nodes.append(helper.make_node(kind, inputs, [name], name, domain=domain, **attributes))
        return name

    def dense(x: str, name: str, inputs: int, outputs: int) -> str:
        return add("MatMul", [x, weight(f"{name}.MatMul.weight", inputs, outputs)], f"/{name.replace('.', '/')}/MatMul")

    angles = np.arange(64)[:, None] * 0.3 ** np.arange(SIZE // 2)
    tables = (("cos_cache", np.cos(angles)), ("sin_cache", np.sin(angles)))
    held += [numpy_helper.from_array(a.astype(np.float32), n) for n, a in tables]
    one = numpy_helper.from_array(np.array(1, np.int32), "one")
    held.append(one)
    shape = add("Shape", ["input_ids"], "shape")
    add("Cast", [shape], "shape32", to=TensorProto.INT32)
    held.append(numpy_helper.from_array(np.array(1, np.int64), "second"))
    held.append(numpy_helper.from_array(np.array([0], np.int64), "first"))
    total = add("Gather", ["shape32", "second"], "total")
    add("Sub", [total, "one"], "last")
    rows = add("Gather", ["shape", "first"], "rows")
    add("Expand", ["last", rows], "lengths")
    table = weight("model.embed_tokens.weight", vocabulary, WIDTH)
    x = add("Gather", [table, "input_ids"], "embedded")
    for n in range(layers):
        at = f"model.layers.{n}"
        y = add("SimplifiedLayerNormalization", [x, ones(f"{at}.norm1")], f"/{at}/norm1", axis=-1, epsilon=1e-5)
        q = dense(y, f"{at}.attn.q_proj", WIDTH, HEADS * SIZE)
        k = dense(y, f"{at}.attn.k_proj", WIDTH, GROUPS * SIZE)
        v = dense(y, f"{at}.attn.v_proj", WIDTH, GROUPS * SIZE)
        heads = {"num_heads": HEADS, "kv_num_heads": GROUPS, "do_rotary": 1}
        inputs = [q, k, v, "", "", "lengths", "total", "cos_cache", "sin_cache", *(["", "attention_bias"] * bias)]
        y = add("GroupQueryAttention", inputs, f"/{at}/attention", **heads)
        x = add("Add", [x, dense(y, f"{at}.attn.o_proj", HEADS * SIZE, WIDTH)], f"/{at}/sum1")
        y = add("SimplifiedLayerNormalization", [x, ones(f"{at}.norm2")], f"/{at}/norm2", axis=-1, epsilon=1e-5)
        gate = dense(y, f"{at}.mlp.gate_proj", WIDTH, INNER)
        up = dense(y, f"{at}.mlp.up_proj", WIDTH, INNER)
        silu = add("Mul", [gate, add("Sigmoid", [gate], f"/{at}/sigmoid")], f"/{at}/silu")
        y = add("Mul", [silu, up], f"/{at}/product")
        x = add("Add", [x, dense(y, f"{at}.mlp.down_proj", INNER, WIDTH)], f"/{at}/sum2")
    x = add("SimplifiedLayerNormalization", [x, ones("model.norm")], "/model/norm", axis=-1, epsilon=1e-5)
    if tied:
        nodes.append(helper.make_node("Transpose", [table], ["turned"], perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", [x, "turned"], ["logits"], "/lm_head/MatMul"))
    else:
        nodes.append(helper.make_node("MatMul", [x, weight("lm_head.MatMul.weight", WIDTH, vocabulary)], ["logits"]))
    tokens = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch_size", "sequence_length", vocabulary])
    pairs = ["batch_size", 1, "sequence_length", "sequence_length"]
    biases = [helper.make_tensor_value_info("attention_bias", TensorProto.FLOAT, pairs)] * bias
    graph = helper.make_graph(nodes, "decoder", [tokens, *biases], [logits], held)
    onnx.save(helper.make_model(graph, opset_imports=DOMAINS, ir_version=10), path)
    return path
