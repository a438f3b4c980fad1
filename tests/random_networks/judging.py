"""poetc's training beside PyTorch's: what differs by more than rounding does."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tests.random_networks.recipe import Array, sketch
from tests.random_networks.training import Trained

# Allowed is so many times PyTorch's own distance between float32 and float64, and at least a floor. In double precision
# what is left is that a file holds its constants (epsilon, momentum, a scale) in float32, 6e-8 apart from the model's:
# where Adam divides a gradient that cancels by its own size, that is as large as rounding.
EXACT, NOISE_OF_CONSTANTS = 2e-6, 3.0
FLOOR, NOISE = 4e-6, 30.0
ROUNDING = 1e-12  # in float64, of the largest gradient


@dataclass(frozen=True, slots=True)
class Difference:
    """`error` and `allowed` relative to the largest number (of a weight: to the largest move of any)."""

    what: str
    error: float
    allowed: float

    def __str__(self) -> str:
        return f"{self.what} {self.error:.1e} (allowed {self.allowed:.0e})"


def differences(
    found: Trained, expected: Trained, noise: Trained, start: Mapping[str, Array], *, exact: bool
) -> list[Difference]:
    """Everything of `found` that is further from `expected` (float64) than allowed, losses first.

    `noise`: PyTorch in float32; `exact`: `found` is in double precision. `start`: parameters before the first step.
    Names are those of `expected`, whose arrays may be sketches; then all are compared as sketches.
    """
    times, least = (NOISE_OF_CONSTANTS, EXACT) if exact else (NOISE, FLOOR)
    result: list[Difference] = []

    def judge(what: str, error: float, distance: float) -> None:
        allowed = max(times * distance, least)
        if not error <= allowed:  # a NaN is never within
            result.append(Difference(what, error, allowed))

    worst = 0.0
    for number, (mine, theirs, rounded) in enumerate(zip(found.losses, expected.losses, noise.losses, strict=True)):
        scale = max(abs(theirs), 1e-3)
        worst = max(worst, abs(rounded - theirs) / scale)
        judge(f"loss {number}", abs(mine - theirs) / scale, worst)
    for what, mine_of, theirs_of, rounded_of, zero in (
        ("gradient of {}", found.gradients, expected.gradients, noise.gradients, {}),
        ("{} at the end", found.state, expected.state, noise.state, start),
    ):
        moves = [_largest(a - zero[n] if n in zero else a) for n, a in theirs_of.items()]
        scale = max(moves, default=0.0) or 1.0
        distance = max((_largest(rounded_of[n] - a) for n, a in theirs_of.items()), default=0.0) / scale
        for name, theirs_array in theirs_of.items():
            if name in mine_of:
                mine_array = mine_of[name]
                if mine_array.shape != theirs_array.shape:
                    mine_array = sketch(mine_array)
                judge(what.format(name), _largest(mine_array - theirs_array) / scale, distance)
    return result


def rounding_alone(expected: Trained, noise: Trained) -> dict[str, Array]:
    """Elements whose gradient is zero but for rounding, in arrays that have any: a key's bias in attention is one.

    Adam divides a gradient by its own size, so PyTorch moves them at random, in float64 too.
    """
    scale = max((_largest(g) for g in expected.gradients.values()), default=0.0)
    found = {}
    for name, gradient in expected.gradients.items():
        elements = (np.abs(gradient) < ROUNDING * scale) & ((gradient != 0) | (noise.gradients[name] != 0))
        if elements.any():
            found[name] = elements
    return found


def unmoved(trained: Trained, elements: Mapping[str, Array], start: Mapping[str, Array]) -> Trained:
    """With these elements as they were before the first step."""
    state = {n: np.where(elements[n], start[n], a) if n in elements else a for n, a in trained.state.items()}
    return Trained(trained.losses, trained.gradients, state)


def _largest(array: Array) -> float:
    return float(np.abs(array).max(initial=0.0))


@dataclass(frozen=True, slots=True)
class Match:
    """The file's tensor that holds a parameter of the module: `axes` puts the module's array into the file's order."""

    name: str
    axes: tuple[int, ...]
    shape: tuple[int, ...]

    def turn(self, array: Array) -> Array:
        return array.transpose(self.axes).reshape(self.shape)


def match(module: Mapping[str, Array], file: Mapping[str, Array]) -> dict[str, Match]:
    """For each array of the module: the tensor of the file with its name and numbers or, alone, with its numbers."""
    found: dict[str, Match] = {}
    for name, array in module.items():  # exporting moves statistics in training mode: then they are not the module's
        if name in file and (same := _turned(name, file[name], array)):
            found[name] = same[0]
    taken = {m.name for m in found.values()}
    alike: dict[str, list[tuple[str, Match]]] = {}
    for name, array in module.items():
        free = [n for n in file if n not in module and n not in taken and file[n].size == array.size]
        possible = [m for n in free for m in _turned(n, file[n], array)]
        if name not in found and len({m.name for m in possible}) == 1:
            alike.setdefault(possible[0].name, []).append((name, possible[0]))
    found |= {name: m for same in alike.values() if len(same) == 1 for name, m in same}
    return found


def _turned(name: str, there: Array, here: Array) -> list[Match]:
    for axes in itertools.permutations(range(here.ndim)):
        if np.array_equal(here.transpose(axes).reshape(-1), there.reshape(-1)):
            return [Match(name, axes, there.shape)]
    return []
