"""The ONNX graph of a decoder: the operators of onnxruntime-genai's builder, the names of Hugging Face's models.

Products are MatMulNBits where the file has blocks. A token table is GatherBlockQuantized. Rows of the queries and keys
of `llama` files are put back into the order of Hugging Face's models, so that adapters fit these.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from poetc.commands.gguf._blocks import BLOCKS, FLOATS, Blocks
from poetc.commands.gguf._config import Config
from poetc.commands.gguf._reading import Gguf, Stored
from poetc.errors import UnsupportedModelError, UsageError
from poetc.graph import Array
from poetc.graph._coded import pack

MICROSOFT = "com.microsoft"
_OPSET, _IR = 21, 10
_OURS = frozenset({"GroupQueryAttention", "MatMulNBits", "GatherBlockQuantized"})
# Hugging Face's name of a module by llama.cpp's, within a layer.
MODULES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def order_of_rows(heads: int, size: int) -> Array:
    """Where the rows of a query or key matrix of Hugging Face lie in llama.cpp's, whose rotation turns neighbours."""
    return np.arange(heads * size).reshape(heads, size // 2, 2).swapaxes(1, 2).reshape(-1)


class Decoder:
    """Builds the graph. `forms` counts the tensors of each type of the file; `notes` name those that lose anything."""

    def __init__(self, file: Gguf, config: Config) -> None:
        self.file, self.config = file, config
        self.nodes: list[onnx.NodeProto] = []
        self.held: list[onnx.TensorProto] = []
        self.forms: Counter[str] = Counter()
        self.notes: list[str] = []
        self.used: set[str] = set()

    def model(self) -> onnx.ModelProto:
        c = self.config
        self._lengths()
        self._angles()
        table = self._table()
        x = table
        if c.is_gemma:
            x = self.add("Mul", [x, self.number("embedding.scale", math.sqrt(c.width))], "/model/embed_tokens/Mul")
        for layer in range(c.layers):
            x = self._layer(layer, x)
        x = self._norm(x, "output_norm", "model.norm")
        self._head(x)
        extra = sorted(set(self.file.tensors) - self.used)
        if extra:
            raise UnsupportedModelError(
                f"{self.file.path}: tensors that this {c.architecture} has no place for: {', '.join(extra[:3])}"
            )
        return self._finished()

    # --- the parts of a decoder ---

    def _lengths(self) -> None:
        """The inputs of attention that hold lengths: of a first prompt without padding."""
        self.hold("lengths.one", np.array(1, np.int32))
        self.hold("lengths.first", np.array([0], np.int64))
        self.hold("lengths.second", np.array(1, np.int64))
        self.add("Shape", ["input_ids"], "lengths.shape")
        self.add("Cast", ["lengths.shape"], "lengths.shape32", to=TensorProto.INT32)
        self.add("Gather", ["lengths.shape32", "lengths.second"], "total_sequence_length")
        self.add("Sub", ["total_sequence_length", "lengths.one"], "lengths.last")
        self.add("Gather", ["lengths.shape", "lengths.first"], "lengths.rows")
        self.add("Expand", ["lengths.last", "lengths.rows"], "seqlens_k")

    def _angles(self) -> None:
        factors = None
        if "rope_freqs.weight" in self.file.tensors:
            factors = self._floats(self._stored("rope_freqs.weight", self.config.size // 2))
        for name, local in (("", False), *((("_local", True),) if self.config.window else ())):
            angles = self.config.angles(factors, local=local)
            self.hold(f"cos_cache{name}", np.cos(angles).astype(np.float32))
            self.hold(f"sin_cache{name}", np.sin(angles).astype(np.float32))

    def _layer(self, layer: int, x: str) -> str:
        c, at, of = self.config, f"model.layers.{layer}", f"blk.{layer}"
        is_three = c.architecture == "gemma3"
        y = self._norm(x, f"{of}.attn_norm", f"{at}.input_layernorm")
        y = self._attention(layer, y)
        if is_three:
            y = self._norm(y, f"{of}.post_attention_norm", f"{at}.post_attention_layernorm")
        x = self.add("Add", [x, y], f"/{at}/self_attn/Add")
        name = "pre_feedforward_layernorm" if is_three else "post_attention_layernorm"
        y = self._norm(x, f"{of}.ffn_norm", f"{at}.{name}")
        gate = self._dense(layer, "ffn_gate", y, c.width, c.inner)
        up = self._dense(layer, "ffn_up", y, c.width, c.inner)
        path = f"/{at}/mlp"
        if c.is_gemma:
            gate = self.add("Gelu", [gate], f"{path}/Gelu", approximate="tanh")
        else:
            gate = self.add("Mul", [gate, self.add("Sigmoid", [gate], f"{path}/Sigmoid")], f"{path}/Silu")
        y = self._dense(layer, "ffn_down", self.add("Mul", [gate, up], f"{path}/Mul"), c.inner, c.width)
        if is_three:
            y = self._norm(y, f"{of}.post_ffw_norm", f"{at}.post_feedforward_layernorm")
        return self.add("Add", [x, y], f"/{at}/mlp/Add")

    def _attention(self, layer: int, x: str) -> str:
        c, at = self.config, f"model.layers.{layer}.self_attn"
        queries, keys = c.heads * c.size, c.groups * c.size
        turned = c.architecture == "llama"
        q = self._dense(layer, "attn_q", x, c.width, queries, order_of_rows(c.heads, c.size) if turned else None)
        k = self._dense(layer, "attn_k", x, c.width, keys, order_of_rows(c.groups, c.size) if turned else None)
        v = self._dense(layer, "attn_v", x, c.width, keys)
        if f"blk.{layer}.attn_q_norm.weight" in self.file.tensors:
            q, k = (
                self._head_norm(y, f"blk.{layer}.{of}", f"{at}.{name}", n * c.size)
                for y, of, name, n in ((q, "attn_q_norm", "q_norm", c.heads), (k, "attn_k_norm", "k_norm", c.groups))
            )
        local = "_local" if c.is_local(layer) else ""
        inputs = [q, k, v, "", "", "seqlens_k", "total_sequence_length", f"cos_cache{local}", f"sin_cache{local}"]
        attributes: dict[str, Any] = {"num_heads": c.heads, "kv_num_heads": c.groups, "do_rotary": 1, "scale": c.scale}
        attributes |= {"local_window_size": c.window} if local else {}
        y = self.add("GroupQueryAttention", inputs, f"/{at.replace('.', '/')}/GroupQueryAttention", **attributes)
        return self._dense(layer, "attn_output", y, queries, c.width)

    def _head_norm(self, x: str, stored: str, name: str, width: int) -> str:
        """A norm of each head."""
        split = self._shape(f"split.{self.config.size}", 0, 0, -1, self.config.size)
        joined = self._shape(f"joined.{width}", 0, 0, width)
        y = self.add("Reshape", [x, split], f"/{name}/split")
        y = self._norm(y, stored, name, self.config.size)
        return self.add("Reshape", [y, joined], f"/{name}/joined")

    def _norm(self, x: str, stored: str, name: str, width: int = 0) -> str:
        held = self.hold(f"{name}.weight", self._floats(self._stored(f"{stored}.weight", width or self.config.width)))
        attributes: dict[str, Any] = {"axis": -1, "epsilon": self.config.epsilon, "stash_type": 1}
        return self.add("SimplifiedLayerNormalization", [x, held], f"/{name.replace('.', '/')}", **attributes)

    def _dense(self, layer: int, kind: str, x: str, inputs: int, outputs: int, order: Array | None = None) -> str:
        name = f"model.layers.{layer}.{MODULES[kind]}"
        path = f"/{name.replace('.', '/')}"
        stored = self._stored(f"blk.{layer}.{kind}.weight", outputs, inputs)
        y = self._product(x, stored, f"{name}.weight", path, order)
        bias = f"blk.{layer}.{kind}.bias"
        if bias in self.file.tensors:
            numbers = self._floats(self._stored(bias, outputs))
            held = self.hold(f"{name}.bias", numbers if order is None else numbers[order])
            y = self.add("Add", [y, held], f"{path}/Add")
        return y

    def _product(self, x: str, stored: Stored, name: str, path: str, order: Array | None, output: str = "") -> str:
        """x times a matrix [outputs, inputs]."""
        if stored.type in FLOATS:
            numbers = stored.data.reshape(stored.shape)
            numbers = numbers if order is None else numbers[order]
            held = self._held_floats(name, np.ascontiguousarray(numbers.T))
            return self.add("MatMul", [x, held], output or f"{path}/MatMul", name=f"{path}/MatMul")
        blocks = self._blocks(stored)
        if order is not None:
            zeros = None if blocks.zeros is None else blocks.zeros[order]
            blocks = Blocks(blocks.bits, blocks.block, blocks.codes[order], blocks.scales[order], zeros)
        inputs = [self._codes(name, blocks), self.hold(f"{name}.scales", blocks.scales)]
        if blocks.zeros is not None:
            inputs.append(self.hold(f"{name}.zeros", blocks.zeros))
        return self._few_bits(x, inputs, stored.shape, blocks, path, output)

    def _codes(self, name: str, blocks: Blocks) -> str:
        rows = len(blocks.codes)
        return self.hold(name, pack(blocks.codes, blocks.bits).reshape(rows, -1, blocks.block * blocks.bits // 8))

    def _few_bits(
        self, x: str, operands: list[str], shape: tuple[int, ...], blocks: Blocks, path: str, output: str
    ) -> str:
        sizes: dict[str, Any] = {"N": shape[0], "K": shape[1], "bits": blocks.bits, "block_size": blocks.block}
        out = output or f"{path}/MatMulNBits"
        return self.add("MatMulNBits", [x, *operands], out, name=f"{path}/MatMulNBits", **sizes)

    def _table(self) -> str:
        """Rows of the token table; `tied` holds its tensors, which the head may share."""
        c = self.config
        stored = self._stored("token_embd.weight", c.vocabulary, c.width)
        name, path = "model.embed_tokens.weight", "/model/embed_tokens/Gather"
        self.tied: tuple[list[str], Blocks | None] = [], None
        blocks = None if stored.type in FLOATS else self._blocks(stored)
        if blocks is None or blocks.zeros is not None:
            numbers = stored.data.reshape(stored.shape) if blocks is None else blocks.decoded()
            if blocks is not None:
                self.notes.append(
                    f"the token table of {stored.type} holds floats: no table of blocks adds least numbers"
                )
            held = self._held_floats(name, numbers)
            self.tied = [held], None
            return self.add("Gather", [held, "input_ids"], path)
        codes, scales = self._codes(name, blocks), self.hold(f"{name}.scales", blocks.scales)
        self.tied = [codes, scales], blocks
        flat = self.hold(f"{name}.shape", np.array([c.vocabulary, c.width * blocks.bits // 8], np.int64))
        table = self.add("Reshape", [codes, flat], f"{name}.rows")
        sizes: dict[str, Any] = {"bits": blocks.bits, "block_size": blocks.block, "gather_axis": 0, "quantize_axis": 1}
        return self.add("GatherBlockQuantized", [table, "input_ids", scales], path, **sizes)

    def _head(self, x: str) -> None:
        c = self.config
        if "output.weight" in self.file.tensors:
            stored = self._stored("output.weight", c.vocabulary, c.width)
            self._product(x, stored, "lm_head.weight", "/lm_head", None, "logits")
            return
        names, blocks = self.tied
        if blocks is not None:
            self._few_bits(x, names, (c.vocabulary, c.width), blocks, "/lm_head", "logits")
            return
        turned = self.add("Transpose", names, "/lm_head/Transpose", perm=[1, 0])
        self.add("MatMul", [x, turned], "logits", name="/lm_head/MatMul")

    # --- tensors ---

    def _stored(self, name: str, *shape: int) -> Stored:
        stored = self.file.tensor(name, *shape)
        self.used.add(name)
        self.forms[stored.type] += 1
        return stored

    def _blocks(self, stored: Stored) -> Blocks:
        if stored.type not in BLOCKS:
            known = ", ".join((*BLOCKS, *FLOATS))
            raise UnsupportedModelError(
                f"{self.file.path}: {stored.name!r} is of type {stored.type}; known are {known}"
            )
        blocks = BLOCKS[stored.type](np.asarray(stored.data).view(np.uint8), stored.shape[0])
        if blocks.codes.shape != stored.shape or not np.isfinite(blocks.scales).all():
            raise UsageError(f"{self.file.path}: tensor {stored.name!r} is damaged: its scales are no numbers")
        if blocks.zeros is not None and not np.isfinite(blocks.zeros).all():
            raise UsageError(f"{self.file.path}: tensor {stored.name!r} is damaged: its least numbers are none")
        return blocks

    def _floats(self, stored: Stored) -> Array:
        if stored.type not in FLOATS:
            raise UnsupportedModelError(f"{self.file.path}: {stored.name!r} is of type {stored.type}, no floats")
        return np.asarray(stored.data.reshape(stored.shape), np.float32)

    def _held_floats(self, name: str, numbers: Array) -> str:
        """Floats of 16 bits stay these behind a Cast."""
        if not np.isfinite(numbers).all():
            raise UsageError(f"{self.file.path}: {name!r} is damaged: it holds numbers that are none")
        if numbers.dtype != np.float16:
            return self.hold(name, np.asarray(numbers, np.float32))
        return self.add("Cast", [self.hold(name, numbers)], f"{name}.floats", to=TensorProto.FLOAT)

    def hold(self, name: str, array: Array) -> str:
        self.held.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def number(self, name: str, value: float) -> str:
        return self.hold(name, np.array(value, np.float32))

    def _shape(self, name: str, *sizes: int) -> str:
        if not any(t.name == name for t in self.held):
            self.hold(name, np.array(sizes, np.int64))
        return name

    def add(self, kind: str, inputs: list[str], output: str, name: str = "", **attributes: Any) -> str:
        domain = MICROSOFT if kind in _OURS else ""
        self.nodes.append(helper.make_node(kind, inputs, [output], name or output, domain=domain, **attributes))
        return output

    def _finished(self) -> onnx.ModelProto:
        c, axes = self.config, ["batch_size", "sequence_length"]
        graph = helper.make_graph(
            self.nodes,
            c.architecture,
            [helper.make_tensor_value_info("input_ids", TensorProto.INT64, axes)],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [*axes, c.vocabulary])],
            self.held,
        )
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR, producer_name="poetc")
        told = {"architecture": c.architecture, "heads": c.heads, "groups": c.groups, "size": c.size}
        helper.set_model_props(model, {f"gguf.{key}": str(value) for key, value in told.items()})
        return model
