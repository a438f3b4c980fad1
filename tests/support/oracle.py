"""The exact minimum over all schedules of a tiny problem, by exhaustive search: ground truth for solvers and bounds.

A* over (operators done, tensors in RAM, tensors on the store). Every operator may be recomputed and every tensor paged
at any time. The search shares no code with `complete`, the checker or any solver; the checker replays its result. Up
to about 12 operators, 8 with paging; in-place pairs of equal size only.

What is left out cannot improve on what is tried:
- Freeing costs nothing and holding on to a tensor never hurts, so tensors are dropped only when an action needs room or
  makes them anew, and then as few as possible (every inclusion-minimal choice); what nothing can need any more is
  dropped at once.
- A page-in can wait until its tensor is read, a page-out until its tensor leaves RAM (or both until the end).
- Nothing is recomputed that is in RAM already or cannot be needed any more.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace

from poetc.scheduling import (
    Action,
    Compute,
    Free,
    PageIn,
    PageOut,
    Paging,
    Problem,
    Proof,
    Schedule,
    Scope,
    Status,
    verify,
)

State = tuple[int, int, int]  # bit masks: operators done, tensors in RAM, tensors on the store
Node = tuple[State, int, int]  # with a label: cost and time


@dataclass(frozen=True, slots=True)
class Optimum:
    cost: int  # energy_pj, or time_ns if that is the objective
    actions: tuple[Action, ...]


def optimum(problem: Problem, *, fixed_order: bool = True, max_states: int = 2_000_000) -> Optimum | None:
    """The cheapest schedule within budget and deadline; None if there is none. ScheduleError if its actions are wrong.

    `fixed_order`: the first executions come in the order of `problem.operators` (recomputation anywhere); otherwise in
    any order that the data allow.
    """
    found = [_search(problem, pages, fixed_order, max_states) for pages in _page_modes(problem)]
    best = min((o for o in found if o is not None), key=lambda o: o.cost, default=None)
    if best is not None:
        proof = Proof(status=Status.OPTIMAL, objective=best.cost, bound=best.cost, scope=Scope())
        verify(problem, Schedule(solver="oracle", actions=best.actions, proof=proof))
    return best


def minimum_budget(problem: Problem, *, fixed_order: bool = True) -> int | None:
    """The smallest budget for which `optimum` finds a schedule; None if no budget helps."""
    low, high = 0, 2 * sum(t.size_bytes for t in problem.tensors) + problem.base_bytes + problem.page_buffer_bytes
    high += max(o.workspace_bytes for o in problem.operators)
    if optimum(replace(problem, budget_bytes=high), fixed_order=fixed_order) is None:
        return None
    while low < high:
        middle = (low + high) // 2
        feasible = optimum(replace(problem, budget_bytes=middle), fixed_order=fixed_order) is not None
        low, high = (low, middle) if feasible else (middle + 1, high)
    return low


def _page_modes(problem: Problem) -> tuple[bool, ...]:
    # The page buffer takes room in schedules that page, also in those that only page in, so both kinds are searched.
    return (False,) if problem.paging is Paging.NONE else (False, True)


def _search(problem: Problem, pages: bool, fixed_order: bool, max_states: int) -> Optimum | None:
    moves = _Moves(problem, pages, fixed_order)
    start = moves.start()
    if start is None:
        return None
    # Labels are (cost, time) above computing everything once, which the remaining operators cost at least: A* search.
    # Without a deadline time is left out, so that one label a state remains.
    base = problem.compute_once_pj if problem.objective == "energy" else problem.compute_once_ns
    spare = None if problem.deadline_ns is None else problem.deadline_ns - problem.compute_once_ns
    if spare is not None and spare < 0:
        return None
    labels: dict[State, list[tuple[int, int]]] = {start: [(0, 0)]}
    parents: dict[Node, tuple[Node, tuple[Action, ...]]] = {}
    queue = [(0, 0, 0, start)]
    while queue:
        cost, _, time, state = heapq.heappop(queue)
        if (cost, time) not in labels[state]:
            continue  # dominated since
        if moves.is_goal(state):
            return Optimum(base + cost, _path(parents, (state, cost, time)))
        for following, actions, energy_pj, time_ns in moves.of(state):
            new_cost = cost + (energy_pj if problem.objective == "energy" else time_ns)
            new_time = time + time_ns if spare is not None else 0
            if spare is not None and new_time > spare:
                continue
            known = labels.setdefault(following, [])
            if any(c <= new_cost and t <= new_time for c, t in known):
                continue
            known[:] = [(c, t) for c, t in known if not (new_cost <= c and new_time <= t)] + [(new_cost, new_time)]
            parents[following, new_cost, new_time] = ((state, cost, time), actions)
            heapq.heappush(queue, (new_cost, -following[0].bit_count(), new_time, following))
            if len(labels) > max_states:
                raise RuntimeError(f"{problem.name}: more than {max_states} states, too large for the oracle")
    return None


def _path(parents: dict[Node, tuple[Node, tuple[Action, ...]]], node: Node) -> tuple[Action, ...]:
    parts: list[tuple[Action, ...]] = []
    while node in parents:
        node, actions = parents[node]
        parts.append(actions)
    return tuple(s for part in reversed(parts) for s in part)


class _Moves:
    """What can happen next in a state."""

    def __init__(self, problem: Problem, pages: bool, fixed_order: bool) -> None:
        self.problem, self.pages, self.fixed_order = problem, pages, fixed_order
        self.sizes = [t.size_bytes for t in problem.tensors]
        self.room = problem.budget_bytes - problem.base_bytes - (problem.page_buffer_bytes if pages else 0)
        self.inputs = [_mask(o.inputs) for o in problem.operators]
        self.outputs = [_mask(o.outputs) for o in problem.operators]
        self.pairings = [list(_pairings(problem, k)) for k in range(len(problem.operators))]
        self.final_ram = _mask(i for i, t in enumerate(problem.tensors) if t.final == "ram")
        self.final_store = _mask(i for i, t in enumerate(problem.tensors) if t.final == "store")

    def start(self) -> State | None:
        ram = _mask(i for i, t in enumerate(self.problem.tensors) if t.initial == "ram")
        store = _mask(i for i, t in enumerate(self.problem.tensors) if t.initial == "store")
        return (0, ram, store) if self.size(ram) <= self.room else None

    def is_goal(self, state: State) -> bool:
        done, ram, store = state
        whole = (1 << len(self.problem.operators)) - 1
        return done == whole and not self.final_ram & ~ram and not self.final_store & ~store

    def of(self, state: State) -> Iterator[tuple[State, tuple[Action, ...], int, int]]:
        """(following state, actions, energy, time), the first execution of an operator for nothing."""
        done, ram, store = state
        needed = self.needed(done, store)
        first = next((k for k in range(len(self.problem.operators)) if not done >> k & 1), -1)
        for k, operator in enumerate(self.problem.operators):
            again = bool(done >> k & 1)
            if (again and not operator.recomputable) or (not again and self.fixed_order and k != first):
                continue
            fetched = self.inputs[k] & ~ram
            if fetched & ~(store if self.pages else 0) or (again and not self.outputs[k] & needed & ~ram):
                continue
            energy, time = (operator.energy_pj, operator.time_ns) if again else (0, 0)
            ins, in_pj, in_ns = self.page_ins(fetched)
            remade = ram & self.outputs[k]
            for pairs in self.pairings[k]:
                made = self.size(self.outputs[k]) - sum(self.sizes[o] for _, o in pairs) + operator.workspace_bytes
                consumed = _mask([i for i, _ in pairs])
                for dropped in self.drops(ram & ~remade, self.inputs[k], self.size(fetched) + made):
                    after = ((ram | fetched) & ~remade & ~dropped & ~consumed) | self.outputs[k]
                    for paged, outs, out_pj, out_ns in self.page_outs((dropped | consumed) & ~fetched, store):
                        following, frees = self.settle(done | 1 << k, after, store | paged)
                        actions = (*outs, *_frees(remade | dropped), *ins, Compute(k, pairs), *frees)
                        yield following, actions, energy + in_pj + out_pj, time + in_ns + out_ns
        if first >= 0 or not self.pages:
            return
        for t in _bits(self.final_ram & store & ~ram):
            ins, in_pj, in_ns = self.page_ins(1 << t)
            for dropped in self.drops(ram, 0, self.sizes[t]):
                for paged, outs, out_pj, out_ns in self.page_outs(dropped, store):
                    following, frees = self.settle(done, ram & ~dropped | 1 << t, store | paged)
                    yield following, (*outs, *_frees(dropped), *ins, *frees), in_pj + out_pj, in_ns + out_ns
        for paged, outs, out_pj, out_ns in self.page_outs(ram & self.final_store, store):
            if paged:
                yield (done, ram, store | paged), outs, out_pj, out_ns

    def settle(self, done: int, ram: int, store: int) -> tuple[State, tuple[Action, ...]]:
        """The state without what can be of no use any more, and the actions that free it."""
        needed = self.needed(done, store)
        limits = self.problem.store_capacity_bytes, self.problem.write_limit_bytes
        if limits == (None, None):  # else what lies on the store goes on to count
            store &= needed | self.final_store
        return (done, ram & needed, store), _frees(ram & ~needed)

    def needed(self, done: int, store: int) -> int:
        """Tensors that can be of use: read by an operator to come, or to recompute such a tensor, wanted at the end."""
        needed = self.final_ram | (self.final_store & ~store)
        for k in reversed(range(len(self.problem.operators))):
            if not done >> k & 1 or (self.problem.operators[k].recomputable and self.outputs[k] & needed):
                needed |= self.inputs[k]
        return needed

    def page_ins(self, fetched: int) -> tuple[tuple[Action, ...], int, int]:
        """(actions, energy, time)."""
        tensors = [self.problem.tensors[t] for t in _bits(fetched)]
        time = sum(t.page_in_ns for t in tensors)
        return tuple(PageIn(t) for t in _bits(fetched)), sum(t.page_in_pj for t in tensors), time

    def page_outs(self, leaving: int, store: int) -> Iterator[tuple[int, tuple[Action, ...], int, int]]:
        """Every set of pages among the tensors that leave RAM: (tensors, actions, energy, time)."""
        tensors = self.problem.tensors
        able = [t for t in _bits(leaving & ~store) if tensors[t].pageable] if self.pages else []
        for choice in range(1 << len(able)):
            chosen = [t for i, t in enumerate(able) if choice >> i & 1]
            capacity = self.problem.store_capacity_bytes
            stored = sum(tensors[t].footprint_bytes for t in _bits(store | _mask(chosen)))
            there = sum(t.footprint_bytes for t in tensors if t.initial == "store")
            limit = self.problem.write_limit_bytes
            fits = (capacity is None or stored <= capacity) and (limit is None or stored - there <= limit)
            if not chosen or fits:
                time = sum(tensors[t].page_out_ns for t in chosen)
                energy = sum(tensors[t].page_out_pj for t in chosen)
                yield _mask(chosen), tuple(PageOut(t) for t in chosen), energy, time

    def drops(self, ram: int, locked: int, extra: int) -> Iterator[int]:
        """Inclusion-minimal sets to drop from `ram` (not from `locked`) so that `extra` bytes more fit."""
        excess = self.size(ram) + extra - self.room
        candidates = sorted(_bits(ram & ~locked), key=lambda t: -self.sizes[t])

        def choose(index: int, chosen: int, smallest: int, total: int) -> Iterator[int]:
            if total >= excess:
                if total - smallest < excess:  # without its smallest member it would not do
                    yield chosen
                return
            if index < len(candidates):
                t = candidates[index]
                if self.sizes[t]:
                    yield from choose(index + 1, chosen | 1 << t, self.sizes[t], total + self.sizes[t])
                yield from choose(index + 1, chosen, smallest, total)

        if excess <= 0:
            yield 0
        else:
            yield from choose(0, 0, 0, 0)

    def size(self, mask: int) -> int:
        return sum(self.sizes[t] for t in _bits(mask))


def _pairings(problem: Problem, k: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """All choices of in-place pairs: required ones always, each tensor at most once."""
    operator = problem.operators[k]
    for pair in operator.in_place:
        if problem.tensors[pair.input].size_bytes != problem.tensors[pair.output].size_bytes:
            raise ValueError("the oracle takes in-place pairs of equal size only")
    required = tuple((p.input, p.output) for p in operator.in_place if p.required)
    optional = [(p.input, p.output) for p in operator.in_place if not p.required]
    for choice in range(1 << len(optional)):
        pairs = (*required, *(p for i, p in enumerate(optional) if choice >> i & 1))
        if len({i for i, _ in pairs}) == len({o for _, o in pairs}) == len(pairs):
            yield pairs


def _frees(mask: int) -> tuple[Action, ...]:
    return tuple(Free(t) for t in _bits(mask))


def _mask(indices: Iterator[int] | tuple[int, ...] | list[int]) -> int:
    mask = 0
    for i in indices:
        mask |= 1 << i
    return mask


def _bits(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]
