"""Exact search on small problems: every order, every placement and every recomputation, by branch and bound.

Nodes are beginnings of lists of actions, with the times of the queues after them. A node is left where no continuation
is cheaper than the best list, by the critical path and by weighted loads of the processors. It is left, too, where
another node with the same operators done has come no later and cost no more. The checker prices every complete list.

Frees come directly before the action that needs their room, or that makes the tensor anew: later is never worse. Where
RAM holds every tensor at once, only a tensor that is made anew is freed, to save hand-overs.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from poetc.scheduling import Action, Compute, Free, Paging, Problem, ScheduleError, verify_parts
from poetc.solvers.processors.bounds import GRAIN, weights_of

OPERATORS = 14  # with more of them no search has ended in time
LOOK = 16  # nodes between looks at the clock, about
LONGEST = 3  # times as many actions as operators, beyond which the search gives up its claim


@dataclass(frozen=True, slots=True)
class Exact:
    """`actions`: the cheapest list below the cost that was to beat, None: there is none or none was found.

    `cost`: of that list, or the one to beat. `is_complete`: nothing was left out, so that no schedule costs less.
    """

    actions: tuple[Action, ...] | None
    cost: int
    is_complete: bool
    nodes: int


def is_roomy(problem: Problem) -> bool:
    """Whether RAM holds every tensor and the largest workspace of each processor at once."""
    tensors = sum(t.size_bytes for t in problem.tensors)
    workspace = max((o.workspace_bytes for o in problem.operators), default=0)
    return problem.base_bytes + tensors + len(problem.processors) * workspace <= problem.budget_bytes


def can_search(problem: Problem) -> bool:
    """Whether `search` covers every schedule of the problem, if it ends.

    Paging must be impossible or of no use. An execution must not save energy.
    """
    stored = any("store" in (t.initial, t.final) for t in problem.tensors)
    without_paging = problem.paging is Paging.NONE or (is_roomy(problem) and not stored)
    idle = [p.idle_uw for p in problem.processors]
    return (
        len(problem.processors) > 1
        and len(problem.operators) <= OPERATORS
        and not problem.banks
        and without_paging
        and all(p.active_uw >= p.idle_uw for p in problem.processors)
        and all(1000 * c[1] >= idle[p] * c[0] for o in problem.operators for p, c in _costs(problem, o.cost_on))
    )


def search(problem: Problem, below: int, nodes: int, *, once: bool = False, stop_at: float = math.inf) -> Exact:
    """The cheapest list of actions that costs less than `below`, within so many nodes.

    `once`: of those lists alone that run every operator once. `stop_at`: the end of the time, by `time.monotonic`.
    """
    tree = _Search(problem, below, nodes, once=once, stop_at=stop_at)
    tree.run()
    return Exact(tree.best, tree.least, tree.is_complete, tree.visited)


def _costs(problem: Problem, cost_on: object) -> list[tuple[int, tuple[int, int]]]:
    assert callable(cost_on)
    return [(p, c) for p in range(len(problem.processors)) if (c := cost_on(p)) is not None]


@dataclass(frozen=True, slots=True)
class _Node:
    """A list of actions so far. Times in ns by processor or tensor; `above`: energy above idling, in fJ."""

    done: tuple[int, ...]
    before_last: tuple[int, ...]
    barrier: int
    written: tuple[int, ...]
    used: tuple[int, ...]
    maker: tuple[int, ...]
    sizes: tuple[int, ...]  # of tensors in RAM, -1: not there
    workspace: tuple[int, ...]  # of the last action of each processor
    executed: int = 0  # a bit an operator
    above: int = 0
    begin: int = 0  # of the last action
    length: int = 0
    actions: tuple[object, ...] = ()  # nested: the actions before, and the last ones


class _Search:
    def __init__(self, problem: Problem, below: int, nodes: int, *, once: bool, stop_at: float) -> None:
        self.problem, self.least, self.nodes_left, self.stop_at = problem, below, nodes, stop_at
        self.deadline_ns = math.inf if problem.deadline_ns is None else problem.deadline_ns
        self.best: tuple[Action, ...] | None = None
        self.is_complete, self.visited = True, 0
        self.operators, self.tensors, self.processors = problem.operators, problem.tensors, problem.processors
        self.costs = [dict(_costs(problem, o.cost_on)) for o in self.operators]
        self.idle = [p.idle_uw for p in self.processors]
        self.every = (1 << len(self.operators)) - 1
        self.roomy = is_roomy(problem)
        self.crosses = any(p.hand_over_ns or p.flush_ps_per_byte for p in self.processors)
        self.repeats = not once and (self.crosses or not self.roomy)
        self.frees = self.repeats or not self.roomy
        self.has_workspace = any(o.workspace_bytes for o in self.operators)
        self.makers = {t: k for k, o in enumerate(self.operators) for t in o.outputs}
        self.readers = [sum(1 << k for k, o in enumerate(self.operators) if t in o.inputs) for t in self._all()]
        self.is_taken = [any(p.input == t for o in self.operators for p in o.in_place) for t in self._all()]
        self.fastest = [min(c[0] for c in costs.values()) for costs in self.costs]
        self.tail = self._tails()
        self.topological = self._topological()
        above = [{p: 1000 * c[1] - self.idle[p] * c[0] for p, c in costs.items()} for costs in self.costs]
        self.least_above = [min(of_operator.values()) for of_operator in above]
        self.loads = [
            (
                weights,
                [min(weights[p] * c[0] for p, c in costs.items()) for costs in self.costs],
                [
                    min(GRAIN * of_operator[p] + sum(self.idle) * weights[p] * c[0] for p, c in costs.items())
                    for of_operator, costs in zip(above, self.costs, strict=True)
                ],
            )
            for weights in self._weights()
        ]
        self.twins = self._twins()
        self.seen: dict[object, list[tuple[int, ...]]] = {}

    def _all(self) -> range:
        return range(len(self.tensors))

    def run(self) -> None:
        count = len(self.processors)
        self._visit(
            _Node(
                done=(0,) * count,
                before_last=(0,) * count,
                barrier=0,
                written=(0,) * len(self.tensors),
                used=(0,) * len(self.tensors),
                maker=(-1,) * len(self.tensors),
                sizes=tuple(t.size_bytes if t.initial == "ram" else -1 for t in self.tensors),
                workspace=(0,) * count,
            )
        )

    def _visit(self, node: _Node) -> None:
        is_late = not self.visited % LOOK and time.monotonic() > self.stop_at
        if self.nodes_left <= 0 or is_late or node.length > LONGEST * len(self.operators):
            self.nodes_left = 0 if is_late else self.nodes_left
            self.is_complete = False
            return
        if node.executed == self.every and self._is_whole(node):
            self._finish(node)
            return
        children = list[tuple[int, int, int, _Node]]()
        for child in self._children(node):
            self.nodes_left -= 1
            self.visited += 1
            if self.roomy and child.begin < node.begin:
                continue  # the same actions in the order of their beginnings take no longer
            if self._is_lost(child):
                continue
            bound, time_ns = self._bound(child)
            if bound < self.least and time_ns <= self.deadline_ns:
                children.append((bound, time_ns, len(children), child))
        for bound, _, _, child in sorted(children, key=lambda c: c[:3]):
            if bound < self.least and self._is_new(child):
                self._visit(child)

    def _is_lost(self, node: _Node) -> bool:
        """Whether a tensor is gone that is needed and that nothing can make again."""
        for t, size in enumerate(node.sizes):
            k = self.makers.get(t)
            is_made = k is not None and (self.operators[k].recomputable or not node.executed >> k & 1)
            needed = self.readers[t] & ~node.executed or self.tensors[t].final == "ram"
            if size < 0 and needed and not is_made:
                return True
        return False

    def _is_whole(self, node: _Node) -> bool:
        return all(node.sizes[t] >= 0 for t in self._all() if self.tensors[t].final == "ram")

    def _finish(self, node: _Node) -> None:
        reversed_actions = list[Action]()
        rest = node.actions
        while rest:
            before, last = rest
            assert isinstance(before, tuple) and isinstance(last, tuple)
            reversed_actions += reversed(last)
            rest = before
        actions = tuple(reversed(reversed_actions))
        try:
            trace = verify_parts([(self.problem, actions)])
        except ScheduleError:
            return  # workspaces side by side need more RAM than the nodes count
        cost = self.problem.objective.cost(trace.energy_pj, trace.time_ns)
        if cost < self.least and trace.time_ns <= self.deadline_ns:
            self.least, self.best = cost, actions

    def _children(self, node: _Node) -> Iterator[_Node]:
        for k, operator in enumerate(self.operators):
            again = bool(node.executed >> k & 1)
            if again and not (operator.recomputable and self.repeats):
                continue
            if any(node.sizes[t] < 0 for t in operator.inputs):
                continue
            there = [t for t in operator.outputs if node.sizes[t] >= 0]
            if there and not again:
                continue
            for p in self.costs[k]:
                if self._is_fresh(node, p) and any(q < p and self._is_fresh(node, q) for q in self.twins[p]):
                    continue  # an idle processor of the same kind stands for this one
                if len(there) == len(operator.outputs) and all(node.maker[t] == p for t in there):
                    continue
                for pairs in self._in_place(k):
                    if not {i for i, _ in pairs} & set(there):
                        yield from self._with_room(node, k, p, pairs, there)

    @staticmethod
    def _is_fresh(node: _Node, p: int) -> bool:
        return not node.done[p] and not node.workspace[p] and p not in node.maker

    def _in_place(self, k: int) -> Iterator[tuple[tuple[int, int], ...]]:
        required = tuple((p.input, p.output) for p in self.operators[k].in_place if p.required)
        optional = [(p.input, p.output) for p in self.operators[k].in_place if not p.required]
        for size in range(len(optional) + 1) if not self.roomy else (0,):
            for more in itertools.combinations(optional, size):
                pairs = (*required, *more)
                if len({i for i, _ in pairs}) == len({o for _, o in pairs}) == len(pairs):
                    yield pairs

    def _with_room(
        self, node: _Node, k: int, p: int, pairs: tuple[tuple[int, int], ...], there: list[int]
    ) -> Iterator[_Node]:
        """The action behind each set of frees that can make room for it."""
        if self.roomy:
            yield self._after(node, k, p, pairs, there, fence=False)
            return
        operator, taken = self.operators[k], {o for _, o in pairs}
        if any(self.tensors[o].size_bytes > node.sizes[i] for i, o in pairs):
            return
        needed = self.problem.base_bytes + sum(s for t, s in enumerate(node.sizes) if s >= 0 and t not in there)
        needed += sum(self.tensors[t].size_bytes for t in operator.outputs if t not in taken) + operator.workspace_bytes
        other_workspaces = sum(w for q, w in enumerate(node.workspace) if q != p)
        budget = self.problem.budget_bytes
        if needed + other_workspaces <= budget:
            yield self._after(node, k, p, pairs, there, fence=False)
            return
        free = [t for t, s in enumerate(node.sizes) if s >= 0 and t not in operator.inputs and t not in there]
        fits: list[set[int]] = []
        for size in range(len(free) + 1):
            for chosen in itertools.combinations(free, size):
                if needed - sum(node.sizes[t] for t in chosen) > budget:
                    continue
                if not self.has_workspace:
                    if any(smaller <= set(chosen) for smaller in fits):
                        continue
                    fits.append(set(chosen))
                yield self._after(node, k, p, pairs, [*there, *chosen], fence=False)
                if other_workspaces:
                    yield self._after(node, k, p, pairs, [*there, *chosen], fence=True)

    def _after(
        self, node: _Node, k: int, p: int, pairs: tuple[tuple[int, int], ...], freed: list[int], *, fence: bool
    ) -> _Node:
        """The node after the frees and operator `k` on processor `p`."""
        operator, written, used = self.operators[k], list(node.written), list(node.used)
        maker, sizes = list(node.maker), list(node.sizes)
        barrier = max(node.barrier, max((used[t] for t in freed), default=0), max(node.done) if fence else 0)
        for t in freed:
            sizes[t] = -1
        begin = max(barrier, node.done[p])
        for q, ns in enumerate(node.before_last):
            if q != p and ns > begin:
                begin = ns
        hand_over = flushed_ps = 0
        for t in set(operator.inputs):
            begin = max(begin, written[t])
            other = maker[t]
            if other not in (-1, p):
                a, b = self.processors[p], self.processors[other]
                hand_over = max(hand_over, a.hand_over_ns, b.hand_over_ns)
                flushed_ps += self.tensors[t].size_bytes * max(a.flush_ps_per_byte, b.flush_ps_per_byte)
        begin = max(begin, max((used[i] for i, _ in pairs), default=0))
        time_ns, energy_pj = self.costs[k][p]
        extra_ns = hand_over + flushed_ps // 1000
        end = begin + time_ns + extra_ns
        for t in operator.inputs:
            used[t] = max(used[t], end)
        taken = {o: i for i, o in pairs}
        for t in operator.outputs:
            sizes[t] = sizes[taken[t]] if t in taken else self.tensors[t].size_bytes
            written[t] = used[t] = end
            maker[t] = p
        for i, _ in pairs:
            written[i] = used[i] = end
            sizes[i] = -1
        above = node.above + 1000 * energy_pj - self.idle[p] * (time_ns + extra_ns)
        above += 1000 * -(-extra_ns * self.processors[p].active_uw // 1000)
        last = (*(Free(t) for t in freed), Compute(k, pairs, p, fence))
        return _Node(
            done=tuple(end if q == p else ns for q, ns in enumerate(node.done)),
            before_last=tuple(node.done[p] if q == p else ns for q, ns in enumerate(node.before_last)),
            barrier=barrier,
            written=tuple(written),
            used=tuple(used),
            maker=tuple(maker),
            sizes=tuple(sizes),
            workspace=tuple(operator.workspace_bytes if q == p else w for q, w in enumerate(node.workspace)),
            executed=node.executed | 1 << k,
            above=above,
            begin=begin,
            length=node.length + 1,
            actions=(node.actions, last),
        )

    def _bound(self, node: _Node) -> tuple[int, int]:
        """No continuation costs less, or takes less time."""
        time_ns, least = max(*node.done, node.barrier), min(node.done)
        ends: dict[int, int] = {}
        for k in self.topological:
            if node.executed >> k & 1:
                continue
            begin = least
            for t in self.operators[k].inputs:
                begin = max(begin, ends.get(self.makers.get(t, -1), node.written[t] if node.sizes[t] >= 0 else 0))
            ends[k] = begin + self.fastest[k]
            time_ns = max(time_ns, begin + self.tail[k])
        todo = [k for k in range(len(self.operators)) if not node.executed >> k & 1]
        total_uw, energy_fj = sum(self.idle), 0
        for weights, times, energies in self.loads:
            so_far = sum(w * ns for w, ns in zip(weights, node.done, strict=True))
            time_ns = max(time_ns, -(-(so_far + sum(times[k] for k in todo)) // GRAIN))
            energy_fj = max(energy_fj, (total_uw * so_far + sum(energies[k] for k in todo)) // GRAIN)
        energy_fj = max(energy_fj, sum(self.least_above[k] for k in todo) + total_uw * time_ns)
        return self.problem.objective.cost((node.above + energy_fj) // 1000, time_ns), time_ns

    def _is_new(self, node: _Node) -> bool:
        """Whether no node before it has the same done, no later and for no more energy."""
        if not self.roomy and self.has_workspace:
            return True  # the nodes do not say which workspaces are side by side
        todo = self.every & ~node.executed
        matters = [t for t, size in enumerate(node.sizes) if size >= 0 and (self.frees or self.readers[t] & todo)]
        makers = tuple(node.maker[t] for t in matters) if self.crosses else ()
        key = node.executed, node.sizes if self.frees else (), makers
        least = min(node.done)
        times = [*node.done, node.barrier, *(node.written[t] for t in matters)]
        times += [node.used[t] for t in matters if self.frees or self.is_taken[t]]
        times += [node.begin] if self.roomy else node.before_last  # the order of beginnings implies the latter
        own = (node.above, *(max(least, ns) for ns in times))
        others = self.seen.setdefault(key, [])
        if any(all(a <= b for a, b in zip(other, own, strict=True)) for other in others):
            return False
        others[:] = [o for o in others if not all(b <= a for a, b in zip(o, own, strict=True))]
        others.append(own)
        return True

    def _topological(self) -> list[int]:
        order, done = list[int](), set[int]()
        while len(order) < len(self.operators):
            for k, operator in enumerate(self.operators):
                if k not in done and all(
                    self.makers.get(t, k) in done or t not in self.makers for t in operator.inputs
                ):
                    order.append(k)
                    done.add(k)
        return order

    def _tails(self) -> list[int]:
        """The longest chain from each operator to an end, itself included, on the fastest processors."""
        tail = [0] * len(self.operators)
        for k in reversed(self._topological()):
            after = [r for r in range(len(tail)) if set(self.operators[k].outputs) & set(self.operators[r].inputs)]
            tail[k] = self.fastest[k] + max((tail[r] for r in after), default=0)
        return tail

    def _weights(self) -> list[list[int]]:
        count = len(self.processors)
        sets = [weights_of(self.problem, by_time=True), weights_of(self.problem, by_time=False)]
        return [list(w) for w in dict.fromkeys(map(tuple, [*sets, [GRAIN // count] * count]))]

    def _twins(self) -> list[list[int]]:
        """By processor, those of the same kind."""

        def kind(p: int) -> tuple[object, ...]:
            return (replace(self.processors[p], name=""), *(costs.get(p) for costs in self.costs))

        kinds = [kind(p) for p in range(len(self.processors))]
        return [[q for q, other in enumerate(kinds) if q != p and other == kinds[p]] for p in range(len(kinds))]
