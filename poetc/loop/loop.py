"""The training loop. It is determined by its options and its data: stopped anywhere, it goes on with the same bits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from poetc.datasets import Batches, BatchFunction, Evaluation
from poetc.errors import CheckFailed, UsageError
from poetc.graph import Array
from poetc.loop.checkpoint import Checkpoint, CheckpointStore
from poetc.loop.engine import Engine
from poetc.loop.metrics import Loss, Meter
from poetc.training.rates import Plateau, Schedule

SAVE_EVERY_S = 60.0  # within an epoch; at its end there is a checkpoint anyway


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """`patience`: epochs without a better one after which training ends; None: it never ends early.

    `ema`: the share of the average that each update keeps; None: no average. `save_every`: steps between checkpoints;
    None: by the clock. `accumulate`: steps an update; the schedule and the average count updates. `schedule_from`: the
    step at which the schedule begins, above 0 where a resumption gave another one.
    """

    epochs: int
    learning_rate: float
    schedule: Schedule
    schedule_from: int = 0
    patience: int | None = None
    ema: float | None = None
    save_every: int | None = None
    accumulate: int = 1
    metrics: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRow:
    """One epoch: means over its steps, and the measurements after it. `rate` is that of its last step.

    `accuracy` is that of its training steps, each before its update; None without classes.
    """

    epoch: int
    loss: float
    accuracy: float | None = None
    validation_loss: float | None
    validation_accuracy: float | None
    validation: Mapping[str, Any]  # every metric by name
    rate: float
    steps: int
    seconds: float
    tokens_per_second: float | None = None  # of its texts, in training steps

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`state`: the tensors to be exported, of `best_epoch`.

    `before`: loss and metrics of the validation samples before the first step. `stopped_early`: patience ended the
    training.
    """

    state: Mapping[str, Array]
    best_epoch: int
    before: Mapping[str, Any]
    epochs: Sequence[EpochRow]
    steps: int
    step_ms: float
    stopped_early: bool
    peak_bytes: int  # of the engine, as given to the loop that began


class Watcher(Protocol):
    """Is told how training goes."""

    def on_start(self, epochs: int, batches: int | None) -> None:
        """Before the first step: how many epochs there are, and batches in each, if that is known."""
        ...

    def on_step(self, epoch: int, batch: int, loss: float, mean: float, accuracy: float | None, rate: float) -> None:
        """After each step.

        The epoch, how many of its batches are done, the loss, its mean and the accuracy in the epoch so far, and the
        learning rate.
        """
        ...

    def on_epoch(self, row: EpochRow, best: bool) -> None:
        """After each epoch; `best`: it is the best so far."""
        ...

    def on_end(self) -> None:
        """After the last step."""
        ...


@dataclass(slots=True)
class _Progress:
    """Where the training stands."""

    epoch: int = 1  # that is running
    batch: int = 0  # batches of it that are done
    step: int = 0  # steps in all
    loss_sum: float = 0.0  # of the epoch
    hits: int = 0  # of the epoch: samples whose class had the highest score,
    samples: int = 0  # and samples that count
    seconds: float = 0.0  # of the epoch
    step_seconds: float = 0.0  # of all steps
    best_epoch: int = 0
    best_loss: float = math.inf
    number: int = 0  # of the checkpoint
    peak_bytes: int = 0  # of the engine; 0: not known
    plateau: dict[str, Any] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)  # The measurements of an evaluation before the first step.
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def accuracy(self) -> float | None:
        """The accuracy of the epoch so far."""
        return self.hits / self.samples if self.samples else None

    @staticmethod
    def of(checkpoint: Checkpoint) -> _Progress:
        return _Progress(**{name: value for name, value in checkpoint.progress.items() if name != "identity"})

    def is_over(self, epochs: int, patience: int | None) -> bool:
        waited = self.epoch - 1 - self.best_epoch
        return self.epoch > epochs or (patience is not None and self.batch == 0 and waited >= max(1, patience))

    def outcome(self, options: LoopOptions, best: Mapping[str, Array]) -> Outcome:
        return Outcome(
            state=best,
            best_epoch=self.best_epoch or self.epoch - 1,
            before=self.before,
            epochs=[EpochRow(**row) for row in self.rows],
            steps=self.step,
            step_ms=1e3 * self.step_seconds / max(1, self.step),
            stopped_early=self.epoch <= options.epochs,
            peak_bytes=self.peak_bytes,
        )


def is_over(checkpoint: Checkpoint, epochs: int | None, patience: int | None) -> bool:
    """Whether all epochs are done, or patience has ended the training. `epochs` None: as many as were done."""
    here = _Progress.of(checkpoint)
    return here.is_over(here.epoch - 1 if epochs is None else epochs, patience)


def outcome_of(checkpoint: Checkpoint, options: LoopOptions) -> Outcome | None:
    """The outcome of a training that is over, without its engine. None: it is not over, or no epoch was the best."""
    here, best = _Progress.of(checkpoint), checkpoint.arrays.get("best")
    if not best or not here.peak_bytes or not here.is_over(options.epochs, options.patience):
        return None
    return here.outcome(options, best)


class Loop:
    """The training loop: epochs of steps of an engine, with evaluation, checkpoints and early stopping.

    `stopping` is called between steps; where it returns True, a checkpoint is written and `run` returns None.
    `changed`: the state tensors that a step changes, which checkpoints hold. `kept`: those of them that are exported.
    """

    def __init__(
        self,
        engine: Engine,
        batches: Batches,
        evaluation: Evaluation | None,
        losses: Sequence[Loss],
        options: LoopOptions,
        *,
        trained: Sequence[str],
        kept: Sequence[str],
        changed: Sequence[str],
        store: CheckpointStore | None,
        watcher: Watcher,
        stopping: Callable[[], bool] = lambda: False,
        identity: Mapping[str, str] | None = None,
        peak_bytes: int = 0,
    ) -> None:
        self.engine, self.batches, self.evaluation, self.options = engine, batches, evaluation, options
        self._losses = losses
        self._trained, self._kept, self._changed = list(trained), list(kept), list(changed)
        self._store, self._watcher, self._stopping = store, watcher, stopping
        self._identity = dict(identity or {})
        self._progress = _Progress(peak_bytes=peak_bytes)
        self._average: dict[str, Array] = {}
        self._best: dict[str, Array] = {}
        self._schedule = options.schedule
        if batches.count is not None:
            steps = options.epochs * batches.count - options.schedule_from
            self._schedule = self._schedule.over(max(1, steps // options.accumulate))
        elif self._schedule.needs_steps:
            raise UsageError(
                f"--schedule {self._schedule}: a function does not say how many batches there are; add steps="
            )
        if options.ema is not None:
            self._average = engine.read(self._trained)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        self._progress = replace(_Progress.of(checkpoint), peak_bytes=self._progress.peak_bytes)
        if self._progress.plateau and (self._progress.step > self.options.schedule_from or not self._progress.step):
            self._schedule = replace(self._schedule, plateau=Plateau(**self._progress.plateau))
        self.engine.write(checkpoint.arrays.get("state", {}))
        self._average = {name: array.copy() for name, array in checkpoint.arrays.get("average", {}).items()}
        self._best = dict(checkpoint.arrays.get("best", {}))

    def save(self) -> None:
        """Write a checkpoint of where the training stands."""
        if self._store is None:
            return
        self._progress.number += 1
        self._progress.plateau = asdict(self._schedule.plateau)
        arrays = {"state": self.engine.read(self._changed), "average": self._average, "best": self._best}
        self._store.save(Checkpoint({**asdict(self._progress), "identity": self._identity}, arrays))

    # --- training -----------------------------------------------------------------------------------------------------

    def run(self) -> Outcome | None:
        """Train to the end. Raises CheckFailed where the loss is no number."""
        here = self._progress
        self._watcher.on_start(self.options.epochs, self.batches.count)
        if not here.number:
            here.before = self.measure() if self.evaluation is not None else {}
            self.save()
        while not here.is_over(self.options.epochs, self.options.patience):
            try:
                if not self._run_epoch():
                    self.save()
                    return None
                self._end_epoch()
            except UsageError as error:  # of the data, such as a file that was cut off
                if not here.step or self._store is None:
                    raise
                self.save()
                raise UsageError(f"{error}; then --resume goes on after step {here.step}") from error
            self.save()
        self._watcher.on_end()
        best = self._best
        if not best:
            exported = self._exported(self.engine.read(self._changed))
            best = {name: exported[name] for name in self._kept}
        return here.outcome(self.options, best)

    def _run_epoch(self) -> bool:
        """The steps of an epoch that are not done yet; False where the loop is to stop before its end."""
        here, saved = self._progress, time.monotonic()
        rate: float | None = None
        for batch in self.batches.epoch(here.epoch, here.batch):
            if self._stopping():
                return False
            started = time.perf_counter()
            wanted = self._rate(here.step)
            if wanted != rate:
                self.engine.set_rate(wanted)
                rate = wanted
            loss = self.engine.step(batch)
            if not math.isfinite(loss):
                raise CheckFailed(
                    f"epoch {here.epoch}, step {here.step + 1}: the loss is {loss}: lower --lr, or scale the inputs"
                    " (--normalize)"
                )
            here.step += 1
            here.batch += 1
            here.loss_sum += loss
            hits, samples = self.engine.hits()
            here.hits += hits
            here.samples += samples
            self._add_to_average()
            here.step_seconds += time.perf_counter() - started
            here.seconds += time.perf_counter() - started
            mean = here.loss_sum / here.batch
            self._watcher.on_step(here.epoch, here.batch, loss, mean, here.accuracy, wanted)
            if self._is_due(saved):
                self.save()
                saved = time.monotonic()
        if not here.batch:
            raise UsageError(f"{self.batches.source.where}: yields no batches")
        return True

    def _rate(self, step: int) -> float:
        since = max(0, step - self.options.schedule_from)
        return float(self._schedule.rate(self.options.learning_rate, since // self.options.accumulate))

    def _is_due(self, saved: float) -> bool:
        every = self.options.save_every
        return self._progress.step % every == 0 if every else time.monotonic() - saved >= SAVE_EVERY_S

    def _add_to_average(self) -> None:
        if self.options.ema is None or self._progress.step % self.options.accumulate:
            return
        share = np.float32(1 - self.options.ema)
        for name, weights in self.engine.read(self._trained).items():
            self._average[name] += share * (weights - self._average[name])

    # --- evaluation ---------------------------------------------------------------------------------------------------

    def _end_epoch(self) -> None:
        here, started = self._progress, time.perf_counter()
        loss = here.loss_sum / here.batch
        measured = self._evaluate() if self.evaluation is not None else {}
        judged = float(measured.get("loss", loss))
        best = judged < here.best_loss
        if best:
            here.best_epoch, here.best_loss = here.epoch, judged
            self._best = self._exported(self.engine.read(self._kept))
        row = EpochRow(
            epoch=here.epoch,
            loss=loss,
            accuracy=here.accuracy,
            validation_loss=measured.get("loss"),
            validation_accuracy=measured.get("accuracy"),
            validation=measured,
            rate=self._rate(here.step - 1),
            steps=here.batch,
            seconds=here.seconds + time.perf_counter() - started,
            tokens_per_second=self._tokens_per_second(),
        )
        here.rows.append(row.to_json())
        self._schedule = self._schedule.observe(judged)
        here.epoch, here.batch, here.loss_sum, here.seconds = here.epoch + 1, 0, 0.0, 0.0
        here.hits = here.samples = 0
        self._watcher.on_epoch(row, best)

    def _tokens_per_second(self) -> float | None:
        source = self.batches.source
        tokens = None if isinstance(source, BatchFunction) else source.token_count
        return None if tokens is None else tokens / max(self._progress.seconds, 1e-9)

    def _exported(self, state: Mapping[str, Array]) -> dict[str, Array]:
        """The weights that are evaluated and exported: the average, if there is one."""
        return {**state, **{name: array.copy() for name, array in self._average.items()}}

    def _evaluate(self) -> dict[str, Any]:
        """Loss and metrics of the validation samples, in inference mode. The state is as it was."""
        if not self._average:
            return self.measure()
        own = self.engine.read(self._trained)
        self.engine.write(self._average)
        try:
            return self.measure()
        finally:
            self.engine.write(own)

    def measure(self) -> dict[str, Any]:
        """The same, of the state that the engine has."""
        assert self.evaluation is not None
        meter = Meter(self._losses, self.options.metrics)
        for batch, count in self.evaluation.batches():
            meter.add(self.engine.evaluate(batch), batch, count / self.batches.rows)
        return meter.result()
