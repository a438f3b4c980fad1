"""Streamed operands: which operands of which operators pass through a window, and how large the blocks are.

Streaming costs transfers, so nothing is streamed where a schedule without it fits the budget. An exception is a step
in which one operator takes much of the RAM and first schedules are cheaper with streams. Then the cheaper of both is
taken. An operator whose operands take more than a limit streams some of them: the largest first, as many as it must.
Its blocks are the largest that keep within the limit. Limits from the budget down are proposed. Each is a plain
problem for the other reductions.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from poetc import solvers
from poetc.devices.streaming import Form, StreamedAlternatives, streamed_problem
from poetc.errors import InfeasibleError, LimitError, PoetcError, format_count
from poetc.ops import bind, spec
from poetc.planning.alternatives import better_of
from poetc.planning.kernels import fastest, with_least_workspace
from poetc.planning.plain import ENGINE
from poetc.planning.planner import Planner, Reduction
from poetc.planning.settings import KERNEL, STREAMING
from poetc.planning.solution import Solution, cost_of_computing_once
from poetc.planning.state import everything_on_store
from poetc.planning.streamed_operators import StreamedOperators, needs_bytes, unpriced
from poetc.scheduling import OperatorSpec, Problem, ScheduleError, remember
from poetc.scheduling.scope import Option

# For each streamed operator: its index, the number of its alternative, how many tensors it streams, and these.
# Nothing: ().
Streams = tuple[int, ...]
AlternativesOf = Callable[[Problem], StreamedAlternatives | None]


class Proposal(NamedTuple):
    """Streamed operands, the problem with them, and the cost of a first schedule; infinite where there is none."""

    choice: Streams
    problem: Problem
    first_cost: float


Ranked = Sequence[Proposal]


class Streaming(Reduction[Streams]):
    """`offers`: make the alternatives of the operators of a problem, or None for a problem that is not theirs.

    Alternatives stream other tensors: no plain problem is a relaxation of all. The frugal problem has no streams, since
    `solve` looks for the floor with them where the one without is too high.
    """

    name = "streaming"
    scoped = True
    noun = "streamed operands"

    def __init__(self, offers: Sequence[AlternativesOf] = ()) -> None:
        self.offers = tuple(offers)
        self._known: list[tuple[Problem, StreamedAlternatives | None]] = []
        self._floors: dict[int, Streams] = {}  # by the identity of the offer, which `_known` keeps
        self._rankings: dict[tuple[Problem, bool], Ranked] = {}  # by problem, and whether a quick answer is wanted

    def is_open(self, problem: Problem) -> bool:
        offer = self._offer(problem)
        return offer is not None and offer.is_possible

    def propose(self, problem: Problem, incumbent: Solution | None) -> Iterator[Streams]:
        """By smaller and smaller limits of an operator's operands; at last the floor, first in the cheapest blocks."""
        if self.is_open(problem):
            series = [self._by_limits(problem, STREAMING.shares, little=little) for little in (True, False)]
            yield from dict.fromkeys((*series[0], *series[1], *self._at_floor(problem)))
        else:
            yield ()

    def _by_limits(self, problem: Problem, shares: Sequence[float], *, little: bool = True) -> Iterator[Streams]:
        """By these shares of the room in RAM, one after the other, since each takes long.

        `little`: not in blocks that are for the longest piece alone.
        """
        offer = self._offer(problem)
        assert offer is not None
        room = problem.budget_bytes - problem.base_bytes - problem.page_buffer_bytes
        limits = [math.floor(share * room) for share in shares]
        if not little and offer.longest_ns is None:
            return
        seen: set[Streams] = {()}
        proposed = (_recorded(offer, unpriced(offer, limit, little=little)) for limit in limits)
        for choice in proposed:
            if choice not in seen:
                seen.add(choice)
                yield choice

    def _at_floor(self, problem: Problem) -> list[Streams]:
        """All that can be streamed: in the cheapest blocks that fit, and in the least."""
        offer = self._offer(problem)
        assert offer is not None
        room = problem.budget_bytes - problem.base_bytes - problem.page_buffer_bytes
        least = self._least(problem)
        widened = _recorded(offer, _widened(offer, _decoded(offer, least), room))
        return [choice for choice in dict.fromkeys((widened, least)) if choice]

    def fix(self, problem: Problem, choice: Streams) -> Problem:
        offer = self._offer(problem)
        if not choice or offer is None:
            return problem
        return streamed_problem(problem, _decoded(offer, choice))

    def chosen(self, problem: Problem, solved: Problem) -> Streams | None:
        streamed = {k: op for k, op in enumerate(solved.operators) if op.is_streamed}
        if not streamed:
            return () if self.is_open(problem) else None
        offer = self._offer(problem)
        if offer is None or [op.name for op in problem.operators] != [op.name for op in solved.operators]:
            raise ScheduleError(None, "it streams operands, which the problem does not offer")
        return _recorded(offer, streamed)

    @classmethod
    def scope_words(cls, option: Option) -> str:
        return super().scope_words(option) if option else f"no {cls.noun}"

    def floor(self, problem: Problem) -> Problem:
        """The problem that streams all it can in the smallest blocks."""
        return self.fix(problem, self._least(problem))

    def frugal_as(self, problem: Problem, smallest: Problem) -> Problem:
        return self.fix(problem, self.chosen(problem, smallest) or ())

    def lower_bound_bytes(self, problem: Problem, inner: Planner) -> int:
        """With streams only where nothing fits the budget without."""
        bound = inner.lower_bound_bytes(problem)
        if bound <= problem.budget_bytes or not self.is_open(problem):
            return bound
        return min(bound, inner.lower_bound_bytes(self.floor(problem)))

    def proves_too_small(self, problem: Problem) -> bool:
        """Whether an operator needs more than the budget, whichever of its operands stream.

        The floor alone proves nothing: windows may take more than they save, and others may take less.
        """
        offer = self._offer(problem)
        if offer is None or not offer.is_possible:
            return True
        room = problem.budget_bytes - problem.base_bytes
        needs = [_needs_at_least(problem, op, frozenset(op.reads_store)) for op in self.floor(problem).operators]
        largest = sorted(range(len(needs)), key=lambda k: -needs[k])[: STREAMING.proofs]
        return any(needs[k] > room and _least_of_any(offer, k, room) > room for k in largest)

    def solve(self, problem: Problem, planner: Planner) -> Solution:
        if planner.solver != ENGINE or not self.is_open(problem):
            return planner.inner.solve(problem)
        error: PoetcError | None = None
        best: Solution | None = None
        fits = planner.inner.lower_bound_bytes(problem) <= problem.budget_bytes
        ranked: Ranked | None = None
        whole, first = 0.0, None
        if fits and self._may_help(problem):
            whole, first = self._first_without(problem, planner)
            ranked = self._ranked_once(problem, planner, whole)
        if ranked and ranked[0].first_cost < whole and planner.left_s > 0:
            share = 1.0 if problem.processors and whole == math.inf else STREAMING.promising_share
            planner.expecting(problem, self, {(): problem})
            part = planner.part(share * planner.left_s, work_limit_s=share * planner.options.work_limit_s)
            planner.progress("streaming operands through windows")
            best, _ = self._streamed(problem, part, ranked)
            if best is not None and (planner.left_s <= 0 or share == 1.0):
                return best
            left_s = max(planner.left_s, STREAMING.floor_share * planner.options.time_limit_s)
            planner = planner.part(left_s, work_limit_s=(1 - share) * planner.options.work_limit_s)
        if fits:
            try:
                plain = self.restore(problem, (), planner.inner.having(self, ()).solve(problem))
                if first is not None and first.cost < plain.cost:  # nothing cheaper packed in time
                    plain = better_of(first, plain)
                return plain if best is None or plain.cost <= best.cost else best
            except (InfeasibleError, LimitError) as failed:
                error = failed
        if best is not None:
            return best
        planner.progress("streaming operands through windows")
        solution, other = self._streamed(problem, planner, ranked or None)
        if solution is not None:
            return solution
        if error is None:
            error = self._with_floors(problem, planner, other)
        raise error

    def first_cost(self, problem: Problem, planner: Planner) -> float:
        """The cost of a first schedule, with or without streams; infinite where there is none."""
        whole = first_cost(problem, planner)
        fits = planner.inner.lower_bound_bytes(problem) <= problem.budget_bytes
        if not fits or not self.is_open(problem) or not self._may_help(problem):
            return whole
        return min([whole, *(proposal.first_cost for proposal in self._ranked_once(problem, planner, whole))])

    def _first_without(self, problem: Problem, planner: Planner) -> tuple[float, Solution | None]:
        """The cost of a first schedule without streams, and its solution, which is taken up if it packs.

        To price streams takes longer than that.
        """
        cost = first_cost(problem, planner)
        kept = None if cost == math.inf else planner.inner.having(self, ()).first(problem)
        return cost, None if kept is None else self.restore(problem, (), kept)

    def _may_help(self, problem: Problem) -> bool:
        """Whether an operator takes much of the RAM, or one could read single rows.

        Side by side it takes nearly all: transfers beside the work cost less than streams otherwise.
        """
        if problem.processors:
            needed_bytes = solvers.lower_bound_bytes(everything_on_store(fastest(problem)))
            return KERNEL.tight * needed_bytes > problem.budget_bytes
        offer = self._offer(problem)
        return _is_crowded(problem) or (offer is not None and any(map(offer.tables_of, range(len(problem.operators)))))

    def _ranked_once(self, problem: Problem, planner: Planner, whole: float) -> Ranked:
        """`_ranked`, which takes long, for all solves of the problem."""
        key = problem, planner.options.is_quick
        known = self._rankings.get(key)
        return remember(self._rankings, key, self._ranked(problem, planner, whole)) if known is None else known

    def _ranked(self, problem: Problem, planner: Planner, whole: float = math.inf) -> Ranked:
        """Proposals that may fit, the one with the cheapest first schedule first.

        One that costs more even without paging than a first schedule without streams, `whole`, is left out. So are
        those by lower limits and at the floor, whose prices take long. Side by side each takes long to solve. Where
        there is a first schedule with streams, those that cost more are left out, those without one, and those at the
        floor.
        """
        is_narrow = bool(problem.processors)
        shares = STREAMING.quick_shares if planner.options.is_quick else STREAMING.shares
        ranked: list[Proposal] = []
        cheapest, is_dear = math.inf, False
        by_limits = functools.partial(self._by_limits, problem, shares)
        in_pieces, at_floor = functools.partial(by_limits, little=False), functools.partial(self._at_floor, problem)
        for choices in (by_limits, in_pieces, at_floor):
            is_over = is_dear or (is_narrow and cheapest < math.inf)
            for choice in () if choices is at_floor and is_over else choices():
                asked = self.fix(problem, choice)
                if cost_of_computing_once(asked) >= (cheapest if is_narrow else whole):
                    is_dear = True
                    break
                if planner.inner.knowing(None).lower_bound_bytes(asked) > problem.budget_bytes:
                    continue
                ranked.append(Proposal(choice, asked, first_cost(asked, planner)))
                cheapest = min(cheapest, ranked[-1].first_cost)
        ranked.sort(key=lambda p: (p.first_cost, cost_of_computing_once(p.problem)))
        return [p for p in ranked if p.first_cost < math.inf or not is_narrow] or ranked

    def _streamed(
        self, problem: Problem, planner: Planner, ranked: Ranked | None
    ) -> tuple[Solution | None, PoetcError | None]:
        """The cheapest schedule with streams that was found; or the first error. `ranked`: if it is known."""
        inner, is_quick = planner.inner.knowing(None), planner.options.is_quick
        ranked = self._ranked(problem, planner) if ranked is None else ranked
        fitting, fixed = [p.choice for p in ranked], {p.choice: p.problem for p in ranked}
        planner.expecting(problem, self, fixed)
        best: Solution | None = None
        error: PoetcError | None = None
        limit_s = max(planner.left_s, STREAMING.floor_share * planner.options.time_limit_s)
        planner = planner.part(limit_s)
        work_s = planner.options.work_limit_s
        share = STREAMING.first_share / len(fitting) if len(fitting) > 1 and not is_quick else 1.0
        for left, choice in zip(range(len(fitting), 0, -1), fitting, strict=True):
            if best is not None and (is_quick or planner.left_s <= 0):
                break
            if best is not None and cost_of_computing_once(fixed[choice]) >= best.cost:
                continue
            seconds = max(planner.left_s / left, STREAMING.floor_share * limit_s)
            part = inner.part(seconds, work_limit_s=share * work_s).having(self, choice)
            try:
                solution = self.restore(problem, choice, part.solve(fixed[choice]))
            except (InfeasibleError, LimitError) as failed:
                error = error or failed  # that of the most promising choice
                continue
            if best is None or solution.cost < best.cost:
                best = solution
        if best is not None and share < 1 and not best.is_close(planner.options.gap) and planner.left_s > 0:
            chosen = self.option(best)
            assert chosen is not None
            part = inner.part(planner.left_s, work_limit_s=(1 - STREAMING.first_share) * work_s)
            part = part.having(self, chosen)
            with suppress(InfeasibleError, LimitError):
                best = better_of(best, self.restore(problem, chosen, part.solve(fixed[chosen])))
        return best, error

    def _with_floors(self, problem: Problem, planner: Planner, other: PoetcError | None) -> PoetcError:
        """The error of a budget that is too small with streams and without."""
        least = self.floor(problem)
        bound, without = map(planner.inner.lower_bound_bytes, (least, problem))
        is_frugal = other is not None or bound < without  # windows may take more than they save
        if other is None:
            try:
                planner.inner.knowing(None).solve(least if is_frugal else problem)
            except (InfeasibleError, LimitError) as failed:
                other = failed
        assert other is not None
        streamed = sum(1 for op in least.operators if op.is_streamed)
        count = format_count(streamed, "operator")
        text = (
            f"{other} (with {count} streamed; without streaming no schedule needs less than {without} bytes)"
            if is_frugal
            else f"{other} (with {count} streamed no schedule needs less than {bound} bytes)"
        )
        if not streamed:  # --longest-piece forbids them all, for example
            text = str(other)
        text += self.reasons(problem)
        if isinstance(other, InfeasibleError) and bound > problem.budget_bytes and self.proves_too_small(problem):
            return InfeasibleError(text, details=other.details)
        return LimitError(text.replace("no schedule fits in", "no schedule was found for", 1), details=other.details)

    def reasons(self, problem: Problem) -> str:
        """Of a budget that is too small with streams, in words: the store, or an operator without blocks."""
        least = self.floor(problem)
        return self._uncut(problem, least) + _short_of_store(least)

    def _uncut(self, problem: Problem, least: Problem) -> str:
        """The operator that needs most at the floor, in words, if its kind has no blocks: another form of it may."""
        offer = self._offer(problem)
        assert offer is not None
        most = max(least.operators, key=lambda op: _needs_at_least(problem, op, frozenset(op.reads_store)))
        op = offer.operators[most.name]
        if spec(op.kind).cuts(bind(op, offer.graph.tensors)):
            return ""
        why = " (operators on 16 bits have none: leave out --precision)" if op.kind == "Narrowed" else ""
        return f"; {op.kind} {op.name!r} needs most, and has no blocks{why}"

    def _least(self, problem: Problem) -> Streams:
        offer = self._offer(problem)
        if offer is None or not offer.is_possible:
            return ()
        if id(offer) not in self._floors:
            sizes = (True, False) if offer.longest_ns is not None else (True,)
            options: list[StreamedOperators] = [{}, *(unpriced(offer, 0, little=little) for little in sizes)]
            least = [_least_bytes(streamed_problem(problem, operators)) for operators in options]
            best = len(least) - 1 - least[::-1].index(min(least))  # windows may take more than they save
            self._floors[id(offer)] = _recorded(offer, options[best])
        return self._floors[id(offer)]

    def _offer(self, problem: Problem) -> StreamedAlternatives | None:
        for known, offer in self._known:
            if known.operators == problem.operators and known.tensors == problem.tensors:
                return offer
        offer = next((alternatives for make in self.offers if (alternatives := make(problem)) is not None), None)
        self._known.append((problem, offer))
        return offer


def _short_of_store(least: Problem) -> str:
    """A store without room for all that can be streamed, in words; "" where it has room."""
    capacity = least.store_capacity_bytes
    there = [t for t in least.tensors if "store" in (t.initial, t.final)]
    needed = sum(t.footprint_bytes for t in there)
    if capacity is None or needed <= capacity:
        return ""
    name = max(there, key=lambda t: t.footprint_bytes).name
    return f"; the store has {capacity} bytes, and streams need {needed} of it, most of them for {name!r}"


def without_streams(planner: Planner) -> Planner:
    """The planner without the choice of streamed operands."""
    return replace(planner, reductions=tuple(r for r in planner.reductions if not isinstance(r, Streaming)))


def _recorded(offer: StreamedAlternatives, operators: StreamedOperators) -> Streams:
    """The numbers that record streamed operators. ScheduleError for one that is no alternative of its operator."""
    record: list[int] = []
    for k, op in sorted(operators.items()):
        tensors = sorted({*op.reads_store, *op.writes_store})
        offered = offer.forms(k, frozenset(tensors))
        if Form.of(op) not in offered:
            name = offer.problem.operators[k].name
            raise ScheduleError(None, f"{name!r} in blocks of {op.block} along {op.cut} is no alternative of it")
        number = offer.numbers(k, frozenset(tensors))[offered.index(Form.of(op))]
        record += [k, number, len(tensors), *tensors]
    return tuple(record)


def _decoded(offer: StreamedAlternatives, choice: Streams) -> StreamedOperators:
    """The streamed operators that such numbers record. ScheduleError for a number that names none."""
    operators, at = {}, 0
    while at < len(choice):
        k, number, count = choice[at : at + 3]
        streamed = frozenset(choice[at + 3 : at + 3 + count])
        numbers = offer.numbers(k, streamed)
        if number not in numbers:
            raise ScheduleError(None, f"{offer.problem.operators[k].name!r} has no alternative {number}")
        operators[k], at = offer.priced(k, streamed, numbers.index(number)), at + 3 + count
    return operators


def _least_bytes(problem: Problem) -> int:
    """No schedule with all state on the store, and kernels of the least workspace, needs less RAM."""
    return solvers.lower_bound_bytes(with_least_workspace(everything_on_store(problem)))


def _needs_at_least(problem: Problem, op: OperatorSpec, tokens: frozenset[int]) -> int:
    """The same where every output that may take the place of an input does so."""
    taken = {p.output for p in op.in_place if not p.required and p.input not in tokens}
    taken -= tokens | set(op.writes_store)
    return needs_bytes(problem, op, tokens) - sum(problem.tensors[t].size_bytes for t in taken)


def _least_of_any(offer: StreamedAlternatives, k: int, enough_bytes: int) -> float:
    """The RAM of an operator's operands and workspace in any alternative, bytes; the first that is no more than enough.

    0 where there are too many sets of operands to look at each.
    """
    problem = offer.problem
    op = problem.operators[k]
    operands = sorted({*op.inputs, *op.outputs})
    if len(operands) > STREAMING.most_operands:
        return 0
    least = _needs_at_least(problem, op, frozenset())
    for count in range(1, len(operands) + 1):
        for streamed in map(frozenset, itertools.combinations(operands, count)):
            needs = (_needs_at_least(problem, f, streamed) for f in offer.alternatives(k, streamed))
            least = min([least, *needs])
            if least <= enough_bytes:
                return least
    return least


def _widened(offer: StreamedAlternatives, operators: StreamedOperators, limit_bytes: int) -> StreamedOperators:
    """The same operands streamed, in the cheapest blocks with which each operator keeps within the limit."""
    needs = {k: needs_bytes(offer.problem, op, frozenset(op.reads_store)) for k, op in operators.items()}
    return {k: offer.widened(k, op, limit_bytes - needs[k] + op.workspace_bytes) for k, op in operators.items()}


def first_cost(problem: Problem, planner: Planner) -> float:
    """Of a first schedule, with the usual choices; infinite where none is found at once."""
    for reduction in planner.inner.reductions:
        problem = reduction.usual(problem)
    first = planner.at_once(problem)
    return math.inf if first is None else first.proof.objective


def _is_crowded(problem: Problem) -> bool:
    """Whether one operator takes so much of the RAM that streams may help where a schedule without them fits."""
    largest = max((needs_bytes(problem, op, frozenset()) for op in problem.operators), default=0)
    return largest > STREAMING.crowded_share * problem.budget_bytes
