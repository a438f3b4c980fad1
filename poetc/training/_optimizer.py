"""The optimizer: its state, and one update operator a parameter."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poetc.graph import Attribute, DType, Fill, Graph, Phase, Role, TensorType
from poetc.ops import Builder
from poetc.ops.accumulation import GATED
from poetc.ops.optimizers import OPTIMIZERS
from poetc.training._channels import Part
from poetc.training._clipping import Clipper
from poetc.training._state import CLIPPED, emit_update

if TYPE_CHECKING:
    from poetc.training.options import TrainingOptions

_SCALAR = TensorType((1,))
_COUNT = TensorType((1,), DType.I32)


@dataclass(frozen=True, slots=True)
class CodedParameter:
    """A parameter in integers. `scales`: the tensor of its scales. `input_scale`: for a bias, that of the input."""

    scales: str
    input_scale: float | None = None


def coded_parameters(graph: Graph) -> dict[str, CodedParameter]:
    """The weights and biases of a quantised model (`--precision qas`)."""
    coded: dict[str, CodedParameter] = {}
    for op in graph.operators:
        if op.kind == "QLinearConv":
            coded[op.inputs[1]] = CodedParameter(op.inputs[2])
            if len(op.inputs) > 3:
                coded[op.inputs[3]] = CodedParameter(op.inputs[2], float(str(op.attributes["x_scale"])))
    return coded


class Optimizer:
    """Declares the optimizer's state as it goes and emits one update operator a parameter.

    `rates` and `decays` hold the factor of the learning rate, and the weight decay, of each parameter. `updates` gets
    the last version of each state tensor by its name. Weights in `parts` are moved in part: their gradient and state
    have the part's type. Parameters in `codes` are integers of a quantised model.
    """

    def __init__(
        self,
        b: Builder,
        options: TrainingOptions,
        rates: Mapping[str, float],
        decays: Mapping[str, float],
        updates: dict[str, str],
        step: str,
        parts: Mapping[str, Part],
        codes: Mapping[str, CodedParameter],
    ) -> None:
        self._b, self._options, self._updates, self._step = b, options, updates, step
        self._factors, self._decays, self._parts, self._codes = rates, decays, parts, codes
        self._rule = OPTIMIZERS[options.optimizer]
        self._rates: dict[float, str] = {}  # factor of the learning rate -> the rate
        rate = np.array([options.learning_rate], np.float32)
        self.learning_rate = b.add_tensor(b.fresh("learning_rate"), _SCALAR, Role.OPTIMIZER_STATE, rate)
        self._left = self._steps_left() if options.accumulate else ""
        if self._left and self._rule.counts_steps:
            (self._step,) = self._moved("StepCount", [self._new_state("updates", Fill("zeros"), _COUNT)], {})
        self._clipper = Clipper(b, options, updates)
        self._shared = self._moved_shared()

    def update(self, parameter: str, gradient: str) -> None:
        """Emit the update of `parameter`, whose whole gradient is `gradient`; at the end, if it waits for others."""
        phase, self._b.phase = self._b.phase, Phase.UPDATE
        if self._left:
            part = self._parts.get(parameter)
            type = self._b.type(parameter) if part is None else part.type
            inputs = [self._state(parameter, "gradient", type), gradient, self._left]
            (gradient,) = emit_update(self._b, "Accumulate", inputs, {"every": self._options.accumulate or 1})
            self._updates[inputs[0]] = gradient
        clipped = self._clipper.clip(parameter, gradient)
        if clipped is not None:
            self._update(parameter, clipped)
        self._b.phase = phase

    def finish(self) -> None:
        """Emit the updates that have waited for the last gradient."""
        phase, self._b.phase = self._b.phase, Phase.UPDATE
        for parameter, clipped in self._clipper.finish():
            self._update(parameter, clipped)
        self._b.phase = phase

    def _update(self, parameter: str, gradient: str) -> None:
        if parameter in self._codes:
            self._update_codes(parameter, gradient, self._codes[parameter])
            return
        part = self._parts.get(parameter)
        type = self._b.type(parameter) if part is None else part.type
        rule = self._rule.rule(self._options, type)
        kind = rule.kind
        states = [self._state(parameter, name, rule.types.get(name, type)) for name in rule.states]
        scalars = [self._rate(self._factors[parameter])]
        if self._rule.counts_steps:
            scalars.append(self._step)
        if self._shared:
            scalars.append(self._shared)
        attributes = {"weight_decay": self._decays[parameter], **rule.attributes}
        if part is None:
            self._moved(kind, [parameter, *states, gradient, *scalars], attributes, 1 + len(states))
        elif kind == "Sgd" and not self._left:  # no copy of the part is needed
            inputs = [parameter, part.indices, gradient, *scalars]
            self._moved("SgdSlices", inputs, {"axis": part.layer.axis, **attributes})
        else:
            copy = part.of_weight(self._b)
            moved = self._moved(kind, [copy, *states, gradient, *scalars], attributes, 1 + len(states))
            del self._updates[copy]
            self._updates[parameter] = part.put_back(self._b, moved[0])

    def _update_codes(self, parameter: str, gradient: str, codes: CodedParameter) -> None:
        """An update of integers by the gradient of the real numbers that they stand for."""
        b, rate, part = self._b, self._rate(self._factors[parameter]), self._parts.get(parameter)
        if codes.input_scale is not None:
            of_bias: dict[str, Attribute] = {"x_scale": codes.input_scale}
            self._moved("QLinearBiasSgd", [parameter, gradient, codes.scales, rate], of_bias)
            return
        word = hashlib.sha256(f"{self._options.dropout_seed}:{parameter}:update".encode()).digest()[:4]
        attributes: dict[str, Attribute] = {
            "rounding": self._options.roundings()["update"],
            "seed": int.from_bytes(word, "little", signed=True),
        }
        count = self._new_state(f"{parameter}{CLIPPED}", Fill("zeros"), _COUNT)
        kind, made_of, more = self._update_of_gradient(gradient)
        attributes |= more
        rest = [count, *made_of, codes.scales, rate, self._step]
        if part is None:
            self._moved(kind, [parameter, *rest], attributes, 2)
            return
        copy = part.of_weight(b)
        moved = self._moved(kind, [copy, *rest], attributes, 2)
        del self._updates[copy]
        self._updates[parameter] = part.put_back(b, moved[0])

    def _update_of_gradient(self, gradient: str) -> tuple[str, list[str], dict[str, Attribute]]:
        """The kind that moves codes, its inputs in place of the gradient, and the attributes of making that.

        A gradient that comes straight from a layer's codes is made by the update itself.
        """
        makers = {t: op for op in self._b.operators for t in op.outputs}
        product = makers[gradient]
        values = makers.get(product.inputs[0]) if product.kind == "ConvGradWeight" else None
        if values is None or values.kind != "DequantizeLinear" or not self._options.fusion:
            return "QLinearSgd", [gradient], {}
        codes = {f"x_{name}": values.attributes[name] for name in ("scale", "zero")}
        return "QLinearConvSgd", [values.inputs[0], product.inputs[1]], {**product.attributes, **codes}

    def _moved(
        self, kind: str, inputs: Sequence[str], attributes: Mapping[str, Attribute], count: int = 1
    ) -> tuple[str, ...]:
        """Emit the operator `kind`, which replaces its first `count` inputs; returns their next versions.

        With gradient accumulation it runs in the steps that update alone.
        """
        phase, self._b.phase = self._b.phase, Phase.UPDATE
        gate = [self._left] if self._left else []
        new = emit_update(self._b, f"{GATED}{kind}" if gate else kind, [*gate, *inputs], attributes)
        self._updates.update(zip(inputs[:count], new, strict=True))
        self._b.phase = phase
        return new

    def _rate(self, factor: float) -> str:
        """The learning rate times `factor`."""
        if factor == 1:
            return self.learning_rate
        if factor not in self._rates:
            attributes: dict[str, Attribute] = {"alpha": factor, "beta": 0.0}
            hint = f"{self.learning_rate}*{factor:g}"
            self._rates[factor] = self._b.emit1("Affine", [self.learning_rate], attributes, hint=hint)
        return self._rates[factor]

    def _state(self, parameter: str, name: str, type: TensorType) -> str:
        return self._b.add_tensor(self._b.fresh(f"{parameter}:{name}"), type, Role.OPTIMIZER_STATE, Fill("zeros"))

    def _moved_shared(self) -> str:
        """The state that all parameters share, after its move in this step; "" without one."""
        if self._rule.shared is None:
            return ""
        shared = self._rule.shared(self._options)
        before = self._new_state(shared.name, Fill("ones"), _SCALAR)
        return self._moved(shared.kind, [before, self._step], shared.attributes)[0]

    def _steps_left(self) -> str:
        """A counter of the steps before the next update: 0 in the step that updates."""
        before = self._new_state("steps_left", Fill("zeros"), _COUNT)
        phase, self._b.phase = self._b.phase, Phase.UPDATE
        (after,) = emit_update(self._b, "StepsLeft", [before], {"every": self._options.accumulate or 1})
        self._updates[before] = after
        self._b.phase = phase
        return after

    def _new_state(self, hint: str, value: Fill, type: TensorType) -> str:
        return self._b.add_tensor(self._b.fresh(hint), type, Role.OPTIMIZER_STATE, value)
