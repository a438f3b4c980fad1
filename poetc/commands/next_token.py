"""One more token of a text, without computing the tokens before it again.

A step of generation computes a slice of each tensor: the place of the new token along the axis of places. Tensors
that later tokens read whole, such as keys and values, are kept, and a slice of them is replaced. Which operators work
on a slice, and along which axes, is not written down by kind: `Plan` finds it by trying, on a short text. An operator
for which no slice gives the numbers of the whole is computed whole: every model has its scores, some slower.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from poetc.graph import Array, Graph, Operator, TensorType
from poetc.ops import Bound, bind, spec

_CLOSE = 1e-4  # of the largest number: sums of a slice may go in another order
Values = Mapping[str, Array]
Weight = Callable[[str], Array]


@dataclass(frozen=True, slots=True)
class _Slice:
    """An operator that works on one place: the axis of each input (None: all of it) and of each output.

    `counts`: its attributes that name the length, as (name, index).
    """

    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    counts: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class Plan:
    """How the next token is computed: `slices` by the index of an operator, `whole`: those without.

    `cached`: the tensors that are there whole, of which one place is replaced.
    """

    slices: dict[int, _Slice] = field(default_factory=dict)
    whole: set[int] = field(default_factory=set)
    cached: set[str] = field(default_factory=set)

    @staticmethod
    def of(graph: Graph, output: str, first: Values, second: Values, count: int, weight: Weight) -> Plan | None:
        """From the values of all tensors for two texts that differ from place `count` on.

        `output`: the scores [rows, places, words]. None where those before that place differ: the model looks ahead.
        """
        return _Finder(graph, first[output].shape[1], first, second, count, weight).plan_for(output)


class _Finder:
    def __init__(self, graph: Graph, length: int, first: Values, second: Values, count: int, weight: Weight) -> None:
        self.graph, self.length, self.count, self.weight = graph, length, count, weight
        self.values, self.second = first, second
        self.axes_read: dict[str, set[int | None]] = {}  # axes along which one place is read; None: all of it

    def plan_for(self, output: str) -> Plan | None:
        if 1 not in self._fresh(output):
            return None
        plan = Plan()
        self.axes_read[output] = {1}
        for index in reversed(range(len(self.graph.operators))):
            op = self.graph.operators[index]
            asked = {n: self.axes_read[n] for n in op.outputs if n in self.axes_read}
            if not asked:
                continue
            if not any(self._varies(name) for name in asked):
                plan.cached.update(asked)
                continue
            self._place(plan, index, op, asked)
        plan.cached.update(name for name in self.axes_read if name in self.graph.inputs)
        return plan

    def _place(self, plan: Plan, index: int, op: Operator, asked: Mapping[str, set[int | None]]) -> None:
        for axes in self._axes_of_outputs(op, asked):
            way = self._way(op, axes)
            if way is None:
                continue
            plan.slices[index] = way
            plan.cached.update(name for name, how in asked.items() if len(how) > 1 or None in how)
            for name, axis in zip(op.inputs, way.inputs, strict=True):
                self.axes_read.setdefault(name, set()).add(axis)
            return
        plan.whole.add(index)
        plan.cached.update(asked)
        for name in op.inputs:
            self.axes_read.setdefault(name, set()).add(None)

    def _axes_of_outputs(self, op: Operator, asked: Mapping[str, set[int | None]]) -> Iterator[tuple[int | None, ...]]:
        """Along which axis each output may be made place by place: as it is read, or as it is kept."""
        choices: list[list[int | None]] = []
        for name in op.outputs:
            how = asked.get(name)
            if how is None:
                choices.append([None])
            elif len(how) == 1 and None not in how:
                choices.append(list(how))
            else:
                choices.append([*self._fresh(name)])
        yield from itertools.product(*choices)

    def _way(self, op: Operator, axes: tuple[int | None, ...]) -> _Slice | None:
        """The inputs of a place, so that its results are those of the whole. The more are cut, the better."""
        of_inputs = (self._cuts(name) for name in op.inputs)
        ways = sorted(itertools.product(*of_inputs), key=lambda way: sum(axis is None for axis in way))
        named = tuple(
            (name, i)
            for name, value in op.attributes.items()
            if isinstance(value, tuple)
            for i, number in enumerate(value)
            if number == self.length and not isinstance(number, float)
        )
        for inputs in ways:
            for counts in dict.fromkeys((named, ())):
                way = _Slice(inputs, axes, counts)
                if all(self._holds(op, way, place) for place in (self.count - 2, self.length - 2)):
                    return way
        return None

    def _holds(self, op: Operator, way: _Slice, place: int) -> bool:
        inputs = [_at(self._value(n), axis, place) for n, axis in zip(op.inputs, way.inputs, strict=True)]
        with suppress(Exception):  # kinds refuse shapes that do not fit in ways of their own
            arrays = _evaluate(self.graph, op, way, inputs)
            for array, name, axis in zip(arrays, op.outputs, way.outputs, strict=True):
                if axis is not None and not _same(array, _at(self.values[name], axis, place)):
                    return False
            return True
        return False

    def _cuts(self, name: str) -> list[int | None]:
        shape = self._value(name).shape
        return [*(axis for axis, size in enumerate(shape) if size == self.length), None]

    def _value(self, name: str) -> Array:
        return self.values[name] if name in self.values else self.weight(name)

    def _varies(self, name: str) -> bool:
        return name in self.second and not np.array_equal(self.values[name], self.second[name])

    def _fresh(self, name: str) -> list[int]:
        """The axes along which the places before `count` are the same in both texts."""
        first, second = self.values[name], self.second[name]
        before = slice(0, self.count)
        return [
            axis
            for axis, size in enumerate(first.shape)
            if size == self.length and _same(np.moveaxis(first, axis, 0)[before], np.moveaxis(second, axis, 0)[before])
        ]


class Cache:
    """The values of a text so far, by which a plan computes the scores of one more token."""

    def __init__(self, graph: Graph, plan: Plan, weight: Weight) -> None:
        self.graph, self.plan, self.weight = graph, plan, weight
        self.values: dict[str, Array] = {}

    def keep(self, name: str, value: Array) -> None:
        """Take over a value of a run of the whole text, if a later token needs it."""
        if name in self.plan.cached:
            self.values[name] = np.array(value)

    def scores(self, place: int, inputs: Values, output: str) -> Array:
        """Of the word behind `place`, whose inputs are there whole."""
        now: dict[str, tuple[Array, int]] = {}  # of this place, and its axis
        self.values.update(inputs)
        for index, op in enumerate(self.graph.operators):
            way = self.plan.slices.get(index)
            if way is None and index not in self.plan.whole:
                continue
            axes = way.inputs if way is not None else (None,) * len(op.inputs)
            read = [self._read(name, axis, place, now) for name, axis in zip(op.inputs, axes, strict=True)]
            with np.errstate(all="ignore"):
                if way is None:
                    results = spec(op.kind).evaluate(bind(op, self.graph.tensors), read)
                else:
                    results = _evaluate(self.graph, op, way, read)
            for n, (name, array) in enumerate(zip(op.outputs, results, strict=True)):
                axis = None if way is None else way.outputs[n]
                if axis is not None:
                    now[name] = array, axis
                if name in self.plan.cached and axis is not None:
                    _at(self.values[name], axis, place)[...] = array
                elif name in self.plan.cached:
                    self.values[name] = array
        return np.asarray(now[output][0][0, 0])

    def _read(self, name: str, axis: int | None, place: int, now: Mapping[str, tuple[Array, int]]) -> Array:
        if name in now and now[name][1] == axis:
            return now[name][0]
        held = self.values[name] if name in self.values else self.weight(name)
        return _at(held, axis, place)


def _at(array: Array, axis: int | None, place: int) -> Array:
    return array if axis is None else array[(slice(None),) * axis + (slice(place, place + 1),)]


def _evaluate(graph: Graph, op: Operator, way: _Slice, inputs: list[Array]) -> tuple[Array, ...]:
    """The results of an operator for one place."""
    attributes = dict(op.attributes)
    for name, index in way.counts:
        value = attributes[name]
        assert isinstance(value, tuple)
        attributes[name] = (*value[:index], 1, *value[index + 1 :])
    bound = bind(op, graph.tensors)
    takes = tuple(TensorType(a.shape, t.dtype) for a, t in zip(inputs, bound.inputs, strict=True))
    gives = []
    for type, axis in zip(bound.outputs, way.outputs, strict=True):
        shape = type.shape if axis is None else (*type.shape[:axis], 1, *type.shape[axis + 1 :])
        gives.append(TensorType(shape, type.dtype))
    with np.errstate(all="ignore"):
        return spec(op.kind).evaluate(Bound(attributes, takes, tuple(gives)), inputs)


def _same(a: Array, b: Array) -> bool:
    if a.shape != b.shape:
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    finite = np.abs(b[np.isfinite(b)])
    return bool(np.allclose(a, b, rtol=0, atol=_CLOSE * float(finite.max(initial=0.0)) + 1e-30, equal_nan=True))
