"""The log of a search: the best schedule and the bound over time, a line of JSON an event."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass, replace
from typing import TextIO

MOST_ROWS = 2000  # that are kept for the report: more than that would be no more to see


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An event. Costs are in pJ, or in ns where time is the objective.

    `best`: of the cheapest schedule so far that packs; None: there is none. `unpacked`: of a cheaper one that is not
    packed yet; None: there is none. `bound`: nothing with the order and the choices of the cheapest one
    costs less, nor with the choices of a search that is announced. `scope` numbers these sets of schedules. It stays,
    with its bound, where a cheaper schedule comes from a set about which less is proven. `bound_here`: the bound of the
    search at hand. `gap`: of `best` and `bound`.
    """

    seconds: float
    stage: str
    best: int | None
    unpacked: int | None
    bound: int
    bound_here: int
    gap: float | None
    scope: int = 1


class SearchLog:
    """Takes the events of a search. Each row goes to `file` at once."""

    def __init__(self, file: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.rows: list[Row] = []
        self._last: Row | None = None
        self._scopes: dict[Hashable, int] = {}  # their numbers
        self._file, self._clock, self._started = file, clock, clock()

    def take(
        self,
        stage: str,
        best: int | None,
        bound: int,
        bound_here: int,
        unpacked: int | None = None,
        *,
        scope: Hashable,
    ) -> bool:
        """Note an event, unless it says nothing new. Returns whether its bound is less, and about other schedules.

        `scope`: the order and the choices that the bound is about.
        """
        gap = None if best is None else max(0.0, 1 - bound / best) if best else 0.0
        last = self._last
        seconds = round(self._clock() - self._started, 3)
        number = self._scopes.setdefault(scope, len(self._scopes) + 1)
        row = Row(
            seconds=seconds,
            stage=stage,
            best=best,
            unpacked=unpacked,
            bound=bound,
            bound_here=bound_here,
            gap=gap,
            scope=number,
        )
        if last is not None and replace(last, seconds=seconds) == row:
            return False
        self._last = row
        if len(self.rows) < MOST_ROWS or stage == END:
            self.rows.append(row)
        if self._file is not None:
            self._file.write(json.dumps(asdict(row)) + "\n")
            self._file.flush()
        return last is not None and bound < last.bound and number != last.scope


END = "end"  # the stage of the last row, which has the cost and the bound of the answer
