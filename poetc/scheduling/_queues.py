"""When the actions of a schedule begin and end: a queue a processor, and the transfers of the store.

The rules, of which one processor is the simple case:

- A processor executes its actions in the order of the schedule. Transfers that take the processor's time (Paging.SYNC)
  and moves belong to the first one. It also issues transfers that overlap compute (Paging.DMA), for which the bus has a
  queue of its own, or one a direction. An operator that streams operands has the bus to itself.
- An action begins when its operands are there. It changes or moves a tensor when nobody works on that any more.
- No action behind a Free or a Move begins before that: the tensor's last reader and writer are done, and its transfers.
- When an action begins, every other processor is done with its actions further up, except for the last of them.

The last two rules hold whatever the actions take in the end. So bytes that the list of actions frees are free indeed.
Beside an action runs at most one action of each other processor, whose workspace counts as long as that may be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from poetc.scheduling.problem import Paging, Problem
from poetc.scheduling.schedule import Action, Compute, Free, Move, PageIn, PageOut


@dataclass(frozen=True, slots=True)
class Moment:
    """A point of time, and by processor the number of its actions that are over by then however long they take."""

    ns: int
    over: tuple[int, ...]


@dataclass(slots=True)
class _Flight:
    """The last action of a processor, as long as it may still be at work."""

    workspace_bytes: int
    operator: int
    action: int
    unaware: set[int]  # processors that have not begun an action which waits for it


TO_STORE, FROM_STORE = -1, -2  # lanes of spans


@dataclass(frozen=True, slots=True)
class Span:
    """When the instruction at a position of the schedule is at work, ns. `lane`: a processor, or a way of the store."""

    position: int
    lane: int
    begin_ns: int
    end_ns: int


class Queues:
    """Executes actions. RAM for the workspaces in flight, times, idle and hand-over energy follow from it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        count = max(1, len(problem.processors))
        self._start = Moment(0, (0,) * count)
        self._done = [self._start] * count  # with the queue so far
        self._before_last = [self._start] * count  # with all but its last action
        self._actions = [0] * count
        self._barrier = self._start  # nothing from here on begins before
        self._written: dict[int, Moment] = {}  # tensor -> when its bytes are whole
        self._used: dict[int, Moment] = {}  # tensor -> when nobody works on it any more
        self._bus = [0, 0]  # out, in: until when
        self._maker: dict[int, int] = {}  # tensor -> the processor that computed it
        self._flights: list[_Flight | None] = [None] * count
        self.ended: list[tuple[int, int, int]] = []  # (operator, action, end) of each workspace whose flight is over
        self.spans: list[Span] = []
        self.busy_ns = [0] * count
        self.hand_overs = self.hand_over_ns = self.hand_over_pj = 0

    @property
    def end_ns(self) -> int:
        return max(*self._bus, self._barrier.ns, *(m.ns for m in self._done))

    @property
    def idle_pj(self) -> int:
        """The energy of the processors while they wait; of a single one, where transfers overlap its work."""
        idle_uw = [p.idle_uw for p in self.problem.processors] or [self.problem.idle_uw]
        return sum(uw * (self.end_ns - busy) for uw, busy in zip(idle_uw, self.busy_ns, strict=True)) // 1000

    @property
    def in_flight_bytes(self) -> int:
        """Sum of the workspaces of the operators that may run at the same time, one a processor."""
        return sum(f.workspace_bytes for f in self._flights if f is not None)

    def compute(self, action: Compute, position: int, duration_ns: int) -> int:
        """Execute `action`, at `position` in the schedule. The workspace that is in use meanwhile, its own included."""
        operator, own = self.problem.operators[action.operator], action.processor
        if action.fence:
            self._barrier = self._join([self._barrier, *self._done])
            self.finish(position)
        waits = [self._written.get(t, self._start) for t in operator.inputs]
        waits += [self._used.get(t, self._start) for t, _ in action.in_place]
        waits += [m for q, m in enumerate(self._before_last) if q != own]
        has_bus = operator.is_streamed and self.problem.paging is Paging.DMA
        waits += [Moment(max(self._bus), self._start.over)] if has_bus else []
        begin = self._begin(own, waits, position)
        duration_ns += self._hand_over(action)
        self._end_flight(own, position)
        self._before_last[own] = self._done[own]
        end = self._advance(own, begin, duration_ns)
        self._bus = [end.ns, end.ns] if has_bus else self._bus
        self.spans.append(Span(position, own, begin.ns, end.ns))
        others = set(range(len(self._done))) - {own}
        if operator.workspace_bytes:
            self._flights[own] = _Flight(operator.workspace_bytes, action.operator, position, others)
        for t in operator.inputs:
            self._use(t, end)
        for t in (*operator.outputs, *(i for i, _ in action.in_place)):
            self._written[t] = self._used[t] = end
        self._maker |= dict.fromkeys(operator.outputs, own)
        in_use_bytes = self.in_flight_bytes
        if not others:
            self._end_flight(own, position + 1)
        return in_use_bytes

    def transfer(self, t: int, duration_ns: int, position: int, *, out: bool) -> None:
        """Page `t` out or in."""
        begin = self._begin(0, [self._written.get(t, self._start) if out else self._used.get(t, self._start)], position)
        if self.problem.paging is not Paging.DMA:
            self._before_last[0] = self._done[0]
            end = self._advance(0, begin, duration_ns)
        else:
            channel = 0 if out or not self.problem.dma_full_duplex else 1
            end = Moment(max(begin.ns, self._bus[channel]) + duration_ns, begin.over)
            self._bus[channel] = end.ns
        self.spans.append(Span(position, TO_STORE if out else FROM_STORE, end.ns - duration_ns, end.ns))
        self._use(t, end)
        if not out:
            self._written[t] = end

    def move(self, t: int, duration_ns: int, position: int) -> int:
        """Move `t` within RAM. The workspace that is in use meanwhile."""
        begin = self._begin(0, [self._used.get(t, self._start)], position)
        self._before_last[0] = self._done[0]
        self._written[t] = self._used[t] = self._advance(0, begin, duration_ns)
        self.spans.append(Span(position, 0, begin.ns, begin.ns + duration_ns))
        return self.free(t, position)

    def free(self, t: int, position: int) -> int:
        """Whatever comes later waits for the end of `t`. The workspace that is in use until then."""
        in_use_bytes = self.in_flight_bytes
        self._barrier = self._join([self._barrier, self._used.get(t, self._start)])
        for processor, actions in enumerate(self._actions):
            if self._barrier.over[processor] >= actions:
                self._end_flight(processor, position + 1)
        return in_use_bytes

    def finish(self, position: int) -> None:
        """All actions so far are over, and with them every flight."""
        for processor in range(len(self._done)):
            self._end_flight(processor, position)

    def _begin(self, own: int, waits: Iterable[Moment], position: int) -> Moment:
        """When an action of processor `own` begins; whatever it waits for is no longer beside it."""
        begin = self._join([self._done[own], self._barrier, *waits])
        for other, flight in enumerate(self._flights):
            if flight is not None and other != own and begin.over[other] >= self._actions[other]:
                flight.unaware.discard(own)
                if not flight.unaware:
                    self._end_flight(other, position)
        return begin

    def _advance(self, own: int, begin: Moment, duration_ns: int) -> Moment:
        self._actions[own] += 1
        self.busy_ns[own] += duration_ns
        over = tuple(self._actions[own] if q == own else n for q, n in enumerate(begin.over))
        self._done[own] = Moment(begin.ns + duration_ns, over)
        return self._done[own]

    def _hand_over(self, action: Compute) -> int:
        """The time that it takes to read tensors of other processors, ns."""
        own, processors = action.processor, self.problem.processors
        inputs = set(self.problem.operators[action.operator].inputs)
        makers = [(t, maker) for t in inputs if (maker := self._maker.get(t, own)) != own]
        if not makers:
            return 0
        time_ns = max(max(processors[p].hand_over_ns for p in (own, maker)) for _, maker in makers)
        flushed_ps = (
            self.problem.tensors[t].size_bytes * max(processors[p].flush_ps_per_byte for p in (own, maker))
            for t, maker in makers
        )
        time_ns += sum(flushed_ps) // 1000
        self.hand_overs += 1
        self.hand_over_ns += time_ns
        self.hand_over_pj += -(-time_ns * processors[own].active_uw // 1000)
        return time_ns

    def _use(self, t: int, end: Moment) -> None:
        self._used[t] = self._join([self._used.get(t, self._start), end])

    def _join(self, moments: Sequence[Moment]) -> Moment:
        if len(self._done) == 1:
            return max(moments, key=lambda m: m.ns)
        over = tuple(max(counts) for counts in zip(*(m.over for m in moments), strict=True))
        return Moment(max(m.ns for m in moments), over)

    def _end_flight(self, processor: int, position: int) -> None:
        flight = self._flights[processor]
        if flight is not None:
            self.ended.append((flight.operator, flight.action, position))
            self._flights[processor] = None


def workspace_ends(problem: Problem, actions: Sequence[Action]) -> dict[int, int]:
    """By position of a Compute with workspace, the position at which that workspace has ceased to count.

    With one processor it is the next one.
    """
    queues = Queues(problem)
    for position, action in enumerate(actions):
        match action:
            case Compute(index, _, processor):
                cost = problem.operators[index].cost_on(processor)
                queues.compute(action, position, 0 if cost is None else cost[0])
            case Free(t):
                queues.free(t, position)
            case PageOut(t):
                queues.transfer(t, problem.tensors[t].page_out_ns, position, out=True)
            case PageIn(t):
                queues.transfer(t, problem.tensors[t].page_in_ns, position, out=False)
            case Move(t):
                queues.move(t, problem.tensors[t].move_ns or 0, position)
    queues.finish(len(actions))
    return {action: end for _, action, end in queues.ended}
