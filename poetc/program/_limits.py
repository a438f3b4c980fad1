"""Ranges of the integers among the inputs of a program: classes of a loss, indices into a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from poetc.errors import UsageError
from poetc.graph import Array, DType
from poetc.ops import Use, labels_of
from poetc.program._interpret import all_inputs
from poetc.program._ir import Binding, Call, Program

RAW_FROM = 16  # floats of larger values look as if nobody had scaled them


@dataclass(frozen=True, slots=True)
class Limit:
    """`least` to `most`, and `ignored` besides: the target that does not count."""

    least: int
    most: int
    ignored: int

    def __str__(self) -> str:
        also = f", or {self.ignored}" if not self.least <= self.ignored <= self.most else ""
        return f"{self.least} to {self.most}{also}"


def _uses(program: Program) -> list[Use]:
    calls = [call for call in program.instructions if isinstance(call, Call) and call.inputs]
    return [
        Use(c.kind, c.attributes, [o.tensor for o in c.inputs], [o.tensor for o in c.outputs], c.inputs[0].type)
        for c in calls
    ]


def limits(program: Program) -> dict[str, Limit]:
    """By name, of every input that is read as a class or an index. As the kernels have it."""
    uses = _uses(program)
    found: dict[str, Limit] = {}
    for binding in all_inputs(program):
        if binding.operand.type.dtype is DType.I32:
            limit = limit_of(uses, {binding.operand.tensor, binding.name})
            if limit is not None:
                found[binding.name] = limit
    return found


def limit_of(uses: Iterable[Use], names: set[str]) -> Limit | None:
    """The limit of the integer tensor that is called `names`, where operators are used like this."""
    names, found = set(names), list[Limit]()
    for use in uses:
        if use.kind in ("Slice", "Reshape") and use.inputs[0] in names:
            names |= set(use.outputs)  # a micro-batch reads its part
        if len(use.inputs) < 2:
            continue
        if labels_of(use) in names:
            found += _of_use(use)
    if not found:
        return None
    return Limit(max(f.least for f in found), min(f.most for f in found), found[0].ignored)


def _of_use(use: Use) -> list[Limit]:
    shape = use.first.shape
    if use.kind == "LinearCrossEntropy":
        return [Limit(0, _attribute(use, "classes", 1) - 1, _attribute(use, "ignore_index", 0))]
    if use.kind == "GatherCoded":
        rows = _attribute(use, "rows", 1)
        return [Limit(-rows, rows - 1, 0)]
    if use.kind.startswith(("CrossEntropy", "Dice")):
        classes = shape[int(_attribute(use, "axis", 1))]
        return [Limit(0, classes - 1, int(_attribute(use, "ignore_index", 0)))]
    if use.kind.startswith("Ctc"):
        return [Limit(0, shape[-1] - 1, -1)]
    if use.kind in ("Gather", "GatherElements"):
        length = shape[int(_attribute(use, "axis", 0))]
        return [Limit(-length, length - 1, 0)]
    return []


def _attribute(use: Use, name: str, default: int) -> int:
    value = use.attributes.get(name, default)
    return value if isinstance(value, int) else default


def require_usable(program: Program, inputs: Mapping[str, Array], where: str, called: Mapping[str, str]) -> None:
    """Raises UsageError for a value that no kernel can use.

    Such are a NaN or an infinity, a class or an index out of range, and a fraction for an integer. The error names
    `where`, and the array as the user `called` it.

    Arrays are as [samples, ...], of any number of samples; the first value is named by its place in the array.
    """
    allowed = limits(program)
    for binding in all_inputs(program):
        name, is_target = called.get(binding.name, binding.name), binding is program.target
        limit = allowed.get(binding.name)
        require_values(inputs[binding.name], binding.operand.type.dtype, limit, where, name, is_target=is_target)


def require_values(
    array: Array, dtype: DType, limit: Limit | None, where: str, name: str, *, is_target: bool, first: int = 0
) -> None:
    """The same for one array, called `name`, which begins with sample `first` of the user's array."""
    if dtype is DType.F32:
        with np.errstate(over="ignore"):  # A value too large for 32 bits becomes an infinity.
            finite = np.isfinite(array.astype(np.float32, copy=False))
        _reject(where, name, array, ~finite, "not a finite number of 32 bits", first)
        return
    if array.dtype.kind == "f":
        _reject(where, name, array, array != np.trunc(array), "no whole number", first)
    if not np.can_cast(array.dtype, dtype.numpy):
        ends = np.iinfo(dtype.numpy.name)
        wrong = (array < ends.min) | (array > ends.max)
        _reject(where, name, array, wrong, f"not from {ends.min:,} to {ends.max:,}", first)
    if limit is not None:
        wrong = ((array < limit.least) | (array > limit.most)) & (array != limit.ignored)
        _reject(where, name, array, wrong, f"not {limit}{'; classes count from 0' if is_target else ''}", first)


def _reject(where: str, name: str, array: Array, wrong: Array, why: str, first: int) -> None:
    if not wrong.any():
        return
    place = np.unravel_index(int(np.argmax(wrong)), array.shape)
    index = ", ".join(str(n + (0 if axis else first)) for axis, n in enumerate(place))
    more = f" ({int(wrong.sum())} such values)" if wrong.sum() > 1 else ""
    raise UsageError(f"{where}: {name}[{index}] is {array[place]}, {why}{more}")


def scales_itself(program: Program, binding: Binding) -> bool:
    """The same as `is_scaled`, for an input of `program`."""
    return is_scaled(_uses(program), {binding.operand.tensor, binding.name})


def is_scaled(uses: Iterable[Use], names: set[str]) -> bool:
    """Whether each operator that reads the tensor called `names` scales it down or normalises it.

    Numbers of any range are usual there.
    """
    readers = [use for use in uses if names & set(use.inputs)]
    return bool(readers) and all(_scales(use) for use in readers)


def _scales(use: Use) -> bool:
    alpha = use.attributes.get("alpha")
    return "Norm" in use.kind or (use.kind == "Affine" and isinstance(alpha, float) and abs(alpha) * RAW_FROM <= 1)


def chance_loss(program: Program) -> float | None:
    """The cross-entropy of guessing; None where the loss is another."""
    limit = None if program.target is None else limits(program).get(program.target.name)
    return None if limit is None else math.log(limit.most + 1)
