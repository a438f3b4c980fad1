"""The encodings of saved tensors, as a choice: each set of encodings is another training step, and another problem.

Nothing is encoded where keep-all fits, since an encoding costs time and energy. Elsewhere the problem without encodings
is solved, then those with encodings that may cost less. Then comes the best of them without the encodings that its
schedule does not need.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from poetc import solvers
from poetc.errors import format_count
from poetc.planning.alternatives import Alternatives
from poetc.planning.kernels import KERNELS
from poetc.planning.plain import ENGINE
from poetc.planning.planner import Planner
from poetc.planning.settings import SAVED
from poetc.planning.solution import Solution, cost_of_computing_once
from poetc.planning.streaming import Streaming, first_cost, without_streams
from poetc.scheduling import Compute, Problem, ScheduleError, keep_all_peak_bytes, verify
from poetc.scheduling.scope import Option

_FEW = 2  # proposals, as without those that change bits
_WORK_S, _SEARCH_S = 0.1, 2.0  # counted, and on the clock, for the least RAM of each proposal
Encodings = tuple[int, ...]  # the numbers of the encodings that are made, ascending


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that can be encoded, by its name in the problem, and the operators that read its code."""

    name: str
    readers: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingSpace:
    """The encodings that a problem can have.

    `exact`: the problem without any. `build` makes the problem with some of them. `tensors` has one entry an encoding.
    `proposals`: sets that are worth solving for. `streams`: operands have to be streamed, whatever is encoded.
    """

    exact: Problem
    build: Callable[[Encodings], Problem]
    tensors: tuple[Tensor, ...]
    proposals: tuple[Encodings, ...]
    streams: bool = False
    _problems: dict[Encodings, Problem] = field(default_factory=dict, repr=False, compare=False)
    _frugal: dict[int | None, Encodings] = field(default_factory=dict, repr=False, compare=False)  # by deadline

    def problem(self, choice: Encodings, asked: Problem) -> Problem:
        """The problem of `choice` at the limits of `asked`."""
        encoded = self.exact
        if choice:
            encoded = self._problems[choice] = self._problems.get(choice) or self.build(choice)
        return replace(asked, operators=encoded.operators, tensors=encoded.tensors)


class Saved(Alternatives[Encodings]):
    """`offers`: one for each problem that can have encodings."""

    name = "saved"
    scoped = True
    noun = "encodings of saved tensors"
    first_round: ClassVar[float] = 0.3
    patience: ClassVar[float] = 1.0  # first schedules tell options apart: the time is for the cheapest one
    operators_per_s: ClassVar[float] = SAVED.operators_per_s

    def __init__(self, offers: Sequence[EncodingSpace]) -> None:
        self.offers = tuple(offers)

    def is_open(self, problem: Problem) -> bool:
        return self._offer(problem) is not None

    def frugal(self, problem: Problem) -> Problem:
        return self.fix(problem, self._frugal(problem))

    def propose(self, problem: Problem, incumbent: Solution | None) -> Iterator[Encodings]:
        """None at all, then the proposals by the cost of computing once."""
        offer = self._offer(problem)
        yield ()
        if offer is not None:
            yield from sorted(offer.proposals, key=lambda c: cost_of_computing_once(offer.problem(c, problem)))

    def ranked(self, problem: Problem, planner: Planner) -> Iterator[Encodings]:
        """The one with the cheapest first schedule first: long searches seldom change which one is cheapest."""
        streaming = next((r for r in planner.inner.reductions if isinstance(r, Streaming)), None)
        first = functools.partial(first_cost, planner=planner)
        if streaming is not None:
            first = functools.partial(streaming.first_cost, planner=planner.inner)
        costs = {choice: first(self.fix(problem, choice)) for choice in self.propose(problem, None)}
        yield from sorted(costs, key=costs.__getitem__)

    def fix(self, problem: Problem, choice: Encodings) -> Problem:
        offer = self._offer(problem)
        return problem if offer is None else offer.problem(choice, problem)

    def chosen(self, problem: Problem, solved: Problem) -> Encodings | None:
        """None where nothing is offered."""
        offer = self._offer(problem)
        if offer is None:
            return None
        names = [op.name for op in solved.operators]
        for choice in ((), *offer.proposals):
            if names == [op.name for op in offer.problem(choice, problem).operators]:
                return choice
        raise ScheduleError(None, "its operators are of no encodings that the problem proposes")

    def option_words(self, choice: Encodings) -> str:
        return f"{format_count(len(choice), 'saved tensor')} encoded" if choice else "no saved tensor encoded"

    @classmethod
    def scope_words(cls, option: Option) -> str:
        return super().scope_words(option) if option else f"no {cls.noun}"

    def least_bytes(self, problem: Problem, planner: Planner) -> int:
        """Without streamed operands, where an option fits without them: they cost transfers."""
        if any(offer.streams for offer in self.offers):
            return super().least_bytes(problem, planner)
        return without_streams(planner.inner).lower_bound_bytes(problem)

    def after(self, problem: Problem, best: Solution) -> Iterator[Encodings]:
        """The best option without the encodings that its schedule does not need."""
        offer, choice = self._offer(problem), self.option(best)
        if offer is not None and choice:
            yield _needed(offer, choice, best)

    def inner(self, problem: Problem, choice: Encodings, planner: Planner) -> Planner:
        """A search for the least RAM is about the most frugal option."""
        is_frugal = choice == self._frugal(problem)
        return planner.inner.knowing(planner.smallest_ram if is_frugal else None)

    def solve(self, problem: Problem, planner: Planner) -> Solution:
        if not self.is_open(problem):
            return planner.inner.solve(problem)
        if planner.solver != ENGINE or keep_all_peak_bytes(problem) <= problem.budget_bytes:
            return self.restore(problem, (), planner.inner.knowing(None).having(self, ()).solve(problem))
        return self.cheapest(problem, planner)

    def solved_with(self, problem: Problem, choice: Encodings, planner: Planner) -> Solution:
        """The cheapest solution with these encodings that is found in the time of `planner`."""
        inner = self.inner(problem, choice, planner).having(self, choice)
        return self.restore(problem, choice, inner.solve(self.fix(problem, choice)))

    def _frugal(self, problem: Problem) -> Encodings:
        """The encodings with which the least RAM is probably needed in time: none where they all take too long.

        It is looked for once an offer and deadline. More encodings have the least keep-all, and yet may need more:
        decoders need room too. So where there are many, a short search tells.
        """
        offer = self._offer(problem)
        if offer is None or offer.streams:
            return ()
        deadline_ns = problem.deadline_ns
        if deadline_ns in offer._frugal:
            return offer._frugal[deadline_ns]

        def in_time(choice: Encodings) -> bool:
            once = KERNELS.frugal(self.fix(problem, choice))
            return deadline_ns is None or once.compute_once_ns <= deadline_ns

        def need(choice: Encodings) -> tuple[int, int, int]:
            fixed = self.fix(problem, choice)
            relaxed, searched = KERNELS.relax(fixed), 0
            if len(offer.proposals) > _FEW:
                least = solvers.min_budget(KERNELS.frugal(fixed), time_limit_s=_SEARCH_S, work_limit_s=_WORK_S)
                searched = least.smallest_bytes or keep_all_peak_bytes(fixed)
            return solvers.lower_bound_bytes(relaxed), searched, keep_all_peak_bytes(fixed)

        least = offer._frugal[deadline_ns] = min(filter(in_time, self.propose(problem, None)), key=need, default=())
        return least

    def _offer(self, problem: Problem) -> EncodingSpace | None:
        return next((o for o in self.offers if o.exact.operators == problem.operators), None)


def _needed(offer: EncodingSpace, choice: Encodings, solution: Solution) -> Encodings:
    """The encodings of `choice` whose tensor is not in RAM each time when the code is read."""
    problem = solution.problem
    numbers = {tensor.name: i for i, tensor in enumerate(problem.tensors)}
    encodings = {name: e for e in choice for name in offer.tensors[e].readers}
    trace = verify(problem, solution.schedule)
    needed: set[int] = set()
    for at, action in enumerate(solution.schedule.actions):
        name = problem.operators[action.operator].name if isinstance(action, Compute) else ""
        encoding = encodings.get(name)
        if encoding is not None and numbers[offer.tensors[encoding].name] not in trace.resident_at(at):
            needed.add(encoding)
    return tuple(sorted(needed))
