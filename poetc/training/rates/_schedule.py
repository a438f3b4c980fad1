"""A schedule of the learning rate, its kinds, and the text that it is read from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace

import numpy as np

from poetc.declare import Registry
from poetc.errors import UsageError

MOST_STEPS = 2**31 - 1

_WARM_UP = ("warmup", "start")
_LEAST = {"every": 1, "steps": 1, "patience": 0, "cooldown": 0, "warmup": 0}  # of whole numbers
_RANGES = {"factor": (0.0, 1.0), "final": (0.0, math.inf), "threshold": (0.0, 1.0), "start": (0.0, 1.0)}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of schedule, with the rate of one that is constant.

    `number`: of enum poetc_rate_kind in C. `parameters`: fields of Schedule besides those of the warm-up. `example`,
    `firmware`: in the help of `train` and `emit`; `usage`, `formula`, `pytorch`: in the table of the documentation.
    """

    name: str = field(kw_only=False)
    number: int
    parameters: tuple[str, ...] = ()
    example: str
    firmware: str
    usage: str = ""
    formula: str
    pytorch: str = ""
    needs_losses: bool = False  # of the validation, which a program on a board has not

    def check(self, schedule: Schedule) -> None:
        """Raises UsageError for a schedule that has no rate."""

    def needs_steps(self, schedule: Schedule) -> bool:
        """Whether the length of the training run is needed before there is any rate."""
        del schedule
        return False

    def rate(self, schedule: Schedule, base: float, t: int) -> float:
        """The rate `t` steps after the warm-up, where the first is `base`."""
        del schedule, t
        return base

    def observe(self, schedule: Schedule, loss: float) -> Schedule:
        """The schedule after one more validation loss."""
        del loss
        return schedule

    def c_steps(self, schedule: Schedule) -> int:
        """The field `steps` of a `poetc_schedule` in C."""
        return schedule.steps


KINDS: Registry[Kind] = Registry("--schedule")


def kinds() -> list[Kind]:
    """All kinds of rate schedules, in the order of their numbers in C."""
    return sorted(KINDS.values(), key=lambda kind: kind.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plateau:
    """The memory that a schedule of kind plateau has of the validation losses so far."""

    best: float = math.inf
    worse: int = 0  # losses in a row that were no better than the best
    cooling: int = 0  # losses that do not count yet, after a reduction
    reductions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The learning rate of every step, as a function of the first rate and of the validation losses so far.

    Fields that the kind does not use have their default. Raises UsageError for a value out of range.
    """

    kind: str = "constant"
    warmup: int = 0  # steps
    start: float = 1 / 3  # share of the rate at the first step of the warm-up
    every: int = 0  # steps
    steps: int = 0  # of the whole schedule; 0: of the training run, see `over`
    factor: float = 0.1
    final: float = 0.0  # a rate
    patience: int = 10  # validation losses
    threshold: float = 1e-4  # share by which a loss must be lower to be better
    cooldown: int = 0  # validation losses
    plateau: Plateau = Plateau()

    def __post_init__(self) -> None:
        self.of.check(self)
        if self.steps and self.steps <= self.warmup:
            raise UsageError(f"--schedule {self}: steps={self.steps} leaves nothing after a warm-up of {self.warmup}")

    @property
    def of(self) -> Kind:
        return _kind(self.kind, self.kind)

    def __str__(self) -> str:
        """The text that `parse` reads this schedule from."""
        values = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if f.name in (*_WARM_UP, *self.of.parameters) and getattr(self, f.name) != f.default
        ]
        return f"{self.kind}:{','.join(values)}" if values else self.kind

    @property
    def needs_steps(self) -> bool:
        """Whether the length of the training run is needed (`over`) before there is any rate."""
        return self.of.needs_steps(self)

    def over(self, steps: int) -> Schedule:
        """This schedule for a training run of so many steps; the same where it has a length of its own, or none."""
        return replace(self, steps=max(steps, self.warmup + 1)) if self.needs_steps else self

    def rate(self, base: float, step_index: int) -> np.float32:
        """The learning rate of step `step_index` (0 is the first), where the optimizer's own rate is `base`."""
        first, t = float(np.float32(base)), int(step_index)
        if t < self.warmup:
            return np.float32(first * (self.start + (1.0 - self.start) * t / self.warmup))
        return np.float32(self.of.rate(self, first, t - self.warmup))

    def observe(self, loss: float) -> Schedule:
        """The schedule after one more validation loss; the same unless its kind is plateau. A NaN is no better."""
        return self.of.observe(self, loss)


def _kind(name: str, text: str) -> Kind:
    if name not in KINDS:
        raise UsageError(f"--schedule {text!r}: choose from {', '.join(kind.name for kind in kinds())}")
    return KINDS[name]


def parse(text: str) -> Schedule:
    """The schedule that `text` describes. Raises UsageError, in one line that names the option --schedule."""
    name_of_kind, colon, rest = text.partition(":")
    kind = _kind(name_of_kind.strip(), text)
    allowed = (*kind.parameters, *_WARM_UP)
    values: dict[str, int | float] = {}
    for item in rest.split(",") if colon else ():
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or name not in allowed or name in values:
            why = "is given twice" if name in values else f"is none of {', '.join(f'{n}=' for n in allowed)}"
            raise UsageError(f"--schedule {text!r}: {item.strip()!r} {why}")
        values[name] = _whole(text, name, value) if name in _LEAST else _real(text, name, value)
    if "start" in values and "warmup" not in values:
        raise UsageError(f"--schedule {text!r}: start= needs warmup=")
    return Schedule(kind=kind.name, **values)  # type: ignore[arg-type]


def c_fields(schedule: Schedule) -> tuple[int | float, ...]:
    """The values of a `poetc_schedule` in C, in the order of poetc_rate.h."""
    s = schedule
    steps = s.of.c_steps(s)
    return s.of.number, s.warmup, steps, s.patience, s.cooldown, s.start, s.factor, s.final, s.threshold


def _whole(text: str, name: str, value: str) -> int:
    number = int(value) if value.isascii() and value.isdigit() and len(value) <= 10 else -1
    if not _LEAST[name] <= number <= MOST_STEPS:
        raise UsageError(f"--schedule {text!r}: {name}={value} must be a whole number of at least {_LEAST[name]}")
    return number


def _real(text: str, name: str, value: str) -> float:
    low, high = _RANGES[name]
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not low <= number <= high or math.isinf(number):
        limits = f"of at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
        raise UsageError(f"--schedule {text!r}: {name}={value} must be a number {limits}")
    return number
