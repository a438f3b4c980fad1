"""A Problem as flat lists, with one scalar cost an action, for search and bounds.

Actions are integers here: operator v is v, the page-in of tensor t is N + t, its page-out N + M + t (N operators, M
tensors).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from poetc.scheduling import Action, Compute, Decision, PageIn, PageOut, Paging, Problem, settled

NEVER = 1 << 30  # a position after everything: "no further need"


class Model:
    """Lists indexed by operator or tensor. Costs are the objective's, plus `time_weight` for every ns of an action."""

    def __init__(self, problem: Problem, *, time_weight: float = 0.0) -> None:
        self.problem = problem
        ops, tensors = problem.operators, problem.tensors
        self.n_ops, self.n_tensors = len(ops), len(tensors)
        self.size = [t.size_bytes for t in tensors]
        self.footprint = [t.footprint_bytes for t in tensors]  # bytes on the store
        self.workspace = [o.workspace_bytes for o in ops]
        self.inputs = [tuple(dict.fromkeys(o.inputs)) for o in ops]
        self.outputs = [o.outputs for o in ops]
        self.recomputable = [o.recomputable for o in ops]
        self.producer = [-1] * self.n_tensors
        self.consumers: list[list[int]] = [[] for _ in tensors]
        for v in range(self.n_ops):
            for t in self.outputs[v]:
                self.producer[t] = v
            for t in self.inputs[v]:
                self.consumers[t].append(v)
        self.in_ram = [t.initial == "ram" for t in tensors]
        self.on_store = [t.initial == "store" for t in tensors]
        self.ends_in_ram = [t.final == "ram" for t in tensors]
        streamed = problem.written_by_operators  # streamed operators see to these, and no action needs to
        self.ends_on_store = [t.final == "store" and i not in streamed for i, t in enumerate(tensors)]
        paging = problem.paging is not Paging.NONE
        self.pageable = [paging and t.pageable for t in tensors]
        # In-place pairs that `complete` may use (of equal sizes) or must use (required). Most operators have none.
        self.pairs = [
            tuple(
                [
                    (p.input, p.output, p.required)
                    for p in o.in_place
                    if p.required or self.size[p.input] == self.size[p.output]
                ]
            )
            if o.in_place
            else ()
            for o in ops
        ]
        self.op_ns = [o.time_ns for o in ops]
        # Time on the bus. A synchronous transfer takes the processor's time too, so it adds to that of the schedule.
        self.bus_in_ns = [t.page_in_ns for t in tensors]
        self.bus_out_ns = [t.page_out_ns for t in tensors]
        self.overlaps = problem.paging is Paging.DMA
        self.in_ns = [0] * len(tensors) if self.overlaps else self.bus_in_ns
        self.out_ns = [0] * len(tensors) if self.overlaps else self.bus_out_ns
        cost = problem.objective.cost
        self.op_cost: list[float] = [cost(o.energy_pj, ns) for o, ns in zip(ops, self.op_ns, strict=True)]
        self.in_cost: list[float] = [cost(t.page_in_pj, ns) for t, ns in zip(tensors, self.in_ns, strict=True)]
        self.out_cost: list[float] = [cost(t.page_out_pj, ns) for t, ns in zip(tensors, self.out_ns, strict=True)]
        if time_weight:
            self.op_cost = [c + time_weight * s for c, s in zip(self.op_cost, self.op_ns, strict=True)]
            self.in_cost = [c + time_weight * s for c, s in zip(self.in_cost, self.bus_in_ns, strict=True)]
            self.out_cost = [c + time_weight * s for c, s in zip(self.out_cost, self.bus_out_ns, strict=True)]
        self.cut = self._loss_position()
        # No schedule avoids these: all operators once, reads of tensors from the store, writes of those that end there.
        self.page_ins_needed = [
            t for t in range(self.n_tensors) if self.on_store[t] and (self.consumers[t] or self.ends_in_ram[t])
        ]
        self.page_outs_needed = [t for t in range(self.n_tensors) if self.ends_on_store[t] and not self.on_store[t]]
        self.must_page = bool(self.page_ins_needed or self.page_outs_needed)
        self.base_cost = (
            sum(self.op_cost)
            + sum(self.in_cost[t] for t in self.page_ins_needed)
            + sum(self.out_cost[t] for t in self.page_outs_needed)
        )
        self.can_page = any(self.pageable) or self.must_page
        self.capacity = problem.budget_bytes - problem.base_bytes
        self.paging_capacity = self.capacity - problem.page_buffer_bytes
        stored = sum(s for s, there in zip(self.footprint, self.on_store, strict=True) if there)
        stored += sum(self.footprint[t] for t in streamed)
        # That streamed operators write, blocks that they write again among them.
        self.streamed_bytes = sum(self.footprint[t] for t in streamed) + sum(o.rewritten_bytes for o in ops)
        # Room on the store, bytes. No solver writes a tensor twice, so a limit on bytes written is room as well.
        limits = [] if problem.store_capacity_bytes is None else [problem.store_capacity_bytes - stored]
        limits += [] if problem.write_limit_bytes is None else [problem.write_limit_bytes - self.streamed_bytes]
        self.store_limited = bool(limits)
        self.store_free = min(limits, default=NEVER << 30)

    def capacity_for(self, paging: bool) -> int:
        """Bytes for tensors and workspace: with paging its buffer takes some."""
        return self.paging_capacity if paging else self.capacity

    @cached_property
    def ordered_pairs(self) -> list[list[tuple[int, int, bool]]]:
        """The same, required ones first, then the largest."""
        return [sorted(pairs, key=lambda p: (not p[2], -self.size[p[1]])) if pairs else [] for pairs in self.pairs]

    @cached_property
    def overwritten(self) -> list[frozenset[int]]:
        """By operator, the inputs whose bytes an output takes over: gone afterwards, unless they are read back."""
        none = frozenset[int]()
        return [frozenset(i for i, _, required in pairs if required) if pairs else none for pairs in self.pairs]

    @cached_property
    def expiry(self) -> list[int]:
        """By tensor, the first such operator."""
        expiry = [NEVER] * self.n_tensors
        for v, inputs in enumerate(self.overwritten):
            for i in inputs:
                expiry[i] = min(expiry[i], v)
        return expiry

    def _loss_position(self) -> int:
        """The first operator of the backward pass, where all tensors saved for backward are resident at once."""
        # The first update does not show it: running statistics and step counters move during the forward pass.
        backward = (v for v, op in enumerate(self.problem.operators) if op.phase == "backward")
        return next(backward, self.n_ops // 2)

    def decisions(self, codes: Sequence[int]) -> list[Decision]:
        n, m = self.n_ops, self.n_tensors
        return [Compute(c) if c < n else PageIn(c - n) if c < n + m else PageOut(c - n - m) for c in codes]

    def codes(self, actions: Sequence[Action]) -> list[int]:
        """The codes of a schedule's actions, with page-ins that were issued ahead right before their readers."""
        n, m = self.n_ops, self.n_tensors
        codes = []
        for action in settled(self.problem, actions):
            if isinstance(action, Compute):
                codes.append(action.operator)
            elif isinstance(action, PageIn):
                codes.append(n + action.tensor)
            else:
                codes.append(n + m + action.tensor)
        return codes

    def stored_bytes(self, codes: Sequence[int]) -> int:
        """The bytes that a sequence adds to the store."""
        pages = {c - self.n_ops - self.n_tensors for c in codes if c >= self.n_ops + self.n_tensors}
        return sum(self.footprint[t] for t in pages if not self.on_store[t])

    def cost(self, codes: Sequence[int]) -> float:
        n, m = self.n_ops, self.n_tensors
        return sum(
            self.op_cost[c] if c < n else self.in_cost[c - n] if c < n + m else self.out_cost[c - n - m] for c in codes
        )

    def time(self, codes: Sequence[int]) -> int:
        n, m = self.n_ops, self.n_tensors
        return sum(
            self.op_ns[c] if c < n else self.in_ns[c - n] if c < n + m else self.out_ns[c - n - m] for c in codes
        )

    def keep_all(self) -> list[int]:
        """The codes of keep-all, with only the paging that nothing avoids."""
        n, m = self.n_ops, self.n_tensors
        waiting = set(self.page_ins_needed)
        codes = [n + m + t for t in self.page_outs_needed if self.in_ram[t]]
        for v in range(n):
            for t in self.inputs[v]:
                if t in waiting:
                    waiting.remove(t)
                    codes.append(n + t)
            codes.append(v)
            codes += [n + m + t for t in self.outputs[v] if self.ends_on_store[t]]
        return codes + [n + t for t in sorted(waiting)]
