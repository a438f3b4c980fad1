"""The program that trains, as the loop sees it: one step, scores of a batch, and its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from poetc.codegen import HostModel
from poetc.codegen.program import Program
from poetc.graph import Array

RATE = "learning_rate"  # the state tensor that holds it
Batch = Mapping[str, Array]


class Engine(Protocol):
    """Something that trains one batch at a time."""

    def step(self, batch: Batch) -> float:
        """One training step; the loss."""
        ...

    def predict(self, batch: Batch) -> Array:
        """The model's output for a batch, in inference mode."""
        ...

    def read(self, names: Sequence[str]) -> dict[str, Array]:
        """Copies of state tensors."""
        ...

    def state_names(self) -> list[str]:
        """All of the state: what a step changes, and what it starts from."""
        ...

    def write(self, state: Mapping[str, Array]) -> None:
        """Replace these state tensors."""
        ...

    def set_rate(self, rate: float) -> None:
        """The learning rate of the steps that follow."""
        ...


class HostEngine:
    """An Engine out of a model that runs in this process: its programs are the training step and the model itself."""

    def __init__(self, model: HostModel, output: str) -> None:
        self.model = model
        self._training, self._inference = model.programs
        self._output = output

    def step(self, batch: Batch) -> float:
        return self._selected(self._training).run(batch)

    def predict(self, batch: Batch) -> Array:
        model = self._selected(self._inference)
        model.run(batch)
        return model.output(self._output)

    def state_names(self) -> list[str]:
        return self._selected(self._training).state_names()

    def read(self, names: Sequence[str]) -> dict[str, Array]:
        model = self._selected(self._training)
        return {name: model.state(name) for name in names}

    def write(self, state: Mapping[str, Array]) -> None:
        self._selected(self._training).reset(values={**self.read(self.state_names()), **state})

    def set_rate(self, rate: float) -> None:
        self._selected(self._training).set_state(RATE, np.array([rate], np.float32))

    def _selected(self, program: Program) -> HostModel:
        if self.model.program is not program:
            self.model.select(program)
        return self.model
