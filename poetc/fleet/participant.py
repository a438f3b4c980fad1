"""A client of a fleet on this machine: one round of training, and one evaluation, from the server's weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from poetc.artifact import Artifact
from poetc.commands.programs import graph_of, training_program
from poetc.commands.trainer import trainer
from poetc.commands.weights import model_of
from poetc.datasets import Slot, slots_of
from poetc.errors import CheckFailed, UsageError
from poetc.fleet.data import Data
from poetc.fleet.update import Quantizer
from poetc.fleet.weights import FleetModel, Weight, require_sound
from poetc.graph import Array
from poetc.loop import Engine, Loss, Meter, default_metrics
from poetc.program import sample_inputs
from poetc.runtime.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One round of a client: the mean loss of its steps, and the number of its samples."""

    loss: float
    samples: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """An evaluation: mean loss and accuracy of the samples; `accuracy` is None without classes."""

    loss: float
    accuracy: float | None
    samples: int


class Participant:
    """Trains a solved model with the C of this machine. `model` says which weights travel.

    Each round begins with the server's weights and with optimizer state as at the start. So nothing of one client's
    data stays for another client that uses the same object.
    """

    def __init__(self, solved: Artifact, *, threads: int = 0) -> None:
        self.model = FleetModel.of(solved)
        step = graph_of(solved)
        self._losses = Loss.of(step, model_of(solved))
        self._metrics = default_metrics(self._losses[0])
        self.slots: tuple[Slot, ...] = slots_of(step, [loss.target for loss in self._losses])
        self.session: Session = trainer(solved, threads=threads)
        self._program = training_program(solved)
        self._engine = Engine(self.session)
        self._start = self.session.state_dict()
        self._rate = float(step.options["learning_rate"])  # type: ignore[arg-type]

    def fit(
        self,
        state: Mapping[str, Array],
        data: Data,
        *,
        epochs: int = 1,
        first_epoch: int = 1,
        learning_rate: float | None = None,
        max_update_norm: float | None = None,
    ) -> Trained:
        """Train on all samples for `epochs`. The number of an epoch, from `first_epoch` on, seeds its order of samples.

        `first_epoch` counts from 1 over all rounds. `learning_rate`: by default the one that was solved with.
        `max_update_norm`: the largest L2 norm of the change of all weights. Raises CheckFailed where the loss is not
        finite, UnsoundUpdate where a weight is not, or where the norm is larger.
        """
        if epochs < 1:
            raise UsageError(f"local-epochs {epochs}: must be at least 1")
        self._begin(state)
        self._set_rate(self._rate if learning_rate is None else learning_rate)
        total, steps = 0.0, 0
        for epoch in range(first_epoch, first_epoch + epochs):
            for batch in data.batches.epoch(epoch):
                loss = self._engine.step(batch)
                steps += 1
                if not math.isfinite(loss):
                    raise CheckFailed(f"step {steps}: the loss is {loss}: lower the learning rate, or scale the inputs")
                total += loss
        require_sound(state, self.state(), max_update_norm)
        return Trained(loss=total / steps, samples=data.samples, steps=steps)

    def evaluate(self, state: Mapping[str, Array], data: Data) -> Evaluated:
        """Loss and accuracy of the validation samples, in inference mode."""
        if data.evaluation is None:
            raise UsageError("no data to evaluate: give validation or validation_split, or set fraction-evaluate to 0")
        self._begin(state)
        meter = Meter(self._losses, self._metrics)
        for batch, count in data.evaluation.batches():
            meter.add(self._engine.evaluate(batch), batch, count / data.batches.rows)
        result = meter.result()
        return Evaluated(loss=result["loss"], accuracy=result.get("accuracy"), samples=data.evaluated_samples)

    def state(self) -> dict[str, Array]:
        """The weights that the fleet exchanges, by their names in the graph. Integers are converted to floats."""
        state = self.session.state_dict([name for w in self.model.weights for name in w.state_names])
        return {w.tensor: w.from_session(state) for w in self.model.weights}

    def masked(self, quantizer: Quantizer, weight: Weight, before: Array | None, terms: Array, first: int) -> Array:
        """The words of one weight as it is now, less `before`, with the terms of a mask added: by the C, as integers.

        `first`: the number of the weight's first element in the whole update.
        """
        after = weight.from_session(self.session.state_dict(list(weight.state_names)))
        quantized = quantizer.codes_in_c(self.session.library, after, before, first)
        return quantizer.masked_in_c(self.session.library, quantized, terms).reshape(weight.shape)

    def measure_peak(self) -> int:
        """Bytes of the arena that a training step touches."""
        return self._engine.measure_peak(sample_inputs(self._program))

    def close(self) -> None:
        self.session.close()

    def _begin(self, state: Mapping[str, Array]) -> None:
        self.model.require_whole(state)
        own = {name: array for w in self.model.weights for name, array in w.for_session(state[w.tensor]).items()}
        self.session.load_state_dict({**self._start, **own})

    def _set_rate(self, rate: float) -> None:
        try:
            self.session.learning_rate = rate
        except ValueError as error:
            if rate != self._rate:
                raise UsageError(str(error)) from None
