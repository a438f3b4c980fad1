"""Encodings of saved tensors: operators that make a tensor smaller between its forward and its backward readers.

`offered` lists the tensors of a step that can be encoded. `encoded` makes the step with some of them encoded. The
planner chooses them. A lossless encoding gives every gradient the same bits:

- The slope of a rectifier takes one bit an element, and its gradient reads those bits instead of the output.
- The place of a maximum in a window of at most 16 taps takes 4 bits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from poetc.graph import Attribute, DType, Operator, Phase, Role, Tensor, TrainingGraph
from poetc.ops import bind, spec
from poetc.ops.encoding import NIBBLES, RECTIFIERS, rectifier_attributes
from poetc.passes._indexed import Indexed
from poetc.passes._order import order_backward

SLOPE, PLACE = "slope", "place"
LEAST_BYTES = 256  # a smaller tensor is left as it is
ENCODERS = ("SlopeBits", "PackNibbles")
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


def offered(graph: TrainingGraph) -> tuple[Encoding, ...]:
    """The encodings that the step can have, in the order of their tensors' makers."""
    return tuple(_Encoder(graph).offered())


def encoded(graph: TrainingGraph, chosen: Collection[Encoding]) -> TrainingGraph:
    """The step with the encodings of `chosen`; itself without any."""
    return order_backward(_Encoder(graph).encoded(chosen)) if chosen else graph


def without_encodings(graph: TrainingGraph) -> TrainingGraph:
    """The step with all encodings undone, in the order that it has."""
    sources = {op.outputs[0]: op.inputs[0] for op in graph.operators if op.kind in ENCODERS}
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
        if op.kind not in ENCODERS and op.outputs[0] not in renamed:
            operators.append(replace(op, inputs=inputs))
    gone = {t for op in graph.operators for t in op.outputs} - {t for op in operators for t in op.outputs}
    tensors = {name: t for name, t in graph.tensors.items() if name not in gone}
    return replace(graph, operators=tuple(operators), tensors=tensors)


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
                found = self._lossless(tensor)
                if found is not None and found.saved_bytes >= LEAST_BYTES:
                    yield found

    def encoded(self, chosen: Collection[Encoding]) -> TrainingGraph:
        before: dict[str, list[Operator]] = {}  # new operators by the one that they precede
        after: dict[str, list[Operator]] = {}
        changed: dict[str, Operator] = {}
        for encoding in chosen:
            make = {SLOPE: self._slope, PLACE: self._place}[encoding.format]
            encode, decode, readers = make(encoding)
            after.setdefault(self._last_forward(encoding.tensor), []).append(encode)
            if decode is not None:
                before.setdefault(next(iter(readers)), []).append(decode)
            changed |= readers
        operators: list[Operator] = []
        for op in self.graph.operators:
            operators += [*before.get(op.name, ()), changed.get(op.name, op), *after.get(op.name, ())]
        return replace(self.graph, operators=tuple(operators), tensors=self.tensors)

    def _lossless(self, tensor: str) -> Encoding | None:
        """The lossless encoding of `tensor`, if it has one."""
        found, backward = self.graph.tensors[tensor], self._backward(tensor)
        slopes = self._slopes(tensor)
        if slopes:
            is_alone = len(slopes) == len(backward)
            code = self._free(f"{tensor}.slope")
            return Encoding(tensor, SLOPE, code, found.size_bytes, -(-found.type.elements // 8), is_alone)
        if found.dtype is DType.U8 and backward and all(self._reads_few_places(op, tensor) for op in backward):
            code = self._free(f"{tensor}.packed")
            return Encoding(tensor, PLACE, code, found.size_bytes, -(-found.type.elements // 2), True)
        return None

    def _slopes(self, tensor: str) -> list[Operator]:
        """The gradients of rectifiers that read no more of `tensor` than slopes."""
        kinds = [f"{kind}Grad" for kind in RECTIFIERS]
        return [op for op in self._backward(tensor) if op.kind in kinds and op.inputs[0] == tensor != op.inputs[1]]

    def _reads_few_places(self, op: Operator, tensor: str) -> bool:
        if op.kind != "MaxPoolGrad" or op.inputs[0] != tensor:
            return False
        kernel = bind(op, self.graph.tensors).get_ints("kernel")
        return kernel[0] * kernel[1] <= NIBBLES

    def _backward(self, tensor: str) -> list[Operator]:
        return [op for op in self.of_root.get(self.roots[tensor], ()) if op.phase in BACKWARD]

    def _last_forward(self, tensor: str) -> str:
        """The operator behind which the code is made: the last one that makes or reads the tensor going forward."""
        readers = [op for op in self.of_root[self.roots[tensor]] if op.phase not in BACKWARD]
        return max((self.maker[tensor], *readers), key=lambda op: self.place[op.name]).name

    def _slope(self, encoding: Encoding) -> tuple[Operator, None, dict[str, Operator]]:
        slopes = self._slopes(encoding.tensor)
        rectifier = slopes[0].kind.removesuffix("Grad")
        attributes = rectifier_attributes(rectifier, slopes[0].attributes)
        code = self._emit("SlopeBits", encoding.tensor, encoding.code, attributes, like=self.maker[encoding.tensor])
        readers = {
            op.name: replace(
                op,
                name=f"SlopeGrad({op.outputs[0]})",
                kind="SlopeGrad",
                inputs=(encoding.code, op.inputs[1]),
                attributes=attributes,
            )
            for op in slopes
        }
        return code, None, readers

    def _place(self, encoding: Encoding) -> tuple[Operator, Operator, dict[str, Operator]]:
        tensor, readers = encoding.tensor, self._backward(encoding.tensor)
        code = self._emit("PackNibbles", tensor, encoding.code, {}, like=self.maker[tensor])
        shape: dict[str, Attribute] = {"shape": self.graph.tensors[tensor].shape}
        name = self._free(f"{tensor}.unpacked")
        decode = self._emit("UnpackNibbles", encoding.code, name, shape, like=readers[0])
        return code, decode, {op.name: replace(op, inputs=(name, *op.inputs[1:])) for op in readers}

    def _free(self, name: str) -> str:
        """`name`, or a like one that no tensor of the graph has."""
        while name in self.graph.tensors:
            name += "'"
        return name

    def _emit(self, kind: str, source: str, name: str, attributes: dict[str, Attribute], like: Operator) -> Operator:
        """An operator that makes `name` of `source`, in the phase of `like`."""
        role = Role.GRADIENT if like.phase in BACKWARD else Role.ACTIVATION
        op = Operator(f"{kind}({name})", kind, (source,), (name,), attributes, like.phase, like.source)
        (type_,) = spec(kind).infer(bind(replace(op, outputs=()), self.tensors))
        self.tensors[name] = Tensor(name, type_, role)
        return op
