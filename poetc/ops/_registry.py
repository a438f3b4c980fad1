"""All facts on an operator kind in one place: shapes, gradient, cost, reference numerics, kernel binding.

A family file (`poetc/ops/<family>.py`) defines one `OpSpec` subclass a kind and registers it with `@register`. Nothing
else in the project lists kinds: importer, autodiff, cost model, interpreter and emitter all ask the registry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from poetc.graph import Array, Operator, TensorType
from poetc.kernels import Kernel, low_workspace_kernels
from poetc.ops._bound import Bound
from poetc.ops._builder import INFER, Builder
from poetc.ops._cuts import Cut, Range, block_of
from poetc.ops._indices import Indices, Use
from poetc.ops._others import load_others

Gradients = Sequence[str | None]  # names of tensors; None: no gradient


@dataclass(frozen=True, slots=True)
class Work:
    """The work of an execution, for the cost model.

    A multiply-accumulate is counted in `macs`, any other arithmetic in `flops` (an exponential or the like counts 10).
    Bytes moved are derived from the operand sizes unless `bytes_moved` says otherwise.
    """

    macs: int = 0
    flops: int = 0
    bytes_moved: int | None = None


class OpSpec:
    """One operator kind. Subclass, fill in, `@register`. The class has the name of the kind."""

    kind: ClassVar[str]  # by default the name of the class, which `register` writes here
    summary: ClassVar[str] = ""  # one line for docs/reference/operators.md
    is_view: ClassVar[bool] = False  # the output is the same bytes as input 0 under another shape: no kernel, no cost
    recomputable: ClassVar[bool] = True  # False: runs exactly once in a step (updates)
    cost_like: ClassVar[str] = ""  # a kind whose measured cost a profile without this kind's own is to take
    must_alias: ClassVar[tuple[tuple[int, int], ...]] = ()  # (input, output) that share bytes: state updated in place
    aliases: ClassVar[tuple[tuple[int, int], ...]] = ()  # (input, output) of equal size that may share bytes
    macs: ClassVar[int] = 0  # multiply-accumulates an element of the first input
    flops: ClassVar[int] = 0  # other arithmetic an element of the first input
    reads_rows: ClassVar[bool] = False  # it has cuts with tables
    evaluates_blocks: ClassVar[bool] = False  # also blocks of cuts along axes, not flat ones alone
    of_probabilities: ClassVar[bool] = False  # a loss that tells a probability near 1 from 1: a difference that rounds
    source: ClassVar[Path | None] = None  # the C file of its kernels, of a kind in another package than poetc

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        """Output types. Raises ValueError with the reason when the inputs do not fit."""
        raise NotImplementedError

    def evaluate(self, op: Bound, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Reference numerics in numpy, in the float type of the inputs (float64 in finite-difference tests)."""
        raise NotImplementedError

    def evaluate_block(self, block: Bound, cut: Cut, begin: int, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """The same of a block of `cut` (`block`), whose first unit is `begin`, from its parts of the inputs."""
        return self.evaluate(block, inputs)

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        """Emit backward operators through `b`; return the gradient tensor of each input (None: no gradient).

        `grads[i]` is the gradient of output i, None where nothing flows; `needed[i]`: whether input i's is wanted (emit
        nothing for the others). Default: the first input has `input_gradient`, others none.
        """
        gy, others = grads[0], [None] * (len(op.inputs) - 1)
        return [None if gy is None or not needed[0] else self.input_gradient(b, op, gy), *others]

    def input_gradient(self, b: Builder, op: Operator, gy: str) -> str | None:
        """Emit the gradient of the first input; `gy` is that of the first output. Default: not differentiable."""
        return None

    def apart(self, b: Builder, op: Operator) -> bool:
        """Emit the operators that this one is made of, with its outputs, for a step without fusion.

        Operators that only its own gradient reads may be left out. False: it is made of none.
        """
        return False

    def work(self, op: Bound) -> Work:
        """By default `macs` and `flops`; where there are none, one operation an element of the outputs."""
        if self.macs or self.flops:
            elements = op.inputs[0].elements
            return Work(macs=self.macs * elements, flops=self.flops * elements)
        return Work(flops=sum(t.elements for t in op.outputs))

    def kernel(self, op: Bound) -> Kernel:
        raise NotImplementedError

    def kernels(self, op: Bound) -> tuple[Kernel, ...]:
        """`kernel(op)`, which is the fastest, and those with less and less workspace that compute the same bits."""
        kernel = self.kernel(op)
        return (kernel, *low_workspace_kernels(kernel))

    def indices(self, use: Use) -> Indices | None:
        """The operand that holds classes or indices, and their range."""
        return None

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """The axes along which it may be cut into blocks whose results have the bits of the whole operator."""
        return ()

    def block(self, op: Bound, cut: Cut, ranges: Sequence[Range]) -> Bound:
        """The operator that a block is, for its work, its costs and its kernel. `ranges`: units along each axis."""
        return block_of(op, cut, ranges)

    def may_alias(self, op: Bound) -> tuple[tuple[int, int], ...]:
        """(input, output) pairs of equal size where the kernel tolerates output == input in memory: `aliases`."""
        return self.aliases


_REGISTRY: dict[str, OpSpec] = {}
S = TypeVar("S", bound=type[OpSpec])


def register(cls: S) -> S:
    cls.kind = vars(cls).get("kind", cls.__name__)
    if cls.kind in _REGISTRY:
        raise RuntimeError(f"operator kind {cls.kind!r} is registered twice")
    instance = cls()
    _REGISTRY[cls.kind] = instance
    INFER[cls.kind] = instance.infer
    return cls


def spec(kind: str) -> OpSpec:
    """The OpSpec of a kind, of poetc or of another package. KeyError if there is none."""
    if kind not in _REGISTRY:
        load_others()
    return _REGISTRY[kind]


def registry() -> Mapping[str, OpSpec]:
    """All kinds by name, sorted: those of poetc, and of other packages once `load_others` was called."""
    return dict(sorted(_REGISTRY.items()))
