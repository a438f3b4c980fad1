"""What the integers among the inputs of a program may be: classes of a loss, indices into a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from poetc.codegen._interpret import all_inputs
from poetc.codegen.program import Binding, Call, Operand, Program
from poetc.errors import UsageError
from poetc.graph import Array, DType


@dataclass(frozen=True, slots=True)
class Limit:
    """`least` to `most`, and `ignored` besides: the target that does not count."""

    least: int
    most: int
    ignored: int

    def __str__(self) -> str:
        also = f", or {self.ignored}" if not self.least <= self.ignored <= self.most else ""
        return f"{self.least} to {self.most}{also}"


def limits(program: Program) -> dict[str, Limit]:
    """By name, of every input that is read as a class or an index. As the kernels have it."""
    found: dict[str, Limit] = {}
    for binding in all_inputs(program):
        if binding.operand.type.dtype is DType.I32:
            limit = _limit(program, binding)
            if limit is not None:
                found[binding.name] = limit
    return found


def _limit(program: Program, binding: Binding) -> Limit | None:
    names = {binding.operand.tensor, binding.name}
    found: list[Limit] = []
    for call in program.instructions:
        if not isinstance(call, Call) or len(call.inputs) < 2:
            continue
        if call.kind == "Slice" and call.inputs[0].tensor in names:
            names |= {o.tensor for o in call.outputs}  # a micro-batch reads its part
        if call.inputs[1].tensor in names:
            found += _of_call(call, call.inputs[0])
    if not found:
        return None
    return Limit(max(f.least for f in found), min(f.most for f in found), found[0].ignored)


def _of_call(call: Call, first: Operand) -> list[Limit]:
    shape = first.type.shape
    if call.kind.startswith("CrossEntropy"):
        classes = shape[int(_attribute(call, "axis", 1))]
        return [Limit(0, classes - 1, int(_attribute(call, "ignore_index", 0)))]
    if call.kind in ("Gather", "GatherElements"):
        length = shape[int(_attribute(call, "axis", 0))]
        return [Limit(-length, length - 1, 0)]
    return []


def _attribute(call: Call, name: str, default: int) -> int:
    value = call.attributes.get(name, default)
    return value if isinstance(value, int) else default


def require_usable(program: Program, inputs: Mapping[str, Array], where: str, called: Mapping[str, str]) -> None:
    """UsageError, which names `where` and the array as the user `called` it, for a value that no kernel can use: a NaN
    or an infinity, a class or an index out of range, an integer that is none.

    Arrays are as [samples, ...], of any number of samples; the first value is named by its place in the array.
    """
    allowed = limits(program)
    for binding in all_inputs(program):
        array, name = inputs[binding.name], called.get(binding.name, binding.name)
        if binding.operand.type.dtype is DType.F32:
            with np.errstate(over="ignore"):  # what is too large for 32 bits becomes an infinity
                finite = np.isfinite(array.astype(np.float32))
            _reject(where, name, array, ~finite, "not a finite number of 32 bits")
            continue
        if array.dtype.kind == "f":
            _reject(where, name, array, array != np.trunc(array), "no whole number")
        limit = allowed.get(binding.name)
        if limit is not None:
            wrong = ((array < limit.least) | (array > limit.most)) & (array != limit.ignored)
            hint = "; classes count from 0" if binding is program.target else ""
            _reject(where, name, array, wrong, f"not {limit}{hint}")


def _reject(where: str, name: str, array: Array, wrong: Array, why: str) -> None:
    if not wrong.any():
        return
    place = np.unravel_index(int(np.argmax(wrong)), array.shape)
    index = ", ".join(map(str, place))
    more = f" ({int(wrong.sum())} such values)" if wrong.sum() > 1 else ""
    raise UsageError(f"{where}: {name}[{index}] is {array[place]}, {why}{more}")


def looks_raw(array: Array) -> bool:
    """Whether floats are whole numbers that go beyond 16: bytes of pixels that nobody scaled, most likely."""
    return bool(array.size and np.abs(array).max() > RAW_FROM and (array == np.trunc(array)).all())


RAW_FROM = 16
