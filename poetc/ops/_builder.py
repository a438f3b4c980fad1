"""Adds operators to a growing graph, types inferred by the registry. Importer, autodiff, optimizers build with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from poetc.graph import Attribute, Operator, Phase, Role, Tensor, TensorType, Value
from poetc.ops._bound import Bound

# Output types by kind. The registry fills it: kinds know the builder, not the other way round.
INFER: dict[str, Callable[[Bound], tuple[TensorType, ...]]] = {}


class Builder:
    """Mutable while a graph is being built; the graph made from it is frozen."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.operators: list[Operator] = []
        self.values: dict[str, Value] = {}
        self.phase = Phase.FORWARD
        self.role = Role.ACTIVATION  # of the tensors that operators make
        self.source = ""
        self._names: set[str] = set()

    def fresh(self, hint: str) -> str:
        """A name not used yet: `hint`, or `hint.2`, `hint.3`, ..."""
        name, n = hint, 1
        while name in self._names or name in self.tensors:
            n += 1
            name = f"{hint}.{n}"
        self._names.add(name)
        return name

    def type(self, tensor: str) -> TensorType:
        return self.tensors[tensor].type

    def add_tensor(self, name: str, type: TensorType, role: Role, value: Value | None = None) -> str:
        """A tensor that no operator makes: input, parameter, constant or state."""
        if name in self.tensors:
            raise ValueError(f"tensor {name!r} is defined twice")
        self.tensors[name] = Tensor(name, type, role)
        self._names.add(name)
        if value is not None:
            self.values[name] = value
        return name

    def emit(
        self,
        kind: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        hint: str = "",
        outputs: Sequence[str] | None = None,
    ) -> tuple[str, ...]:
        """Add one operator; returns its output names. `outputs` fixes them, else they come from `hint` or the kind."""
        attributes = dict(attributes or {})
        types = INFER[kind](Bound(attributes, tuple(self.type(t) for t in inputs)))
        if outputs is None:
            stem = hint or (f"{inputs[0]}.{kind}" if inputs else kind)
            outputs = [self.fresh(stem if i == 0 else f"{stem}:{i}") for i in range(len(types))]
        if len(outputs) != len(types):
            raise ValueError(f"{kind} makes {len(types)} tensors, {len(outputs)} names given")
        for name, type in zip(outputs, types, strict=True):
            if name in self.tensors:
                raise ValueError(f"tensor {name!r} is defined twice")
            self.tensors[name] = Tensor(name, type, self.role)
            self._names.add(name)
        operator_name = self.fresh(f"{kind}({outputs[0]})")
        self.operators.append(
            Operator(operator_name, kind, tuple(inputs), tuple(outputs), attributes, self.phase, self.source)
        )
        return tuple(outputs)

    def emit1(
        self, kind: str, inputs: Sequence[str], attributes: Mapping[str, Attribute] | None = None, *, hint: str = ""
    ) -> str:
        """`emit` for a kind with one output (or whose first is the one wanted)."""
        return self.emit(kind, inputs, attributes, hint=hint)[0]
