"""Batch norms that an exporter folded into the layers before them, put back for the training (`--batch-norm restore`).

Behind a layer with weight W and bias b stands a batch norm with mean m, variance v, scale s and shift t. With
s = sqrt(v + ε) and t = m the model computes the same as before, for any m and v. Training begins with the mean and the
variance of the layer's output on its data; `first_values` gives small scales to the next weight. `folded` makes one
layer of the two again: W · s / sqrt(v + ε) and (b - m) · s / sqrt(v + ε) + t.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from poetc.errors import UsageError, format_count
from poetc.graph import Array, Attribute, Fill, Graph, Operator, Role, Tensor, TensorType, materialize
from poetc.ops import Builder, bind, spec, view_roots
from poetc.training._layers import module_of
from poetc.training._norm_scales import first_values
from poetc.training._selection import BEST, select_parameters

if TYPE_CHECKING:
    from poetc.training.options import TrainingOptions

EPSILON, MOMENTUM = 1e-5, 0.9  # as PyTorch has them
OPTION = "--batch-norm restore"
_FIRSTS = (Fill("zeros"), Fill("ones"), Fill("constant", math.sqrt(1 + EPSILON)), Fill("zeros"))
_KINDS = ("Conv", "ConvTranspose", "MatMul")
_NORMS = ("BatchNormApply", "GroupNorm", "LayerNorm", "RmsNorm")
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class RestoredNorm:
    """The tensors of a norm behind `operator`, a layer of the model without it. `axis`: of outputs, of the weight."""

    operator: Operator
    weight: str
    bias: str
    axis: int
    mean: str
    variance: str
    scale: str
    shift: str

    @property
    def vectors(self) -> tuple[str, str, str, str]:
        """In the order of the operator's inputs."""
        return self.mean, self.variance, self.scale, self.shift


def with_restored_norms(graph: Graph, options: TrainingOptions) -> Graph:
    """The model with the norms of `restored_norms`. Its function is unchanged: their statistics are 0 and 1."""
    norms = {norm.operator.name: norm for norm in restored_norms(graph, options)}
    names = [module_of(graph, norm.weight) for norm in norms.values()]
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    note = (
        f"batch norms are put back behind {format_count(len(names), 'layer')}, and folded again on export: {shown};"
        " poetc train begins with statistics of its data"
    )
    return _with(graph, norms, note)


def restored_norms(graph: Graph, options: TrainingOptions) -> list[RestoredNorm]:
    """The norms that the training has and the model `graph` has not, with a trained scale or shift, in layers' order.

    UsageError where no layer can have had one.
    """
    if options.lora:
        raise UsageError(f"{OPTION} and --lora exclude each other: adapters leave the layers as they are")
    norms = list(_candidates(graph))
    if norms and options.train != BEST:
        whole = _with(graph, {norm.operator.name: norm for norm in norms}, "")
        trained = select_parameters(whole, options.train)
        norms = [norm for norm in norms if not trained.isdisjoint((norm.scale, norm.shift))]
    if not norms:
        raise UsageError(
            f"{OPTION}: {graph.name} has no trained layer with a bias and without a norm, but for its last one: no norm"
            " is folded there"
        )
    return norms


def folded(graph: Graph, norms: Iterable[RestoredNorm], values: Mapping[str, Array]) -> Graph:
    """The model `graph`, without the norms: its layers compute the same as with the norms in `values`."""
    result = {name: values.get(name, value) for name, value in graph.values.items()}
    for norm in norms:
        mean, variance, scale, shift = (np.asarray(values[n], np.float64) for n in norm.vectors)
        factor = scale / np.sqrt(variance + EPSILON)
        weight, bias = (_array(graph, result, n).astype(np.float64) for n in (norm.weight, norm.bias))
        along = [-1 if k == norm.axis else 1 for k in range(weight.ndim)]
        result[norm.weight] = np.asarray(weight * factor.reshape(along), np.float32)
        new = (bias.reshape(-1) - mean) * factor + shift
        result[norm.bias] = np.asarray(new.reshape(bias.shape), np.float32)
    return replace(graph, values=result)


def measured(graph: Graph, batches: Iterable[Mapping[str, Array]], trained: Collection[str] = ()) -> dict[str, Array]:
    """The first numbers of the norms in `graph` that were put back: statistics of their inputs in these batches.

    Norms that were trained keep their numbers. Computed with the reference numerics, and added up in float64. Weights
    among `trained` may take over the scale of a norm (`first_values`).
    """
    norms = {op.inputs[0]: op for op in graph.operators if op.kind == "BatchNormApply" and _is_untouched(graph, op)}
    sums: dict[str, list[Any]] = {name: [0.0, 0.0, 0] for name in norms}
    for batch in batches if norms else ():
        for name, array in _outputs(graph, batch, set(norms)):
            x = np.moveaxis(array.astype(np.float64), 1, 0).reshape(array.shape[1], -1)
            for k, part in enumerate((x.sum(axis=1), np.square(x).sum(axis=1), x.shape[1])):
                sums[name][k] += part
    statistics = {
        name: (total / count, np.maximum(squares / count - np.square(total / count), 0))
        for name, (total, squares, count) in sums.items()
    }
    return first_values(graph, statistics, trained, EPSILON, lambda name: _array(graph, graph.values, name))


def _is_untouched(graph: Graph, norm: Operator) -> bool:
    """Whether a norm has the numbers that `with_restored_norms` gives it."""
    vectors = [n for n in norm.inputs[1:] if n in graph.values]
    return len(vectors) == len(_FIRSTS) and all(
        np.array_equal(_array(graph, graph.values, n), materialize(first, graph.tensors[n].type))
        for n, first in zip(vectors, _FIRSTS, strict=True)
    )


def require_statistics(step_operators: Iterable[Operator], tensors: Mapping[str, Tensor]) -> None:
    """UsageError where a norm takes its statistics from one number a channel, which it would make the shift."""
    for op in step_operators:
        if op.kind == "BatchNormStats":
            shape = tensors[op.inputs[0]].shape
            if math.prod(shape) == shape[1]:
                raise UsageError(
                    f"{OPTION}: {op.source or op.inputs[0]} has one number a channel in a batch of {shape[0]}; use a"
                    " larger --batch"
                )


def _candidates(graph: Graph) -> Iterator[RestoredNorm]:
    """Behind every layer that can have had a norm: convolutions, and dense layers where the norms are theirs."""
    roots = view_roots(graph)
    readers: dict[str, list[Operator]] = {}
    for op in graph.operators:
        for tensor in op.inputs:
            readers.setdefault(tensor, []).append(op)
    last = _last_layers(graph)
    biased = []
    for op in graph.operators:
        if op.kind not in _KINDS or len(op.inputs) < 3 or op.name in last:
            continue
        weight, bias = (roots[t] for t in op.inputs[1:3])
        alone = all(len(readers[t]) == 1 for t in (weight, bias, *op.inputs[1:3]))
        trained = all(graph.tensors[t].role is Role.PARAMETER for t in (weight, bias))
        reading = readers.get(op.outputs[0], ())
        if not alone or not trained or not _is_layer(graph, op, weight, bias):
            continue
        if reading and not any(r.kind in _NORMS for r in reading):
            biased.append((op, weight, bias))
    of_images = [entry for entry in biased if entry[0].kind != "MatMul"]
    fact = graph.fact("folded norms", graph.name)
    known = int(fact.value) if fact is not None and fact.confidence == "certain" else 0
    chosen = biased if not of_images or known > len(of_images) else of_images
    taken = set(graph.tensors)
    for op, weight, bias in chosen:
        stem = module_of(graph, weight)
        while any(f"{stem}.norm.{part}" in taken for part in ("weight", "bias", "running_mean", "running_var")):
            stem += "_"
        names = [f"{stem}.norm.{part}" for part in ("running_mean", "running_var", "weight", "bias")]
        taken.update(names)
        yield RestoredNorm(op, weight, bias, _output_axis(op, graph.tensors[weight].shape), *names)


def _is_layer(graph: Graph, op: Operator, weight: str, bias: str) -> bool:
    """Whether outputs lie along axis 1 of the result and one axis of the weight, with a bias for each."""
    y, shape = graph.tensors[op.outputs[0]].shape, graph.tensors[weight].shape
    if graph.tensors[bias].type.elements != y[1] or len(shape) < 2:
        return False
    if op.kind == "MatMul":
        return len(y) == len(shape) == 2 and not op.attributes.get("trans_a") and op.attributes.get("alpha", 1.0) == 1.0
    if op.kind == "ConvTranspose" and op.attributes.get("group", 1) != 1:
        return False
    seen = graph.tensors[op.inputs[1]].shape
    return math.prod(y[2:]) > 1 and shape[:2] == seen[:2]  # behind a global pool stand layers that never have a norm


def _output_axis(op: Operator, shape: tuple[int, ...]) -> int:
    if op.kind == "MatMul":
        return 0 if op.attributes.get("trans_b") else 1
    return 1 if op.kind == "ConvTranspose" else 0


def _last_layers(graph: Graph) -> set[str]:
    """The layers from which outputs are made without another layer: their outputs are no norm's."""
    makers = {t: op for op in graph.operators for t in op.outputs}
    last, seen, waiting = set[str](), set[str](), list(graph.outputs)
    while waiting:
        op = makers.get(waiting.pop())
        if op is None or op.name in seen:
            continue
        seen.add(op.name)
        if op.kind in _KINDS:
            last.add(op.name)
        else:
            waiting += op.inputs
    return last


def _with(graph: Graph, norms: Mapping[str, RestoredNorm], note: str) -> Graph:
    b = Builder()
    for name, tensor in graph.tensors.items():
        b.fresh(name)
        if tensor.role is not Role.ACTIVATION:
            b.add_tensor(name, tensor.type, tensor.role, graph.values.get(name))
    attributes: dict[str, Attribute] = {"epsilon": EPSILON, "momentum": MOMENTUM, "training": False}
    roles = (Role.STATISTIC, Role.STATISTIC, Role.PARAMETER, Role.PARAMETER)
    for op in graph.operators:
        b.source = op.source
        norm = norms.get(op.name)
        if norm is None:
            b.emit(op.kind, op.inputs, op.attributes, outputs=op.outputs)
            continue
        y = op.outputs[0]
        before = b.emit(op.kind, op.inputs, op.attributes, outputs=[b.fresh(f"{y}.unnormalised")])[0]
        vector = TensorType((graph.tensors[y].shape[1],))
        for name, role, first in zip(norm.vectors, roles, _FIRSTS, strict=True):
            b.add_tensor(name, vector, role, first)
        b.emit("BatchNormApply", [before, *norm.vectors], attributes, outputs=[y])
    notes = (*graph.notes, note) if note else graph.notes
    return replace(graph, tensors=b.tensors, operators=tuple(b.operators), values=b.values, notes=notes)


def _array(graph: Graph, values: Mapping[str, object], name: str) -> Array:
    return materialize(values[name], graph.tensors[name].type)  # type: ignore[arg-type]


def _outputs(graph: Graph, inputs: Mapping[str, Array], wanted: set[str]) -> Iterator[tuple[str, Array]]:
    """The tensors in `wanted` for these inputs, as they come; others are dropped behind their last reader."""
    last = {t: k for k, op in enumerate(graph.operators) for t in op.inputs}
    end = max(k for k, op in enumerate(graph.operators) if not wanted.isdisjoint(op.outputs))
    held: dict[str, Array] = {name: inputs[name] for name in graph.inputs if name in inputs}
    for k, op in enumerate(graph.operators[: end + 1]):
        operands = [held[t] if t in held else _array(graph, graph.values, t) for t in op.inputs]
        with np.errstate(all="ignore"):
            results = spec(op.kind).evaluate(bind(op, graph.tensors), operands)
        for name, array in zip(op.outputs, results, strict=True):
            held[name] = np.asarray(array)
            if name in wanted:
                yield name, held[name]
        for t in {*op.inputs, *op.outputs}:
            if last.get(t, k) <= k:
                held.pop(t, None)
