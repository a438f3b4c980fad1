"""Loop and Scan unrolled, and the branch of an If: their bodies become nodes of the graph around them.

The number of steps, and the branch, must not depend on the model's inputs. Nodes of a body that every step would repeat
with the same operands are translated once, so that a weight stays one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from poetc.errors import format_count
from poetc.frontend import _folding
from poetc.frontend._importer import MOST_OPERATORS, Importer, Value
from poetc.frontend._node import Malformed, Node, Unsupported, normalize_axis
from poetc.frontend._reading import is_float, read_tensor, widened
from poetc.graph import Origin

CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
_MOST_STEPS = 10_000
_TYPICAL = 2  # the step that others are as large as; the first may begin with zeros
_ENDLESS = 2**31 - 1
_COUNTING = frozenset(
    {"Add", "Sub", "Mul", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "Not", "And", "Or", "Cast"}
    | {"Identity", "Squeeze"}
)

Translate = Callable[[Node], None]


def unrolled(c: Importer, n: Node, translate: Translate) -> list[Value]:
    """The outputs of a Loop, Scan or If. `translate` takes a node of its body, with names that exist once."""
    return {"If": _branch, "Loop": _loop, "Scan": _scan, "SequenceMap": _map}[n.op](c, n, translate)


class _Body:
    """A subgraph whose nodes are translated again and again, under new names each time."""

    def __init__(self, c: Importer, n: Node, graph: onnx.GraphProto, translate: Translate) -> None:
        self.c, self.owner, self.graph, self.translate = c, n, graph, translate
        self.label = n.name or n.op
        self.inputs = [i.name for i in graph.input]
        self.shared: dict[str, str] = {}  # names in the body → values that all steps have
        for tensor in graph.initializer:
            self.shared[tensor.name] = self._initializer(tensor)
        own = {o for node in graph.node for o in node.output}
        self.read = {i for node in graph.node for i in Node(node).reads} | {o.name for o in graph.output}
        self.each: list[onnx.NodeProto] = []
        for node in graph.node:
            fixed = all(i in self.shared or (i not in own and i not in self.inputs) for i in Node(node).reads if i)
            if fixed and node.op_type not in _folding.NOT_FOLDABLE and node.op_type not in CONTROL_FLOW:
                self._translate([node], self.shared, "")
            else:
                self.each.append(node)

    def _fresh(self, name: str) -> str:
        free, number = name, self.c.copies.get(name, 1)
        while free in self.c.values:
            number += 1
            free = f"{name}.{number}"
        self.c.copies[name] = number
        return free

    def _initializer(self, tensor: onnx.TensorProto) -> str:
        array = read_tensor(tensor, Path())
        if array is None:
            raise Unsupported("a weight of its body that is external data")
        array, name = widened(array), self._fresh(tensor.name)
        weight = is_float(array.dtype) and array.size > 1
        origin = Origin(tensor.name, "initializer", array.dtype.name)
        self.c.values[name] = Value(name, array.shape, array.dtype, array, weight=weight, in_file=True, origin=origin)
        return name

    def bind(self, value: Value, name: str) -> str:
        """A name for a value that a step is given."""
        name = self._fresh(name)
        self.c.values[name] = value
        return name

    def first(self, names: Sequence[str]) -> list[str]:
        """The states before the first step. Zeros are a place to start from, and no weight."""
        values = [self.c.value(name) for name in names]
        return [
            self.bind(self.c.constant(self.c.array(v)), f"{self.label}.zeros")
            if isinstance(v.array, np.ndarray) and self.c.is_zero(v)
            else name
            for name, v in zip(names, values, strict=True)
        ]

    def step(self, operands: Sequence[str], suffix: str) -> list[str]:
        """The names of the body's outputs when its inputs are these values."""
        if len(operands) != len(self.inputs):
            raise Malformed(f"its body has {len(self.inputs)} inputs, not {len(operands)}")
        names = {**self.shared, **dict(zip(self.inputs, operands, strict=True))}
        self._translate(self.each, names, suffix)
        return [names.get(o.name, o.name) for o in self.graph.output]

    def _translate(self, nodes: Sequence[onnx.NodeProto], names: dict[str, str], suffix: str) -> None:
        for node in nodes:
            for o in node.output:
                if o:
                    names[o] = self._fresh(f"{o}{suffix}")
            copy = Node(_renamed(node, names))
            copy.keep_outputs({names[o] for o in node.output if o in self.read})
            self.c.node, self.c.builder.source = copy, copy.name
            try:
                self.translate(copy)
            except Unsupported as reason:
                raise Unsupported(f"{copy.label} in its body: {reason}") from None
        self.c.node = self.owner
        self.c.builder.source = self.label


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = [names.get(i, i) for i in node.input]
    copy.output[:] = [names.get(o, o) for o in node.output]
    for a in copy.attribute:
        for graph in (*([a.g] if a.HasField("g") else []), *a.graphs):
            own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
            own |= {o for inner in graph.node for o in inner.output}
            outer = {k: v for k, v in names.items() if k not in own}
            for k, inner in enumerate(graph.node):
                graph.node[k].CopyFrom(_renamed(inner, outer))
            for o in graph.output:
                o.name = outer.get(o.name, o.name)
    return copy


def _truth(c: Importer, value: Value, what: str) -> bool:
    """A condition that does not depend on the model's inputs."""
    if not value.known:
        raise Unsupported(f"{what} that depends on the model's inputs; --constant NAME=VALUE binds an integer input")
    return bool(_one(c.array(value).reshape(-1).tolist(), what))


def _one(values: Sequence[Any], what: str) -> Any:
    if len(values) != 1:
        raise Malformed(f"{what} of {len(values)} elements, not of one")
    return values[0]


def _branch(c: Importer, n: Node, translate: Translate) -> list[Value]:
    taken = _truth(c, c.input(n, 0), "a branch")
    body = _Body(c, n, n.get_graph("then_branch" if taken else "else_branch"), translate)
    return [c.value(name) for name in body.step([], "")]


def _loop(c: Importer, n: Node, translate: Translate) -> list[Value]:
    most, going = c.optional(n, 0), c.optional(n, 1)
    if most is not None and not most.known:
        raise Unsupported("a number of steps that depends on the model's inputs; --constant NAME=VALUE binds one")
    steps = _ENDLESS if most is None else int(_one(c.ints(most, "the number of steps"), "a number of steps"))
    goes_on = going is None or _truth(c, going, "a condition")
    body = _Body(c, n, n.get_graph("body"), translate)
    if not all(n.inputs[2:]):
        raise Malformed("a state has no first value")
    states, collected, t = body.first(n.inputs[2:]), list[list[str]](), 0
    while goes_on and t < steps:
        before = len(c.builder.operators)
        number = body.bind(c.constant(np.array(t, np.int64)), f"{body.label}.step.{t}")
        condition = body.bind(c.constant(np.array(True)), f"{body.label}.condition.{t}")
        results = body.step([number, condition, *states], f".{t}")
        states, parts = results[1 : 1 + len(states)], results[1 + len(states) :]
        collected = [[*before, part] for before, part in zip(collected or [[] for _ in parts], parts, strict=True)]
        t += 1
        goes_on = t == steps or _truth(c, c.value(results[0]), "a condition")
        if t == _TYPICAL and goes_on:
            _check_room(c, body, results[: 1 + len(states)], t, steps, len(c.builder.operators) - before)
        _check_steps(t)
    _say(c, n, t)
    return [*(c.value(s) for s in states), *(_joined(c, parts, 0) for parts in collected)]


def _check_room(c: Importer, body: _Body, carried: Sequence[str], t: int, steps: int, each: int) -> None:
    """Unsupported where `steps` steps of `each` operators are too many, before they are made.

    `carried`: the condition and the states after `t` steps.
    """
    if any(node.op_type in CONTROL_FLOW for node in body.each):
        return  # a step may be smaller than another
    room = _MOST_STEPS - t
    if each:
        room = min(room, (MOST_OPERATORS - len(c.builder.operators)) // each)
    if t + room < steps and _goes_on(c, body, carried, t, room):
        size = f" of {each:,} operator{'s' * (each > 1)}, and the model may have {MOST_OPERATORS:,}" if each else ""
        raise Unsupported(f"more than {t + room:,} steps{size}")


def _goes_on(c: Importer, body: _Body, carried: Sequence[str], t: int, count: int) -> bool:
    """Whether a Loop's condition holds for `count` more steps: only the nodes that it depends on are computed.

    False where that is not arithmetic on single numbers: other nodes may need any amount of memory.
    """
    graph, (number, *inputs) = body.graph, body.inputs
    outputs = [o.name for o in graph.output]
    following, now = dict(zip(inputs, outputs, strict=False)), dict(zip(inputs, carried, strict=True))
    made_by = {o: node for node in graph.node for o in node.output}
    waiting, seen = [outputs[0]], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            if name in following:
                waiting.append(following[name])
            elif name in made_by and name not in body.shared:
                waiting += [i for i in Node(made_by[name]).reads if i]
    nodes = [node for node in graph.node if any(o in seen and o not in body.shared for o in node.output)]
    inner = {o for node in nodes for o in node.output}
    values = {name: c.value(now.get(name) or body.shared.get(name, name)) for name in seen - inner - {number}}
    if not all(v.known and v.elements == 1 for v in values.values()) or any(n.op_type not in _COUNTING for n in nodes):
        return False
    feeds = {name: c.array(v) for name, v in values.items()} | {number: np.array(t, np.int64)}
    changing = {i: o for i, o in following.items() if i in seen}
    wanted = list(dict.fromkeys((outputs[0], *changing.values())))
    condition = onnx.helper.make_graph(
        nodes,
        "condition",
        [onnx.ValueInfoProto(name=name) for name in feeds],
        [onnx.ValueInfoProto(name=name) for name in wanted],
    )
    model = onnx.helper.make_model(condition, opset_imports=[onnx.helper.make_opsetid("", c.opset)])
    from onnx.reference import ReferenceEvaluator  # as in _folding

    try:
        evaluator = ReferenceEvaluator(model)
        for step in range(t, t + count):
            feeds[number] = np.array(step, np.int64)
            with np.errstate(all="ignore"):
                computed = dict(zip(wanted, evaluator.run(None, feeds), strict=True))
            if not np.all(computed[outputs[0]]):
                return False
            feeds |= {i: np.asarray(computed[o]) for i, o in changing.items()}
    except Exception:
        return False  # the unrolled node has the error
    return True


def _scan(c: Importer, n: Node, translate: Translate) -> list[Value]:
    count = n.get_int("num_scan_inputs")
    if c.opset < 9 or not 0 < count <= len(n.inputs):
        raise Unsupported("Scan of operator set 8, or without sequences")
    sequences = [c.value(i) for i in n.inputs[-count:]]
    input_axes = n.get_ints("scan_input_axes") or (0,) * count
    axes = [normalize_axis(a, len(x.shape)) for a, x in zip(input_axes, sequences, strict=True)]
    backwards = n.get_ints("scan_input_directions") or (0,) * count
    lengths = {x.shape[a] for x, a in zip(sequences, axes, strict=True)}
    if len(lengths) != 1:
        raise Malformed(f"its sequences have lengths {sorted(lengths)}")
    (length,) = lengths
    body = _Body(c, n, n.get_graph("body"), translate)
    states, collected = body.first(n.inputs[:-count]), list[list[str]]()
    _check_steps(length)
    for t in range(length):
        rows = []
        for x, axis, back in zip(sequences, axes, backwards, strict=True):
            rows.append(body.bind(_row(c, x, axis, length - 1 - t if back else t), f"{body.label}.row.{t}"))
        results = body.step([*states, *rows], f".{t}")
        states, parts = results[: len(states)], results[len(states) :]
        collected = [[*before, part] for before, part in zip(collected or [[] for _ in parts], parts, strict=True)]
    _say(c, n, length)
    out_axes = n.get_ints("scan_output_axes") or (0,) * len(collected)
    turned = n.get_ints("scan_output_directions") or (0,) * len(collected)
    joins = zip(collected, out_axes, turned, strict=True)
    return [
        *(c.value(s) for s in states),
        *(_joined(c, parts[::-1] if back else parts, axis) for parts, axis, back in joins),
    ]


def _map(c: Importer, n: Node, translate: Translate) -> list[Value]:
    """The body once for each member; further inputs are sequences of the same length, or tensors for all."""
    inputs = [c.value(i) for i in n.inputs]
    if not inputs or not inputs[0].is_sequence:
        raise Malformed("its first input is not a sequence")
    length = len(inputs[0].sequence)
    if any(v.is_sequence and len(v.sequence) != length for v in inputs):
        raise Malformed("its sequences have different lengths")
    body = _Body(c, n, n.get_graph("body"), translate)
    results: list[list[Value]] = [[] for _ in body.graph.output]
    for t in range(length):
        names = [body.bind(v.sequence[t] if v.is_sequence else v, f"{body.label}.member.{t}") for v in inputs]
        for result, name in zip(results, body.step(names, f".{t}"), strict=True):
            result.append(c.value(name))
    return [
        Value(o, (), np.dtype(np.float32), sequence=r, is_sequence=True)
        for o, r in zip(n.outputs, results, strict=False)
    ]


def _check_steps(steps: int) -> None:
    if steps > _MOST_STEPS:
        raise Unsupported(f"more than {_MOST_STEPS:,} steps")


def _say(c: Importer, n: Node, steps: int) -> None:
    c.note(f"{n.label} is unrolled into its {format_count(steps, 'step')}")


def _row(c: Importer, x: Value, axis: int, t: int) -> Value:
    """x[t] along an axis, without that axis."""
    if x.known and not x.weight:
        return c.constant(np.asarray(c.array(x).take(t, axis)))
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return Value(x.name, shape, x.dtype, tensor=c.reshape(c.axis_slice(x, axis, t, 1), shape))


def _joined(c: Importer, names: Sequence[str], axis: int) -> Value:
    """The results of all steps along a new axis."""
    parts = [c.value(name) for name in names]
    if any(p.shape != parts[0].shape for p in parts):
        raise Malformed("its steps make results of different shapes")
    axis = normalize_axis(axis, len(parts[0].shape) + 1)
    if all(p.known and not p.weight for p in parts):
        return c.constant(np.stack([c.array(p) for p in parts], axis))
    shape = (*parts[0].shape[:axis], 1, *parts[0].shape[axis:])
    rows = [c.reshape(p, shape) for p in parts]
    joined = rows[0] if len(rows) == 1 else c.emit1("Concat", rows, {"axis": axis})
    return Value(names[0], c.shape(joined), parts[0].dtype, tensor=joined)
