"""Activations and their gradients in 16 bits: `--precision f16` and `bf16`.

Each tensor of floats between two operators is rounded to 16 bits once, where it is made. An operator that has a form
for such operands (`poetc.ops.narrow.Narrowed`) reads and writes them. Around any other one, Widen and Narrow convert.
All arithmetic has 32 bits. Products round their factors as they read them, so weights too; the weights themselves and
the optimizer's state keep 32 bits.

These stay in 32 bits: inputs and results of the step, the operands of the loss, statistics of norms, and gradients of
parameters. So do tensors of fewer than LEAST elements, and in f16 masked scores.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from poetc.graph import (
    Attribute,
    Coded,
    DType,
    Fill,
    Operator,
    Phase,
    Role,
    Tensor,
    TensorType,
    TrainingGraph,
    Value,
    materialize,
)
from poetc.ops import Bound, spec
from poetc.ops.narrow import AS_IT_IS, NARROW, NARROWED, ROUNDED, kernel_of
from poetc.ops.sgd_of import SgdOf
from poetc.passes._indexed import Indexed

LEAST = 16  # elements
LARGEST_F16 = 65504.0
STATISTICS = ("BatchNormStats",)
# Kinds of products, whose first two operands are the factors; others with weights; descents on a gradient.
FACTORS = ("Conv", "ConvGradInput", "ConvGradWeight", "MatMul")
WEIGHTED = (*FACTORS, "MatMulOfViews", "ConvTranspose")
DESCENTS = {"ConvGradWeightSgd": "ConvGradWeight", "MatMulSgd": "MatMul"}
WEIGHTS = (Role.PARAMETER, Role.CONSTANT)


def narrow(graph: TrainingGraph) -> TrainingGraph:
    """The step in the numbers of its option `precision`; itself unless that is f16 or bf16."""
    precision = graph.options.get("precision", DType.F32.value)
    if precision not in NARROW:
        return graph
    scale = graph.options.get("loss_scale", 1)
    assert isinstance(scale, int)
    return _Narrowing(graph, DType(str(precision)), scale.bit_length() - 1).run()


class _Narrowing(Indexed):
    def __init__(self, graph: TrainingGraph, dtype: DType, scale: int) -> None:
        super().__init__(graph)
        self.dtype, self.scale = dtype, scale
        self.tensors = dict(graph.tensors)
        self.operators: list[Operator] = []
        self.narrow = self._chosen()

    def run(self) -> TrainingGraph:
        for name in self.graph.tensors:
            if self.roots[name] in self.narrow:
                tensor = self.tensors[name]
                self.tensors[name] = replace(tensor, type=replace(tensor.type, dtype=self.dtype))
        for op in self.graph.operators:
            if spec(op.kind).is_view:
                self.operators.append(op)
            elif (narrowed := self._direct(op)) is not None:
                self.operators.append(narrowed)
            else:
                self._between_conversions(op)
        return replace(self.graph, operators=tuple(self.operators), tensors=self.tensors)

    def _chosen(self) -> frozenset[str]:
        """The storages that get 16 bits."""
        graph = self.graph
        left_out = {graph.loss, *graph.outputs, *graph.updates.values(), *self._of_parameters(), *self._masked()}
        for op in graph.operators:
            if op.phase is Phase.LOSS:
                left_out |= {*op.inputs, *op.outputs}
            elif op.phase is Phase.UPDATE or op.kind in STATISTICS:
                left_out.update(op.outputs)
        roots = {self.roots[t] for t in left_out}
        return frozenset(
            name
            for name, tensor in graph.tensors.items()
            if name in self.maker
            and self.roots[name] == name not in roots
            and tensor.role in (Role.ACTIVATION, Role.GRADIENT)
            and tensor.dtype is DType.F32
            and tensor.type.elements >= LEAST
        )

    def _of_parameters(self) -> set[str]:
        """Gradients of parameters, the terms that they are sums of, and all that is made of them."""
        names = set(self.graph.gradients.values())
        for op in reversed(self.graph.operators):
            if not names.isdisjoint(op.outputs) and (spec(op.kind).is_view or op.kind == "Add"):
                names.update(t for t in op.inputs if self.tensors[t].role is Role.GRADIENT)
        for op in self.graph.operators:
            if not names.isdisjoint(op.inputs) and self.tensors[op.outputs[0]].role is Role.GRADIENT:
                names.update(op.outputs)
        return names

    def _masked(self) -> set[str]:
        """Results of constants that f16 cannot hold, such as masks of -inf or -1e9, up to the softmax behind them.

        A factor may be such a constant, and a logarithm of inputs alone is a mask: that of 0 hides.
        """
        if self.dtype is not DType.F16:
            return set()
        of_weights = {name for name, tensor in self.graph.tensors.items() if tensor.role is Role.PARAMETER}
        large = {name for name, value in self.graph.values.items() if _is_beyond_f16(self.graph.tensors[name], value)}
        masked: set[str] = set()
        for op in self.graph.operators:
            if not of_weights.isdisjoint(op.inputs):
                of_weights.update(op.outputs)
            is_origin = op.kind == "Log" and of_weights.isdisjoint(op.inputs)
            if op.kind == "Affine":
                is_origin = any(isinstance(n, float) and abs(n) > LARGEST_F16 for n in op.attributes.values())
            reads = is_origin or not large.isdisjoint(op.inputs) or not masked.isdisjoint(op.inputs)
            if reads and op.phase is Phase.FORWARD and op.kind not in (*WEIGHTED, "Softmax"):
                masked.update(op.outputs)
        return masked

    def _scale_of(self, tensor: str) -> int:
        """Gradients have the loss scale; views of activations have none, in the backward pass too."""
        return self.scale if self.tensors[self.roots[tensor]].role is Role.GRADIENT else 0

    def _is_narrow(self, tensor: str) -> bool:
        return self.tensors[tensor].dtype is self.dtype

    def _direct(self, op: Operator) -> Operator | None:
        """The operator on its operands in 16 bits; None where it has no form for them, or none of them has 16 bits."""
        kind = DESCENTS.get(op.kind, op.kind)
        inputs = op.inputs[1:-1] if op.kind in DESCENTS else op.inputs
        if isinstance(spec(op.kind), SgdOf) and op.kind not in DESCENTS:
            return None
        outputs = () if op.kind in DESCENTS else op.outputs
        forms = [NARROWED if self._is_narrow(t) else AS_IT_IS for t in (*inputs, *outputs)]
        if kind in FACTORS:
            forms[:2] = [form or ROUNDED for form in forms[:2]]
        forms += [AS_IT_IS] * (op.kind in DESCENTS)
        if not any(forms):
            return None
        scales = [self._scale_of(t) if form else 0 for t, form in zip((*inputs, *op.outputs), forms, strict=True)]
        attributes: dict[str, Attribute] = {
            **op.attributes,
            "of": kind,
            "dtype": self.dtype.value,
            "forms": tuple(forms),
            "scales": tuple(scales),
        }
        types = tuple(self.tensors[t].type for t in inputs)
        if kernel_of(Bound(attributes, types)) is None:
            return None
        wrapper = "NarrowedSgd" if op.kind in DESCENTS else "Narrowed"
        return replace(op, name=f"{wrapper}({op.name})", kind=wrapper, attributes=attributes)

    def _between_conversions(self, op: Operator) -> None:
        renamed: dict[str, str] = {}
        for tensor in dict.fromkeys(op.inputs):
            if self._is_narrow(tensor):
                renamed[tensor] = self._convert("Widen", tensor, self._scale_of(tensor), op)
            elif op.kind in WEIGHTED and self.tensors[self.roots[tensor]].role in WEIGHTS and tensor in op.inputs[:2]:
                rounded = self._convert("Narrow", tensor, 0, op)
                renamed[tensor] = self._convert("Widen", rounded, 0, op)
        wide_of = {t: self._like(t, "wide", DType.F32) for t in op.outputs if self._is_narrow(t)}
        inputs, outputs = tuple(renamed.get(t, t) for t in op.inputs), tuple(wide_of.get(t, t) for t in op.outputs)
        self.operators.append(replace(op, inputs=inputs, outputs=outputs))
        for tensor, wide in wide_of.items():
            self._emit("Narrow", wide, tensor, self._scale_of(tensor), op)

    def _convert(self, kind: str, tensor: str, scale: int, op: Operator) -> str:
        dtype = self.dtype if kind == "Narrow" else DType.F32
        return self._emit(kind, tensor, self._like(tensor, dtype.value, dtype), scale, op)

    def _emit(self, kind: str, source: str, name: str, scale: int, op: Operator) -> str:
        attributes: dict[str, Attribute] = {"dtype": self.dtype.value, "scale": scale}
        phase = Phase.BACKWARD if op.phase is Phase.UPDATE else op.phase
        self.operators.append(Operator(f"{kind}({name})", kind, (source,), (name,), attributes, phase, op.source))
        return name

    def _like(self, tensor: str, suffix: str, dtype: DType) -> str:
        """A new tensor named after `tensor`, with its shape and another type."""
        name = stem = f"{tensor}.{suffix}"
        number = 1
        while name in self.tensors:
            number += 1
            name = f"{stem}.{number}"
        like = self.tensors[tensor]
        role = like.role if like.role in (Role.ACTIVATION, Role.GRADIENT) else Role.ACTIVATION
        self.tensors[name] = Tensor(name, TensorType(like.shape, dtype), role)
        return name


def _is_beyond_f16(tensor: Tensor, value: Value) -> bool:
    if tensor.role is not Role.CONSTANT or tensor.dtype is not DType.F32 or isinstance(value, Coded):
        return False
    array = np.asarray(value.value) if isinstance(value, Fill) else materialize(value, tensor.type)
    return bool(array.size and np.abs(array).max() > LARGEST_F16)
