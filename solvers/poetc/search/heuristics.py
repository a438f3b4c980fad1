"""The schedules of published heuristics, each as it is and cleaned up, so that none of them is ahead of ours.

They come before everything that takes long: on a slow machine a search may never get so far by itself.
"""

from __future__ import annotations

import time
from dataclasses import replace
from types import ModuleType

from poetc.errors import PoetcError
from poetc.scheduling import SolveOptions
from poetc.solvers.poetc.search.race import Race
from poetc.solvers.poetc.settings import HEURISTICS, WORK
from poetc.solvers.published import (
    capuchin,
    chen,
    chen_greedy,
    dtr,
    dtr_eq,
    dtr_local,
    gpipe,
    kusumoto_approx,
    melon,
    pofo,
    revolve,
    rotor,
    sage,
    superneurons,
    vdnn,
    vdnn_all,
)

# The quick ones are the best most often. Together all take some 30 times as long as Capuchin.
QUICK: tuple[ModuleType, ...] = (capuchin, dtr_local, sage, melon, dtr, dtr_eq, superneurons, vdnn, vdnn_all)
PROGRAMS: tuple[ModuleType, ...] = (pofo, rotor, chen, gpipe, revolve, chen_greedy)
SLOW: tuple[ModuleType, ...] = (kusumoto_approx,)


def offer_published(
    race: Race, options: SolveOptions, target: float, stop_at: float, *, quick_alone: bool = False
) -> None:
    """Offer their schedules to the race, until one costs at most `target`, or the clock is at `stop_at`."""
    slow = () if race.model.n_ops > HEURISTICS.most_operators else SLOW
    for method in (*QUICK, *(() if quick_alone else (*PROGRAMS, *slow))):
        if race.incumbent is not None and race.incumbent.cost <= target:
            return
        left_s = stop_at - time.monotonic()
        if left_s <= 0:
            return
        try:
            schedule = method.solve(race.problem, replace(options, time_limit_s=max(WORK.least_left_s, left_s)))
        except PoetcError:
            continue
        codes, name = race.model.codes(schedule.actions), method.INFO.name
        race.offer(codes, name)
        race.offer_improved(codes, name)
