"""Rewrites a graph under construction by patterns.

A pattern looks at one operator and back at the makers of its inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from poetc.graph import Array, Attribute, Fill, Operator, Role, TensorType, materialize
from poetc.ops import Builder

Pattern = Callable[["Rewriter", Operator], bool]


class Rewriter:
    """Goes through the operators in order; a pattern may put others in the place of the one it is shown.

    Operators that nothing needs any more are gone from `operators` after `run`.
    """

    def __init__(
        self,
        builder: Builder,
        outputs: tuple[str, ...],
        parameters: frozenset[str] = frozenset(),
        declared: frozenset[str] = frozenset(),
    ) -> None:
        """`parameters`: tensors that the file says are trained, by name or list, whatever their numbers are now.

        `declared`: those that it lists.
        """
        self.builder = builder
        self.outputs = outputs
        self.parameters = parameters
        self.declared = declared
        self.operators: list[Operator] = []
        self.computed: set[str] = set()  # constants that patterns made
        self._uses: Counter[str] = Counter(outputs)
        self._producer: dict[str, Operator] = {}
        self._alias: dict[str, str] = {}

    def run(self, patterns: Mapping[str, Sequence[Pattern]]) -> None:
        """`patterns` by the kind of the operator that they look at."""
        source = _needed(self.builder.operators, self.outputs)
        for op in source:
            self._uses.update(op.inputs)
        for op in source:
            self._append(self._resolved(op))
            # An operator that a pattern emits may complete another pattern.
            while self.operators and any(
                p(self, self.operators[-1]) for p in patterns.get(self.operators[-1].kind, ())
            ):
                pass
        self.operators = _needed(self.operators, self.outputs)

    def _resolved(self, op: Operator) -> Operator:
        inputs = tuple(self._alias.get(t, t) for t in op.inputs)
        return op if inputs == op.inputs else _with(op, inputs=inputs)

    def _append(self, op: Operator) -> None:
        self.operators.append(op)
        for t in op.outputs:
            self._producer[t] = op

    # --- questions that patterns ask ---

    def producer(self, tensor: str, kind: str = "") -> Operator | None:
        """The operator that makes the tensor, if it is of this kind (any where empty)."""
        op = self._producer.get(tensor)
        return op if op is not None and kind in ("", op.kind) else None

    def only_use(self, tensor: str) -> bool:
        """Read by one operator and not an output of the graph."""
        return self._uses[tensor] == 1

    def type(self, tensor: str) -> TensorType:
        return self.builder.type(tensor)

    def is_leaf(self, tensor: str) -> bool:
        """Has a value of its own (a weight or constant), perhaps seen through views."""
        return self.root(tensor) in self.builder.values

    def root(self, tensor: str) -> str:
        while (op := self.producer(tensor, "Reshape")) is not None:
            tensor = op.inputs[0]
        return tensor

    def held(self, tensor: str) -> Array | Fill | None:
        """The value of a constant or weight, in the shape of its root."""
        root = self.root(tensor)
        value = self.builder.values.get(root)
        return (
            value if value is None or isinstance(value, Fill) else materialize(value, self.builder.tensors[root].type)
        )

    # --- changes that patterns make: always to the operator that they were shown, the last one ---

    def replace(
        self, op: Operator, kind: str, inputs: Sequence[str], attributes: Mapping[str, Attribute] | None = None
    ) -> bool:
        """Compute op's output (the first, if the new kind has more) with another operator."""
        assert op is self.operators[-1]
        self.operators.pop()
        self._uses.subtract(op.inputs)
        new = self._emit(kind, inputs, attributes, op)
        if self.type(new.outputs[0]) != self.type(op.outputs[0]):
            raise AssertionError(f"{kind} in place of {op.kind} changes the type")
        # The reader's name for it stays.
        renamed = _with(new, outputs=(op.outputs[0], *new.outputs[1:]))
        self.operators[-1] = renamed
        self._producer[op.outputs[0]] = renamed
        return True

    def insert(
        self, op: Operator, kind: str, inputs: Sequence[str], attributes: Mapping[str, Attribute] | None = None
    ) -> str:
        """A new operator before `op`; returns its output."""
        assert op is self.operators[-1]
        self.operators.pop()
        new = self._emit(kind, inputs, attributes, op)
        self.operators.append(op)
        return new.outputs[0]

    def forward(self, op: Operator, tensor: str) -> bool:
        """Drop op: its readers read `tensor`. False for an output of the graph, which must keep its maker."""
        old = op.outputs[0]
        if old in self.outputs or self.type(tensor) != self.type(old):
            return False
        assert op is self.operators[-1]
        self.operators.pop()
        self._alias[old] = tensor
        for k, t in self._alias.items():
            if t == old:
                self._alias[k] = tensor
        self._uses[tensor] += self._uses[old]
        self._uses.subtract(op.inputs)
        return True

    def constant(self, name: str, value: Array | Fill, type: TensorType) -> str:
        name = self.builder.add_tensor(self.builder.fresh(name), type, Role.CONSTANT, value)
        self.computed.add(name)
        return name

    def _emit(
        self, kind: str, inputs: Sequence[str], attributes: Mapping[str, Attribute] | None, near: Operator
    ) -> Operator:
        self.builder.source = near.source
        self.builder.emit(kind, inputs, attributes, hint=f"{near.outputs[0]}.{kind}")
        new = self.builder.operators.pop()
        self._uses.update(new.inputs)
        self._append(new)
        return new


def _with(op: Operator, *, inputs: tuple[str, ...] | None = None, outputs: tuple[str, ...] | None = None) -> Operator:
    return Operator(
        op.name,
        op.kind,
        op.inputs if inputs is None else inputs,
        op.outputs if outputs is None else outputs,
        op.attributes,
        op.phase,
        op.source,
    )


def _needed(operators: Sequence[Operator], outputs: Sequence[str]) -> list[Operator]:
    """Those that the outputs depend on, in order."""
    wanted, kept = set(outputs), []
    for op in reversed(operators):
        if any(t in wanted for t in op.outputs):
            wanted.update(op.inputs)
            kept.append(op)
    return kept[::-1]
