"""The bits that a step of a bundle must have: those of a program that keeps every tensor and adds up the same parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path

import numpy as np

from poetc.boards import Numerics
from poetc.graph import Array, Value
from poetc.measure._host import HostModel, build_host
from poetc.program import Program, ProgramBundle

# Who added up the batch: (the first plan with such micro-batches, the share of the batch from which on it did so).
History = tuple[tuple[int, str], ...]
Reference = Callable[[History], tuple[Program, Mapping[str, Value]]]
Found = tuple[float, dict[str, bytes]]  # loss and state, by name

CLOSE = 0.01  # of the largest change of a tensor: sums in another order differ by less


def after(history: History, part: int, share: str) -> History:
    """The history of a step that goes over to other micro-batches where `share` is done."""
    kept = tuple(own for own in history if _number(own[1]) < _number(share))
    return kept if kept and kept[-1][0] == part else (*kept, (part, share))


def history_of(bundle: ProgramBundle, source: int, target: int, join: int) -> History:
    """Of a step that begins with plan `source` and goes over to `target` once."""
    begun = ((bundle.parts[source], ""),)
    return (
        begun
        if bundle.parts[source] == bundle.parts[target]
        else after(begun, bundle.parts[target], bundle.share(target, join))
    )


def _number(share: str) -> Fraction:
    return Fraction(share or 0)


class References:
    """Steps of the programs that `reference` makes, on this machine."""

    def __init__(self, reference: Reference, directory: Path, numerics: Numerics = "separate") -> None:
        self._reference, self._directory, self._numerics = reference, directory, numerics
        self._models: dict[History, HostModel] = {}

    def close(self) -> None:
        for model in self._models.values():
            model.close()

    def step(self, history: History, inputs: Mapping[str, Array], before: Mapping[str, bytes] | None = None) -> Found:
        """One step from the state `before`, or from the initial one."""
        model = self._model(history)
        model.reset()
        for name, data in (before or {}).items():
            like = model.state(name)
            model.set_state(name, np.frombuffer(data, like.dtype).reshape(like.shape))
        loss = model.run(inputs)
        return loss, {name: model.state(name).tobytes() for name in model.state_names()}

    def differences(self, history: History, inputs: Mapping[str, Array]) -> Iterator[str]:
        """Where a step by `history` changes state otherwise than the first plan does, beyond the order of sums."""
        whole, other = self.step(((0, ""),), inputs)[1], self.step(history, inputs)[1]
        model = self._model(history)
        model.reset()
        for name, data in whole.items():
            old = model.state(name)
            if old.dtype != np.float32:
                continue
            changes = [np.frombuffer(d, np.float32) - old.ravel() for d in (data, other[name])]
            least = np.abs(old).max(initial=0) * np.finfo(np.float32).eps
            error = np.abs(changes[0] - changes[1]).max(initial=0) - 4 * least
            if not error <= CLOSE * np.abs(changes[0]).max(initial=0):
                yield f"{name} changes otherwise than in the first plan"

    def _model(self, history: History) -> HostModel:
        if history not in self._models:
            program, values = self._reference(history)
            folder = self._directory / f"r{len(self._models)}"
            self._models[history] = build_host([program], values, directory=folder, numerics=self._numerics)
        return self._models[history]
