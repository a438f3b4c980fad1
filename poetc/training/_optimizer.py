"""The optimizer: its state, and one update operator a parameter."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from poetc.graph import Attribute, Fill, Phase, Role, TensorType
from poetc.ops import Builder
from poetc.training._clipping import Clipper
from poetc.training._options import TrainingOptions
from poetc.training._state import emit_update

STEP_COUNTING = ("adam", "adamw", "nadam")  # their updates read the number of the step
_SCALAR = TensorType((1,))


class Optimizer:
    """Declares the optimizer's state as it goes and emits one update operator a parameter.

    `rates` and `decays` hold the factor of the learning rate, and the weight decay, of each parameter. `updates` gets
    the last version of each state tensor by its name.
    """

    def __init__(
        self,
        b: Builder,
        options: TrainingOptions,
        rates: Mapping[str, float],
        decays: Mapping[str, float],
        updates: dict[str, str],
        step: str,
    ) -> None:
        self._b, self._options, self._updates, self._step = b, options, updates, step
        self._factors, self._decays = rates, decays
        self._rates: dict[float, str] = {}  # factor of the learning rate -> the rate
        rate = np.array([options.learning_rate], np.float32)
        self.learning_rate = b.add_tensor(b.fresh("learning_rate"), _SCALAR, Role.OPTIMIZER_STATE, rate)
        self._clipper = Clipper(b, options, updates)
        self._product = self._momentum_product() if options.optimizer == "nadam" else ""

    def update(self, parameter: str, gradient: str) -> None:
        """Emit the update of `parameter`, whose whole gradient is `gradient`; at the end, if it waits for others."""
        phase, self._b.phase = self._b.phase, Phase.UPDATE
        clipped = self._clipper.clip(parameter, gradient)
        if clipped is not None:
            self._update(parameter, clipped)
        self._b.phase = phase

    def finish(self) -> None:
        """Emit what has waited for the last gradient."""
        phase, self._b.phase = self._b.phase, Phase.UPDATE
        for parameter, clipped in self._clipper.finish():
            self._update(parameter, clipped)
        self._b.phase = phase

    def _update(self, parameter: str, gradient: str) -> None:
        kind, suffixes, attributes = self._rule()
        state = [parameter, *(self._state(parameter, suffix) for suffix in suffixes)]
        scalars = [self._rate(self._factors[parameter])]
        if self._options.optimizer in STEP_COUNTING:
            scalars.append(self._step)
        if self._product:
            scalars.append(self._product)
        attributes = {"weight_decay": self._decays[parameter], **attributes}
        new = emit_update(self._b, kind, [*state, gradient, *scalars], attributes)
        self._updates.update(zip(state, new, strict=True))

    def _rate(self, factor: float) -> str:
        """The learning rate times `factor`."""
        if factor == 1:
            return self.learning_rate
        if factor not in self._rates:
            attributes: dict[str, Attribute] = {"alpha": factor, "beta": 0.0}
            hint = f"{self.learning_rate}*{factor:g}"
            self._rates[factor] = self._b.emit1("Affine", [self.learning_rate], attributes, hint=hint)
        return self._rates[factor]

    def _rule(self) -> tuple[str, tuple[str, ...], dict[str, Attribute]]:
        """The kind of the update, its state besides the parameter, and its attributes."""
        o = self._options
        betas: dict[str, Attribute] = {"beta1": o.beta1, "beta2": o.beta2}
        match o.optimizer:
            case "sgd":
                return "Sgd", (), {}
            case "momentum":
                return "Momentum", ("velocity",), {"momentum": o.momentum, "nesterov": False}
            case "adagrad":
                return "Adagrad", ("sum",), {"epsilon": o.epsilon}
            case "rmsprop":
                kind = f"RmsProp{'Centered' if o.centered else ''}{'Momentum' if o.momentum else ''}"
                suffixes = ("v", *(("m",) if o.centered else ()), *(("velocity",) if o.momentum else ()))
                more: dict[str, Attribute] = {"momentum": o.momentum} if o.momentum else {}
                if o.alpha is not None:
                    more["alpha"] = o.alpha
                return kind, suffixes, {"epsilon": o.epsilon, **more}
            case "lion":
                return "Lion", ("m",), betas
            case "nadam":
                return "Nadam", ("m", "v"), {**betas, "epsilon": o.epsilon, **self._momentum_decay()}
            case _:
                return "Adam", ("m", "v"), {**betas, "epsilon": o.epsilon, "decoupled": o.optimizer == "adamw"}

    def _state(self, parameter: str, suffix: str) -> str:
        b = self._b
        return b.add_tensor(b.fresh(f"{parameter}:{suffix}"), b.type(parameter), Role.OPTIMIZER_STATE, Fill("zeros"))

    def _momentum_decay(self) -> dict[str, Attribute]:
        decay = self._options.momentum_decay
        return {} if decay is None else {"momentum_decay": decay}

    def _momentum_product(self) -> str:
        """Of the momentums of NAdam's steps up to the one that runs."""
        b, o = self._b, self._options
        phase, b.phase = b.phase, Phase.UPDATE
        before = b.add_tensor(b.fresh("momentum_product"), _SCALAR, Role.OPTIMIZER_STATE, Fill("ones"))
        attributes = {"beta1": o.beta1, **self._momentum_decay()}
        (after,) = emit_update(b, "NadamSchedule", [before, self._step], attributes)
        self._updates[before] = after
        b.phase = phase
        return after
