"""Another number of classes: the last layer of a model is replaced by one with as many outputs as are asked for."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from poetc.errors import UnsupportedModelError, UsageError, printable, shortened
from poetc.frontend._exported import makers
from poetc.frontend._names import free_name
from poetc.frontend._reading import element_dtype
from poetc.graph import Array

_LAYERS = ("Gemm", "MatMul", "Conv")
# Operators that may lie between the last layer and the output. Classes stay where they are, and one does not change
# another's number but through normalisation.
_BEHIND = frozenset({
    "Identity", "Cast", "Dropout", "Flatten", "Squeeze", "Reshape", "Softmax", "LogSoftmax", "Sigmoid", "Relu",
    "GlobalAveragePool", "GlobalMaxPool", "AveragePool", "MaxPool", "ReduceMean",
})  # fmt: skip
_MOST = 1 << 20


@dataclass(frozen=True, slots=True)
class NewHead:
    """`outputs` in place of the last layer's; `name`: the model's output behind it ("": the first one)."""

    outputs: int
    name: str = ""
    seed: int = 0

    @classmethod
    def parse(cls, text: str, name: str = "", seed: int = 0) -> NewHead:
        """The new head from `N` or `N:NAME`; `name` where there is no NAME. UsageError for anything else."""
        number, colon, own = text.partition(":")
        is_short = number.isdecimal() and len(number) <= len(str(_MOST))
        if number.isdecimal() and not (is_short and 1 <= int(number) <= _MOST):
            shown = shortened(int(number) if is_short else number)
            raise UsageError(f"--new-head {shown}: a head has 1 to {_MOST:,} outputs")
        if not is_short or (colon and not own):
            raise UsageError(f"--new-head {printable(text[:80])!r}: write the number of outputs, or N:OUTPUT")
        return cls(int(number), own or name, seed)


def replace_head(model: onnx.ModelProto, head: NewHead) -> str:
    """Put the new layer in place; returns a note on it.

    Raises UsageError where there is no such output, and UnsupportedModelError where no layer with weights makes it.

    Weights and bias are uniform in ± 1 / sqrt(inputs), as PyTorch initialises them, by the seed and the layer's name.
    """
    return _Replacing(model, head).run()


class _Replacing:
    def __init__(self, model: onnx.ModelProto, head: NewHead) -> None:
        self.graph, self.head = model.graph, head
        names = [o.name for o in self.graph.output]
        if head.name and head.name not in names:
            raise UsageError(f"--new-head: the model has no output {printable(head.name)!r}; it has {', '.join(names)}")
        self.output = next(o for o in self.graph.output if o.name == (head.name or names[0]))
        self.makers = makers(self.graph)
        self.reads = Counter(i for node in self.graph.node for i in node.input)
        self.reads.update(names)
        self.initializers = {t.name: t for t in self.graph.initializer}

    def run(self) -> str:
        layer, shift, behind = self._find()
        name, weight, axis = self._weight(layer)
        before, inputs = int(weight.dims[axis]), math.prod(weight.dims) // max(int(weight.dims[axis]), 1)
        if before == self.head.outputs:
            raise UsageError(f"--new-head {before}: output {self.output.name!r} has {before} classes already")
        bound = 1 / math.sqrt(max(inputs, 1))
        shape = [*weight.dims]
        shape[axis] = self.head.outputs
        self._renew(name, shape, bound, layer, 1)
        bias = shift or (layer if len(layer.input) > 2 and layer.input[2] else None)
        if bias is not None:
            self._renew_bias(bias, before, bound)
        for node in behind:
            if node.op_type == "Reshape":
                self._reshape(node, before)
        self._declare(
            before, {o for node in (layer, *behind) for o in node.output} | set(shift.output if shift else ())
        )
        label = layer.name or layer.output[0]
        return (
            f"a new head: {layer.op_type} {label!r} makes {self.head.outputs} outputs instead of {before} for"
            f" {self.output.name!r}, from weights of seed {self.head.seed}"
        )

    def _find(self) -> tuple[onnx.NodeProto, onnx.NodeProto | None, list[onnx.NodeProto]]:
        """The last layer, an Add of its bias behind it if there is one, and the operators between it and the output."""
        name, behind, shift = self.output.name, list[onnx.NodeProto](), None
        while True:
            node = self.makers.get(name)
            if node is None:
                raise self._no_layer("")
            if self.reads[name] > 1:
                raise self._no_layer(f": {name!r} is read by others too")
            if node.op_type in _LAYERS:
                return node, shift, behind
            if node.op_type == "Add" and shift is None and (product := self._product(node)) is not None:
                shift, name = node, product
            elif node.op_type in _BEHIND and shift is None:
                behind.append(node)
                name = node.input[0]
            else:
                raise self._no_layer(f": {node.op_type} {node.name or name!r} is behind the last one")

    def _no_layer(self, why: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"--new-head: no Gemm, MatMul or Conv makes output {self.output.name!r}{why}")

    def _product(self, node: onnx.NodeProto) -> str | None:
        """The operand of an Add that a MatMul or Conv makes, where the other is a bias."""
        for product, bias in (tuple(node.input), tuple(node.input)[::-1]):
            maker = self.makers.get(product)
            if maker is not None and maker.op_type in ("MatMul", "Conv") and self._held(bias) is not None:
                return str(product)
        return None

    def _held(self, name: str) -> onnx.TensorProto | None:
        """The tensor of an initializer, or of a Constant node."""
        if name in self.initializers:
            return self.initializers[name]
        node = self.makers.get(name)
        if node is None or node.op_type != "Constant":
            return None
        return next((a.t for a in node.attribute if a.name == "value"), None)

    def _weight(self, layer: onnx.NodeProto) -> tuple[str, onnx.TensorProto, int]:
        """The weight's name, its tensor, and the axis of outputs. A transposition before it is looked through."""
        attributes = {a.name: helper.get_attribute_value(a) for a in layer.attribute}
        name, axis = layer.input[1], -1
        turned = self.makers.get(name)
        if turned is not None and turned.op_type == "Transpose" and self.reads[name] == 1:
            perm = next((list(a.ints) for a in turned.attribute if a.name == "perm"), [1, 0])
            name, axis = turned.input[0], (0 if perm == [1, 0] else axis)
        tensor = self._held(name)
        if tensor is None or (name != layer.input[1] and axis != 0):
            raise self._no_layer(f" from a weight of its own: {layer.input[1]!r} is computed")
        if layer.op_type == "Conv":
            if attributes.get("group", 1) != 1:
                raise self._no_layer(f": {layer.name or 'the last Conv'!r} has groups")
            axis = 0
        elif layer.op_type == "Gemm" and attributes.get("transB", 0):
            axis = -1 if axis == 0 else 0
        return name, tensor, axis % max(len(tensor.dims), 1)

    def _renew(self, name: str, shape: Sequence[int], bound: float, reader: onnx.NodeProto, at: int) -> None:
        """New numbers for a tensor; under a name of its own where others read the old one, such as a tied weight."""
        place = self.makers.get(reader.input[at])
        if place is not None and place.op_type == "Transpose":
            reader, at = place, 0
        old = self._held(name)
        assert old is not None
        array = _uniform(shape, bound, f"{self.head.seed}:{name}").astype(element_dtype(old.data_type, name))
        fresh = numpy_helper.from_array(np.ascontiguousarray(array), name)
        if self.reads[name] == 1 and name in self.initializers:
            old.CopyFrom(fresh)
            for info in [i for i in self.graph.input if i.name == name]:
                self.graph.input.remove(info)
            return
        if self.reads[name] == 1:
            old.CopyFrom(fresh)
            return
        fresh.name = self._free(f"{name}.head")
        self.graph.initializer.append(fresh)
        reader.input[at] = fresh.name

    def _renew_bias(self, node: onnx.NodeProto, before: int, bound: float) -> None:
        at = (
            2
            if node.op_type in ("Gemm", "Conv")
            else next(k for k, i in enumerate(node.input) if self._held(i) is not None)
        )
        tensor = self._held(node.input[at])
        if tensor is None:
            raise self._no_layer(f" with a bias of its own: {node.input[at]!r} is computed")
        places = [k for k, d in enumerate(tensor.dims) if d == before and d != 1]
        shape = [*tensor.dims]
        if len(places) == 1:
            shape[places[0]] = self.head.outputs
        elif math.prod(shape) != 1:
            raise self._no_layer(f": its bias {node.input[at]!r} has shape {shape}")
        self._renew(node.input[at], shape, bound, node, at)

    def _reshape(self, node: onnx.NodeProto, before: int) -> None:
        """A shape that holds the old number of classes gets the new one."""
        tensor = self._held(node.input[1]) if len(node.input) > 1 else None
        if tensor is None:
            return
        shape = numpy_helper.to_array(tensor)
        if not (shape == before).any():
            return
        if (shape == before).sum() > 1:
            raise self._no_layer(f": the shape of Reshape {node.name or node.output[0]!r} is not clear")
        fresh = numpy_helper.from_array(np.where(shape == before, self.head.outputs, shape).astype(shape.dtype), "")
        fresh.name = self._free(f"{node.input[1]}.head")
        self.graph.initializer.append(fresh)
        node.input[1] = fresh.name

    def _declare(self, before: int, changed: set[str]) -> None:
        """The output's shape; the file's shapes between are dropped."""
        dims = [d for d in self.output.type.tensor_type.shape.dim if d.dim_value == before]
        if len(dims) > 1:
            dims = dims[1:2]  # a batch of the same number comes first
        for dim in dims:
            dim.dim_value = self.head.outputs
        for info in [i for i in self.graph.value_info if i.name in changed]:
            self.graph.value_info.remove(info)

    def _free(self, name: str) -> str:
        return free_name(name, {*self.initializers, *self.makers})


def _uniform(shape: Sequence[int], bound: float, key: str) -> Array:
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little")
    random: Any = np.random.Generator(np.random.PCG64(seed))
    return np.asarray(random.uniform(-bound, bound, tuple(shape)), np.float32)
