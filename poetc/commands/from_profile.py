"""Figures of a schedule that rest on the profile: the shares of its guesses, and the life of the store."""

from __future__ import annotations

from collections import Counter
from typing import Any

from poetc.devices import DeviceProfile, life_steps
from poetc.devices.guesses import guessed_numbers
from poetc.scheduling import Trace
from poetc.scheduling.problem import Problem
from poetc.scheduling.schedule import PageIn, PageOut, Schedule

YEAR_NS = 365 * 24 * 3600 * 10**9


def guesses_of(
    problem: Problem, schedule: Schedule, profile: DeviceProfile | None, trace: Trace
) -> dict[str, Any] | None:
    """The shares of the energy and of the time of a step that rest on guesses of the profile, and those numbers.

    None for a Problem, which has no profile.
    """
    if profile is None:
        return None
    guessed = guessed_numbers(profile)
    out, back = (
        Counter(step.tensor for step in schedule.steps if isinstance(step, kind)) for kind in (PageOut, PageIn)
    )
    tensors = problem.tensors
    page_pj = sum(n * tensors[t].page_out_pj for t, n in out.items())
    page_pj += sum(n * tensors[t].page_in_pj for t, n in back.items())
    page_ns = sum(n * tensors[t].page_out_ns for t, n in out.items())
    page_ns = min(page_ns + sum(n * tensors[t].page_in_ns for t, n in back.items()), trace.time_ns)
    pj = (trace.energy_pj - page_pj) * bool(guessed.compute_energy) + page_pj * bool(guessed.page_energy)
    ns = (trace.time_ns - page_ns) * bool(guessed.compute_time) + page_ns * bool(guessed.page_time)
    names = (
        guessed.compute_time,
        guessed.compute_energy,
        *((guessed.page_time, guessed.page_energy) if page_pj else ()),
    )
    return {
        "energy": pj / trace.energy_pj if trace.energy_pj else 0.0,
        "time": ns / trace.time_ns if trace.time_ns else 0.0,
        "numbers": list(dict.fromkeys(name for part in names for name in part)),
        "energy_is_time_times_a_guess": guessed.only_power,
    }


def wear_of(problem: Problem, schedule: Schedule, profile: DeviceProfile | None, time_ns: int) -> dict[str, Any]:
    """How long the store lasts, in steps and in years of training without a pause.

    None where nothing is written, or the profile does not say how many writes the store endures.
    """
    pages = Counter(step.tensor for step in schedule.steps if isinstance(step, PageOut))
    store = profile.stores[profile.default_store] if profile is not None and profile.default_store else None
    steps = None
    if store is not None and pages:
        steps = life_steps(store, [(problem.tensors[t].footprint_bytes, times) for t, times in pages.items()])
    return {
        "store_life_steps": steps,
        "store_life_years": None if steps is None else steps * time_ns / YEAR_NS,
    }
