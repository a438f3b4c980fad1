"""Learning-rate schedules: the rate of every step, in the same bits as `poetc_rate` in C computes.

A schedule is written `KIND[:NAME=VALUE,...]`, as in "cosine:warmup=100,steps=2000,final=1e-5". Steps are
batches and count from 0. The formulas are PyTorch's (torch.optim.lr_scheduler), in closed form:

    constant                            base
    step      every=N, factor=0.1       base * factor^floor(t / N)                            StepLR
    cosine    steps=N, final=0          final + (base - final) * (1 + cos(pi * t / N)) / 2    CosineAnnealingLR
    plateau   factor=0.1, patience=10,  base times the factor at each plateau,                ReduceLROnPlateau
              threshold=1e-4,           but at least `final`
              cooldown=0, final=0
    warm-up   warmup=W, start=1/3       base * (start + (1 - start) * t / W) while t < W      LinearLR

A warm-up comes before any kind; t then counts from its end, as with SequentialLR. `steps` is the length of the whole
cosine schedule, its warm-up included; the rate is `final` afterwards. Without `steps` the schedule lasts as long as the
training run (`over`).

Everything is computed in double precision from + - * / alone, in the same order in C, and rounded to float32 once. So
no library's cosine or power can differ. In C a product that something is added to goes through memory first, so that no
compiler fuses the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np

from poetc.errors import UsageError

KINDS = ("constant", "step", "cosine", "plateau")  # their index is their number in C (enum poetc_rate_kind)
HALF_PI = float.fromhex("0x1.921fb54442d18p+0")
SINE_TERMS = 11  # of the series: the first that is left out is below 2^-57 of the sine
LEAST_CHANGE = 1e-8  # a smaller reduction is left out, as ReduceLROnPlateau's `eps`
MOST_STEPS = 2**31 - 1

_OPTIONS = {
    "constant": (),
    "step": ("every", "factor"),
    "cosine": ("steps", "final"),
    "plateau": ("factor", "patience", "threshold", "cooldown", "final"),
}
_WARM_UP = ("warmup", "start")
_LEAST = {"every": 1, "steps": 1, "patience": 0, "cooldown": 0, "warmup": 0}  # of whole numbers
_RANGES = {"factor": (0.0, 1.0), "final": (0.0, math.inf), "threshold": (0.0, 1.0), "start": (0.0, 1.0)}


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
        if self.kind not in KINDS:
            raise UsageError(f"--schedule {self.kind!r}: choose from {', '.join(KINDS)}")
        if self.kind == "step" and not self.every:
            raise UsageError("--schedule step: say after how many steps the rate falls, as in step:every=1000")
        if self.steps and self.steps <= self.warmup:
            raise UsageError(f"--schedule {self}: steps={self.steps} leaves nothing after a warm-up of {self.warmup}")

    def __str__(self) -> str:
        """The text that `parse` reads this schedule from."""
        given = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if f.name in (*_WARM_UP, *_OPTIONS[self.kind]) and getattr(self, f.name) != f.default
        ]
        return f"{self.kind}:{','.join(given)}" if given else self.kind

    @property
    def needs_steps(self) -> bool:
        """Whether the length of the training run is needed (`over`) before there is any rate."""
        return self.kind == "cosine" and not self.steps

    def over(self, steps: int) -> Schedule:
        """This schedule for a training run of so many steps; the same where it has a length of its own, or none."""
        return replace(self, steps=max(steps, self.warmup + 1)) if self.needs_steps else self

    def rate(self, base: float, step_index: int) -> np.float32:
        """The learning rate of step `step_index` (0 is the first), where the optimizer's own rate is `base`."""
        first, t = float(np.float32(base)), int(step_index)
        if t < self.warmup:
            return np.float32(first * (self.start + (1.0 - self.start) * t / self.warmup))
        t -= self.warmup
        if self.kind == "step":
            return np.float32(first * _power(self.factor, t // self.every))
        if self.kind == "cosine":
            if self.needs_steps:
                raise ValueError("a cosine schedule without its number of steps has no rate: call over(steps)")
            length = self.steps - self.warmup
            sine = _sine((length - min(t, length)) / length)
            return np.float32(self.final + (first - self.final) * (sine * sine))
        if self.kind == "plateau":
            return np.float32(self._reduced(first))
        return np.float32(first)

    def observe(self, loss: float) -> Schedule:
        """The schedule after one more validation loss; the same unless its kind is plateau. A NaN is no better."""
        if self.kind != "plateau":
            return self
        value, seen = float(np.float32(loss)), self.plateau
        better = value < seen.best * (1.0 - self.threshold)
        worse = 0 if better or seen.cooling else seen.worse + 1
        after = replace(
            seen, best=value if better else seen.best, worse=worse, cooling=seen.cooling - 1 if seen.cooling else 0
        )
        if worse > self.patience:
            after = replace(after, worse=0, cooling=self.cooldown, reductions=seen.reductions + 1)
        return replace(self, plateau=after)

    def _reduced(self, rate: float) -> float:
        for _ in range(self.plateau.reductions):
            lower = rate * self.factor
            lower = self.final if lower < self.final else lower
            if not rate - lower > LEAST_CHANGE:
                break
            rate = lower
        return rate


def parse(text: str) -> Schedule:
    """The schedule that `text` describes. Raises UsageError, in one line that names the option --schedule."""
    kind, colon, rest = text.partition(":")
    kind = kind.strip()
    if kind not in KINDS:
        raise UsageError(f"--schedule {text!r}: choose from {', '.join(KINDS)}")
    allowed = (*_OPTIONS[kind], *_WARM_UP)
    values: dict[str, int | float] = {}
    for item in rest.split(",") if colon else ():
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or name not in allowed or name in values:
            why = "is given twice" if name in values else f"is none of {', '.join(f'{n}=' for n in allowed)}"
            raise UsageError(f"--schedule {text!r}: {item.strip()!r} {why}")
        values[name] = _whole(text, name, value) if name in _LEAST else _real(text, name, value)
    if "start" in values and "warmup" not in values:
        raise UsageError(f"--schedule {text!r}: start= needs warmup=")
    return Schedule(kind=kind, **values)  # type: ignore[arg-type]


def c_fields(schedule: Schedule) -> tuple[int | float, ...]:
    """The values of a `poetc_schedule` in C, in the order of poetc_rate.h."""
    s = schedule
    steps = s.every if s.kind == "step" else s.steps
    return KINDS.index(s.kind), s.warmup, steps, s.patience, s.cooldown, s.start, s.factor, s.final, s.threshold


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


def _power(base: float, exponent: int) -> float:
    """By repeated squaring, as in C."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def _sine(x: float) -> float:
    """sin(pi / 2 * x) for x from 0 to 1, by its series: within two units in the last place."""
    angle = HALF_PI * x
    square = angle * angle
    term = total = angle
    for k in range(1, SINE_TERMS):
        term = -(term * square) / (2 * k * (2 * k + 1))
        total += term
    return total
