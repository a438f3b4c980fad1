"""Ranges of the integers among the inputs of a program: classes of a loss, indices into a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from poetc.errors import UsageError
from poetc.graph import Array, DType, TensorType
from poetc.ops import Bound, Use, spec
from poetc.ops.losses.boxes import is_target_of_boxes, negative_sides
from poetc.program._interpret import all_inputs
from poetc.program._ir import Binding, Call, Program

_ANY = (-(2**31), 2**31 - 1)
RAW_FROM = 16  # floats of larger values look as if nobody had scaled them


@dataclass(frozen=True, slots=True)
class Limit:
    """`least` to `most`, and `ignored` besides: the target that does not count."""

    least: int
    most: int
    ignored: int
    parts: tuple[tuple[int, int], ...] = ()  # least and most of each element of a sample, where they differ

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
    by_input: dict[str, Limit] = {}
    for binding in all_inputs(program):
        if binding.operand.type.dtype is DType.I32:
            limit = limit_of(uses, {binding.operand.tensor, binding.name}, binding.operand.type.shape)
            if limit is not None:
                by_input[binding.name] = limit
    return by_input


def missing(program: Program, binding: Binding) -> tuple[bool, ...]:
    """The same as `missing_of`, for an input of `program`."""
    operand = binding.operand
    if operand.type.dtype is not DType.F32:
        return ()
    return missing_of(_uses(program), {operand.tensor, binding.name}, operand.type.shape)


def limit_of(uses: Iterable[Use], names: set[str], shape: tuple[int, ...] = ()) -> Limit | None:
    """The limit of the integer tensor that is called `names`, where operators are used like this.

    With its `shape`, each element of a sample has the limit of the tables and losses that it reaches.
    """
    reaches: list[tuple[Limit, Array]] = []
    for use, places in _reaching(uses, names, shape):
        indices = spec(use.kind).indices(use)
        if indices is not None and indices.is_exact and (reached := places.get(indices.operand)) is not None:
            reaches.append((Limit(indices.least, indices.most, indices.ignored), reached))
    if not reaches:
        return None
    ignored = reaches[0][0].ignored
    whole = Limit(max(f.least for f, _ in reaches), min(f.most for f, _ in reaches), ignored)
    if len({(f.least, f.most) for f, _ in reaches}) == 1 or len(shape) < 2:
        return whole
    least, most = np.full(math.prod(shape), _ANY[0]), np.full(math.prod(shape), _ANY[1])
    for limit, reached in reaches:
        at = reached.reshape(-1)
        least[at], most[at] = np.maximum(least[at], limit.least), np.minimum(most[at], limit.most)
    least, most = least.reshape(shape[0], -1).max(axis=0), most.reshape(shape[0], -1).min(axis=0)
    parts = tuple(zip(least.tolist(), most.tolist(), strict=True))
    if len(set(parts)) == 1:
        return whole
    return Limit(int(least.min()), int(most.max()), ignored, parts)


def missing_of(uses: Iterable[Use], names: set[str], shape: tuple[int, ...]) -> tuple[bool, ...]:
    """For each element of a sample of the float tensor called `names`: whether the model replaces a NaN there.

    It does where operators ask for a NaN, and choose another number then. Empty where it replaces none.
    """
    if len(shape) < 2:
        return ()
    replaced, read = np.zeros(math.prod(shape), bool), np.zeros(math.prod(shape), bool)
    makers: dict[str, Use] = {}
    for use, places in _reaching(uses, names, shape):
        makers.update(dict.fromkeys(use.outputs, use))
        for tensor in dict.fromkeys(use.inputs):
            if tensor in places and not _moves(use):
                is_replaced = _replaces(use, tensor, makers)
                (replaced if is_replaced else read)[places[tensor].reshape(-1)] |= not _asks(use, tensor)
    missing = (replaced & ~read).reshape(shape[0], -1).all(axis=0)
    return tuple(bool(f) for f in np.atleast_1d(missing)) if np.any(missing) else ()


def boxes_of(uses: Iterable[Use], names: set[str]) -> str:
    """The format of the boxes in the tensor called `names`, where it is the target of a loss of boxes; else empty."""
    return next(
        (str(u.attributes.get("format", "xyxy")) for u in uses if is_target_of_boxes(u) and u.inputs[1] in names), ""
    )


def _asks(use: Use, tensor: str) -> bool:
    """Whether the operator asks which elements of the tensor are numbers: NaN differs from itself."""
    return use.kind == "Equal" and list(use.inputs) == [tensor, tensor]


def _replaces(use: Use, tensor: str, makers: Mapping[str, Use]) -> bool:
    """Whether the operator takes another number where the tensor has a NaN."""
    if _asks(use, tensor):
        return True
    if use.kind != "Where" or list(use.inputs).count(tensor) != 1 or use.inputs[0] == tensor:
        return False
    chosen, is_number = makers.get(use.inputs[0]), use.inputs[1] == tensor
    while chosen is not None and chosen.kind == "Not":
        chosen, is_number = makers.get(chosen.inputs[0]), not is_number
    return chosen is not None and is_number and _asks(chosen, tensor)


def _moves(use: Use) -> bool:
    return use.kind in ("Slice", "Reshape", "Split", "Transpose")


def _reaching(uses: Iterable[Use], names: set[str], shape: tuple[int, ...]) -> Iterator[tuple[Use, dict[str, Array]]]:
    """The operators, each with the places of the tensor called `names` whose elements the tensors so far hold."""
    places: dict[str, Array] = {}
    for use in uses:
        for name in use.inputs:
            if name in names and name not in places:
                own = shape or (use.first.shape if name == use.inputs[0] else ())
                places[name] = np.arange(math.prod(own)).reshape(own)
        yield use, places
        source = places.get(use.inputs[0]) if use.inputs else None
        if source is None or not _moves(use):
            continue
        if source.shape != use.first.shape:  # of a shape that is not known here
            places.update(dict.fromkeys(use.outputs, source))
            continue
        types = (TensorType(source.shape, DType.I32),)
        results = spec(use.kind).evaluate(Bound(use.attributes, types), [source])
        places.update(zip(use.outputs, (np.asarray(r) for r in results), strict=True))


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
        gaps = missing(program, binding)
        dtype = binding.operand.type.dtype
        require_values(inputs[binding.name], dtype, limit, where, name, is_target=is_target, missing=gaps)


def require_values(
    array: Array,
    dtype: DType,
    limit: Limit | None,
    where: str,
    name: str,
    *,
    is_target: bool,
    first: int = 0,
    lines: Sequence[int] | None = None,
    missing: Sequence[bool] = (),
    boxes: str = "",
) -> None:
    """The same for one array, called `name`, which begins with sample `first` of the user's array.

    `lines` are those of a file of text in which the samples of that array begin; None: it has none. `missing`: whether
    an element of a sample may be a NaN; none may where it is empty. `boxes`: the format of the boxes that the last axis
    holds; their sides may be 0, and not less.
    """
    if dtype is DType.F32:
        with np.errstate(over="ignore"):  # A value too large for 32 bits becomes an infinity.
            finite = np.isfinite(array.astype(np.float32, copy=False))
        if len(missing) and (allowed := _by_element(np.asarray(missing), array)) is not None:
            finite |= np.isnan(array) & allowed
        why = "not a finite number of 32 bits"
        if not finite.all() and bool((array[~finite] == -np.inf).all()):
            why += "; in a mask that is added to scores, -1e9 does the same"
        _reject(where, name, array, ~finite, why, first, lines)
        if boxes:
            why = f"which gives its box a side below 0: are boxes {boxes}, as --box-format has it?"
            _reject(where, name, array, negative_sides(array, boxes), why, first, lines)
        return
    if array.dtype.kind == "f":
        _reject(where, name, array, array != np.trunc(array), "no whole number", first, lines)
    if not np.can_cast(array.dtype, dtype.numpy):
        ends = np.iinfo(dtype.numpy.name)
        wrong = (array < ends.min) | (array > ends.max)
        _reject(where, name, array, wrong, f"not from {ends.min:,} to {ends.max:,}", first, lines)
    if limit is not None and limit.parts and (own := _by_element(np.asarray(limit.parts), array)) is not None:
        wrong = ((array < own[..., 0]) | (array > own[..., 1])) & (array != limit.ignored)
        if wrong.any():
            least, most = np.broadcast_to(own, (*array.shape, 2))[np.unravel_index(int(np.argmax(wrong)), array.shape)]
            _reject(where, name, array, wrong, f"not {Limit(int(least), int(most), limit.ignored)}", first, lines)
    elif limit is not None:
        wrong = ((array < limit.least) | (array > limit.most)) & (array != limit.ignored)
        _reject(where, name, array, wrong, f"not {limit}{'; classes count from 0' if is_target else ''}", first, lines)


def _by_element(of_sample: Array, array: Array) -> Array | None:
    """Knowledge of each element of a sample, in the shape of [samples, ...]; None where it does not fit."""
    elements = math.prod(array.shape[1:])
    if not elements or elements % len(of_sample):
        return None
    rows = np.concatenate([of_sample] * (elements // len(of_sample)))
    return rows.reshape(1, *array.shape[1:], *of_sample.shape[1:])


def _reject(
    where: str, name: str, array: Array, wrong: Array, why: str, first: int, lines: Sequence[int] | None
) -> None:
    if not wrong.any():
        return
    place = np.unravel_index(int(np.argmax(wrong)), array.shape)
    index = ", ".join(str(n + (0 if axis else first)) for axis, n in enumerate(place))
    more = f" ({int(wrong.sum())} such values)" if wrong.sum() > 1 else ""
    line = "" if lines is None else f"line {lines[first + int(place[0])]}, "
    raise UsageError(f"{where}: {line}{name}[{index}] is {array[place]}, {why}{more}")


def scales_itself(program: Program, binding: Binding) -> bool:
    """The same as `is_scaled`, for an input of `program`."""
    return is_scaled(_uses(program), {binding.operand.tensor, binding.name})


def is_scaled(uses: Iterable[Use], names: set[str]) -> bool:
    """Whether each operator that reads the tensor called `names` scales it down or normalises it.

    Numbers of any range are usual there.
    """
    readers = [use for use in uses if names & set(use.inputs)]
    return bool(readers) and all(_scales(use) for use in readers)


_VIEWS = frozenset({"Reshape", "Transpose", "Slice", "Split", "Expand", "Tile", "Narrow", "Widen"})


def is_added_to_scores(uses: Iterable[Use], names: set[str]) -> bool:
    """Whether a tensor of these names is a mask: all that reads it adds it to scores that a softmax takes."""
    masks, scores, ends = set(names), set[str](), False
    for use in uses:
        own = bool(masks & set(use.inputs))
        is_softmax = use.kind in ("Softmax", "LogSoftmax") and use.inputs[0] in scores
        is_attention = use.kind in ("Attention", "AttentionGrad") and own and not masks & set(use.inputs[:3])
        if is_softmax or is_attention:
            ends = True
        elif use.kind == "Add" and own:
            (masks if masks >= set(use.inputs) else scores).update(use.outputs)
        elif use.kind == "Where" and not own and use.inputs[0] not in scores:  # scores that are hidden besides
            scores.update(use.outputs if scores & set(use.inputs) else ())
        elif use.kind in _VIEWS | {"Add"} and (own or scores & set(use.inputs)):
            (masks if own else scores).update(use.outputs)
        elif own or scores & set(use.inputs):
            return False
    return ends


def _scales(use: Use) -> bool:
    alpha = use.attributes.get("alpha")
    return "Norm" in use.kind or (use.kind == "Affine" and isinstance(alpha, float) and abs(alpha) * RAW_FROM <= 1)


def chance_loss(program: Program) -> float | None:
    """The cross-entropy of guessing; None where the loss is another."""
    limit = None if program.target is None else limits(program).get(program.target.name)
    return None if limit is None else math.log(limit.most + 1)
