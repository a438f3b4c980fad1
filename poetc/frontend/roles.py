"""Which of a model's tensors are trained. ONNX does not say: a position in the graph does.

A float tensor is a weight when it reaches a position that layers keep weights in, directly or through views and slices.
A mask, a scalar, an integer table or a factor on the raw input is not.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from poetc.errors import UsageError
from poetc.frontend._exported import is_module_name, some
from poetc.frontend.facts.fixed_tensors import KIND as FIXED
from poetc.frontend.facts.fixed_tensors import is_mask, is_wave
from poetc.graph import TIED, Coded, DType, Fill, Graph, Operator, Role, Tensor, materialize

# kind → the meaning of its inputs from number 1 on (empty: no weight)
_POSITIONS = {
    "Conv": ("", "convolution weight", "convolution bias"),
    "ConvTranspose": ("", "transposed convolution weight", "transposed convolution bias"),
    "MatMul": ("matrix of a product", "matrix of a product", "bias of a product"),
    "LayerNorm": ("", "norm scale", "norm bias"),
    "RmsNorm": ("", "norm scale"),
    "GroupNorm": ("", "norm scale", "norm bias"),
    "BatchNormApply": ("", "running mean", "running variance", "norm scale", "norm bias"),
    "Gather": ("embedding table",),
    "PRelu": ("", "slope"),
}
# Weights stay weights through these.
_CARRIERS = frozenset(
    {"Reshape", "Transpose", "Slice", "Split", "Expand", "Tile", "Concat", "Pad", "Cast", "Affine", "Neg", "Gather"}
)
# And through functions of weights alone, which an exporter would have computed of a constant. Roots are of variances.
GATES = frozenset({"Exp", "Sigmoid", "Tanh", "Softplus", "HardSigmoid"})
_FUNCTIONS = GATES | {
    "Softmax", "LogSoftmax", "Softsign", "Relu", "Elu", "Silu", "Gelu", "Erf", "Abs", "Where", "Clip", "Maximum",
    "Minimum", "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceLogSumExp", "CumSum",
}  # fmt: skip
_SUMMANDS = {"Add": "summand", "Sub": "summand", "Mul": "factor", "Div": "factor"}
_SINGULAR_VECTOR = re.compile(r"parametrizations\.\w+\.\d+\._[uv]$")  # as PyTorch names it


@dataclass(frozen=True, slots=True)
class ParameterDecision:
    """The decision on a tensor that has a value (of the file, or computed at import time), and its reason."""

    name: str
    shape: tuple[int, ...]
    decision: Role
    reason: str


def parameter_decisions(graph: Graph) -> tuple[ParameterDecision, ...]:
    """The role of every tensor with a value, and its reason, in order of name."""
    uses = _Uses(graph)
    decisions = []
    for name, tensor in sorted(graph.tensors.items()):
        if name not in graph.values or tensor.role not in (Role.PARAMETER, Role.CONSTANT, Role.STATISTIC):
            continue
        role, reason = uses.decide(tensor)
        if (fact := graph.fact(FIXED, name)) is not None:
            decisions.append(ParameterDecision(name, tensor.shape, Role.CONSTANT, fact.evidence))
            continue
        if role is not tensor.role:
            computed = "computed when the model was imported"
            reason = computed if tensor.role is Role.CONSTANT else "a parameter of the PyTorch model, by the file"
        decisions.append(ParameterDecision(name, tensor.shape, tensor.role, reason))
    return tuple(decisions)


def assign_roles(
    graph: Graph,
    folded: frozenset[str],
    notes: Sequence[str],
    parameters: frozenset[str] = frozenset(),
    buffers: frozenset[str] = frozenset(),
) -> Graph:
    """The graph with PARAMETER, STATISTIC and CONSTANT decided.

    `folded` names the tensors that were computed and are never trained. `parameters` and `buffers` are those that the
    file itself says are trained or not, whatever they look like.

    UsageError for a weight that is not finite.
    """
    uses = _Uses(graph)
    tensors, added, standards = dict(graph.tensors), list(notes), list[str]()
    for name in graph.values:
        tensor = tensors[name]
        role = Role.CONSTANT if name in folded else uses.decide(tensor)[0]
        if tensor.dtype is DType.F32 and name not in folded and role is not Role.STATISTIC:
            role = Role.PARAMETER if name in parameters else Role.CONSTANT if name in buffers else role
        value = graph.values[name]
        if isinstance(value, Coded) and value.scales is not None:
            value = value.scales  # of finite codes
        if tensor.dtype is DType.F32 and not isinstance(value, Fill):
            value = materialize(value, tensor.type)
            is_answer = np.size(value) == 1 and uses.is_answer(name)
            unusable = np.isnan(value) & (not is_answer) if role is Role.CONSTANT else ~np.isfinite(value)
            if bool(unusable.any()):
                what = "NaN" if bool(np.isnan(value).any()) else "infinite numbers"
                raise UsageError(f"tensor {name!r} holds {what}; the file's weights are damaged")
        tensors[name] = replace(tensor, role=role)
        is_told = bool(parameters) or name in buffers or is_module_name(name)  # by the file, or by another note
        if role is Role.CONSTANT and name not in folded and not is_told and uses.may_standardise(tensor):
            standards.append(name)
    if standards:
        added.append(
            f"taken for constants that standardise the input, not trained: {some(sorted(standards), 'tensor')}"
        )
    for name, tensor in sorted(tensors.items()):
        places = uses.weight_places(name) if tensor.role is Role.PARAMETER else []
        if len(places) > 1:
            shown = ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
            added.append(f"{name!r} is the weight of {len(places)} operators ({shown}){TIED}")
    added += _untied(graph, tensors)
    return replace(graph, tensors=tensors, notes=tuple(added))


def doubtful_masks(graph: Graph, known: Collection[str]) -> list[str]:
    """Notes on trained summands of attention scores, unless `known` has them."""
    uses = _Uses(graph)
    return [
        f"trained, but may have been a fixed mask: {name!r}, a summand of attention scores"
        f" (--train 'all,!{name}' keeps it as it is)"
        for name, tensor in sorted(graph.tensors.items())
        if tensor.role is Role.PARAMETER and name not in known and uses.is_added_to_scores(name)
    ]


def _untied(graph: Graph, tensors: Mapping[str, Tensor]) -> list[str]:
    """Notes on an embedding table whose numbers also stand in a product, as another weight: tied before the export."""
    tables = {op.inputs[0] for op in graph.operators if op.kind == "Gather"}
    matrices = {op.inputs[1] for op in graph.operators if op.kind == "MatMul"}
    notes = []
    for table in sorted(tables):
        value = graph.values.get(table)
        for matrix in sorted(matrices - {table}):
            other = graph.values.get(matrix)
            if not isinstance(value, np.ndarray) or not isinstance(other, np.ndarray):
                continue
            if (
                value.ndim == 2
                and other.shape in (value.shape, value.shape[::-1])
                and tensors[table].dtype is DType.F32
            ):
                same = other if other.shape == value.shape else other.T
                if np.array_equal(value, same):
                    notes.append(f"{table!r} and {matrix!r} hold the same numbers: an exporter may have untied them")
    return notes


class _Uses:
    """Readers of every tensor, and the judgement on positions."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.readers: dict[str, list[tuple[Operator, int]]] = defaultdict(list)
        for op in graph.operators:
            for k, t in enumerate(op.inputs):
                self.readers[t].append((op, k))
        self.inputs = set(graph.inputs)
        self.known = set(graph.values)  # tensors that do not depend on the inputs
        for op in graph.operators:
            if op.kind != "RandomSite" and all(t in self.known for t in op.inputs):
                self.known.update(op.outputs)

    def is_answer(self, name: str) -> bool:
        """Whether branches alone read it: Where(IsNaN(x), NaN, ...)."""
        return all(op.kind == "Where" for op, _ in self.readers[name])

    def decide(self, tensor: Tensor) -> tuple[Role, str]:
        if tensor.dtype is not DType.F32:
            return Role.CONSTANT, "not floating point"
        if _SINGULAR_VECTOR.search(tensor.name):
            return Role.CONSTANT, "a singular vector that a spectral norm keeps"
        reached = self._reached(tensor.name)
        for position in ("running mean", "running variance"):
            if position in reached:
                return Role.STATISTIC, position
        strong = sorted(p for p in reached if p not in ("summand", "factor", "operand"))
        if strong:
            return Role.PARAMETER, strong[0]
        weak = sorted(reached)
        if tensor.type.elements == 1:
            if weak and any(op.kind in GATES for op in self._functions(tensor.name)):
                return Role.PARAMETER, "a number that the file takes a function of"
            return Role.CONSTANT, "a scalar"
        if not weak:
            return Role.CONSTANT, "not in a position of a weight"
        value = self.graph.values.get(tensor.name)
        if isinstance(value, np.ndarray) and weak == ["summand"] and is_module_name(tensor.name) and not value.any():
            return Role.PARAMETER, "summand that starts at zero"  # a mask of zeros would do nothing
        if isinstance(value, np.ndarray) and is_mask(value):
            return Role.CONSTANT, f"{weak[0]} that looks like a mask"
        if isinstance(value, np.ndarray) and is_wave(tensor.name, value, self.graph.values):
            return Role.CONSTANT, f"{weak[0]} that is a table of sines and cosines"
        if isinstance(value, Fill) and value.kind in ("zeros", "ones"):
            return Role.CONSTANT, f"{weak[0]} filled with {value.kind}"
        return Role.PARAMETER, weak[0]

    def _reached(self, name: str) -> dict[str, Operator]:
        """Positions of a weight that the tensor reaches, and by which operator."""
        by_position: dict[str, Operator] = {}
        seen, queue = {name}, [name]
        while queue:
            t = queue.pop()
            for op, k in self.readers[t]:
                position = self._position(op, k)
                if position:
                    by_position.setdefault(position, op)
                elif op.kind in _CARRIERS or (op.kind in _FUNCTIONS | _SUMMANDS.keys() and self._weights_alone(op)):
                    queue.extend(o for o in op.outputs if o not in seen)
                    seen.update(op.outputs)
                    if op.kind == "Concat" and not self._weights_alone(op):
                        by_position.setdefault("operand", op)
        return by_position

    def _functions(self, name: str) -> list[Operator]:
        """The operators that read the tensor, or its negative, perhaps through views."""
        operators, waiting = list[Operator](), [name]
        while waiting:
            for op, _ in self.readers[waiting.pop()]:
                operators.append(op)
                waiting += op.outputs if op.kind in ("Reshape", "Expand", "Neg") else ()
        return operators

    def _position(self, op: Operator, k: int) -> str:
        positions = _POSITIONS.get(op.kind, ())
        if k < len(positions) and positions[k]:
            return positions[k]
        if op.kind in _SUMMANDS and not self._weights_alone(op):
            other = op.inputs[1 - k]
            if op.kind != "Add" and other in self.inputs:
                return ""  # standardising the raw input
            return _SUMMANDS[op.kind]
        return ""

    def may_standardise(self, tensor: Tensor) -> bool:
        """Whether an operator scales or shifts a raw input by these floats, more than one."""
        if tensor.dtype is not DType.F32 or tensor.type.elements < 2:
            return False
        readers = self.readers[tensor.name]
        return any(o.kind in _SUMMANDS and o.kind != "Add" and o.inputs[1 - k] in self.inputs for o, k in readers)

    def _weights_alone(self, op: Operator) -> bool:
        """Everything that the operator reads is known."""
        return all(t in self.known for t in op.inputs)

    def is_added_to_scores(self, name: str) -> bool:
        """Whether nothing but sums that a softmax takes read the tensor, perhaps through views."""
        sums = self._reached(name)
        if set(sums) != {"summand"}:
            return False
        scores = list(sums["summand"].outputs)
        for t in scores:
            scores += [o for op, _ in self.readers[t] if op.kind == "Reshape" for o in op.outputs]
        return any(op.kind in ("Softmax", "LogSoftmax") for t in scores for op, _ in self.readers[t])

    def weight_places(self, name: str) -> list[str]:
        """Operators that use the tensor whole, in a position of a weight: more than one means tied weights."""
        places, queue, seen = set(), [(name, "")], {(name, "")}
        while queue:
            t, inside = queue.pop()
            for op, k in self.readers[t]:
                if inside and op.source != inside:
                    continue
                if self._position(op, k):
                    places.add(op.source or op.name)
                elif op.kind == "Reshape" or (op.kind in _CARRIERS and op.source):
                    # Through others than views only within one recurrent layer: its parts by direction and gate.
                    outputs = {(o, inside if op.kind == "Reshape" else op.source) for o in op.outputs} - seen
                    queue += outputs
                    seen |= outputs
        return sorted(places)
