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

    def evaluate(self, batch: Batch) -> Mapping[str, Array]:
        """The model's outputs for a batch, in inference mode, by name."""
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
    """An Engine out of a model that runs in this process: its programs are the training step and the evaluation."""

    def __init__(self, model: HostModel) -> None:
        self.model = model
        self._training, self._evaluation = model.programs

    def step(self, batch: Batch) -> float:
        return self._selected(self._training).run(batch)

    def evaluate(self, batch: Batch) -> Mapping[str, Array]:
        model = self._selected(self._evaluation)
        model.run(batch)
        return {b.name: model.output(b.name) for b in self._evaluation.outputs}

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
