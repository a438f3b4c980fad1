"""Encodings of saved tensors: operators that make a tensor smaller between its forward and its backward readers.

`offered` lists the tensors of a step that can be encoded. `encoded` makes the step with some of them encoded. The
planner chooses them. A lossless encoding gives every gradient the same bits:

- The slope of a rectifier takes one bit an element, and its gradient reads those bits instead of the output.
- The place of a maximum in a window of at most 16 taps takes 4 bits.

A lossy one keeps floats in 16 or 8 bits. All operators of the backward pass but rectifiers then read the decoded
tensor, so that gradients do not depend on the schedule. A rectifier's slope stays exact. Where several
LeakyRelus share a saved input, that holds for the first one; the others read the decoded input.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from poetc.graph import Attribute, DType, Operator, Phase, Role, Tensor, TrainingGraph
from poetc.ops import bind, spec
from poetc.ops.encoding import FORMATS, NIBBLES, RECTIFIERS, rectifier_attributes
from poetc.passes._indexed import Indexed
from poetc.passes._order import order_backward

SLOPE, PLACE = "slope", "place"
LEAST_BYTES = 256  # a smaller tensor is left as it is
LEAST_FLOATS = 256  # of a tensor with a lossy encoding: smaller ones are statistics, whose error would be everywhere
STATISTICS = ("BatchNormStats",)  # kinds whose results are left as they are
ENCODERS = ("SlopeBits", "PackNibbles")  # of lossless encodings
BACKWARD = (Phase.BACKWARD, Phase.UPDATE)


@dataclass(frozen=True, slots=True)
class Encoding:
    """The tensor `tensor` is saved as `format`, in the tensor `code`.

    `saved_bytes`: of the tensor. `encoded_bytes`: of the code. `is_alone`: no other operator of the backward pass reads
    the tensor, so that only the code need be kept.
    """

    tensor: str
    format: str
    code: str
    saved_bytes: int
    encoded_bytes: int
    is_alone: bool


def offered(graph: TrainingGraph, lossy: str = "") -> tuple[Encoding, ...]:
    """The encodings that the step can have: lossless ones, in the order of their tensors' makers, then lossy ones.

    `lossy`: the format of the latter (`poetc.ops.encoding.FORMATS`); empty for none. With one of them, the step needs
    the lossless encoding of the same tensor too.
    """
    encoder = _Encoder(graph)
    return (*encoder.offered(), *(encoder.offered_lossy(lossy) if lossy else ()))


def encoded(graph: TrainingGraph, chosen: Collection[Encoding]) -> TrainingGraph:
    """The step with the encodings of `chosen`; itself without any."""
    return order_backward(_Encoder(graph).encoded(chosen)) if chosen else graph


def without_encodings(graph: TrainingGraph, *, lossy: bool = False) -> TrainingGraph:
    """The step with its lossless encodings undone, and the lossy ones if asked for, in the order that it has."""
    encoders = (*ENCODERS, "Encode") if lossy else ENCODERS
    sources = {op.outputs[0]: op.inputs[0] for op in graph.operators if op.kind in encoders}
    operators: list[Operator] = []
    renamed: dict[str, str] = {}
    for op in graph.operators:
        inputs = tuple(renamed.get(t, t) for t in op.inputs)
        if op.kind == "SlopeGrad":
            kind = f"{op.attributes['activation']}Grad"
            attributes = {name: value for name, value in op.attributes.items() if name != "activation"}
            op = replace(op, name=f"{kind}({op.outputs[0]})", kind=kind, attributes=attributes)
            inputs = (sources[inputs[0]], *inputs[1:])
        elif op.kind == "UnpackNibbles":
            renamed[op.outputs[0]] = sources[inputs[0]]
        elif op.kind == "Decode" and lossy:
            inputs, shape = (sources[inputs[0]],), op.attributes["shape"]
            op = replace(op, name=f"Reshape({op.outputs[0]})", kind="Reshape", attributes={"shape": shape})
        if op.kind not in encoders and op.outputs[0] not in renamed:
            operators.append(replace(op, inputs=inputs))
    gone = {t for op in graph.operators for t in op.outputs} - {t for op in operators for t in op.outputs}
    tensors = {name: t for name, t in graph.tensors.items() if name not in gone}
    return replace(graph, operators=tuple(operators), tensors=tensors)


@dataclass(frozen=True, slots=True)
class _Made:
    """The operators of an encoding, and the change of its readers. A decoder stands before the operator beside it."""

    encode: Operator
    decoders: list[tuple[Operator, Operator]]
    readers: list[Operator]
    changed: Callable[[Operator], Operator]


class _Encoder(Indexed):
    def __init__(self, graph: TrainingGraph) -> None:
        super().__init__(graph)
        self.tensors = dict(graph.tensors)
        self.of_root: dict[str, list[Operator]] = {}  # readers of a storage, through views too
        for op in graph.operators:
            if not spec(op.kind).is_view:
                for root in dict.fromkeys(self.roots[t] for t in op.inputs):
                    self.of_root.setdefault(root, []).append(op)

    def offered(self) -> Iterator[Encoding]:
        forward = [op for op in self.graph.operators if op.phase not in BACKWARD]
        for op in forward:
            for tensor in op.outputs:
                encoding = self._lossless(tensor)
                if encoding is not None and encoding.saved_bytes >= LEAST_BYTES:
                    yield encoding

    def offered_lossy(self, form: str) -> Iterator[Encoding]:
        graph = self.graph
        results = {self.roots[t] for t in (graph.loss, *graph.outputs)}
        for name, tensor in graph.tensors.items():
            maker, readers = self.maker.get(name), self._decoded_readers(name)
            if tensor.role not in (Role.INPUT, Role.ACTIVATION) or tensor.dtype is not DType.F32 or not readers:
                continue
            is_usual = maker is None or (maker.phase is Phase.FORWARD and maker.kind not in STATISTICS)
            for_loss = any(op.phase is Phase.LOSS for op in self.of_root[name])
            if is_usual and not for_loss and name not in results and tensor.type.elements >= LEAST_FLOATS:
                size_bytes = FORMATS[form].size_bytes(tensor.type.elements)
                yield Encoding(name, form, self._free(f"{name}.{form}"), tensor.size_bytes, size_bytes, True)

    def encoded(self, chosen: Collection[Encoding]) -> TrainingGraph:
        before: dict[str, list[Operator]] = {}  # new operators by the one that they precede
        after: dict[str, list[Operator]] = {}
        changed: dict[str, Operator] = {}
        for encoding in chosen:
            codec = {SLOPE: self._slope, PLACE: self._place}.get(encoding.format, self._lossy)(encoding)
            after.setdefault(self._last_forward(encoding.tensor), []).append(codec.encode)
            for reader, decode in codec.decoders:
                before.setdefault(reader.name, []).append(decode)
            for op in codec.readers:
                changed[op.name] = codec.changed(changed.get(op.name, op))
        operators: list[Operator] = []
        for op in self.graph.operators:
            operators += [*before.get(op.name, ()), changed.get(op.name, op), *after.get(op.name, ())]
        return replace(self.graph, operators=tuple(operators), tensors=self.tensors)

    def _lossless(self, tensor: str) -> Encoding | None:
        """The lossless encoding of `tensor`, if it has one."""
        saved, backward = self.graph.tensors[tensor], self._backward(tensor)
        slopes = self._slopes(tensor)
        if slopes:
            is_alone = len(slopes) == len(backward)
            code = self._free(f"{tensor}.slope")
            return Encoding(tensor, SLOPE, code, saved.size_bytes, -(-saved.type.elements // 8), is_alone)
        if saved.dtype is DType.U8 and backward and all(self._reads_few_places(op, tensor) for op in backward):
            code = self._free(f"{tensor}.packed")
            return Encoding(tensor, PLACE, code, saved.size_bytes, -(-saved.type.elements // 2), True)
        return None

    def _slopes(self, tensor: str) -> list[Operator]:
        """The gradients of one rectifier that read no more of `tensor` than slopes.

        Below 0 a LeakyRelu saves its input, which several rectifiers may share: the first one's slopes count.
        """
        kinds = [f"{kind}Grad" for kind in RECTIFIERS]
        readers = [op for op in self._backward(tensor) if op.kind in kinds and op.inputs[0] == tensor != op.inputs[1]]
        return [op for op in readers if (op.kind, op.attributes) == (readers[0].kind, readers[0].attributes)]

    def _reads_few_places(self, op: Operator, tensor: str) -> bool:
        if op.kind != "MaxPoolGrad" or op.inputs[0] != tensor:
            return False
        kernel = bind(op, self.graph.tensors).get_ints("kernel")
        return kernel[0] * kernel[1] <= NIBBLES

    def _backward(self, tensor: str) -> list[Operator]:
        return [op for op in self.of_root.get(self.roots[tensor], ()) if op.phase in BACKWARD]

    def _decoded_readers(self, tensor: str) -> list[Operator]:
        """The operators of the backward pass that read more of a storage than slopes."""
        slopes = {op.name for op in self._slopes(tensor)}
        return [op for op in self._backward(tensor) if op.name not in slopes] if self.roots[tensor] == tensor else []

    def _last_forward(self, tensor: str) -> str:
        """The operator behind which the code is made: the last one that makes or reads the tensor going forward."""
        readers = [op for op in self.of_root[self.roots[tensor]] if op.phase not in BACKWARD]
        users = [self.maker[tensor]] if tensor in self.maker else []
        return max((*users, *readers), key=lambda op: self.place[op.name]).name

    def _slope(self, encoding: Encoding) -> _Made:
        slopes = self._slopes(encoding.tensor)
        rectifier = slopes[0].kind.removesuffix("Grad")
        attributes = rectifier_attributes(rectifier, slopes[0].attributes)

        def changed(op: Operator) -> Operator:
            inputs = (encoding.code, op.inputs[1])
            name = f"SlopeGrad({op.outputs[0]})"
            return replace(op, name=name, kind="SlopeGrad", inputs=inputs, attributes=attributes)

        return _Made(self._emit("SlopeBits", encoding.tensor, encoding.code, attributes), [], slopes, changed)

    def _place(self, encoding: Encoding) -> _Made:
        encode = self._emit("PackNibbles", encoding.tensor, encoding.code, {})
        return self._decoded(encoding, encode, "UnpackNibbles", {}, self._backward(encoding.tensor))

    def _lossy(self, encoding: Encoding) -> _Made:
        form: dict[str, Attribute] = {"format": encoding.format}
        encode = self._emit("Encode", encoding.tensor, encoding.code, form)
        return self._decoded(encoding, encode, "Decode", form, self._decoded_readers(encoding.tensor))

    def _decoded(
        self, encoding: Encoding, encode: Operator, kind: str, attributes: dict[str, Attribute], readers: list[Operator]
    ) -> _Made:
        """`readers` read the decoded tensor, in the shape of each view of it that they read."""
        names: dict[str, str] = {}
        decoders: list[tuple[Operator, Operator]] = []
        for op in readers:
            for view in op.inputs:
                if self.roots[view] == encoding.tensor and view not in names:
                    names[view] = self._free(f"{view}.decoded")
                    shape = {**attributes, "shape": self.graph.tensors[view].shape}
                    decoders.append(
                        (op, self._emit(kind, encoding.code, names[view], shape, Phase.BACKWARD, op.source))
                    )

        def changed(op: Operator) -> Operator:
            return replace(op, inputs=tuple(names.get(t, t) for t in op.inputs))

        return _Made(encode, decoders, readers, changed)

    def _free(self, name: str) -> str:
        """`name`, or a like one that no tensor of the graph has."""
        while name in self.graph.tensors:
            name += "'"
        return name

    def _emit(
        self,
        kind: str,
        read: str,
        name: str,
        attributes: dict[str, Attribute],
        phase: Phase = Phase.FORWARD,
        source: str = "",
    ) -> Operator:
        """An operator that makes `name` of `read`."""
        maker = self.maker.get(read)
        source = source or (maker.source if maker else "")
        op = Operator(f"{kind}({name})", kind, (read,), (name,), attributes, phase, source)
        (type_,) = spec(kind).infer(bind(replace(op, outputs=()), self.tensors))
        role = Role.GRADIENT if phase in BACKWARD else Role.ACTIVATION
        self.tensors[name] = Tensor(name, type_, role)
        return op
