"""The optimizer: its state, and one update operator a parameter."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from poetc.graph import Attribute, Fill, Phase, Role, TensorType
from poetc.ops import Builder, spec
from poetc.training._options import TrainingOptions

STEP_COUNTING = ("adam", "adamw", "nadam")  # their updates read the number of the step
_SCALAR = TensorType((1,))


def emit_update(b: Builder, kind: str, inputs: list[str], attributes: Mapping[str, Attribute]) -> tuple[str, ...]:
    """Emit an operator that makes the next version of state: outputs are named NAME@K, with the role of NAME."""
    replaces = {output: inputs[i] for i, output in spec(kind).must_alias}
    outputs = []
    for i in range(len(replaces)):
        base, _, version = replaces[i].rpartition("@")
        base, next_version = (base, int(version) + 1) if base and version.isdigit() else (replaces[i], 1)
        outputs.append(b.fresh(f"{base}@{next_version}"))
    role = b.role
    made: list[str] = []
    b.emit(kind, inputs, attributes, outputs=outputs)
    for i, output in enumerate(outputs):
        tensor = b.tensors[output]
        b.tensors[output] = type(tensor)(output, tensor.type, b.tensors[replaces[i]].role)
        made.append(output)
    b.role = role
    return tuple(made)


class Optimizer:
    """Declares the optimizer's state as it goes and emits one update operator a parameter."""

    def __init__(self, b: Builder, options: TrainingOptions, updates: dict[str, str], step: str) -> None:
        self._b, self._options, self._updates, self._step = b, options, updates, step
        rate = np.array([options.learning_rate], np.float32)
        self.learning_rate = b.add_tensor(b.fresh("learning_rate"), _SCALAR, Role.OPTIMIZER_STATE, rate)
        self._product = self._momentum_product() if options.optimizer == "nadam" else ""

    def update(self, parameter: str, gradient: str) -> None:
        """Emit the update of `parameter`, whose whole gradient is `gradient`."""
        b = self._b
        phase, b.phase = b.phase, Phase.UPDATE
        kind, suffixes, attributes = self._rule()
        state = [parameter, *(self._state(parameter, suffix) for suffix in suffixes)]
        scalars = [self.learning_rate]
        if self._options.optimizer in STEP_COUNTING:
            scalars.append(self._step)
        if self._product:
            scalars.append(self._product)
        attributes = {"weight_decay": self._options.weight_decay, **attributes}
        self._updates.update(zip(state, emit_update(b, kind, [*state, gradient, *scalars], attributes), strict=True))
        b.phase = phase

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
