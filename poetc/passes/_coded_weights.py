"""Frozen weights stay in the bits of the file, or in those that `--frozen` names: products and gathers decode them.

It happens to a matrix that only products, as their right operand, and gathers of its rows read. Other weights are
floats of 32 bits. The numbers are those of the decoded matrix: only sums of products with few rows
have another order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeGuard

import numpy as np

from poetc.graph import (
    Attribute,
    Coded,
    DType,
    Graph,
    Operator,
    Role,
    Tensor,
    TensorType,
    TrainingGraph,
    Value,
    materialize,
)
from poetc.graph._coded import encode
from poetc.passes._indexed import readers_of

AS_IS, FLOATS = "as-is", "f32"
LEAST_ELEMENTS = 1024  # of a weight that is rounded: smaller ones save nothing


def code_weights(graph: TrainingGraph) -> TrainingGraph:
    """The graph without codes as values: they are tensors of their own, or floats where they must be."""
    return _Coding(graph, str(graph.options.get("frozen") or AS_IS)).of_step(graph)


def code_model(model: Graph, step: TrainingGraph) -> Graph:
    """A model for predictions with the weights in the codes that its training step has, so that both share them.

    A weight that something else reads here stays as it is.
    """
    readers = {t: op for op in step.operators for t in op.inputs}
    coding = _Coding(model, str(step.options.get("frozen") or AS_IS))
    for name in model.values:
        reader = readers.get(f"{name}.codes")
        if name not in step.tensors and reader is not None:
            coding.share(name, step, reader)
    return replace(model, tensors=coding.tensors, values=coding.values, operators=tuple(coding.operators.values()))


@dataclass(frozen=True, slots=True)
class _Read:
    """How an operator reads a matrix: the position of the operand, and whether the matrix is stored turned."""

    kind: str
    at: int
    flips: bool


_READS = {
    "MatMul": _Read("MatMulCoded", 1, True),
    "Gather": _Read("GatherCoded", 0, False),
    "LinearCrossEntropy": _Read("LinearCrossEntropy", 1, True),
}


def _is_turned(readers: list[Operator]) -> bool:
    """Whether the codes are of the transposed matrix: blocks lie along the terms of the forward product."""
    forward = [op for op in readers if op.kind in ("MatMul", "LinearCrossEntropy")]
    return len(forward) == len(readers) > 0 and not forward[0].attributes.get("trans_b")


class _Coding:
    def __init__(self, graph: Graph, frozen: str) -> None:
        self.graph, self.frozen = graph, frozen
        self.readers = readers_of(graph)
        self.tensors, self.values = dict(graph.tensors), dict(graph.values)
        self.operators = {op.name: op for op in graph.operators}
        self.counts: dict[str, int] = {}
        self.errors: list[float] = []

    def of_step(self, graph: TrainingGraph) -> TrainingGraph:
        for name in graph.values:
            value, tensor = graph.values[name], graph.tensors[name]
            codes = self._codes(name, value) if tensor.role is Role.CONSTANT else None
            if codes is not None:
                self._put(name, codes)
            elif isinstance(value, Coded):
                self.values[name] = materialize(value, tensor.type)
        if not self.counts:
            none = (f"--frozen {self.frozen}: no matrix is frozen",) if self.frozen not in (AS_IS, FLOATS) else ()
            if not none and not any(isinstance(value, Coded) for value in graph.values.values()):
                return graph
            return replace(graph, values=self.values, notes=(*graph.notes, *none))
        return replace(
            graph,
            tensors=self.tensors,
            values=self.values,
            operators=tuple(self.operators.values()),
            notes=(*graph.notes, self._note()),
        )

    def _codes(self, name: str, value: Value) -> tuple[Coded, bool] | None:
        """The codes of a frozen matrix, and whether they are of its transpose; None where it stays as floats."""
        type = self.graph.tensors[name].type
        readers = self.readers[name]
        if self.frozen == FLOATS or type.dtype is not DType.F32 or len(type.shape) != 2 or not readers:
            return None
        if not all(self._reads(op, name) for op in readers):
            return None
        if self._is_in_codes(value):
            return value, False
        if self.frozen == AS_IS or type.elements < LEAST_ELEMENTS:
            return None
        turned = _is_turned(readers)
        numbers = materialize(value, type)
        numbers = np.ascontiguousarray(numbers.T) if turned else numbers
        coded = encode(numbers, self.frozen)
        self.errors.append(coded.error(numbers))
        return coded, turned

    def _is_in_codes(self, value: Value) -> TypeGuard[Coded]:
        return isinstance(value, Coded) and self.frozen in (AS_IS, value.form)

    def share(self, name: str, step: TrainingGraph, reader: Operator) -> None:
        """Take over the codes that `reader` has in `step`, if all that read the weight here can read them."""
        readers, of = self.readers[name], reader.attributes
        turned = not self._is_in_codes(self.values[name]) and _is_turned(readers)
        rows, depth = int(of["rows"]), int(of["depth"])  # type: ignore[arg-type]
        shape = self.tensors[name].shape
        if not all(self._reads(op, name) for op in readers) or shape != ((depth, rows) if turned else (rows, depth)):
            return
        parts = [step.values.get(f"{name}.{part}") for part in ("codes", "scales", "zeros")]
        codes, scales, zeros = (None if p is None else np.asarray(p) for p in parts)
        assert codes is not None
        self._put(name, (Coded(str(of["form"]), (rows, depth), codes, int(of["block"]), scales, zeros), turned))  # type: ignore[arg-type]

    def _reads(self, op: Operator, name: str) -> bool:
        read = _READS.get(op.kind)
        if read is None or [k for k, t in enumerate(op.inputs) if t == name] != [read.at]:
            return False
        if op.kind == "Gather":
            return op.attributes.get("axis", 0) == 0
        return op.kind != "MatMul" or not op.attributes.get("trans_a")

    def _put(self, name: str, coded: tuple[Coded, bool]) -> None:
        codes, turned = coded
        rows, depth = codes.shape
        parts = {"codes": codes.codes, "scales": codes.scales, "zeros": codes.zeros}
        operands = []
        for what, array in parts.items():
            if array is not None:
                dtype = DType.U8 if array.dtype == np.uint8 else DType.F32
                operand = self._fresh(f"{name}.{what}")
                self.tensors[operand] = Tensor(operand, TensorType(array.shape, dtype), Role.CONSTANT)
                self.values[operand] = array
                operands.append(operand)
        attributes: dict[str, Attribute] = {
            "form": codes.form,
            "rows": rows,
            "depth": depth,
            "block": codes.block,
            "has_zeros": 0 if codes.zeros is None else 1 if codes.zeros.dtype == np.uint8 else 2,
        }
        for op in self.readers[name]:
            read, now = _READS[op.kind], self.operators[op.name]
            own = {**now.attributes, **attributes}
            if read.flips:
                own["trans_b"] = bool(op.attributes.get("trans_b", False)) != turned
            if op.kind == "MatMul":
                own.pop("trans_a", None)
            elif op.kind == "Gather":
                own.pop("axis", None)
            inputs = (*now.inputs[: read.at], *operands, *now.inputs[read.at + 1 :])
            self.operators[op.name] = replace(now, kind=read.kind, inputs=inputs, attributes=own)
        del self.tensors[name], self.values[name]
        self.counts[codes.form] = self.counts.get(codes.form, 0) + 1

    def _fresh(self, name: str) -> str:
        while name in self.tensors:
            name += "'"
        return name

    def _note(self) -> str:
        counted = ", ".join(f"{count} in {form}" for form, count in sorted(self.counts.items()))
        text = f"frozen weights stay coded: {counted}"
        if self.errors:
            text += f"; rounding changes them by {100 * max(self.errors):.2g} % at most (root mean square)"
        return text
