"""Sets of updates as a MILP: the set of the most importance within limits, or the cheapest one of enough importance.

An update needs pieces of the training step, which several updates share: the forward pass, or the gradients that lead
to a layer. A piece counts once. The answer bounds every set, as far as amounts are least ones.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from poetc.solvers.highs import Mip

SCALE = 1000.0  # of a row and of the objective: HiGHS's tolerances are absolute
SAFETY = 1e-6  # relative, more than those tolerances: bounds are given up by so much

Amounts = Mapping[str, float]
Chosen = frozenset[int]


@dataclass(frozen=True, slots=True)
class Option:
    """One update. At most one of a `group` is in a set. `amounts`: of resources, beside those of its `pieces`."""

    group: str
    value: float
    pieces: frozenset[object]
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class Piece:
    """Amounts that count once in a set, and `peaks`: amounts beside which a resource holds all of the options'."""

    amounts: Amounts
    peaks: Amounts


@dataclass(frozen=True, slots=True)
class Found:
    """The answer: the options of a set, None where there is none, and a bound on the goal of all sets."""

    chosen: Chosen | None
    bound: float
    is_exact: bool


@dataclass(frozen=True, slots=True)
class SetModel:
    """All sets of `options`."""

    options: Sequence[Option]
    pieces: Mapping[object, Piece]

    def value(self, chosen: Collection[int]) -> float:
        """The sum of the values, in the order of the options."""
        return math.fsum(self.options[j].value for j in sorted(chosen))

    @property
    def most(self) -> float:
        """The value of the best option of each group together."""
        best: dict[str, float] = {}
        for option in self.options:
            best[option.group] = max(best.get(option.group, 0.0), option.value)
        return math.fsum(best.values())

    def amount(self, resource: str, chosen: Collection[int]) -> float:
        """The amount of a resource that a set needs at least."""
        pieces = {p for j in chosen for p in self.options[j].pieces}
        own = math.fsum(self.options[j].amounts.get(resource, 0.0) for j in chosen)
        peak = max((self.pieces[p].peaks.get(resource, 0.0) for p in pieces), default=0.0)
        return own + peak + math.fsum(self.pieces[p].amounts.get(resource, 0.0) for p in pieces)

    def solve(
        self,
        limits: Amounts,
        *,
        cheapest: str = "",
        least_value: float = 0.0,
        without: Collection[Chosen] = (),
        gap: float = 0.0,
        time_limit_s: float = 10.0,
        seed: int = 0,
    ) -> Found:
        """The set of the largest value within `limits`; with `cheapest`, that of the least amount of this resource.

        Sets have at least one option, and a value of at least `least_value`. Every set that holds all of one of
        `without` is left out. `gap`: relative, at which the search may stop.
        """
        return _Mip(self, limits, cheapest, least_value, without).solve(time_limit_s, gap, seed)


class _Mip:
    def __init__(
        self, model: SetModel, limits: Amounts, cheapest: str, least_value: float, without: Collection[Chosen]
    ) -> None:
        self.model, self.limits, self.cheapest = model, limits, cheapest
        self.mip = Mip()
        options, most = model.options, max(model.most, 1e-300)
        self.unit = most / SCALE
        if cheapest:
            everything = model.amount(cheapest, range(len(options)))
            self.unit = max(everything, 1e-300) / SCALE
        sign = 0.0 if cheapest else -1.0
        self.x = [
            self.mip.column(self._cost(option.amounts) + sign * option.value / self.unit, 0.0, 1.0)
            for option in options
        ]
        self.classes = self._classes()
        # Integers, though options would make them so: few of them decide the rest.
        self.y = [self.mip.column(self._cost(piece.amounts), 0.0, 1.0) for _, piece in self.classes]
        self._link()
        self.mip.row(self.x, [1.0] * len(self.x), 1.0)
        groups: dict[str, list[int]] = {}
        for j, option in enumerate(options):
            groups.setdefault(option.group, []).append(self.x[j])
        for columns in groups.values():
            if len(columns) > 1:
                self.mip.row(columns, [1.0] * len(columns), upper=1.0)
        for resource, limit in limits.items():
            self._limit(resource, limit)
        if least_value > 0:
            values = [SCALE * option.value / most for option in options]
            self.mip.row(self.x, values, SCALE * least_value / most * (1 - SAFETY))
        for chosen in without:
            self.mip.row([self.x[j] for j in sorted(chosen)], [1.0] * len(chosen), upper=len(chosen) - 1.0)

    def solve(self, time_limit_s: float, gap: float, seed: int) -> Found:
        answer = self.mip.solve(time_limit_s=time_limit_s, seed=seed, gap=gap)
        chosen = None
        if answer.values is not None:
            chosen = frozenset(j for j, column in enumerate(self.x) if answer.values[column] > 0.5)
        if answer.infeasible:
            return Found(None, math.inf if self.cheapest else -math.inf, True)
        bound = answer.bound * self.unit
        if self.cheapest:
            return Found(chosen, max(0.0, bound * (1 - SAFETY)), answer.optimal)
        most = self.model.most
        return Found(chosen, min(most, -bound + SAFETY * most), answer.optimal)

    def _cost(self, amounts: Amounts) -> float:
        return amounts.get(self.cheapest, 0.0) / self.unit if self.cheapest else 0.0

    def _classes(self) -> list[tuple[frozenset[int], Piece]]:
        """Pieces that the same options need, as one."""
        users: dict[object, set[int]] = {}
        for j, option in enumerate(self.model.options):
            for piece in option.pieces:
                users.setdefault(piece, set()).add(j)
        merged: dict[Chosen, list[Piece]] = {}
        for key, who in users.items():
            merged.setdefault(frozenset(who), []).append(self.model.pieces[key])
        result = []
        for together, pieces in merged.items():
            resources = {r for piece in pieces for r in piece.amounts}
            amounts = {r: math.fsum(p.amounts.get(r, 0.0) for p in pieces) for r in sorted(resources)}
            peaks = {r: max(p.peaks.get(r, 0.0) for p in pieces) for r in sorted({r for p in pieces for r in p.peaks})}
            result.append((together, Piece(amounts, peaks)))
        return sorted(result, key=lambda entry: (len(entry[0]), sorted(entry[0])))

    def _link(self) -> None:
        """An option needs its classes. A class that a smaller one implies needs no row of the option."""
        sets = [sum(1 << j for j in who) for who, _ in self.classes]  # bit masks: there are many comparisons
        for k, (who, _) in enumerate(self.classes):  # ascending in size
            covered: list[int] = []  # the largest classes within this one
            for i in reversed(range(k)):
                if sets[i] & sets[k] == sets[i] and not any(sets[i] & sets[c] == sets[i] for c in covered):
                    covered.append(i)
                    self.mip.row([self.y[i], self.y[k]], [1.0, -1.0], upper=0.0)
            for j in sorted(who.difference(*(self.classes[i][0] for i in covered))):
                self.mip.row([self.x[j], self.y[k]], [1.0, -1.0], upper=0.0)

    def _limit(self, resource: str, limit: float) -> None:
        unit = SCALE / max(limit, 1e-300)
        columns, values = [], []
        for j, option in enumerate(self.model.options):
            if option.amounts.get(resource):
                columns.append(self.x[j])
                values.append(unit * option.amounts[resource])
        for k, (_, piece) in enumerate(self.classes):
            if piece.amounts.get(resource):
                columns.append(self.y[k])
                values.append(unit * piece.amounts[resource])
        self.mip.row(columns, values, upper=SCALE)
        for k, (_, piece) in enumerate(self.classes):
            if piece.peaks.get(resource):
                self.mip.row([*columns, self.y[k]], [*values, unit * piece.peaks[resource]], upper=SCALE)
