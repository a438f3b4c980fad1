"""The training step of an algorithm in mixed precision: the step in floats, its products on rounded factors.

`FewBits` stands in front of each product, so gradients pass straight through it. A rounded tensor of at most 8
significant bits is one of bf16, the others are of f32. Products are those of `--precision bf16` (`Narrowed`), whose
sums have a stated order, or have sums in chunks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from poetc.graph import (
    Attribute,
    DType,
    Fill,
    Graph,
    Operator,
    Phase,
    Role,
    Tensor,
    TensorType,
    TrainingGraph,
    Value,
)
from poetc.ops import Bound, bind, spec, view_roots
from poetc.ops.adapted_bits import STATE
from poetc.ops.narrow import AS_IT_IS, NARROWED, kernel_of
from poetc.training import _build
from poetc.training.precisions._algorithm import Algorithm, Numbers
from poetc.training.precisions._mixed_norms import MixedNorms

if TYPE_CHECKING:
    from poetc.training.options import TrainingOptions

PRODUCTS = ("Conv", "ConvGradInput", "ConvGradWeight", "MatMul")
_STEP = TensorType((1,), DType.I32)


def build_mixed(
    algorithm: Algorithm,
    graph: Graph,
    options: TrainingOptions,
    part: Graph | None = None,
    *,
    names_sums: bool = False,
) -> TrainingGraph:
    """The training step of `graph` in the numbers of `algorithm`."""
    return _Step(_build.build(graph, options, part, names_sums=names_sums), algorithm, options).run()


class _Step:
    def __init__(self, graph: TrainingGraph, algorithm: Algorithm, options: TrainingOptions) -> None:
        self.graph, self.algorithm, self.options = graph, algorithm, options
        self.tensors = dict(graph.tensors)
        self.values: dict[str, Value] = dict(graph.values)
        self.updates = dict(graph.updates)
        self.operators: list[Operator] = []
        self.roots = view_roots(graph)
        self.rounded: dict[tuple[str, Numbers], tuple[str, str]] = {}  # the tensor and its scale, or ""
        self.products = [op for op in graph.operators if self._is_product(op)]
        forward = [op.source for op in self.products if op.phase is Phase.FORWARD]
        self.ends = {"first": forward[:1], "last": forward[-1:]}
        self.weights = {self.roots[t] for op in self.products for t in op.inputs[:2] if self._name(t) == "weights"}
        self.step = ""
        norms = algorithm.norms or {}
        self.norms = MixedNorms(norms, self.tensors, self.values, self._emit, self._vector, self._like)

    def run(self) -> TrainingGraph:
        graph, algorithm = self.graph, self.algorithm
        if self._draws():
            self._count_steps()
        narrowed = {graph.gradients[w]: (w, algorithm.gradients) for w in sorted(self.weights) if w in graph.gradients}
        narrowed |= {graph.gradients[p]: (p, self.norms.numbers.get("gradients")) for p in self._of_norms()}
        gradients = dict(graph.gradients)
        renamed: dict[str, str] = {}
        products = {op.name for op in self.products}
        for op in graph.operators:
            if op.name in products:
                self._product(op)
            elif self.norms.numbers and self.norms.write(op):
                pass
            elif op.phase is Phase.UPDATE and not renamed.keys().isdisjoint(op.inputs):
                self.operators.append(replace(op, inputs=tuple(renamed.get(t, t) for t in op.inputs)))
            else:
                self.operators.append(op)
            for tensor in op.outputs:
                parameter, numbers = narrowed.get(tensor, ("", None))
                if numbers is not None:
                    renamed[tensor] = self._few_bits(tensor, numbers, op, f"{parameter}.grad.few")[0]
                    gradients[parameter] = renamed[tensor]
        self._store()
        others = [op for op in graph.operators if op.name not in products and "Norm" not in op.kind]
        apart = sum(spec(op.kind).work(bind(op, graph.tensors)).macs > 0 for op in others)
        notes = [f"{len(products)} products read factors of few bits"]
        if apart:
            notes.append(f"{apart} other operators with products stay in floats of 32 bits")
        return replace(
            graph,
            operators=tuple(self.operators),
            tensors=self.tensors,
            values=self.values,
            updates=dict(sorted(self.updates.items())),
            gradients=dict(sorted(gradients.items())),
            notes=(*graph.notes, *notes),
        )

    def _of_norms(self) -> list[str]:
        """Trained scales and biases of batch norms that compute statistics."""
        norms = [op for op in self.graph.operators if op.kind == "BatchNormApply" and op.attributes.get("training")]
        return sorted({self.roots[t] for op in norms for t in op.inputs[3:]} & self.graph.gradients.keys())

    def _vector(self, tensor: str, numbers: Numbers, op: Operator) -> str:
        """A tensor of a norm, rounded to f32."""
        return self._few_bits(tensor, numbers, op, f"{tensor}.few")[0]

    def _is_product(self, op: Operator) -> bool:
        if op.kind not in PRODUCTS:
            return False
        attributes: dict[str, Attribute] = self._narrowed(op, (AS_IT_IS,) * (len(op.inputs) + 1))
        return kernel_of(Bound(attributes, tuple(self.tensors[t].type for t in op.inputs))) is not None

    def _narrowed(self, op: Operator, forms: tuple[int, ...]) -> dict[str, Attribute]:
        return {**op.attributes, "of": op.kind, "dtype": "bf16", "forms": forms, "scales": (0,) * len(forms)}

    def _draws(self) -> bool:
        a = self.algorithm
        formats = [a.weights, a.activations, a.errors, a.gradients, a.stored, a.state]
        formats += [numbers for part in (a.first, a.last, a.norms) for numbers in (part or {}).values()]
        return any(numbers is not None and numbers.rounding == "stochastic" for numbers in formats)

    def _count_steps(self) -> None:
        """The number of the step, by which random numbers are drawn."""
        counts = [op for op in self.graph.operators if op.kind == "StepCount" and op.inputs[0] in self.graph.updates]
        if counts:
            self.step = counts[0].outputs[0]
            return
        before = self._fresh("step")
        self.step = self._fresh(f"{before}@1")
        for name in (before, self.step):
            self.tensors[name] = Tensor(name, _STEP, Role.OPTIMIZER_STATE)
        self.values[before], self.updates[before] = Fill("zeros"), self.step
        name = f"StepCount({self.step})"
        self.operators.append(Operator(name, "StepCount", (before,), (self.step,), {}, Phase.UPDATE, ""))

    def _name(self, tensor: str) -> str:
        role = self.tensors[self.roots[tensor]].role
        if role.is_state or role is Role.CONSTANT:
            return "weights"
        return "errors" if role is Role.GRADIENT else "activations"

    def _product(self, op: Operator) -> None:
        ends = tuple(end for end, sources in self.ends.items() if op.source in sources)
        factors, scales, forms, power = [], [], [], 0
        for tensor in op.inputs[:2]:
            numbers = self.algorithm.numbers(self._name(tensor), ends)
            power += numbers.power if numbers.scale == "fixed" else 0
            rounded, scale = self._few_bits(tensor, numbers, op)
            factors.append(rounded)
            scales += [scale] * bool(scale)
            forms.append(NARROWED if numbers.is_narrow else AS_IT_IS)
        bias, (y,) = op.inputs[2:], op.outputs
        apart = bias if scales else ()
        inputs = (*factors, *(() if scales else bias))
        kind, attributes = "Narrowed", self._narrowed(op, (*forms, *[AS_IT_IS] * (len(inputs) - 1)))
        if self.algorithm.sums is not None:
            floats = self.algorithm.sums.numbers.grid()
            kind, attributes = "NarrowedChunks", {**attributes, **floats, "chunk": self.algorithm.sums.chunk}
            attributes["power"] = power
        result = y if not scales else self._like(y, f"{y}.scaled")
        self._emit(op, kind, inputs, (result,), attributes)
        if scales:
            after = self._like(y, f"{y}.times") if apart else y
            self._emit(op, "Mul", (result, self._together(op, y, scales)), (after,), {})
            result = after
        if apart:
            self._emit(op, "Add", (result, self._spread(op, apart[0])), (y,), {})

    def _together(self, op: Operator, y: str, scales: list[str]) -> str:
        """The product of one or two scales."""
        if len(scales) == 1:
            return scales[0]
        name = self._like(scales[0], f"{y}.scale")
        self._emit(op, "Mul", (scales[0], scales[1]), (name,), {})
        return name

    def _spread(self, op: Operator, bias: str) -> str:
        """A bias in the shape in which it is added to the result of a product."""
        if op.kind != "Conv":
            return bias
        shape = (1, *self.tensors[bias].shape, *[1] * (len(self.tensors[op.outputs[0]].shape) - 2))
        name = self._like(bias, f"{bias}.spread", TensorType(shape), Role.ACTIVATION)
        self._emit(op, "Reshape", (bias,), (name,), {"shape": shape})
        return name

    def _few_bits(self, tensor: str, numbers: Numbers, op: Operator, name: str = "") -> tuple[str, str]:
        """The rounded tensor, and the scale that it counts for; "" where that is in it."""
        if (tensor, numbers) in self.rounded:
            return self.rounded[tensor, numbers]
        role = Role.GRADIENT if self.tensors[tensor].role is Role.GRADIENT else Role.ACTIVATION
        dtype = DType.BF16 if numbers.is_narrow and not name else DType.F32
        few = self._like(tensor, name or f"{tensor}.few", TensorType(self.tensors[tensor].shape, dtype), role)
        outputs = [few]
        if numbers.scale == "real":
            outputs.append(self._like(tensor, f"{few}:scale", TensorType((1,)), role))
        attributes = numbers.attributes(_build._key(few, self.options))
        if dtype is DType.BF16:
            attributes["dtype"] = "bf16"
        inputs = [tensor, *[self.step] * (numbers.rounding == "stochastic")]
        if numbers.rises_to:
            inputs.append(self._adapted(tensor, numbers, op))
        self._emit(op, "FewBits", tuple(inputs), tuple(outputs), attributes)
        self.rounded[tensor, numbers] = few, outputs[1] if len(outputs) > 1 else ""
        return self.rounded[tensor, numbers]

    def _adapted(self, tensor: str, numbers: Numbers, op: Operator) -> str:
        """The state of the tensor's bits for this step."""
        before = self._fresh(f"{tensor}.bits")
        after = f"{before}@1"
        for name in (before, after):
            self.tensors[name] = Tensor(name, STATE, Role.OPTIMIZER_STATE)
        self.values[before] = np.array([numbers.integer, 0, 0, 0, 0], np.float32)
        self.updates[before] = after
        attributes: dict[str, Attribute] = {"most": numbers.rises_to}
        one = Operator(f"AdaptBits({after})", "AdaptBits", (before, tensor), (after,), attributes, Phase.UPDATE)
        self.operators.append(replace(one, source=op.source))
        return after

    def _store(self) -> None:
        """Weights of products, and the optimizer's state for them, are rounded where they were updated."""
        wanted: dict[str, Numbers | None] = {w: self.algorithm.stored for w in self.weights if w in self.updates}
        for state in self.graph.updates:
            weight, _, kind = state.rpartition(":")  # the name of a weight may have colons, too
            if weight in self.weights and kind != "gradient":  # a sum of gradients is none of the optimizer's
                wanted[state] = self.algorithm.state
        latest = {self.updates[name]: (name, numbers) for name, numbers in wanted.items() if numbers is not None}
        operators, self.operators = self.operators, []
        for op in operators:
            self.operators.append(op)
            for tensor in op.outputs:
                name, numbers = latest.get(tensor, ("", None))
                if numbers is None or self.tensors[tensor].dtype is not DType.F32:
                    continue
                base, _, version = tensor.rpartition("@")
                after = self._like(tensor, f"{base}@{int(version) + 1}")
                inputs = (tensor, self.step) if numbers.rounding == "stochastic" else (tensor,)
                attributes = numbers.attributes(_build._key(after, self.options))
                one = Operator(f"StoredFewBits({after})", "StoredFewBits", inputs, (after,), attributes, Phase.UPDATE)
                self.operators.append(replace(one, source=op.source))
                self.updates[name] = after

    def _emit(
        self,
        op: Operator,
        kind: str,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        attributes: dict[str, Attribute],
    ) -> None:
        """An operator in the place of `op`."""
        phase = Phase.BACKWARD if op.phase is Phase.UPDATE else op.phase
        name = f"{kind}({outputs[0]})"
        self.operators.append(Operator(name, kind, inputs, outputs, attributes, phase, op.source))

    def _like(self, tensor: str, name: str, type: TensorType | None = None, role: Role | None = None) -> str:
        """A new tensor of the type and role of `tensor`, or others."""
        fresh, like = self._fresh(name), self.tensors[tensor]
        self.tensors[fresh] = Tensor(fresh, type or like.type, role or like.role)
        return fresh

    def _fresh(self, stem: str) -> str:
        name, number = stem, 1
        while name in self.tensors:
            number += 1
            name = f"{stem}.{number}"
        return name
