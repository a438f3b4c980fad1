"""Facts about a model that its training data tell: the axis of classes, and outputs that are probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poetc import frontend, training
from poetc.datasets import (
    Augmentations,
    Batches,
    Normalization,
    Samples,
    Slot,
    fits,
    ignored_by,
    open_source,
    slots_of,
)
from poetc.errors import UsageError
from poetc.events import Progress
from poetc.graph import Array, DType, Graph, TrainingGraph
from poetc.training import TRAINING, TrainingOptions, plan_losses

_OF_CLASSES = next(o.when.values for o in TRAINING if o.name == "class_axis" and o.when is not None)


def decided(
    data: str,
    normalize: str | None,
    graph: Graph,
    step: TrainingGraph,
    options: TrainingOptions,
    note: Progress,
) -> TrainingOptions:
    """`options` with the loss, the axis of classes and the ignored class that `data` tell, where they are left open.

    Raises UsageError where the data contradict a fact about the model, or leave its axis of classes open.
    """
    if len(options.losses()) > 1 or options.losses()[0].output:
        return options
    slots = slots_of(step)
    if not slots or not slots[-1].is_target:
        return options
    (plan,) = plan_losses(graph, options)
    if (ignored := ignored_by(data)) is not None:  # of texts, whose classes are the last axis
        is_open = options.ignore_index is None and plan.kind == "CrossEntropy"
        return replace(options, ignore_index=ignored) if is_open else options
    if options.loss == "auto":
        options = _classes(data, graph, slots, options, note)
    if options.loss == "auto":
        options = _probabilities(data, normalize, graph, slots, options, note)
    if options.loss in _OF_CLASSES and options.class_axis is None:
        options = _class_axis(data, graph, slots, options, note)
    return options


# --- classes of an output that has the shape of an input --------------------------------------------------------------


def _classes(
    data: str, graph: Graph, slots: Sequence[Slot], options: TrainingOptions, note: Progress
) -> TrainingOptions:
    """Cross-entropy where the target is no output to restore, but one class a sample."""
    (plan,) = plan_losses(graph, options)
    name = training.pick_output(graph, options.output)
    shape = graph.tensors[name].shape
    if plan.kind != "MeanSquaredError" or len(shape) != 2 or shape[1] < 2 or fits(data, slots):
        return options
    labels = replace(options, loss="cross-entropy")
    (other,) = plan_losses(graph, labels)
    if not fits(data, [*slots[:-1], _with_target(slots[-1], other.target.shape, other.target.dtype)]):
        return options  # reading the data names the fault
    note(f"loss cross-entropy on output {name!r} {list(shape)}: the target is one class a sample (--loss)")
    return labels


# --- probabilities ----------------------------------------------------------------------------------------------------


def _probabilities(
    data: str, normalize: str | None, graph: Graph, slots: Sequence[Slot], options: TrainingOptions, note: Progress
) -> TrainingOptions:
    """Look at the model's output for the first batch, where neither the graph nor its last layer settles it."""
    (plan,) = plan_losses(graph, options)
    name = training.pick_output(graph, options.output)
    fact = graph.fact("distribution", name)
    settled = plan.source != name or (fact is not None and fact.confidence == "certain")
    if settled or plan.labels or not frontend.probabilities.may_be(graph, name):
        return options
    ways = [options, replace(options, loss="nll")] if fact is None else [options]
    for way in ways:
        try:
            (other,) = plan_losses(graph, way)
        except UsageError:
            continue
        mine = [*slots[:-1], _with_target(slots[-1], other.target.shape, other.target.dtype)]
        if not fits(data, mine):
            continue
        axis = frontend.probabilities.of_batch(graph, name, _first_batch(data, normalize, mine))
        if fact is not None and axis is None:
            raise UsageError(
                f"{graph.name}: output {name!r} holds probabilities for random inputs, but its rows for the first batch"
                " do not add up to 1; give --loss nll, or the loss that it is trained with"
            )
        if fact is None and axis is not None:
            note(f"loss nll, -log p: each row of {name!r} for the first batch is in [0, 1] and adds up to 1 (--loss)")
            return replace(options, loss="nll")
        return options
    return options


def _first_batch(data: str, normalize: str | None, slots: Sequence[Slot]) -> dict[str, Array]:
    source = open_source(data, slots, lambda _: None)
    samples = source if isinstance(source, Samples) else None
    scaling = Normalization() if normalize is None else Normalization.parse(normalize, slots, samples)
    batches = Batches(
        source=source, slots=slots, normalization=scaling, augmentation=Augmentations.parse(""), seed=0, shuffle=False
    )
    return next(batches.epoch(1), {})


# --- the axis of classes ----------------------------------------------------------------------------------------------


def _class_axis(
    data: str, graph: Graph, slots: Sequence[Slot], options: TrainingOptions, note: Progress
) -> TrainingOptions:
    """The axis that the target's shape leaves out; where several fit, that of the last layer's units."""
    (plan,) = plan_losses(graph, options)
    name = training.pick_output(graph, options.output)
    shape, fact = graph.tensors[name].shape, graph.fact("class axis", name)
    certain = fact is not None and fact.confidence == "certain"
    if plan.kind != "CrossEntropy" or plan.source != name or len(shape) < 3 or plan.labels or certain:
        return options
    target = slots[-1]
    axes = [a for a in range(1, len(shape)) if shape[a] > 1]
    fitting = [
        a for a in axes if fits(data, [*slots[:-1], _with_target(target, shape[:a] + shape[a + 1 :], target.dtype)])
    ]
    if not fitting:
        return options  # reading the data names the fault
    if fact is not None and fact.value in fitting:
        return options
    if len(fitting) > 1:
        raise UsageError(
            f"{graph.name}: output {name!r} {list(shape)} does not show which axis holds the classes, and the target"
            f" fits {' and '.join(map(str, fitting))}; give --class-axis"
        )
    note(f"classes along axis {fitting[0]} of {name!r} {list(shape)}: the target's shape leaves it out (--class-axis)")
    return replace(options, class_axis=fitting[0])


def _with_target(slot: Slot, shape: tuple[int, ...], dtype: DType) -> Slot:
    return replace(slot, shape=shape, sample_shape=shape[1:], dtype=dtype)
