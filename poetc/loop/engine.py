"""The program that trains, as the loop sees it: one step, scores of a batch, and its state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from poetc.errors import CheckFailed, UsageError
from poetc.graph import Array
from poetc.runtime.session import ENUMBER, Session, SessionError

Batch = Mapping[str, Array]


class Engine:
    """A session with an emitted model, one batch at a time.

    `scores`: the training program's, as `program.class_scores` finds them, for its hits. `successor`: asked before each
    step for a session that is to go on with the state; the one before it is closed.
    """

    def __init__(
        self,
        session: Session,
        scores: Sequence[Sequence[int]] = (),
        successor: Callable[[], Session | None] = lambda: None,
    ) -> None:
        if "evaluate" not in session.programs:
            raise UsageError("solved without its model, which validation needs; run poetc solve again")
        self._session, self._scores, self._successor = session, scores, successor
        session.count_hits(scores)
        self._inputs = {program: session.inputs(program) for program in ("train", "evaluate")}

    def step(self, batch: Batch) -> float:
        """One training step; the loss, not a number where a number of the step was none."""
        following = self._successor()
        if following is not None:
            following.take_over(self._session)
            following.count_hits(self._scores)
            self._session.close()
            self._session = following
        self._session.take_hits()
        return self._call(self._session.step, self._of("train", batch))

    def hits(self) -> tuple[int, int]:
        """Samples of the last step whose class had the highest score, and samples that count; without classes 0, 0."""
        return self._session.take_hits()

    def evaluate(self, batch: Batch) -> Mapping[str, Array]:
        """The model's outputs for a batch, in inference mode, by name."""
        self._call(self._session.evaluate, self._of("evaluate", batch))
        return self._session.outputs()

    def read(self, names: Sequence[str]) -> dict[str, Array]:
        """Copies of state tensors."""
        return self._session.state_dict(names)

    def write(self, state: Mapping[str, Array]) -> None:
        """Replace these state tensors."""
        self._session.load_state_dict(state, strict=False)

    def set_rate(self, rate: float) -> None:
        """The learning rate of the steps that follow."""
        self._session.learning_rate = rate

    def measure_peak(self, batch: Batch) -> int:
        """Bytes of the arena that a training step takes: the end of the highest that it touches."""
        try:
            return self._session.measure_peak(self._of("train", batch))
        except SessionError as error:  # such as an exponent that overflows in the first step
            raise CheckFailed(str(error)) from error

    def _of(self, program: str, batch: Batch) -> Batch:
        """The arrays that a program takes. A target that the data lack is of a model's own loss, which is to be 0."""
        return {
            name: batch[name] if name in batch else np.zeros(shape, dtype)
            for name, (shape, dtype) in self._inputs[program].items()
        }

    @staticmethod
    def _call(function: Callable[[Batch], float], batch: Batch) -> float:
        try:
            return function(batch)
        except SessionError as error:
            if error.code == ENUMBER:
                return math.nan  # the loop says which step it was
            raise CheckFailed(str(error)) from error
        except ValueError as error:  # such as an input that scaling has made infinite
            raise UsageError(f"a batch, after scaling and augmentation: {error}") from error
