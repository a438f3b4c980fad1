"""Numbers back into an ONNX file: the user's own graph, with the trained weights in the place of the file's.

The importer's changes are changed back: an initializer that was cast is cast again, a transposed or repeated copy is
made again. Weights that the file cannot hold apart, or does not have, get an initializer of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import EncodeError  # type: ignore[import-untyped,unused-ignore]
from onnx import helper, numpy_helper

from poetc.errors import UnsupportedModelError, UsageError
from poetc.frontend._blocked import with_plain_channels
from poetc.frontend._exported import LeftOut, Parted, makers, restore
from poetc.frontend._importer import our_dtype
from poetc.frontend._new_head import NewHead, replace_head
from poetc.frontend._node import Node, Unsupported
from poetc.frontend._quantized_forms import is_quantized, with_floats
from poetc.frontend._reading import (
    inlined,
    is_external,
    parse_model,
    read_tensor,
    stored_tensors,
    subgraphs,
    tensor_dtype,
)
from poetc.frontend._requantizing import recodable, recode
from poetc.frontend._serialized import write_model
from poetc.frontend._training_step import with_forward_part
from poetc.frontend._untying import Untied, untie
from poetc.frontend._values import absent_value
from poetc.graph import Array, Graph, Origin, TensorType, materialize

DATA_SUFFIX = ".data"
_ALIGNMENT_BYTES = 4096  # of a tensor in a file of external data: readers map it
_SHOWN = 3
_MUCH_LOST, _NEARLY_ALL_LOST = 0.5, 0.9  # errors of rounding, as parts of the training's change


@dataclass(frozen=True, slots=True)
class Written:
    """`values`: the changed weights as the file holds them, rounded where the file's type is narrower."""

    values: Mapping[str, Array]
    notes: list[str] = field(default_factory=list)
    rounding_error_of_change: float | None = None  # root mean squares; None where nothing was rounded


@dataclass(slots=True)
class _Rounding:
    """The errors of weights in the file's precision, beside their size and their change by the training."""

    weights: int = 0
    most: float = 0.0
    largest: float = 0.0
    squares: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("error", "numbers", "change"), 0.0))

    def add(self, before: Array, array: Array, held: Array) -> None:
        """One more weight: its numbers in the model, after the training, and in the file."""
        error = array - held
        self.weights += 1
        self.most = max(self.most, float(np.abs(error).max()))
        self.largest = max(self.largest, float(np.abs(array).max()))
        for name, numbers in (("error", error), ("numbers", array), ("change", array - before)):
            self.squares[name] += float(np.square(numbers.astype(np.float64)).sum())

    def of(self, name: str) -> float:
        """The error as a part of something, in root mean squares."""
        return math.sqrt(self.squares["error"] / (self.squares[name] or 1))

    def notes(self, coded: int) -> list[str]:
        codes = f", {coded} of them in the codes of the file," if coded else ""
        lost = self.of("change")
        notes = [
            f"{self.weights} weights{codes} are rounded: by {self.most:.3g} at most,"
            f" {self.most / (self.largest or 1):.2%} of the largest number; {self.of('numbers'):.2%} of the numbers'"
            f" root mean square, {lost:.1%} of that of the training's change"
        ]
        if lost >= _MUCH_LOST:
            share = "nearly all" if lost >= _NEARLY_ALL_LOST else "much"
            left = ": the file is nearly the untrained model" if lost >= _NEARLY_ALL_LOST else ""
            notes.append(
                f"warning: rounding loses {share} of the training's change{left}; adapters (--adapter) or an export"
                " without --round keep it"
            )
        return notes


def write_back(
    source: Path,
    out: Path,
    graph: Graph,
    changed: Mapping[str, Array],
    *,
    rounding: bool = False,
    random_weights: int | None = None,
    new_head: NewHead | None = None,
    quantized: bool = False,
    untied: Sequence[Untied] = (),
    about: Mapping[str, str] | None = None,
) -> Written:
    """Write the model `source`, which was imported as `graph`, to `out`, with `changed` as values of weights.

    External data go to one file beside `out`, whose name is `out`'s with DATA_SUFFIX. UnsupportedModelError names
    weights whose new numbers the file cannot hold: in a narrower type and not `rounding`. `quantized`: a QDQ model
    stays one, and its integers take the numbers. `untied`: weights that get an initializer of their own. `about`: the
    file's properties, which viewers show; those of the same names are replaced.
    """
    writer = _Writer(source, graph, rounding, random_weights, new_head, quantized, changed)
    writer.describe(about or {})
    return writer.write(changed, untied, out)


class _Writer:
    def __init__(
        self,
        source: Path,
        graph: Graph,
        rounding: bool,
        random_weights: int | None,
        new_head: NewHead | None,
        quantized: bool,
        changed: Iterable[str],
    ) -> None:
        self.quantized = quantized
        self.coded: dict[str, Node] = {}
        self.rounded = _Rounding()
        self.source, self.graph, self.rounding, self.random_weights = source, graph, rounding, random_weights
        self.model = parse_model(source)
        self.notes: list[str] = []
        self.notes += with_forward_part(self.model)
        if with_plain_channels(self.model, source.parent):
            self.notes.append("the model's blocked channels (com.microsoft.nchwc) are plain channels in the new file")
        if not quantized and is_quantized(self.model):
            self.model = inlined(self.model, source)
            moved = {graph.origins[n].tensor for n in changed if n in graph.origins}
            self.coded = recodable(self.model, moved) if rounding else {}
            moved -= self.coded.keys()
            if with_floats(self.model, source.parent, moved):
                self.notes.append("the model's quantised activations are float numbers in the new file")
        if new_head is not None:
            self.model = inlined(self.model, source)
            self.notes.append(replace_head(self.model, new_head))
        self.written: dict[str, Array] = {}
        self.narrow: list[str] = []
        self.dequantized: list[str] = []

    def write(self, changed: Mapping[str, Array], untied: Sequence[Untied], out: Path) -> Written:
        unknown = sorted(set(changed) - set(self.graph.origins))
        if unknown:
            raise UnsupportedModelError(f"{self.source}: {_some(unknown)} cannot be put back: computed at import")
        edits = self._edits(changed)
        nodes = {e.node if isinstance(e, LeftOut) else o for e in edits for o in _touched(e)}
        nodes |= {self.graph.origins[n].tensor for n in changed if self._holder(n).startswith("Constant")}
        if self.model.functions and not nodes <= set(makers(self.model.graph)):
            self.model = inlined(self.model, self.source)
            self.notes.append("a function of the model holds trained weights: its functions are written inlined")
        self.makers = makers(self.model.graph)
        self._fill_absent()
        self._apply(edits, changed)
        for name, array in changed.items():
            self._put(name, array)
        self._untie(untied)
        self._refuse()
        if count := sum(map(_in_training_mode, self.model.graph.node)):
            self.notes.append(
                f"{count} BatchNormalization nodes of the file take the statistics of the batch (training_mode), as"
                " infer does not: outputs differ"
            )
        self._save(out)
        return Written(self.written, self.notes, self.rounded.of("change") if self.rounded.weights else None)

    def describe(self, about: Mapping[str, str]) -> None:
        """Put properties into the model, in order, in place of those that have their names."""
        if about:
            kept = {p.key: p.value for p in self.model.metadata_props if p.key not in about}
            helper.set_model_props(self.model, {**kept, **about})

    def _holder(self, name: str) -> str:
        return self.graph.origins[name].holder

    # --- initializers of their own ---

    def _edits(self, changed: Mapping[str, Array]) -> list[Parted | LeftOut]:
        """Those without which the file could not hold the numbers."""
        origins = self.graph.origins
        parted = {n for n, o in origins.items() if o.parted_from and self._is_apart(n, o, changed)}
        left_out = {n for n, o in origins.items() if o.left_out and n in changed and changed[n].any()}
        if not parted and not left_out:
            return []
        scratch = onnx.GraphProto()
        scratch.CopyFrom(inlined(self.model, self.source).graph)
        wanted = {origins[n].tensor for n in parted | left_out}
        return [edit for edit in restore(scratch).edits if edit.name in wanted]

    def _is_apart(self, name: str, origin: Origin, changed: Mapping[str, Array]) -> bool:
        """Whether a weight is no longer equal to the initializer that holds its numbers in the file."""
        type = self.graph.tensors[name].type
        mine = changed.get(name)
        before = materialize(self.graph.values[name], type)
        held = next((n for n, o in self.graph.origins.items() if o.tensor == origin.parted_from), None)
        theirs = before if held is None else changed.get(held, before)
        return not np.array_equal(before if mine is None else mine, theirs)

    def _apply(self, edits: Iterable[Parted | LeftOut], changed: Mapping[str, Array]) -> None:
        initializers = {t.name: t for t in self.model.graph.initializer}
        names = {o.tensor: n for n, o in self.graph.origins.items()}
        added = []
        for edit in edits:
            tensor = onnx.TensorProto()
            if isinstance(edit, Parted):
                tensor.CopyFrom(initializers[edit.of])
                tensor.name = edit.name
            else:
                array = np.zeros(self.graph.tensors[names[edit.name]].shape, np.float32)
                tensor = numpy_helper.from_array(array, edit.name)
            edit.apply(self.model.graph, self.makers, tensor)
            added.append(edit.name)
        if added:
            self.notes.append(f"{_some(added)}: new in the file, which had one for equal ones, or none for zeros")

    def _untie(self, weights: Sequence[Untied]) -> None:
        if not weights:
            return
        self.model = inlined(self.model, self.source)
        for weight, dtype, stored in untie(self.model.graph, weights):
            self.written[weight.name] = stored
            if not np.isfinite(stored).all() or (not self.rounding and not np.array_equal(stored, weight.array)):
                self.narrow.append(f"{weight.name} ({dtype})")
        self.notes.append(
            f"{_some([w.name for w in weights])}: new in the file; other operators read the weight without the adapter"
        )

    # --- numbers ---

    def _put(self, name: str, array: Array) -> None:
        origin = self.graph.origins[name]
        initializers = {t.name: t for t in self.model.graph.initializer}
        if origin.tensor in self.coded:
            self.written[name], parts = recode(self.model, self.source.parent, self.coded[origin.tensor], array)
            self._count(name, array)
            for part, content in parts.items():
                _fill(initializers[part], content)
            return
        if origin.holder == "DequantizeLinear" and self.quantized:
            self.written[name] = self._set_integers(initializers[origin.tensor], array)
        elif origin.holder == "DequantizeLinear":
            self._set_dequantized(name, origin.tensor, array)
        elif origin.holder == "initializer" and origin.tensor in initializers:
            self.written[name] = self._set(name, initializers[origin.tensor], array)
        elif origin.holder == "initializer" and (inner := self._in_bodies(origin.tensor)):
            self.written[name] = self._set(name, inner[0], array)
        elif origin.holder == "initializer":
            self.written[name] = array  # equal to the one that holds it, or zeros
        elif origin.tensor in self.makers:
            self._set_constant(name, self.makers[origin.tensor], array)
        elif inner := self._in_bodies(origin.tensor):
            self._set_constant(name, inner[0], array)
        else:
            raise UnsupportedModelError(f"{self.source}: no node makes {origin.tensor!r}, a trained weight")
        integers = origin.holder == "DequantizeLinear" and self.quantized  # the training's own, which it rounded
        if not integers and not np.array_equal(self.written[name].reshape(array.shape), array):
            self._count(name, array)
        for copy, how in origin.copies:
            tensor = initializers[copy]
            shape = tuple(tensor.dims)
            self._set(name, tensor, array.T if how == "transposed" else np.broadcast_to(array, shape))

    def _count(self, name: str, array: Array) -> None:
        before = materialize(self.graph.values[name], self.graph.tensors[name].type)
        self.rounded.add(before, array, self.written[name].reshape(array.shape))

    def _in_bodies(self, name: str) -> list[Any]:
        """The initializer or the node of that name in a body of an If, Loop or Scan, if there is one."""
        graphs = list(subgraphs(self.model.graph.node))
        tensors = [t for g in graphs for t in g.initializer if t.name == name]
        nodes = [n for g in graphs for n in g.node if name in n.output]
        if len(tensors) + len(nodes) > 1:
            raise UnsupportedModelError(f"{self.source}: several bodies hold a tensor of the name {name!r}")
        return tensors or nodes

    def _set(self, name: str, tensor: onnx.TensorProto, array: Array) -> Array:
        """Write new numbers in the tensor's element type; returns the numbers that it then holds.

        External data stay external, and wait here for their file.
        """
        dtype = tensor_dtype(tensor)
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(array).astype(dtype).reshape(tuple(tensor.dims))
        back = stored.astype(np.float32)
        if not np.isfinite(back).all() or (not self.rounding and not np.array_equal(back, array)):
            self.narrow.append(f"{name} ({dtype})")
        _fill(tensor, stored)
        return back

    def _set_constant(self, name: str, node: onnx.NodeProto, array: Array) -> None:
        tensor = next((a.t for a in node.attribute if a.name == "value" and a.HasField("t")), None)
        if node.op_type == "Constant" and tensor is not None:
            self.written[name] = self._set(name, tensor, array)
            return
        # value_floats, or the node repeats one number: from now on it holds the tensor.
        dtype = self.graph.origins[name].dtype
        stored = onnx.TensorProto(data_type=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), dims=array.shape)
        self.written[name] = self._set(name, stored, array)
        if node.op_type != "Constant":
            self.notes.append(f"{name}: its ConstantOfShape node is a Constant now")
        node.op_type = "Constant"
        del node.attribute[:]
        del node.input[:]
        node.attribute.append(helper.make_attribute("value", stored))

    def _set_integers(self, tensor: onnx.TensorProto, array: Array) -> Array:
        """The integers that stand for the numbers, clipped to their type; returns the numbers of these integers."""
        node = next(n for n in self.model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] == tensor.name)
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)

        def along(name: str) -> Array:
            numbers = self._number(name)
            if numbers.size == 1:
                return numbers.reshape(())
            return numbers.reshape([-1 if k == axis % array.ndim else 1 for k in range(array.ndim)])

        scale = along(node.input[1]).astype(np.float32)
        zero = along(node.input[2]).astype(np.int64) if len(node.input) > 2 else np.zeros((), np.int64)
        dtype = tensor_dtype(tensor)
        limits: Any = np.iinfo(dtype.name)
        whole = np.rint(array.astype(np.float64) / scale.astype(np.float64)).astype(np.int64) + zero
        stored = np.clip(whole, limits.min, limits.max)
        _fill(tensor, stored.astype(dtype).reshape(tuple(tensor.dims)))
        return np.asarray((stored - zero).astype(np.float32) * scale, np.float32)

    def _number(self, name: str) -> Array:
        """The numbers of an initializer, or of a Constant."""
        tensors = {t.name: t for t in self.model.graph.initializer}
        held = tensors.get(name) or next(a.t for a in self.makers[name].attribute if a.HasField("t"))
        number = read_tensor(held, self.source.parent)
        assert number is not None
        return number

    def _set_dequantized(self, name: str, stored: str, array: Array) -> None:
        """Integers cannot hold trained numbers: float ones take the place of the nodes that dequantise them."""
        nodes = [n for n in self.model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] == stored]
        nodes = [n for n in nodes if n.output[0] == name] or nodes
        known = [self._scaling(n) for n in nodes]
        for node, key in zip(nodes, known, strict=True):
            if key != known[0]:
                continue
            self.model.graph.initializer.append(numpy_helper.from_array(np.asarray(array, np.float32), node.output[0]))
            self.model.graph.node.remove(node)
        self.written[name] = array
        self.dequantized.append(name)

    def _scaling(self, node: onnx.NodeProto) -> tuple[object, ...]:
        """Scale, zero point and axis of a DequantizeLinear: nodes of one weight that agree in them make one tensor."""
        initializers = {t.name: t for t in self.model.graph.initializer}
        parts: list[object] = [a.i for a in node.attribute if a.name == "axis"]
        for name in node.input[1:]:
            maker = self.makers.get(name)
            held = initializers.get(name) or next(
                (a.t for a in maker.attribute if a.HasField("t")) if maker else iter(()), None
            )
            array = None if held is None else read_tensor(held, self.source.parent)
            parts.append(name if array is None else array.tobytes())
        return tuple(parts)

    def _refuse(self) -> None:
        if self.dequantized:
            self.notes.append(f"{_some(self.dequantized)}: integers behind DequantizeLinear before, now float numbers")
        if self.rounded.weights and not self.narrow:
            self.notes += self.rounded.notes(len(self.coded))
        if self.narrow:
            remedy = "do not fit in it" if self.rounding else "do not fit in it exactly; --round rounds them"
            raise UnsupportedModelError(
                f"{self.source}: {_some(self.narrow)}: the file's element type is narrower than float32, the trained"
                f" numbers {remedy}"
            )

    # --- the files ---

    def _fill_absent(self) -> None:
        """Seeded numbers that stood for weights whose file is absent become the new file's."""
        if self.random_weights is None:
            return
        names = {o.tensor: n for n, o in self.graph.origins.items()}
        absent = [
            t for t in self.model.graph.initializer if is_external(t) and read_tensor(t, self.source.parent) is None
        ]
        for tensor in absent:
            shape, dtype = tuple(int(d) for d in tensor.dims), tensor_dtype(tensor)
            try:
                type = TensorType(shape, our_dtype(dtype))
            except Unsupported:
                continue
            value: Any = self.graph.values.get(names.get(tensor.name, ""))
            if value is None:
                value = absent_value(self.model, tensor.name, shape, dtype, self.random_weights)
            _fill(tensor, materialize(value, type).astype(dtype))
        if absent:
            self.notes.append(f"{_some([t.name for t in absent])}: absent before, now with seeded or trained numbers")

    def _save(self, out: Path) -> None:
        external = [t for t in stored_tensors(self.model) if is_external(t)]
        kept = [t for t in external if t.raw_data or read_tensor(t, self.source.parent) is not None]
        if kept:
            data = out.with_name(out.name + DATA_SUFFIX)
            with data.open("wb") as file:
                for tensor in kept:
                    content: Any = tensor.raw_data
                    if not content:
                        array = read_tensor(tensor, self.source.parent)
                        assert array is not None
                        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
                    file.write(bytes(-file.tell() % _ALIGNMENT_BYTES if len(content) >= _ALIGNMENT_BYTES else 0))
                    offset = file.tell()
                    file.write(content)
                    tensor.ClearField("raw_data")
                    _point(tensor, data.name, offset, len(content))
        try:
            write_model(self.model, out)
        except (EncodeError, ValueError):
            raise UsageError(f"{self.source}: with trained weights more than the 2 GB of an ONNX file") from None


def _in_training_mode(node: onnx.NodeProto) -> bool:
    """Whether it is a batch norm on the statistics of the batch."""
    return node.op_type == "BatchNormalization" and any(a.name == "training_mode" and a.i for a in node.attribute)


def _touched(edit: Parted | LeftOut) -> tuple[str, ...]:
    """The nodes that an edit needs, by first output."""
    if isinstance(edit, LeftOut):
        return (edit.node,)
    return (*(node for node, _ in edit.readers), *edit.identities)


def _fill(tensor: onnx.TensorProto, array: Array) -> None:
    for name in ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "raw_data"):
        tensor.ClearField(name)
    tensor.raw_data = np.asarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _point(tensor: onnx.TensorProto, location: str, offset_bytes: int, length_bytes: int) -> None:
    """Other entries, such as a checksum, are of the old data."""
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", offset_bytes), ("length", length_bytes)):
        tensor.external_data.add(key=key, value=str(value))


def _some(names: Iterable[str]) -> str:
    each = list(dict.fromkeys(names))
    shown = ", ".join(repr(n) for n in each[:_SHOWN])
    return shown + (f" and {len(each) - _SHOWN} more" if len(each) > _SHOWN else "")
