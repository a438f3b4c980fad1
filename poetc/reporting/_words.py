"""Numbers and claims in words. A claim is never wider than its proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from poetc.devices.units import format_bytes, format_cost, format_gap, format_ns, format_pj
from poetc.errors import format_count, printable
from poetc.planning import pieces
from poetc.planning.progress import TIME_LIMIT, WORK_LIMIT
from poetc.reporting._solved import Solved
from poetc.reporting.choices import core_words, scope_sentence
from poetc.scheduling.schedule import DEFAULT_GAP, TRAINING_GAP, Status
from poetc.scheduling.scope import Repetition

LONG_LIFE_YEARS = 100  # of a store: longer ones are not told as a number
KERNELS = 4  # named, of those that are not needed
_MORE = "; a longer --time-limit allows more"
MODELLED = "Time and energy are modelled from the device profile, not measured."


def percent(fraction: float) -> str:
    """Four digits at most; a number that is not zero never reads as zero."""
    value = fraction * 100
    if value == 0:
        return "0 %"
    if abs(value) < 0.001:
        return "< 0.001 %"
    return f"{value:.3f}".rstrip("0").rstrip(".") + " %" if abs(value) < 1 else f"{value:.1f} %"


def status(
    status: str,
    gap: float,
    asked_gap: float | None = None,
    one_core_of: int | None = None,
    stopped_by: str | None = None,
    *,
    least: str,
    is_everything: bool = True,
) -> str:
    """The status of a proof in words: gap and bound, and why the search ended.

    `asked_gap`: the gap that the search was to stop at; None where that is not known. `one_core_of`: the equal cores of
    a device, where schedules on one of them alone were considered. `stopped_by`: the time limit or counted work.
    `least`: the bound in words. `is_everything`: it holds for every schedule, and not for a class alone.
    """
    which = f"schedule{' on one core' if one_core_of else ''}{'' if is_everything else ' of its class'}"
    within = f"gap {format_gap(gap)}: no {which} takes less than {least}"
    match Status(status):
        case Status.FEASIBLE:
            by_work = f"stopped by the {WORK_LIMIT}{_MORE}" if stopped_by == WORK_LIMIT else ""
            return ", ".join(part for part in (within, ended(gap, asked_gap) or by_work) if part)
        case Status.LIMIT:
            return f"{within}, stopped by the {stopped_by or TIME_LIMIT}{_MORE if stopped_by == WORK_LIMIT else ''}"
        case named:
            return f"{named.value}{' of schedules on one core' if one_core_of else ''}"


def status_of(solved: Solved) -> str:
    """The words of `status` for the proof of a solved problem."""
    proof, summary = solved.schedule.proof, solved.summary
    optional = (summary.get(key) for key in ("asked_gap", "one_core_of", "stopped_by"))
    least, is_everything = cost(solved, proof.bound), proof.scope.is_everything
    return status(proof.status, proof.gap(), *optional, least=least, is_everything=is_everything)


def ended(gap: float, asked_gap: float | None) -> str:
    """Whether the gap that was asked for ended a search, and how to go on; empty if something else did."""
    if not asked_gap or gap > asked_gap:
        return ""
    if asked_gap == DEFAULT_GAP:
        return "stopped at the default gap; --gap 0 proves on"
    if asked_gap == TRAINING_GAP:  # the default of one command
        return f"stopped at the gap of {format_gap(asked_gap)}; --gap 0 proves on"
    return f"stopped at the gap of {format_gap(asked_gap)} that was asked for"


def is_beyond(budget_bytes: int, peak_bytes: int) -> bool:
    """Whether a chart omits the budget, whose scale would hide all else."""
    return budget_bytes > 4 * peak_bytes


def smallest_bytes(summary: Mapping[str, Any]) -> int | None:
    """The smallest budget that was found; None where nobody searched for it."""
    known: int | None = summary.get("min_budget_bytes")
    return known if summary.get("min_budget_searched", True) else None


def rounded_up(smallest_bytes: int | None, budget_bytes: int, *used_bytes: int) -> set[int]:
    """The sizes that are rounded up: the smallest budget as one that suffices, and the budget if that much is used.

    Else a use of just that size would seem to exceed the budget.
    """
    if smallest_bytes is None:
        return set()
    return {smallest_bytes, budget_bytes} if smallest_bytes in used_bytes else {smallest_bytes}


def of_keep_all(size_bytes: int, keep_all_bytes: int | None) -> str:
    if not keep_all_bytes:
        return ""
    if size_bytes > keep_all_bytes:
        return "more than keep-all needs"
    return f"{percent(size_bytes / keep_all_bytes)} of keep-all"


def of_budget(size_bytes: int, keep_all_bytes: int | None) -> str:
    """The same of a budget, whose bar ends with the chart where it is far larger."""
    cut = keep_all_bytes is not None and is_beyond(size_bytes, keep_all_bytes)
    return of_keep_all(size_bytes, keep_all_bytes) + (", beyond this chart" if cut else "")


def enough_of_keep_all(size_bytes: int, keep_all_bytes: int | None) -> str:
    """The same of a budget that suffices: rounded up."""
    if not keep_all_bytes or size_bytes > keep_all_bytes:
        return of_keep_all(size_bytes, keep_all_bytes)
    tenths = -(-1000 * size_bytes // keep_all_bytes)
    return f"{tenths / 10:.1f} % of keep-all"


def longest_piece(solved: Solved) -> str:
    """The piece of the step that cannot be interrupted for the longest time."""
    piece = pieces.longest_piece(solved.problem, solved.schedule)
    return f"{format_ns(piece.time_ns)}: {piece.in_words(shorten(piece.name))}"


def recomputed(executions: Sequence[int]) -> str:
    """How many operators run more than once in a step, and how often in all; `executions`: of each operator."""
    again = [n - 1 for n in executions if n > 1]
    return recomputed_of(len(again), sum(again), len(executions))


def recomputed_of(again: int, times: int, operators: int) -> str:
    """`again` of so many operators are recomputed, `times` times in all."""
    if not again:
        return f"none of {operators:,} operators"
    often = "once" if times == again == 1 else "once each" if times == again else f"{times:,} times in all"
    return f"{again:,} of {operators:,} operators, {often}"


def cost(solved: Solved, value: int) -> str:
    """A value of the objective."""
    return format_cost(solved.problem.objective, value)


def compute_once(solved: Solved) -> int:
    return solved.problem.objective.cost(solved.compute_once_pj, solved.compute_once_ns)


def overhead(solved: Solved) -> str:
    """The cost of fitting into the budget."""
    trace = solved.trace
    parts = []
    for name, value, once in (
        ("energy", trace.energy_pj, solved.compute_once_pj),
        ("time", trace.time_ns, solved.compute_once_ns),
    ):
        if once > 0:
            parts.append(f"{percent((value - once) / once)} more {name}" if value > once else f"no extra {name}")
    return " and ".join(parts) + " than computing everything once" if parts else ""


def moves_heading(solved: Solved) -> str:
    """The reason of moves within RAM."""
    if solved.problem.banks:
        return "Copied between banks, or moved to make room in one piece"
    return "Moved within RAM, to make room in one piece"


def moved(solved: Solved) -> str:
    """The time that moves within RAM take, all together."""
    trace = solved.trace
    return f"{format_bytes(trace.moved_bytes)}, {format_pj(trace.move_pj)}, {format_ns(trace.move_ns)}"


def written(summary: Mapping[str, Any], written_bytes: int, limit_bytes: int | None) -> str:
    """The bytes that a step writes to the store, their limit, and the wear that follows, as far as that is known."""
    text = f"{format_bytes(written_bytes)} a step"
    if limit_bytes is not None:
        text += f", of {format_bytes(limit_bytes)} allowed"
    return f"{text}; {worn}" if (worn := life(summary)) and written_bytes else text


def life(summary: Mapping[str, Any]) -> str:
    """How long the store lasts; empty if that is not known."""
    steps, years = summary.get("store_life_steps"), summary.get("store_life_years")
    if steps is None or years is None:
        return ""
    span = f"{years:,.1f} years" if years >= 1 else f"{years * 365:,.1f} days"
    span = f"more than {LONG_LIFE_YEARS} years" if years > LONG_LIFE_YEARS else span
    return f"worn out after {format_count(steps, 'step')} ({span} without a pause)"


def peak_bytes(solved: Solved) -> int:
    """The RAM that a step uses, as `solve` and `validate` tell it. Without a model it is the most alive at once."""
    return int(solved.summary.get("peak_bytes", solved.trace.peak_bytes))


def verdict(solved: Solved) -> str:
    """One sentence: whether it fits, and at which cost."""
    problem = solved.problem
    used, cost = format_bytes(peak_bytes(solved)), overhead(solved)
    excess = problem.base_bytes + solved.plan.arena_bytes - problem.budget_bytes
    if excess > 0:
        return f"The schedule fits the budget, but packed it needs {format_bytes(excess)} more than the budget."
    return f"One step fits in {format_bytes(problem.budget_bytes)} of RAM: it uses {used}" + (
        f" and needs {cost}." if cost else "."
    )


def proof(solved: Solved) -> str:
    """The proven bound, its class of schedules, and the schedules that it leaves open."""
    p = solved.schedule.proof
    what = solved.problem.objective
    sentence = schedule_class(solved)
    everything = solved.schedule.proof.scope.is_everything
    cores = core_words(solved.summary.get("core_ways"))
    scope = f"No schedule in {cores}" if everything and cores else "No schedule"
    scope = scope if everything else f"{scope} of the class “{sentence}”"
    least = f"{scope} that fits this budget needs less {what} than {cost(solved, p.bound)}"
    match p.status:
        case Status.OPTIMAL:
            result = f"Proven optimal. {least}; this one needs {cost(solved, p.objective)}."
        case Status.INFEASIBLE:
            return f"Proven infeasible: {scope[0].lower()}{scope[1:]} fits."
        case Status.FEASIBLE | Status.LIMIT:
            by = solved.summary.get("stopped_by")
            stopped = f"The search stopped at its {by or TIME_LIMIT}. " if by or p.status is Status.LIMIT else ""
            saving = f"so at most {format_gap(p.gap())} of it could be saved"
            if p.status is Status.FEASIBLE and (why := ended(p.gap(), solved.summary.get("asked_gap"))):
                stopped = f"The search {why}. "
            result = f"{stopped}{least}; this one needs {cost(solved, p.objective)}, {saving}."
            if p.objective > compute_once(solved):
                extra = format_gap(p.overhead_gap(compute_once(solved)))
                result += f" Of the part above computing once, at most {extra} could be saved."
    if solved.summary.get("one_core_of"):
        result += f" Schedules on one of {solved.summary['one_core_of']} equal cores were considered alone."
    if not everything:
        result += " A schedule outside this class is not excluded from needing less."
    return result


def schedule_class(solved: Solved) -> str:
    """The scope of the bound. A directory of version 0.1 holds it as a sentence alone."""
    scope = solved.schedule.proof.scope
    if scope.repetition is Repetition.OTHER:
        return str(solved.summary.get("schedule_class") or scope_sentence(scope))
    return scope_sentence(scope, solved.summary.get("core_ways"))


def shorten(name: str, limit: int = 70) -> str:
    """The middle of a long name gives way: both ends tell tensors apart."""
    name = printable(name)
    if len(name) <= limit:
        return name
    head = (limit - 1) // 2
    return f"{name[:head]}…{name[head + 1 - limit :]}"


def guesses(summary: Mapping[str, Any]) -> str:
    """How much of the result rests on guesses of the profile; empty where nothing does, or that is not known."""
    shares = summary.get("guesses")
    if not shares or not shares["numbers"]:
        return ""
    text = f"{percent(shares['energy'])} of the energy, {percent(shares['time'])} of the time"
    text += f" ({', '.join(shares['numbers'])})"
    if shares["energy_is_time_times_a_guess"] and str(summary.get("objective")) == "energy":
        text += "; energy is time times a guess: --objective time does without it"
    return text


def band_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A line for each end of the profile's bands: the schedule's cost there, its gap, and a better schedule."""
    rows = []
    for row in summary.get("band") or ():
        text = f"{format_pj(row['energy_pj'])}, {format_ns(row['time_ns'])}"
        gap, fixed = row["gap"], row.get("gap_with_these_choices")
        claims = [] if gap is None else [format_gap(gap)]
        if fixed is not None and (gap is None or format_gap(fixed) != format_gap(gap)):
            claims.append(f"{format_gap(fixed)} with these kernels and places of state")
        text += f"; gap {', '.join(claims)}" if claims else "; no bound"
        if not row["in_time"]:
            text += "; misses the deadline"
        if better := row["better"]:
            saved = percent((row["cost"] - better["cost"]) / row["cost"])
            text += f"; a schedule found for {better['found_at']} needs {saved} less"
        else:
            text += "; no schedule seen is better"
        rows.append((f"{row['section']} {row['end']}", text))
    return rows


def savings_of_part(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The parts that a step does without, beside one that trains all parameters; empty where all are trained."""
    less = summary.get("pruned")
    if not less:
        return []

    def signed(fewer: int, show: Callable[[int], str]) -> str:
        return f"{'-' if fewer >= 0 else '+'}{show(abs(fewer))}"

    kernels = [name.removeprefix("poetc_op_") for name in less["kernels"]]
    more = f" and {len(kernels) - KERNELS} more" if len(kernels) > KERNELS else ""
    rows = [
        ("saved for backward", signed(less["saved_bytes"], format_bytes)),
        ("keep-all peak", signed(less["keep_all_peak_bytes"], format_bytes)),
        ("energy, computing once", signed(less["energy_pj"], format_pj)),
        ("multiply-accumulates", signed(less["macs"], lambda n: f"{n:,}")),
        ("operators", signed(less["operators"], lambda n: f"{n:,}")),
        ("kernels not needed", f"{len(kernels)}: {', '.join(kernels[:KERNELS])}{more}" if kernels else "none"),
    ]
    if less.get("code_bytes") is not None:
        rows.append(("code of kernels in flash", signed(less["code_bytes"], format_bytes)))
    return rows
