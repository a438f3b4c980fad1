"""The training step of an integer model: errors go back in 8 bits, and each update is made of its own sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from poetc.errors import UsageError
from poetc.graph import DType, Fill, Graph, Operator, Phase, Role, TensorType, TrainingGraph
from poetc.ops import spec
from poetc.training._autodiff import depends_on
from poetc.training._build import _declare, _dropout_attributes, _finish, _step_counter
from poetc.training._loss import plan_losses
from poetc.training._selection import select_updates, trained_parameters
from poetc.training._state import CLIPPED, emit_update
from poetc.training.precisions._niti_model import SCALE, STORED, IntegerBuilder

if TYPE_CHECKING:
    from poetc.training.options import TrainingOptions

_COUNT = TensorType((1,), DType.I32)


def build_integer(
    graph: Graph, options: TrainingOptions, part: Graph | None = None, *, names_sums: bool = False
) -> TrainingGraph:
    """The training step of `graph`, an integer model, which has no parts. UsageError where the options do not fit."""
    return _Step(graph, options).build()


class _Step:
    def __init__(self, graph: Graph, options: TrainingOptions) -> None:
        self.graph, self.options = graph, options
        wanted = select_updates(graph, options.train)
        if name := next(iter(wanted.channels), None):
            raise UsageError(f"--train {name}@...: a share of a weight's channels has no integer form; name it whole")
        self.trained = trained_parameters(graph, wanted)
        self.b = IntegerBuilder(options)
        self.rate = ""
        self.updates: dict[str, str] = {}
        self.gradients: dict[str, str] = {}
        self.errors: dict[str, tuple[str, str]] = {}  # by activation: its error and the scale of that, "" of floats

    def build(self) -> TrainingGraph:
        b, graph, options = self.b, self.graph, self.options
        plans = plan_losses(graph, options)
        made_by = {t: op for op in graph.operators for t in op.outputs}
        plan = plans[0]
        last = made_by.get(plan.source)
        if len(plans) > 1 or plan.kind != "CrossEntropy" or plan.labels or last is None or last.kind != "Dequantize":
            raise UsageError(
                f"{graph.name}: --precision niti trains the cross-entropy of the last layer's outputs against class"
                " indices; use --loss cross-entropy, or train in f32"
            )
        _declare(b, graph, self.trained, options)
        notes = [*graph.notes, plan.note]
        step = _step_counter(b, graph, options, self.updates, notes)
        rate = np.array([options.learning_rate], np.float32)
        self.rate = b.add_tensor(b.fresh("learning_rate"), TensorType((1,)), Role.OPTIMIZER_STATE, rate)
        b.learning_rate = self.rate
        if options.weight_bits != "8":  # gradients keep their 8 bits, and the update has the rate
            one = np.ones(1, np.float32)
            b.learning_rate = b.add_tensor(b.fresh("one"), TensorType((1,)), Role.CONSTANT, one)
        target = b.add_tensor(b.fresh("target"), plan.target, Role.TARGET)
        b.adapts = options.rescale == "interval"
        self._forward(plan.source, step)
        forward = list(b.operators)
        b.phase, b.source = Phase.LOSS, ""
        loss = b.emit1("CrossEntropy", [plan.source, target], plan.attributes, hint="loss")
        if loss not in depends_on(b.operators, self.trained):
            raise UsageError(
                f"{graph.name}: the loss does not depend on any trained parameter (--train {options.train})"
            )
        b.phase, b.role = Phase.BACKWARD, Role.GRADIENT
        logits, scale = last.inputs
        attributes = {"axis": plan.attributes.get("axis", -1)}
        outputs = [b.fresh(f"{logits}.grad"), b.fresh(f"{logits}.grad:scale")]
        error, error_scale = b.emit("IntegerCrossEntropyError", [logits, scale, target], attributes, outputs=outputs)
        self.errors[logits] = error, error_scale
        self._backward(forward)
        self._finish_scales()
        outputs = [loss, *([plan.source] if options.output_logits else [])]
        inputs = graph.inputs
        none: frozenset[str] = frozenset()
        return _finish(b, graph, inputs, tuple(outputs), target, self.gradients, none, self.updates, options, notes)

    def _forward(self, source: str, step: str) -> None:
        """Copy the operators that the loss needs, with dropout where it is asked for."""
        b = self.b
        b.phase, b.role = Phase.FORWARD, Role.ACTIVATION
        needed = {source}
        for op in reversed(self.graph.operators):
            if not needed.isdisjoint(op.outputs):
                needed.update(op.inputs)
        for op in self.graph.operators:
            if needed.isdisjoint(op.outputs) or op.outputs[0] in b.tensors:
                continue
            b.source = op.source
            if op.kind == "DropoutSite" and self.options.dropout:
                self._dropout(op, step)
            elif op.kind == "DropoutSite":
                b.emit("Reshape", op.inputs, {"shape": self.graph.tensors[op.outputs[0]].shape}, outputs=op.outputs)
            else:
                b.emit(op.kind, op.inputs, op.attributes, outputs=op.outputs)

    def _dropout(self, op: Operator, step: str) -> None:
        """Dropout of a tensor and its scale, which the model passes on by a view."""
        (x,), (y,) = op.inputs, op.outputs
        if op.attributes["ratio"] != 0.5:
            raise UsageError(
                f"{self.graph.name}: --dropout: Dropout node {op.source!r} has ratio {op.attributes['ratio']:g};"
                " integers know 0.5 alone: set that, or leave --dropout out"
            )
        scale = next(o.inputs[0] for o in self.graph.operators if o.outputs == (f"{y}{SCALE}",))
        attributes = {"seed": _dropout_attributes(op, self.options)["seed"]}
        self.b.emit("IntegerDropout", [x, scale, step], attributes, outputs=[y, f"{y}{SCALE}"])

    def _backward(self, forward: list[Operator]) -> None:
        """Errors from the last operator to the first; an update follows the gradient of its weight."""
        b, active = self.b, depends_on(forward, self.trained)
        for op in reversed(forward):
            if op.outputs[0] not in self.errors:
                continue
            error, scale = self.errors[op.outputs[0]]
            b.source = op.source
            if op.kind in ("Quantize", "Dequantize") or not scale:
                self._float(op, error, scale)
                continue
            is_i8 = [b.type(t).dtype is DType.I8 for t in op.inputs]
            needed = [t in active and is_integer for t, is_integer in zip(op.inputs, is_i8, strict=True)]
            if not any(needed):
                continue
            gradients = spec(op.kind).gradient(b, op, [error, scale], needed)
            for i, tensor in enumerate(op.inputs):
                gradient = gradients[i] if needed[i] else None
                if gradient is None:
                    continue
                if tensor in self.trained:
                    self._update(tensor, gradient)
                    continue
                has_scale = i + 1 < len(op.inputs) and not is_i8[i + 1]
                own = gradients[i + 1] if has_scale and i + 1 < len(gradients) else None
                self._add(tensor, gradient, own or scale)

    def _float(self, op: Operator, error: str, scale: str) -> None:
        """An operator in floats between integers: its error is of floats, and has no scale."""
        b, x = self.b, op.inputs[0]
        if op.kind == "Dequantize":
            name = b.fresh(f"{x}.grad:q")
            self._add(x, *b.emit("Quantize", [error], outputs=[name, b.fresh(f"{name}:scale")]))
        elif op.kind == "Quantize":
            self.errors[x] = b.emit1("Dequantize", [error, scale], hint=f"{op.outputs[0]}.grad:float"), ""
        else:
            (gradient,) = spec(op.kind).gradient(b, op, [error], [True])
            assert gradient is not None
            self.errors[x] = gradient, ""

    def _finish_scales(self) -> None:
        """Histories learn from the scales of the step, and clipped values are counted."""
        b = self.b
        b.phase, b.source = Phase.UPDATE, ""
        for history, scale in b.histories:
            (self.updates[history],) = emit_update(b, "IntegerRescale", [history, scale], {})
        for purpose, scales in b.scales.items():
            if scales:
                count = b.add_tensor(b.fresh(f"{purpose}s{CLIPPED}"), _COUNT, Role.OPTIMIZER_STATE, Fill("zeros"))
                (self.updates[count],) = emit_update(b, "ClippedCount", [count, *scales], {})

    def _add(self, tensor: str, error: str, scale: str) -> None:
        """Errors that meet at a fan-out are added up in the order of the reversed operators."""
        if tensor in self.errors:
            before = self.errors[tensor]
            name = self.b.fresh(f"grad({tensor})")
            error, scale = self.b.emit(
                "IntegerAdd", [*before, error, scale], outputs=[name, self.b.fresh(f"{name}:scale")]
            )
        self.errors[tensor] = error, scale

    def _update(self, parameter: str, gradient: str) -> None:
        b = self.b
        self.gradients[parameter] = gradient
        phase, b.phase = b.phase, Phase.UPDATE
        count = b.add_tensor(b.fresh(f"{parameter}{CLIPPED}"), _COUNT, Role.OPTIMIZER_STATE, Fill("zeros"))
        state, inputs, kind = [parameter, count], [parameter, count, gradient], "IntegerUpdate"
        if self.options.weight_bits != "8":
            kind, stored = "IntegerStoredUpdate", TensorType(b.type(parameter).shape, DType.I32)
            name = b.add_tensor(b.fresh(f"{parameter}{STORED}"), stored, Role.OPTIMIZER_STATE, Fill("zeros"))
            state, inputs = [parameter, name, count], [parameter, name, count, gradient, self.rate]
        new = emit_update(b, kind, inputs, {})
        self.updates.update(zip(state, new, strict=True))
        b.phase = phase
