"""Channels in blocks of one processor (com.microsoft.nchwc, which ORT_ENABLE_ALL writes) become plain channels again.

onnxruntime stores the weights of such a convolution in blocks, and fills the last block of channels up with zeros. Both
are undone: no zero is trained. The file does not say how wide a block is, nor everywhere how many channels are real.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from poetc.errors import UnsupportedModelError, UsageError, format_count
from poetc.frontend._node import Malformed, Node
from poetc.frontend._reading import one_line, read_tensor
from poetc.graph import Array

BLOCKED = "com.microsoft.nchwc"
# onnxruntime blocks the input of a convolution only where its channels are a multiple of this.
_ALIGNMENT = 4
_WIDTHS = (16, 8)
_LARGEST_CPU_INFO_BYTES = 2**16


def with_plain_channels(model: onnx.ModelProto, folder: Path) -> list[str]:
    """Replace the operators of blocked channels in `model`; a note on the change. No change where it has none.

    UnsupportedModelError names a node that has no plain form.
    """
    if all(n.domain != BLOCKED for n in model.graph.node):
        return []
    try:
        blocks = _Blocks(model, folder)
        plain = [n.proto if n.proto.domain != BLOCKED else blocks.plain(n) for n in blocks.nodes]
    except (Malformed, ValueError, TypeError, KeyError, IndexError, ArithmeticError) as error:
        raise UsageError(f"a node of {BLOCKED} is malformed: {one_line(error)}") from None
    count = sum(n.proto.domain == BLOCKED for n in blocks.nodes)
    del model.graph.node[:]
    model.graph.node.extend(plain)
    del model.graph.value_info[:]
    nodes = format_count(count, "node")
    note = f"{nodes} held channels in blocks of {blocks.width} (com.microsoft.nchwc): plain channels here"
    if len(blocks.fitting) > 1:
        other = next(w for w in blocks.fitting if w != blocks.width)
        note += (
            f"; blocks of {other} fit too, and {blocks.width} is this machine's width: weights of another machine's"
            " file may be out of order, so optimise it with ORT_ENABLE_EXTENDED"
        )
    return [note]


class _Blocks:
    """Which tensors have the same channels, how many of them are real, and the nodes without blocks."""

    def __init__(self, model: onnx.ModelProto, folder: Path) -> None:
        self.graph, self.folder = model.graph, folder
        self.opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 13)
        self.nodes = [Node(n) for n in model.graph.node]
        self.initializers = {t.name: t for t in model.graph.initializer}
        self.parent: dict[str, str] = {}
        self.blocked: set[str] = set()
        self.stated: dict[str, int] = {}  # channels that the file states, by tensor
        self.exact: set[str] = set()  # tensors without a block that is filled up
        self.done: dict[str, tuple[int, int]] = {}  # weights without blocks, with their channels
        for n in self.nodes:
            self._look(n)
        self.fitting = [w for w in _WIDTHS if self._fits(w)]
        self.width = self._width()
        self.filters = {n.inputs[1]: self._filter(n) for n in self.nodes if self._is_convolution(n)}
        self.channels = self._channels()

    @staticmethod
    def _is_convolution(n: Node) -> bool:
        return bool(n.proto.domain == BLOCKED and n.op == "Conv")

    # --- tensors with the same channels ---

    def _root(self, tensor: str) -> str:
        while (above := self.parent.get(tensor, tensor)) != tensor:
            tensor = above
        return tensor

    def _join(self, a: str, b: str) -> None:
        self.parent[self._root(a)] = self._root(b)

    def _look(self, n: Node) -> None:
        if n.proto.domain != BLOCKED:
            read = [i for i in n.inputs if i in self.blocked]
            if n.op == "Concat":
                self.exact.update(read)
            if read:
                self.blocked.update(n.outputs)
                for i in read if n.op != "Concat" else ():
                    self._join(i, n.outputs[0])
            return
        if n.op == "ReorderOutput":
            self.stated[n.inputs[0]] = n.get_int("channels")
            return
        self.blocked.update(n.outputs)
        if n.op == "Conv":
            i, group = self._dims(n)[1], n.get_int("group", 1)
            if group > 1 and i > 1:
                self.exact.update((n.inputs[0], n.outputs[0]))
            elif group > 1:
                self._join(n.inputs[0], n.outputs[0])
            if n.has_input(3):
                self._join(n.inputs[3], n.outputs[0])
        elif n.op != "ReorderInput":
            self._join(n.inputs[0], n.outputs[0])

    def _dims(self, n: Node) -> tuple[int, ...]:
        tensor = self.initializers.get(n.inputs[1]) if len(n.inputs) > 1 else None
        if tensor is None or len(tensor.dims) != 4:
            self._refuse(n, "a weight that is not in the file")
        assert tensor is not None
        return tuple(tensor.dims)

    def _refuse(self, n: Node, reason: str) -> None:
        raise UnsupportedModelError(
            f"{n.label}: {reason}; optimise the model with ORT_ENABLE_EXTENDED, which runs everywhere"
        )

    # --- the width of a block ---

    def _width(self) -> int:
        """The width that fits the file; where several do, that of this machine."""
        fitting = self.fitting
        if not fitting:
            raise UnsupportedModelError("channels in blocks of an unknown width (com.microsoft.nchwc)")
        return fitting[0] if len(fitting) == 1 else next(w for w in (_own_width(), *fitting) if w in fitting)

    def _fits(self, width: int) -> bool:
        for n in self.nodes:
            if not self._is_convolution(n):
                continue
            o, i, group = *self._dims(n)[:2], n.get_int("group", 1)
            if o % width or (i >= width and i % width) or (group > 1 and i > 1 and i % width):
                return False
            stated = [c for t, c in self.stated.items() if self._root(t) == self._root(n.outputs[0])]
            if any(-(-c // width) * width != o for c in stated):
                return False
        return True

    # --- weights ---

    def _filter(self, n: Node) -> Array:
        """[outputs, inputs, height, width] of a weight in blocks, with the channels that fill up a block."""
        o, i, *kernel = self._dims(n)
        held = read_tensor(self.initializers[n.inputs[1]], self.folder)
        if held is None or not held.size:
            self._refuse(n, "a weight that is not in the file")
        assert held is not None
        w = self.width
        if i < w:
            return np.asarray(held.reshape(o // w, i, *kernel, w).transpose(0, 4, 1, 2, 3).reshape(o, i, *kernel))
        parts = held.reshape(o // w, i // w, *kernel, w, w)
        return np.asarray(parts.transpose(0, 5, 1, 4, 2, 3).reshape(o, i, *kernel))

    def _channels(self) -> dict[str, int]:
        """The real channels of blocked tensors, by the root of those that share them."""
        channels: dict[str, int] = {}
        aligned, full = set[str](), {self._root(t) for t in self.exact}
        for n in self.nodes:
            if not self._is_convolution(n):
                continue
            weight, shift = self.filters[n.inputs[1]], self._shift(n)
            used = [weight.reshape(len(weight), -1).any(1)]
            used += [shift.astype(bool)] if shift is not None else []
            root = self._root(n.outputs[0])
            channels[root] = max(channels.get(root, 1), _last(np.asarray(np.any(used, axis=0))))
            if n.inputs[0] in self.blocked and n.get_int("group", 1) == 1:
                root = self._root(n.inputs[0])
                channels[root] = max(channels.get(root, 1), _last(np.asarray(weight.any((0, 2, 3)))))
                aligned.add(root)
        result = {
            r: -(-c // _ALIGNMENT) * _ALIGNMENT if r in aligned else c for r, c in channels.items() if r not in full
        }
        return result | {self._root(t): c for t, c in self.stated.items() if self._root(t) not in full}

    def _shift(self, n: Node) -> Array | None:
        tensor = self.initializers.get(n.inputs[2]) if n.has_input(2) else None
        return None if tensor is None else read_tensor(tensor, self.folder)

    # --- plain nodes ---

    def plain(self, n: Node) -> onnx.NodeProto:
        """The form of a node of blocked channels without blocks."""
        attributes = {a.name: helper.get_attribute_value(a) for a in n.proto.attribute}
        last = attributes.pop("channels_last", 0)
        if n.op in ("ReorderInput", "ReorderOutput"):
            perm = (0, 3, 1, 2) if n.op == "ReorderInput" else (0, 2, 3, 1)
            return self._node(n, "Transpose", n.inputs, perm=perm) if last else self._node(n, "Identity", n.inputs)
        if n.op == "Conv":
            return self._convolution(n, attributes)
        if n.op in ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"):
            return self._node(n, n.op, n.inputs, **attributes)
        if n.op == "Upsample":
            return self._upsampling(n, attributes)
        self._refuse(n, "this operator")
        raise AssertionError

    def _convolution(self, n: Node, attributes: dict[str, Any]) -> onnx.NodeProto:
        name, weight = n.inputs[1], self.filters[n.inputs[1]]
        o = min(self.channels.get(self._root(n.outputs[0]), len(weight)), len(weight))
        i = weight.shape[1]
        if attributes.get("group", 1) == len(weight) and i == 1:
            attributes["group"] = o
        elif n.inputs[0] in self.blocked:
            i = min(self.channels.get(self._root(n.inputs[0]), i), i)
        if self.done.setdefault(name, (o, i)) != (o, i):
            self._refuse(n, "a weight of two layers with other channels")
        self.initializers[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(weight[:o, :i]), name))
        shift = self._shift(n)
        if shift is not None and len(shift) > o:
            self.initializers[n.inputs[2]].CopyFrom(numpy_helper.from_array(shift[:o].copy(), n.inputs[2]))
        return self._node(n, "FusedConv", n.inputs, domain="com.microsoft", **attributes)

    def _upsampling(self, n: Node, attributes: dict[str, Any]) -> onnx.NodeProto:
        name = f"{n.outputs[0]}.scales"
        scales = np.array(attributes.pop("scales"), np.float32)
        self.graph.initializer.append(numpy_helper.from_array(scales, name))
        mode = n.get_str("mode", "nearest")
        if self.opset < 11:
            return self._node(n, "Upsample", (n.inputs[0], name), mode=mode)
        where = n.get_str("coordinate_transformation_mode", "asymmetric")
        settings = {"mode": mode, "coordinate_transformation_mode": where, "nearest_mode": "floor"}
        return self._node(n, "Resize", (n.inputs[0], "", name), **settings)

    @staticmethod
    def _node(n: Node, op: str, inputs: tuple[str, ...], **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op, list(inputs), list(n.outputs), n.proto.name, **attributes)


def _last(used: Array) -> int:
    """The number of the last that is used, from 1."""
    return int(np.flatnonzero(used).max(initial=0)) + 1


def _own_width() -> int:
    """The width of a block in onnxruntime on this machine."""
    if platform.machine().lower() in ("aarch64", "arm64"):
        return 16
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            return 16 if " avx512f " in file.read(_LARGEST_CPU_INFO_BYTES) else 8
    except OSError:
        return 8
