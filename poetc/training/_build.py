"""Graph → TrainingGraph: forward in training mode, loss, backward, updates."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import asdict

import numpy as np

from poetc.errors import UsageError
from poetc.graph import Attribute, DType, Fill, Graph, Operator, Phase, Role, TensorType, TrainingGraph
from poetc.ops import Builder, spec
from poetc.training._autodiff import depends_on, differentiate
from poetc.training._loss import LossPlan, plan_loss
from poetc.training._options import TrainingOptions
from poetc.training._selection import select_parameters

SCALAR = TensorType((1,))


def build(graph: Graph, options: TrainingOptions) -> TrainingGraph:
    """The whole training step of `graph`. Raises UsageError where the options do not fit the model."""
    trained = select_parameters(graph, options.train)
    shifts = _cancelled_shifts(graph, trained, options)
    trained -= shifts
    loss_plan = plan_loss(graph, options)
    b = Builder()
    updates: dict[str, str] = {}
    _declare(b, graph, trained, options)
    notes = [*graph.notes, loss_plan.note]
    step = _step_counter(b, graph, options, updates, notes)
    optimizer = _Optimizer(b, options, updates, step)
    late = _forward(b, graph, loss_plan, trained, options, updates, step)
    empty = next((t for op in b.operators for t in (*op.inputs, *op.outputs) if b.type(t).elements == 0), None)
    if empty is not None:
        raise UsageError(f"{graph.name}: tensor {empty!r} has no elements; there is nothing to train on")

    b.phase, b.source = Phase.LOSS, ""
    target = b.add_tensor(b.fresh("target"), loss_plan.target, Role.TARGET)
    loss = b.emit1(loss_plan.kind, [loss_plan.source, target], loss_plan.attributes, hint="loss")

    reached = depends_on(b.operators, trained)
    if loss not in reached:
        raise UsageError(f"{graph.name}: the loss does not depend on any trained parameter (--train {options.train})")
    gradients: dict[str, str] = {}
    b.phase = Phase.BACKWARD

    def complete(parameter: str, gradient: str) -> None:
        gradients[parameter] = gradient
        optimizer.update(parameter, gradient)

    differentiate(b, loss, trained, complete)
    for statistics in late:
        _move_statistics(b, *statistics, updates)
    unreached = sorted(trained - gradients.keys())
    if shifts:
        notes.append(f"{len(shifts)} biases in front of batch-norm have gradient zero and are not trained")
    if unreached:
        notes.append(f"{len(unreached)} parameters get no gradient from this loss: {', '.join(unreached[:5])}")
    inputs = tuple(i for i in graph.inputs if i != loss_plan.labels or any(i in op.inputs for op in b.operators))
    return _finish(b, graph, inputs, loss, target, gradients, shifts, updates, options, notes)


def _cancelled_shifts(graph: Graph, trained: frozenset[str], options: TrainingOptions) -> frozenset[str]:
    """Biases of convolutions whose output only a batch-norm in training mode reads: subtracting the batch's mean
    takes any shift away again, so the gradient is zero, and computing it would give nothing but rounding errors."""
    if options.batch_norm != "train" or options.weight_decay:
        return frozenset()  # weight decay moves them all the same
    readers: dict[str, list[Operator]] = {}
    for op in graph.operators:
        for tensor in op.inputs:
            readers.setdefault(tensor, []).append(op)
    found = set()
    for op in graph.operators:
        if op.kind != "Conv" or len(op.inputs) < 3 or op.inputs[2] not in trained or op.outputs[0] in graph.outputs:
            continue
        reading = readers.get(op.outputs[0], [])
        alone = len(readers[op.inputs[2]]) == 1
        if alone and reading and all(_uses_batch_statistics(r, trained, options) for r in reading):
            found.add(op.inputs[2])
    return frozenset(found)


def _uses_batch_statistics(op: Operator, trained: frozenset[str], options: TrainingOptions) -> bool:
    """A batch-norm whose scale or shift is trained takes its statistics from the batch; a frozen one keeps the running
    statistics, as fine-tuning of the last layers wants it."""
    return op.kind == "BatchNormApply" and options.batch_norm == "train" and not trained.isdisjoint(op.inputs[3:5])


def _declare(b: Builder, graph: Graph, trained: frozenset[str], options: TrainingOptions) -> None:
    """Tensors that no operator makes, with the roles that they have in training."""
    for name, tensor in graph.tensors.items():
        role = tensor.role
        if role in (Role.ACTIVATION, Role.GRADIENT):
            b.fresh(name)  # reserve: generated names must not collide with the model's
            continue
        if role is Role.PARAMETER and name not in trained:
            role = Role.CONSTANT
        if role is Role.STATISTIC and options.batch_norm == "frozen":
            role = Role.CONSTANT
        b.add_tensor(name, tensor.type, role, graph.values.get(name))


def _forward(
    b: Builder,
    graph: Graph,
    loss_plan: LossPlan,
    trained: frozenset[str],
    options: TrainingOptions,
    updates: dict[str, str],
    step: str,
) -> list[tuple[Operator, str, str]]:
    """Copy what the loss needs, batch-norms and dropout in the mode that they are trained in.

    Returns the batch-norms (with the batch's mean and variance) whose running statistics something else reads too:
    those are to be moved when the step is over.
    """
    readers = Counter(t for op in graph.operators for t in op.inputs)
    late: list[tuple[Operator, str, str]] = []
    needed = {loss_plan.source}
    for op in reversed(graph.operators):
        if not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
    for op in graph.operators:
        if needed.isdisjoint(op.outputs):
            continue
        b.source = op.source
        if _uses_batch_statistics(op, trained, options):
            statistics = _batch_norm(b, op)
            if any(readers[t] > 1 for t in op.inputs[1:3]):
                late.append(statistics)
            else:
                _move_statistics(b, *statistics, updates)
        elif op.kind == "DropoutSite" and options.dropout:
            b.emit("Dropout", [op.inputs[0], step], _dropout_attributes(op, options), outputs=op.outputs)
        elif op.kind == "DropoutSite":
            b.emit("Reshape", op.inputs, {"shape": graph.tensors[op.outputs[0]].shape}, outputs=op.outputs)
        else:
            b.emit(op.kind, op.inputs, op.attributes, outputs=op.outputs)
    return late


def _dropout_attributes(op: Operator, options: TrainingOptions) -> dict[str, Attribute]:
    """Every place draws its own numbers: the key of the generator is made of the user's seed and the tensor's name."""
    word = hashlib.sha256(f"{options.dropout_seed}:{op.outputs[0]}".encode()).digest()[:4]
    return {"ratio": op.attributes["ratio"], "seed": int.from_bytes(word, "little", signed=True)}


def _step_counter(b: Builder, graph: Graph, options: TrainingOptions, updates: dict[str, str], notes: list[str]) -> str:
    """The number of the step now running (1 in the first), where the optimizer or dropout reads it; else ""."""
    sites = sum(op.kind == "DropoutSite" for op in graph.operators)
    if sites and not options.dropout:
        notes.append(f"{sites} Dropout operators drop nothing (--dropout makes them)")
    if options.optimizer not in ("adam", "adamw") and not (sites and options.dropout):
        return ""
    before = b.add_tensor(b.fresh("step"), TensorType((1,), DType.I32), Role.OPTIMIZER_STATE, Fill("zeros"))
    b.phase = Phase.UPDATE
    (updates[before],) = emit_update(b, "StepCount", [before], {})
    b.phase = Phase.FORWARD
    return updates[before]


def _batch_norm(b: Builder, op: Operator) -> tuple[Operator, str, str]:
    """The batch-norm on the statistics of the batch; returns it with their names."""
    x, _, _, scale, bias = op.inputs
    y = op.outputs[0]
    mean, var = b.emit("BatchNormStats", [x], outputs=[b.fresh(f"{y}:mean"), b.fresh(f"{y}:var")])
    b.emit("BatchNormApply", [x, mean, var, scale, bias], {**op.attributes, "training": True}, outputs=[y])
    return op, mean, var


def _move_statistics(b: Builder, op: Operator, mean: str, var: str, updates: dict[str, str]) -> None:
    """Running statistics that several batch-norms share are moved by each in turn; nothing reads the old by then."""
    running = [updates.get(t, t) for t in op.inputs[1:3]]
    phase, b.phase = b.phase, Phase.UPDATE
    new = emit_update(b, "BatchNormUpdate", [*running, mean, var], {"momentum": op.attributes.get("momentum", 0.9)})
    b.phase = phase
    for old, updated in zip(op.inputs[1:3], new, strict=True):
        updates[old] = updated


def emit_update(b: Builder, kind: str, inputs: list[str], attributes: dict[str, object]) -> tuple[str, ...]:
    """Emit an operator that makes the next version of state: outputs are named NAME@K, with the role of NAME."""
    replaces = {output: inputs[i] for i, output in spec(kind).must_alias}
    outputs = []
    for i in range(len(replaces)):
        base, _, version = replaces[i].rpartition("@")
        base, next_version = (base, int(version) + 1) if base and version.isdigit() else (replaces[i], 1)
        outputs.append(b.fresh(f"{base}@{next_version}"))
    role = b.role
    made: list[str] = []
    b.emit(kind, inputs, attributes, outputs=outputs)  # type: ignore[arg-type]
    for i, output in enumerate(outputs):
        tensor = b.tensors[output]
        b.tensors[output] = type(tensor)(output, tensor.type, b.tensors[replaces[i]].role)
        made.append(output)
    b.role = role
    return tuple(made)


class _Optimizer:
    """Declares the optimizer's state as it goes and emits one update operator a parameter."""

    def __init__(self, b: Builder, options: TrainingOptions, updates: dict[str, str], step: str) -> None:
        self._b, self._options, self._updates = b, options, updates
        rate = np.array([options.learning_rate], np.float32)
        self.learning_rate = b.add_tensor(b.fresh("learning_rate"), SCALAR, Role.OPTIMIZER_STATE, rate)
        self.step = step

    def _state(self, parameter: str, suffix: str) -> str:
        b = self._b
        return b.add_tensor(b.fresh(f"{parameter}:{suffix}"), b.type(parameter), Role.OPTIMIZER_STATE, Fill("zeros"))

    def update(self, parameter: str, gradient: str) -> None:
        b, o = self._b, self._options
        phase, b.phase = b.phase, Phase.UPDATE
        decay: dict[str, object] = {"weight_decay": o.weight_decay}
        match o.optimizer:
            case "sgd":
                state = [parameter]
                new = emit_update(b, "Sgd", [parameter, gradient, self.learning_rate], decay)
            case "momentum":
                state = [parameter, self._state(parameter, "velocity")]
                new = emit_update(
                    b,
                    "Momentum",
                    [*state, gradient, self.learning_rate],
                    {**decay, "momentum": o.momentum, "nesterov": False},
                )
            case _:
                state = [parameter, self._state(parameter, "m"), self._state(parameter, "v")]
                new = emit_update(
                    b,
                    "Adam",
                    [*state, gradient, self.learning_rate, self.step],
                    {
                        **decay,
                        "beta1": o.beta1,
                        "beta2": o.beta2,
                        "epsilon": o.epsilon,
                        "decoupled": o.optimizer == "adamw",
                    },
                )
        self._updates.update(zip(state, new, strict=True))
        b.phase = phase


def _finish(
    b: Builder,
    graph: Graph,
    inputs: tuple[str, ...],
    loss: str,
    target: str,
    gradients: dict[str, str],
    zero_gradients: frozenset[str],
    updates: dict[str, str],
    options: TrainingOptions,
    notes: list[str],
) -> TrainingGraph:
    """Drop what nothing needs and freeze."""
    needed = {loss, *updates.values()}
    operators: list[Operator] = []
    for op in reversed(b.operators):
        if not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
            operators.append(op)
    operators.reverse()
    made = {t for op in operators for t in op.outputs}
    state = {*updates, target, *inputs}
    tensors = {n: t for n, t in b.tensors.items() if n in needed or n in made or n in state}
    return TrainingGraph(
        name=graph.name,
        tensors=tensors,
        operators=tuple(operators),
        inputs=tuple(i for i in inputs if i in tensors),
        outputs=(loss,),
        values={n: v for n, v in b.values.items() if n in tensors},
        notes=tuple(notes),
        loss=loss,
        target=target,
        gradients=dict(sorted(gradients.items())),
        zero_gradients=tuple(sorted(zero_gradients)),
        updates=dict(sorted(updates.items())),
        options={name: value for name, value in sorted(asdict(options).items()) if value is not None},
    )
