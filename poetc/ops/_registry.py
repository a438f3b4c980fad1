"""What poetc knows of an operator kind, in one place: shapes, gradient, cost, reference numerics, kernel binding.

A family file (`poetc/ops/<family>.py`) defines one `OpSpec` subclass a kind and registers it with `@register`. Nothing
else in the project lists kinds: importer, autodiff, cost model, interpreter and emitter all ask the registry.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from poetc.graph import Array, Attribute, Operator, TensorType

if TYPE_CHECKING:
    from poetc.ops._builder import Builder


@dataclass(frozen=True, slots=True)
class Bound:
    """An operator seen with the types of what it reads and writes: all that shapes, cost and kernel binding need."""

    attributes: Mapping[str, Attribute]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...] = ()

    def get_ints(self, name: str) -> tuple[int, ...]:
        value = self.attributes[name]
        assert isinstance(value, tuple)
        return tuple(int(v) for v in value)

    def get_int(self, name: str, default: int = 0) -> int:
        value = self.attributes.get(name, default)
        assert isinstance(value, int)
        return value

    def get_float(self, name: str, default: float = 0.0) -> float:
        value = self.attributes.get(name, default)
        assert isinstance(value, (int, float))
        return float(value)

    def get_str(self, name: str, default: str = "") -> str:
        value = self.attributes.get(name, default)
        assert isinstance(value, str)
        return value


@dataclass(frozen=True, slots=True)
class Work:
    """What an execution does, for the cost model. A multiply-accumulate is counted in `macs`, any other arithmetic in
    `flops` (an exponential or the like counts 10); bytes moved are derived from the operand sizes unless `bytes_moved`
    says otherwise."""

    macs: int = 0
    flops: int = 0
    bytes_moved: int | None = None


@dataclass(frozen=True, slots=True)
class Kernel:
    """The C function that runs the operator (`poetc/runtime/kernels/`), with its compile-time constants.

    `ints` and `floats` arrive in the kernel as `call->ints` and `call->floats`; the operands are the operator's inputs
    followed by its outputs, then the workspace if `workspace_bytes` > 0. `alternative`: 0 is the fastest kernel of the
    operator, n its n-th kernel with less workspace.
    """

    symbol: str
    ints: tuple[int, ...] = ()
    floats: tuple[float, ...] = ()
    workspace_bytes: int = 0
    alternative: int = 0

    @property
    def name(self) -> str:
        """What a Problem calls it among the kernels of its operator: `conv_packed`, then `conv_packed#1` and so on."""
        name = self.symbol.removeprefix("poetc_op_")
        return f"{name}#{self.alternative}" if self.alternative else name


class OpSpec:
    """One operator kind. Subclass, fill in, `@register`."""

    kind: ClassVar[str]
    summary: ClassVar[str] = ""  # one line for docs/operators.md
    is_view: ClassVar[bool] = False  # the output is the same bytes as input 0 under another shape: no kernel, no cost
    recomputable: ClassVar[bool] = True  # False: runs exactly once in a step (updates)
    cost_like: ClassVar[str] = ""  # a kind whose measured cost a profile without this kind's own is to take
    must_alias: ClassVar[tuple[tuple[int, int], ...]] = ()  # (input, output) that share bytes: state updated in place

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        """Output types. Raises ValueError with what is wrong when the inputs do not fit."""
        raise NotImplementedError

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Reference numerics in numpy, in the float type of the inputs (float64 in finite-difference tests)."""
        raise NotImplementedError

    def gradient(
        self, b: Builder, op: Operator, grads: Sequence[str | None], needed: Sequence[bool]
    ) -> Sequence[str | None]:
        """Emit backward operators through `b`; return the gradient tensor of each input (None: no gradient).

        `grads[i]` is the gradient of output i, None where nothing flows; `needed[i]`: whether input i's is wanted (emit
        nothing for the others). Default: not differentiable.
        """
        return [None] * len(op.inputs)

    def apart(self, b: Builder, op: Operator) -> bool:
        """Emit the operators that this one is made of, with its outputs, for a step without fusion (what only its own
        gradient reads may be left out). False: it is made of none.
        """
        return False

    def work(self, op: Bound) -> Work:
        return Work(flops=sum(t.elements for t in op.outputs))

    def kernel(self, op: Bound) -> Kernel:
        raise NotImplementedError

    def kernels(self, op: Bound) -> tuple[Kernel, ...]:
        """`kernel(op)`, which is the fastest, and those with less and less workspace that compute the same bits."""
        from poetc.ops._leaner import leaner

        kernel = self.kernel(op)
        return (kernel, *leaner(kernel))

    def may_alias(self, op: Bound) -> tuple[tuple[int, int], ...]:
        """(input, output) pairs of equal size where the kernel tolerates output == input in memory."""
        return ()


_REGISTRY: dict[str, OpSpec] = {}
S = TypeVar("S", bound=type[OpSpec])


def register(cls: S) -> S:
    if cls.kind in _REGISTRY:
        raise RuntimeError(f"operator kind {cls.kind!r} is registered twice")
    _REGISTRY[cls.kind] = cls()
    return cls


def _load_families() -> None:
    import poetc.ops as package

    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"poetc.ops.{module.name}")


_loaded = False


def spec(kind: str) -> OpSpec:
    """The OpSpec of a kind. KeyError if there is none."""
    if not _loaded:
        registry()
    return _REGISTRY[kind]


def registry() -> Mapping[str, OpSpec]:
    """All kinds by name, families loaded, sorted."""
    global _loaded
    if not _loaded:
        _load_families()
        families = sorted(_REGISTRY.items())
        _REGISTRY.clear()
        _REGISTRY.update(families)
        _loaded = True
    return _REGISTRY


def bind(op: Operator, tensors: Mapping[str, Any]) -> Bound:
    """`op` with the types of its tensors (`tensors` maps names to Tensor)."""
    return Bound(op.attributes, tuple(tensors[t].type for t in op.inputs), tuple(tensors[t].type for t in op.outputs))
