"""The staged MILP: its solutions are schedules, with RAM at every step, for small problems and for polishing.

Stage g executes operator a_g = first + g, then recomputes by ascending operator, each at most once. Before `first`
nothing is recomputed ("stage 0 is the forward pass"). `CutModel` has the first variables and rows. For each tensor that
may be in RAM in a stage there are also:

    q[t,j]  tensor t is still needed at the j-th operator of the stage that can read it: q_j >= q_{j+1}, q_j >= R[k_j],
            and after the last one S[g+1,t];
    p[t]    t is there from the start of the stage: p >= q_1 - R[producer] - I;
    y[t]    t occupies RAM while its producer runs: y >= q_1, y >= R[producer];
    c       an in-place pair is used: c <= R[v], c <= 1 - (input needed later); credited with the output's size.

No big-M: RAM at each step is a sum of these columns. A page-in comes right before the first operator of the stage that
can read the tensor, or at the end of the stage.
"""

from __future__ import annotations

from poetc.solvers.model import Model
from poetc.solvers.poetc.bounds.cuts import CutModel
from poetc.solvers.poetc.pruning import ALL, Rules

Terms = dict[int, float]


class StagedModel(CutModel):
    """The MILP with one stage for each operator from `first` on; the operators before it are stage 0.

    Its bound holds for staged schedules only: a stage runs its operator, then recomputes others, each at most once.
    """

    def __init__(self, model: Model, first: int, rules: Rules = ALL) -> None:
        super().__init__(model, range(first, model.n_ops), rules=rules)
        if self.proven_infeasible:
            return
        self.capacity = model.paging_capacity if model.must_page else model.capacity
        for v in range(first):
            self._forward(v, first)
        for g in range(len(self.cuts)):
            self._stage_ram(g)

    def _ram(self, g: int, capacity: int) -> None:
        """Replaced by the rows of `_stage_ram`."""

    def _row(self, terms: Terms, fixed: int) -> None:
        room = self.capacity - fixed
        if self.pages >= 0:
            terms = {**terms, self.pages: float(self.model.problem.page_buffer_bytes)}
        if room < 0 and not any(x < 0 for x in terms.values()):
            self.proven_infeasible = True
            return
        if sum(max(0.0, x) for x in terms.values()) <= room and self.rules.cuts_slack_rows:
            return
        scale = float(max(1, self.capacity))
        self.mip.row(list(terms), [x / scale for x in terms.values()], upper=room / scale)

    def _forward(self, v: int, first: int) -> None:
        """RAM at `v` < first: tensors that the forward pass still reads, and those held for the first stage."""
        model, held = self.model, self.hold[0]
        fixed, terms = model.workspace[v] + sum(model.size[o] for o in model.outputs[v]), {}
        for t in range(model.n_tensors):
            if model.producer[t] >= v or t in model.outputs[v]:
                continue
            uses = [k for k in model.consumers[t] if k < first]
            if model.on_store[t] and not (uses and uses[0] <= v):
                continue
            if (uses and uses[-1] >= v) or self.is_pinned(t, v):
                fixed += model.size[t]
            elif t in held and model.expiry[t] > v:
                terms[held[t]] = float(model.size[t])
        taken: set[int] = set()
        for i, o, required in model.pairs[v]:
            last = max((k for k in model.consumers[i] if k < first), default=-1)
            if i in taken or o in taken or (not required and (last > v or self.is_pinned(i, first))):
                continue
            taken |= {i, o}
            fixed -= model.size[o]
            if not required and i in held:
                terms[held[i]] = terms.get(held[i], 0.0) + model.size[o]
        self._row(terms, fixed)

    # --- one stage ---

    def _stage_ram(self, g: int) -> None:
        model, mip, cut = self.model, self.mip, self.cuts[g]
        end = cut + 1
        run, load, held = self.run[g], self.load[g], self.hold[g]
        last_stage = end == model.n_ops
        following = {} if last_stage else self.hold[g + 1]
        steps = sorted(run)
        start_there = {t for t in held if model.expiry[t] != cut} | set(model.outputs[cut])
        # These are no longer indispensable after a_g, but operators that run again in this stage may read them.
        start_there |= {t for t in range(model.n_tensors) if self.is_pinned(t, cut) and model.expiry[t] != cut}
        tensors = sorted(start_there | {o for v in steps for o in model.outputs[v]} | set(load))
        tensors = [t for t in tensors if not self.is_pinned(t, end)]
        readers: dict[int, list[int]] = {t: [] for t in tensors}
        for v in steps:
            for t in model.inputs[v]:
                if t in readers:
                    readers[t].append(v)
        needs: dict[int, list[int | None]] = {}  # per reader, and after the last: a column (None: not needed)
        begin: dict[int, int | None] = {}  # presence before its producer or page-in in this stage
        making: dict[int, int] = {}
        for t in tensors:
            after = following.get(t)
            if last_stage and model.ends_in_ram[t]:
                after = mip.column(lower=1.0, integer=False)
            chain: list[int | None] = [after]
            for v in reversed(readers[t]):
                q = mip.column(integer=False)
                mip.row([q, run[v]], [1.0, -1.0], lower=0.0)
                if chain[0] is not None:
                    mip.row([q, chain[0]], [1.0, -1.0], lower=0.0)
                chain.insert(0, q)
            needs[t] = chain
            sources = [c for c in (run.get(model.producer[t]), load.get(t)) if c is not None]
            begin[t] = None
            if t in start_there and chain[0] is not None:
                begin[t] = chain[0]
                if sources:
                    p = mip.column(integer=False)
                    mip.row([p, chain[0], *sources], [1.0, -1.0, *[1.0] * len(sources)], lower=0.0)
                    begin[t] = p
            if model.producer[t] in run:
                y = mip.column(integer=False)
                mip.row([y, run[model.producer[t]]], [1.0, -1.0], lower=0.0)
                if chain[0] is not None:
                    mip.row([y, chain[0]], [1.0, -1.0], lower=0.0)
                making[t] = y
        self._first_execution(g, begin)
        fixed = sum(
            model.size[t]
            for t in range(model.n_tensors)
            if self.is_pinned(t, end) and (self.is_pinned(t, cut) or model.producer[t] == cut)
        )
        for v in steps:
            self._recomputation(g, v, tensors, readers, needs, begin, making, fixed)

    def _first_execution(self, g: int, begin: dict[int, int | None]) -> None:
        """RAM while a_g runs."""
        model, mip, cut = self.model, self.mip, self.cuts[g]
        terms: Terms = {column: float(model.size[t]) for t, column in self.hold[g].items()}
        fixed = self.fixed_bytes(cut) + model.workspace[cut] + sum(model.size[o] for o in model.outputs[cut])
        sharing: dict[tuple[str, int], list[int]] = {}
        for i, o, required in model.pairs[cut]:
            if required:
                fixed -= model.size[o]
            elif not self.is_pinned(i, cut + 1):
                credit = mip.column(integer=False)
                stays = begin.get(i)
                if stays is not None:
                    mip.row([credit, stays], [1.0, 1.0], upper=1.0)
                terms[credit] = -float(model.size[o])
                sharing.setdefault(("input", i), []).append(credit)
                sharing.setdefault(("output", o), []).append(credit)
        self._share(sharing)
        self._row(terms, fixed)

    def _share(self, sharing: dict[tuple[str, int], list[int]]) -> None:
        for columns in sharing.values():
            if len(columns) > 1:
                self.mip.row(columns, [1.0] * len(columns), upper=1.0)

    def _recomputation(
        self,
        g: int,
        v: int,
        tensors: list[int],
        readers: dict[int, list[int]],
        needs: dict[int, list[int | None]],
        begin: dict[int, int | None],
        making: dict[int, int],
        fixed: int,
    ) -> None:
        """RAM while `v` runs again."""
        model, mip, run = self.model, self.mip, self.run[g]
        terms: Terms = {}

        def add(column: int | None, size: float) -> None:
            if column is not None:
                terms[column] = terms.get(column, 0.0) + size

        for t in tensors:
            size = float(model.size[t])
            p = model.producer[t]
            if p == v:
                add(making[t], size)
            elif (p in run and v < p) or (t in self.load[g] and (not readers[t] or v < readers[t][0])):
                add(begin[t], size)
            else:
                j = next((j for j, k in enumerate(readers[t]) if k >= v), len(readers[t]))
                add(needs[t][j], size)
        add(run[v], float(model.workspace[v]))
        for t in model.outputs[v]:
            if t not in making:
                add(run[v], float(model.size[t]))
        sharing: dict[tuple[str, int], list[int]] = {}
        for i, o, _ in model.pairs[v]:
            if i not in needs or o not in making:
                continue
            credit = mip.column(integer=False)
            later = needs[i][readers[i].index(v) + 1]
            mip.row([credit, run[v]], [1.0, -1.0], upper=0.0)
            if later is not None:
                mip.row([credit, later], [1.0, 1.0], upper=1.0)
            add(credit, -float(model.size[o]))
            sharing.setdefault(("input", i), []).append(credit)
            sharing.setdefault(("output", o), []).append(credit)
        self._share(sharing)
        self._row(terms, fixed)
