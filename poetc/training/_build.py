"""Graph → TrainingGraph: forward in training mode, loss, backward, updates."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import numpy as np

from poetc.errors import UsageError, format_count
from poetc.graph import Attribute, DType, Fill, Graph, Operator, Phase, Role, TensorType, TrainingGraph
from poetc.ops import Builder, spec
from poetc.ops.losses import LOSSES, LossPlan
from poetc.ops.optimizers import OPTIMIZERS
from poetc.training._adapters import SITE
from poetc.training._attention import join_attention
from poetc.training._autodiff import depends_on, differentiate
from poetc.training._channels import Part, declare_parts, part_of
from poetc.training._loss import emit_sum, plan_losses
from poetc.training._micro import Weights, apart_from, check_state, cut_of, renamed
from poetc.training._notes import notes_of_import
from poetc.training._optimizer import Optimizer, coded_parameters
from poetc.training._restored_norms import require_statistics
from poetc.training._selection import (
    layer_notes,
    select_parameters,
    select_updates,
    trained_parameters,
    values_by_pattern,
)
from poetc.training._splits import partial_sum, with_names
from poetc.training._state import emit_update
from poetc.training._terms import Term

if TYPE_CHECKING:
    from poetc.training.options import TrainingOptions


def build(
    graph: Graph, options: TrainingOptions, part: Graph | None = None, *, names_sums: bool = False
) -> TrainingGraph:
    """The whole training step of `graph`. Raises UsageError where the options do not fit the model.

    With `options.micro_batches` above 1, `part` is the model at that part of the batch. Its forward and backward pass
    follow one another for each part of the inputs. Gradients are added up in that order, and the last part updates.
    `names_sums`: sums over the first rows have the names of `partial_sum`.
    """
    count = options.micro_batches
    if count == "auto":
        raise UsageError("--micro-batches auto is for solving; give a number here")
    if count > 1:
        if part is None:
            raise UsageError(f"--micro-batches {count}: needs the model at a part of the batch")
        check_state(graph, part, count)
        part = apart_from(graph, part)
    if options.fusion:
        trained = select_parameters(graph, options.train, options.lora)
        joined = join_attention(graph, trained, drops=bool(options.dropout))
        graph, part = joined, part and join_attention(part, trained, drops=bool(options.dropout))
    step = _Step(graph, part if count > 1 and part is not None else graph, options, count)
    graph_of_step = step.build()
    return with_names(graph_of_step, step.sums) if names_sums else graph_of_step


class _Step:
    """`whole` has the caller's inputs and the trained parameters; `part` runs `count` times."""

    def __init__(self, whole: Graph, part: Graph, options: TrainingOptions, count: int) -> None:
        self.whole, self.part, self.options, self.count = whole, part, options, count
        self.selected = select_updates(whole, options.train, options.lora)
        self.trained = trained_parameters(whole, self.selected)
        self.rates = values_by_pattern(whole, "--lr-for", options.lr_for, self.trained, 1.0)
        self.decays = values_by_pattern(
            whole, "--weight-decay-for", options.weight_decay_for, self.trained, options.weight_decay
        )
        decayed = frozenset(name for name, decay in self.decays.items() if decay)
        self.shifts = _cancelled_shifts(whole, self.trained, options) - decayed  # decay moves them all the same
        self.trained -= self.shifts
        self.cuts = {i: cut_of(i, whole.tensors[i].type, part.tensors[i].type, count) for i in part.inputs}
        self.b = Builder()
        self.updates: dict[str, str] = {}
        self.gradients: dict[str, str] = {}  # of the parts so far
        self.sums: dict[str, str] = {}  # tensor -> partial_sum, but for that of all parts

    def build(self) -> TrainingGraph:
        b, whole, options = self.b, self.whole, self.options
        plans, plans_of_part = plan_losses(whole, options), plan_losses(self.part, options)
        tensors = {**self.part.tensors, **{i: whole.tensors[i] for i in whole.inputs}}
        _declare(b, replace(self.part, tensors=tensors), self.trained, options)
        notes = notes_of_import(whole, self.trained)
        notes += [*(plan.note for plan in plans), *layer_notes(whole, options.train)]
        step = _step_counter(b, whole, options, self.updates, notes)
        parts = declare_parts(b, whole, self.selected)
        codes = coded_parameters(whole)
        optimizer = Optimizer(b, options, self.rates, self.decays, self.updates, step, parts, codes)
        if self.count > 1 and (kind := next((term.kind for term in options.losses() if _compares_rows(term)), "")):
            raise UsageError(f"--micro-batches {self.count}: --loss {kind} compares all rows of a batch")
        targets = _targets(b, plans)
        cuts = [
            cut_of("the target", mine.target, of_part.target, self.count)
            for mine, of_part in zip(plans, plans_of_part, strict=True)
        ]
        weights: list[Weights] = []
        seed = None
        if self.count > 1:
            if None in cuts or not any(self.cuts.values()):
                raise UsageError(f"--micro-batches {self.count}: the output that is trained has no batch axis")
            notes += self._notes(next(cut.size for cut in cuts if cut is not None))
            weights = [Weights(b, self.count, t, p.attributes) for t, p in zip(targets, plans, strict=True)]
        if len(plans) > 1 or plans[0].weight != 1 or options.accumulate:
            hint = "accumulated_share" if options.accumulate else "one"
            value = np.array(1 / (options.accumulate or 1), np.float32)
            seed = b.add_tensor(b.fresh(hint), TensorType(()), Role.CONSTANT, value)
        losses: list[str] = []
        logits: list[str] = []
        late: list[tuple[Operator, str, str]] = []
        for index in range(self.count):
            first = len(b.operators)
            b.phase, b.role, b.source = Phase.FORWARD, Role.ACTIVATION, ""
            graph, sources = self._part(index, [plan.source for plan in plans_of_part])
            saved: dict[str, tuple[str, str]] = {}
            late += _forward(b, graph, sources, self.trained, options, self.updates, step, parts, saved)
            used = (t for op in b.operators for t in (*op.inputs, *op.outputs))
            if empty := next((t for t in used if b.type(t).elements == 0), None):
                raise UsageError(f"{whole.name}: tensor {empty!r} has no elements; there is nothing to train on")
            b.phase, b.source = Phase.LOSS, ""
            terms: list[str] = []
            weight = seed
            for k, (plan, source) in enumerate(zip(plans_of_part, sources, strict=True)):
                cut, mine = cuts[k], targets[k]
                if cut is not None:
                    mine = cut.take(b, mine, index, b.fresh(_of_part(mine, index)))
                share = weights[k].of(mine) if weights else None
                term = plan.emit(b, source, mine)
                if share is not None and seed is not None:
                    term = b.emit1("Mul", [term, share], hint=f"{term}.weighted")
                elif share is not None:
                    weight = share
                terms.append(term)
            loss = terms[0] if seed is None else emit_sum(b, plans, terms)
            if loss not in depends_on(b.operators[first:], self.trained):
                raise UsageError(
                    f"{whole.name}: the loss does not depend on any trained parameter (--train {options.train})"
                )
            logits.append(sources[0])
            counted = weight is None or weight == seed
            losses.append(loss if counted else b.emit1("Mul", [loss, str(weight)], hint=f"{loss}.weighted"))
            if index:
                losses.append(b.emit1("Add", [losses.pop(), losses.pop()], hint="loss.sum"))
            b.phase = Phase.BACKWARD
            last = index == self.count - 1
            if not last:
                self.sums[losses[0]] = partial_sum("loss", index + 1, self.count)

            def complete(parameter: str, gradient: str, last: bool = last, number: int = index + 1) -> None:
                if parameter in self.gradients:
                    gradient = b.emit1("Add", [self.gradients[parameter], gradient], hint=f"{parameter}.grad.sum")
                self.gradients[parameter] = gradient
                if not last:
                    self.sums.setdefault(gradient, partial_sum(f"{parameter}.grad", number, self.count))
                if last:
                    optimizer.update(parameter, gradient)

            differentiate(b, loss, self.trained, complete, first=first, weight=weight, saved=saved)
        optimizer.finish()
        if options.batch_norm == "restore":
            require_statistics(b.operators, b.tensors)
        if options.accumulate:
            notes.append(f"gradients are averaged over {options.accumulate} steps, and the last of them updates")
        for statistics in late:
            _move_statistics(b, *statistics, self.updates)
        unreached = sorted(self.trained - self.gradients.keys())
        if self.shifts:
            biases = format_count(len(self.shifts), "bias", "biases")
            notes.append(f"{biases} in front of a norm: the gradient is zero, and nothing is trained")
        if unreached:
            parameters = format_count(len(unreached), "parameter")
            notes.append(f"{parameters} without a gradient from this loss: {', '.join(unreached[:5])}")
        labels = {plan.labels for plan in plans}
        inputs = tuple(i for i in whole.inputs if i not in labels or any(i in op.inputs for op in b.operators))
        inputs += tuple(targets[1:])
        outputs = (losses[0], *(self._whole_of(logits, plans[0]) if options.output_logits else ()))
        built = _finish(
            b, whole, inputs, outputs, targets[0], self.gradients, self.shifts, self.updates, options, notes
        )
        like_outputs = (replace(p.samples, subject=t) for p, t in zip(plans, targets, strict=True) if p.samples)
        return replace(built, facts=(*built.facts, *like_outputs))

    def _part(self, index: int, sources: list[str]) -> tuple[Graph, list[str]]:
        """The graph of micro-batch `index`, those inputs that `sources` depend on cut out of the caller's."""
        if self.count == 1:
            return self.part, sources
        b = self.b
        needed = set(sources)
        for op in reversed(self.part.operators):
            if not needed.isdisjoint(op.outputs):
                needed.update(op.inputs)
        names = {t: b.fresh(_of_part(t, index)) for op in self.part.operators for t in op.outputs}
        for name, cut in self.cuts.items():
            if cut is not None and name in needed:
                names[name] = cut.take(b, name, index, b.fresh(_of_part(name, index)))
        return renamed(self.part, names), [names.get(source, source) for source in sources]

    def _whole_of(self, parts: list[str], plan: LossPlan) -> list[str]:
        """The input of the loss, of all micro-batches as one tensor under the name that the model gives it."""
        if len(parts) == 1:
            return parts
        b, name = self.b, plan.source
        cut = cut_of(name, self.whole.tensors[name].type, b.type(parts[0]), self.count)
        assert cut is not None
        b.phase, b.role, b.source = Phase.FORWARD, Role.ACTIVATION, ""
        return list(b.emit("Concat", parts, {"axis": cut.axis}, outputs=[name]))

    def _notes(self, rows: int) -> list[str]:
        notes = [f"{self.count} micro-batches of {rows}: their gradients are added up, then one update"]
        if any(_is_on_batch(self.part, op, self.trained, self.options) for op in self.part.operators):
            notes.append(
                f"batch-norm takes its statistics from each micro-batch of {rows}, as PyTorch does when it accumulates"
                " gradients; its running statistics move once for each, so results are not those of the whole batch"
            )
        return notes


def _targets(b: Builder, plans: Sequence[LossPlan]) -> list[str]:
    """The target of each loss: that of the first is the target of the step, others are inputs after the model's."""
    first = b.add_tensor(b.fresh("target"), plans[0].target, Role.TARGET)
    others = [b.add_tensor(b.fresh(f"target.{plan.output}"), plan.target, Role.INPUT) for plan in plans[1:]]
    return [first, *others]


def _of_part(name: str, index: int) -> str:
    return f"{name}~{index + 1}"


def _compares_rows(term: Term) -> bool:
    return term.kind != "auto" and LOSSES[term.kind].compares_rows


def takes_batch_statistics(graph: Graph, options: TrainingOptions) -> bool:
    """Whether the weight of a sample depends on the other samples of its batch (batch-norm, losses of pairs)."""
    if any(_compares_rows(term) for term in options.losses()):
        return True
    trained = select_parameters(graph, options.train, options.lora)
    return any(_is_on_batch(graph, op, trained, options) for op in graph.operators)


def _cancelled_shifts(graph: Graph, trained: frozenset[str], options: TrainingOptions) -> frozenset[str]:
    """Biases of convolutions whose output only an instance norm reads, or a batch-norm in training mode.

    Subtracting the mean takes any shift away again.

    So the gradient is zero, and computing it would give nothing but rounding errors.
    """
    readers: dict[str, list[Operator]] = {}
    for op in graph.operators:
        for tensor in op.inputs:
            readers.setdefault(tensor, []).append(op)

    def takes_away(tensor: str) -> bool:
        reading = readers.get(tensor, [])
        return bool(reading) and tensor not in graph.outputs and all(map(ignores_shift, reading))

    def ignores_shift(op: Operator) -> bool:
        shape = graph.tensors[op.inputs[0]].shape
        if op.kind == "Reshape":
            return graph.tensors[op.outputs[0]].shape[:2] == shape[:2] and takes_away(op.outputs[0])
        one_group_a_channel = op.kind == "GroupNorm" and op.attributes["groups"] == shape[1]
        return one_group_a_channel or _is_on_batch(graph, op, trained, options)

    return frozenset(
        op.inputs[2]
        for op in graph.operators
        if op.kind in ("Conv", "ConvTranspose")
        and len(op.inputs) > 2
        and op.inputs[2] in trained
        and len(readers[op.inputs[2]]) == 1
        and takes_away(op.outputs[0])
    )


def _uses_batch_statistics(graph: Graph, op: Operator, trained: frozenset[str], options: TrainingOptions) -> bool:
    """A batch-norm whose scale or shift is trained takes its statistics from the batch.

    A frozen one keeps the running statistics, as fine-tuning of the last layers wants it. So does one whose statistics
    are no tensors of the file, but computed of some: there is nothing that could be moved.
    """
    return (
        op.kind == "BatchNormApply"
        and options.batch_norm != "frozen"
        and not trained.isdisjoint(op.inputs[3:5])
        and all(graph.tensors[t].role.is_state for t in op.inputs[1:3])
    )


def _is_on_batch(graph: Graph, op: Operator, trained: frozenset[str], options: TrainingOptions) -> bool:
    """Whether an operator is a batch-norm on the statistics of the batch, in the file itself or in its training."""
    computed = op.kind == "BatchNormApply" and bool(op.attributes.get("training"))
    return computed or _uses_batch_statistics(graph, op, trained, options)


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
    sources: Sequence[str],
    trained: frozenset[str],
    options: TrainingOptions,
    updates: dict[str, str],
    step: str,
    parts: Mapping[str, Part],
    saved: dict[str, tuple[str, str]],
) -> list[tuple[Operator, str, str]]:
    """Copy the part of `sources` that the loss needs, batch-norms and dropout in the mode that they are trained in.

    Returns the batch-norms (with the batch's mean and variance) whose running statistics another operator reads too.
    Those are to be moved when the step is over.

    `saved` gets the channels of the inputs of weights in `parts`, as `differentiate` wants them.
    """
    readers = Counter(t for op in graph.operators for t in op.inputs)
    late: list[tuple[Operator, str, str]] = []
    needed = set(sources)
    for op in reversed(graph.operators):
        if not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
    for op in graph.operators:
        if needed.isdisjoint(op.outputs):
            continue
        b.source = op.source
        part = part_of(parts, op)
        if part is not None:
            saved[op.outputs[0]] = part.of_input(b, op, b.fresh(f"{op.inputs[0]}.saved")), part.like
        if _uses_batch_statistics(graph, op, trained, options):
            statistics = _batch_norm(b, op)
            if any(readers[t] > 1 for t in op.inputs[1:3]):
                late.append(statistics)
            else:
                _move_statistics(b, *statistics, updates)
        elif op.kind == "DropoutSite" and (options.dropout or SITE in op.attributes):
            b.emit("Dropout", [op.inputs[0], step], _dropout_attributes(op, options), outputs=op.outputs)
        elif op.kind == "RandomSite":
            _draw(b, op, step, graph.tensors[op.outputs[0]].shape, options)
        elif op.kind == "DropoutSite":
            b.emit("Reshape", op.inputs, {"shape": graph.tensors[op.outputs[0]].shape}, outputs=op.outputs)
        elif options.fusion or not spec(op.kind).apart(b, op):
            b.emit(op.kind, op.inputs, op.attributes, outputs=op.outputs)
    return late


def _dropout_attributes(op: Operator, options: TrainingOptions) -> dict[str, Attribute]:
    return {"ratio": op.attributes["ratio"], "seed": _key(op.outputs[0], options)}


def _key(name: str, options: TrainingOptions) -> int:
    """Every place draws its own numbers: the key of the generator is made of the user's seed and the tensor's name."""
    word = hashlib.sha256(f"{options.dropout_seed}:{name}".encode()).digest()[:4]
    return int.from_bytes(word, "little", signed=True)


def _draw(b: Builder, op: Operator, step: str, shape: tuple[int, ...], options: TrainingOptions) -> None:
    """Random numbers in place of a RandomSite; normal ones after Box and Muller (1958)."""
    (name,) = op.outputs
    mean, deviation, width = (float(op.attributes[k]) for k in ("mean", "deviation", "width"))  # type: ignore[arg-type]

    def uniform(part: str) -> str:
        return b.emit1("RandomUniform", [step], {"shape": shape, "seed": _key(f"{name}{part}", options)})

    numbers, scale, shift = uniform(""), width, mean - width / 2
    if deviation:
        radius = b.emit1("Sqrt", [b.emit1("Affine", [b.emit1("Log", [numbers])], {"alpha": -2.0, "beta": 0.0})])
        turned = b.emit1("Affine", [uniform(".angle")], {"alpha": 2 * math.pi, "beta": 0.0})
        numbers = b.emit1("Mul", [radius, b.emit1("Cos", [turned])])
        scale, shift = deviation, mean
    b.emit("Affine", [numbers], {"alpha": scale, "beta": shift}, outputs=op.outputs)


def _step_counter(b: Builder, graph: Graph, options: TrainingOptions, updates: dict[str, str], notes: list[str]) -> str:
    """The number of the step now running (1 in the first), where the optimizer or dropout reads it; else ""."""
    sites = sum(op.kind == "DropoutSite" and SITE not in op.attributes for op in graph.operators)
    drops = any(op.kind == "DropoutSite" and (options.dropout or SITE in op.attributes) for op in graph.operators)
    drops = drops or any(op.kind == "RandomSite" for op in graph.operators)
    if sites and not options.dropout:
        notes.append(f"{sites} Dropout operators drop nothing (--dropout makes them)")
    optimizer_counts = OPTIMIZERS[options.optimizer].counts_steps and not options.accumulate
    optimizer_counts = optimizer_counts or bool(coded_parameters(graph))  # whose updates draw numbers in each step
    if not optimizer_counts and not drops:
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


def _finish(
    b: Builder,
    graph: Graph,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    target: str,
    gradients: dict[str, str],
    zero_gradients: frozenset[str],
    updates: dict[str, str],
    options: TrainingOptions,
    notes: list[str],
) -> TrainingGraph:
    """Drop unneeded operators and freeze. The first of `outputs` is the loss."""
    needed = {*outputs, *updates.values()}
    operators: list[Operator] = []
    for op in reversed(b.operators):
        if not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
            operators.append(op)
    operators.reverse()
    results = {t for op in operators for t in op.outputs}
    state = {*updates, target, *inputs}
    tensors = {n: t for n, t in b.tensors.items() if n in needed or n in results or n in state}
    return TrainingGraph(
        name=graph.name,
        tensors=tensors,
        operators=tuple(operators),
        inputs=tuple(i for i in inputs if i in tensors),
        outputs=outputs,
        values={n: v for n, v in b.values.items() if n in tensors},
        notes=tuple(notes),
        loss=outputs[0],
        target=target,
        gradients={n: g for n, g in sorted(gradients.items()) if g in tensors},  # others are never stored
        zero_gradients=tuple(sorted(zero_gradients)),
        updates=dict(sorted(updates.items())),
        facts=tuple(f for f in graph.facts if f.kind == "batch axis" and f.subject in inputs),
        options={name: value for name, value in sorted(asdict(options).items()) if value not in (None, ())},
    )
