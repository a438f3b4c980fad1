"""Remarks on a schedule that rest on the profile: the shares of its guesses, the life of the store, transfers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from poetc.devices import DeviceProfile, format_ns, life_steps
from poetc.devices.guesses import guessed_numbers
from poetc.scheduling import Trace, verify
from poetc.scheduling.problem import Paging, Problem
from poetc.scheduling.schedule import Compute, PageIn, PageOut, Schedule

YEAR_NS = 365 * 24 * 3600 * 10**9
WORTH_A_THREAD = 0.05  # of the time of a step: where less can overlap, that is no reason for a thread


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
        Counter(action.tensor for action in schedule.actions if isinstance(action, kind)) for kind in (PageOut, PageIn)
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
    store = profile.stores[profile.default_store] if profile is not None and profile.default_store else None
    steps = None if store is None else life_steps(store, _written(problem, schedule))
    return {
        "store_life_steps": steps,
        "store_life_years": None if steps is None else steps * time_ns / YEAR_NS,
    }


def _written(problem: Problem, schedule: Schedule) -> Iterator[tuple[int, int]]:
    """Bytes on the store, and how often a step writes them: pages, and streamed blocks, some of them twice."""
    times, twice = Counter[int](), Counter[tuple[int, int]]()
    for action in schedule.actions:
        if isinstance(action, PageOut):
            times[action.tensor] += 1
        elif isinstance(action, Compute):
            operator = problem.operators[action.operator]
            times.update(operator.writes_store)
            if operator.rewritten_bytes:
                twice[operator.writes_store[0], operator.rewritten_bytes] += 1
    again_bytes = Counter[int]()
    for (t, size_bytes), count in twice.items():
        again_bytes[t] += size_bytes
        yield size_bytes, times[t] + count
    for t, count in times.items():
        yield problem.tensors[t].footprint_bytes - again_bytes[t], count


def transfer_notes(problem: Problem, schedule: Schedule, profile: DeviceProfile | None) -> list[str]:
    """That transfers could overlap compute, where the processor waits for them and a thread can do them."""
    store = profile.stores[profile.default_store] if profile is not None and profile.default_store else None
    if profile is None or store is None or store.mode != "dma" or not profile.cpu.core.startswith("cortex-a"):
        return []
    trace = verify(problem, schedule)
    waited_ns = sum(span.end_ns - span.begin_ns for span in trace.spans if span.lane < 0)
    hidden_ns = min(waited_ns, trace.time_ns - waited_ns)  # at most
    if problem.paging is Paging.DMA or hidden_ns < WORTH_A_THREAD * trace.time_ns:
        return []
    return [f"the processor waits {format_ns(waited_ns)} for the store; with --dma it may compute meanwhile"]
