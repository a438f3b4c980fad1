"""Lower bounds from a relaxed MIP that enforces RAM only at the first executions of a few operators, the cuts.

Let a_1 < ... < a_G be cuts and stage g run from the first execution of a_g to that of a_{g+1} (stage 0 before a_1). For
every schedule that executes the operators for the first time in the problem's order, set:

    S[g,t] = 1 if tensor t is in RAM when a_g is first executed,
    R[g,v] = 1 if operator v is executed in stage g,
    I[g,t] = 1 if t is paged in there,
    O[t]   = 1 if t is paged out at all.

The rows are:

    S[g+1,t] <= S[g,t] + R[g,producer] + I[g,t];
    R[g,v] <= S[g,u] + R[g,producer of u] + I[g,u] for each u that v reads;
    I[g,t] <= O[t];   R[g,v] = 1 where v is first executed in stage g;

RAM at a_g is the sum of size S, plus its outputs (less those that may be in place), plus its workspace. The cost counts
each execution and page-in once a stage, so the optimum is a lower bound. Nothing is assumed about the order of
recomputation. `between` adds rows for an operator w that is executed between two cuts, for the first time or again. A
tensor in RAM at a_{g+1} that was neither made nor paged in since a_g stayed all the time, beside the operands of w. So
z[g,t] >= S[g+1,t] - R - I. Where w is executed again, its operands count R[g,w] times.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from poetc.solvers.highs import Answer
from poetc.solvers.model import NEVER, Model
from poetc.solvers.poetc.bounds.between import Between
from poetc.solvers.poetc.bounds.columns import Columns
from poetc.solvers.poetc.bounds.ram import operand_bytes
from poetc.solvers.poetc.pruning import ALL, Rules
from poetc.solvers.poetc.settings import CUTS, WORK
from poetc.solvers.poetc.work import simplex_s


@dataclass(frozen=True, slots=True)
class Relaxation:
    """A solved relaxation: its bound, and the plan at the cuts if one was found.

    `bound` is in the problem's cost unit.
    """

    cuts: tuple[int, ...]
    bound: float
    infeasible: bool
    exact: bool  # HiGHS solved it to optimality
    held: tuple[frozenset[int], ...]  # per cut, the tensors in RAM
    paged: frozenset[int]
    run: tuple[frozenset[int], ...] = ()  # per stage, the operators executed again
    load: tuple[frozenset[int], ...] = ()  # per stage, the tensors paged in
    pinned: tuple[frozenset[int], ...] = ()  # per cut, tensors in RAM that are no decision


def has_many_alike(model: Model) -> bool:
    """Whether many operators of the forward pass that can be executed again cost and take the same."""
    kinds = Counter(
        (
            model.op_cost[v],
            model.workspace[v],
            tuple(sorted(model.size[t] for t in model.inputs[v])),
            tuple(sorted(model.size[t] for t in model.outputs[v])),
        )
        for v in range(model.cut)
        if model.recomputable[v]
    )
    return max(kinds.values(), default=0) >= max(CUTS.alike, CUTS.alike_share * model.cut)


class CutModel(Columns):
    """The relaxed MIP for one list of cuts."""

    def __init__(
        self,
        model: Model,
        cuts: Sequence[int],
        *,
        between: bool = False,
        deadline: bool = True,
        free: frozenset[int] = frozenset(),
        ties: bool = False,
        rules: Rules = ALL,
    ) -> None:
        """Build the MIP; `between` adds rows inside the stages.

        `free`: tensors too small to decide about. They stay once they are made and count nothing, which relaxes.
        `ties`: operators are a little cheaper to execute again the earlier they come, which relaxes too.
        """
        super().__init__(model, cuts, free=free, tie=CUTS.tie if ties else 0.0, rules=rules)
        self._build(between)
        if deadline and model.problem.deadline_ns is not None:
            self._deadline(model.problem.deadline_ns)

    def _useful(self, cut: int) -> set[int]:
        """Tensors that exist before `cut` and that an operator at or after it can use."""
        model = self.model
        if not self.rules.cuts_useful:
            return {t for t in range(model.n_tensors) if model.producer[t] < cut and t not in self.free}
        useful: set[int] = set()
        for t in sorted(range(model.n_tensors), key=lambda t: -model.producer[t]):
            p = model.producer[t]
            if p >= cut or t in self.free:
                continue
            if model.ends_in_ram[t]:
                useful.add(t)
                continue
            for v in model.consumers[t]:
                if v >= cut or (model.recomputable[v] and any(o in useful for o in model.outputs[v])):
                    useful.add(t)
                    break
        return useful

    def _build(self, between: bool) -> None:
        model, mip, n = self.model, self.mip, self.model.n_ops
        stages = len(self.cuts)
        edges = [*self.cuts, n]
        useful = [self._useful(c) for c in self.cuts]
        capacity = model.capacity_for(model.must_page)
        if model.can_page and not model.must_page and model.problem.page_buffer_bytes:
            self.pages = mip.column()
        for g in range(stages):
            cut = self.cuts[g]
            inputs = set(model.inputs[cut])
            hold = {}
            for t in sorted(useful[g]):
                if self.is_pinned(t, cut):
                    continue
                gone = self.rules.cuts_expiry and model.expiry[t] < cut
                if gone and not (model.pageable[t] or model.on_store[t]):
                    continue
                hold[t] = mip.column(lower=1.0 if t in inputs else 0.0)
            self.hold.append(hold)
        for g in range(stages):
            cut, end = self.cuts[g], edges[g + 1]
            run, load = {}, {}
            for v in range(cut):
                if model.recomputable[v] and any(t in useful[g] for t in model.outputs[v]):
                    run[v] = mip.column(model.op_cost[v] / self.unit * (1 - self.tie * (1 - v / n)))
            for t in sorted(useful[g] | {o for v in range(cut, end) for o in model.outputs[v]} - self.free):
                if model.on_store[t] or model.pageable[t]:
                    if model.producer[t] < end:
                        load[t] = mip.column(model.in_cost[t] / self.unit)
                    if t not in self.store and not model.on_store[t]:
                        written = t in model.page_outs_needed
                        self.store[t] = mip.column(
                            0.0 if written else model.out_cost[t] / self.unit, 1.0 if written else 0.0
                        )
            self.run.append(run)
            self.load.append(load)
        for t in self.model.page_ins_needed:
            self._needed_page_in(t)
        for g in range(stages):
            self._stage(g, edges[g + 1])
        if self.rules.cuts_suffixes:
            rows = len(mip.row_lower)
            for g in range(stages - 1):
                self._suffix(g)
            if len(mip.row_lower) > rows:
                mip.optional.append(range(rows, len(mip.row_lower)))
        for g in range(stages):
            self._ram(g, capacity)
        if between:
            for g in range(stages):
                Between(self, g, edges[g + 1], capacity).rows()
        self._links()

    def _needed_page_in(self, t: int) -> None:
        """`t` starts on the store and is read at least once; the offset holds the first read, in whichever stage."""
        first = min(self.model.consumers[t], default=NEVER)
        columns = [load[t] for load in self.load if t in load]
        if first <= self.cuts[0] or not columns:
            return
        self._credit(t, columns)

    def _credit(self, t: int, columns: list[int]) -> int:
        """A column that takes back the cost of the first read, if it is one of `columns`."""
        credit = self.mip.column(-self.model.in_cost[t] / self.unit, 0.0, 1.0, integer=False)
        self.mip.row([credit, *columns], [1.0, *[-1.0] * len(columns)], upper=0.0)
        if t in self.hold[0]:  # a tensor that is there at the first cut was read before
            self.mip.row([credit, self.hold[0][t]], [1.0, 1.0], upper=1.0)
        return credit

    def _sources(self, g: int, t: int, end: int) -> list[int] | None:
        """Columns whose sum makes `t` available in stage g; None if it is there anyway."""
        p = self.model.producer[t]
        cut = self.cuts[g]
        if (p >= cut and p < end) or self.is_pinned(t, cut):
            return None
        columns = []
        # A tensor that a_g overwrites is gone for the rest of its stage.
        if t in self.hold[g] and not (self.rules.cuts_expiry and self.model.expiry[t] == cut):
            columns.append(self.hold[g][t])
        if p in self.run[g]:
            columns.append(self.run[g][p])
        if t in self.load[g]:
            columns.append(self.readable(g, t))
        return columns

    def readable(self, g: int, t: int) -> int:
        """The column of a page-in in stage g, for users of that stage."""
        return self.load[g][t]

    def readable_since(self, g: int, t: int, loaded: int) -> int:
        """The column `loaded`, of any page-in from stage g on, for users from then on."""
        return loaded

    def _stage(self, g: int, end: int) -> None:
        mip, model = self.mip, self.model
        cut = self.cuts[g]
        for v, column in self.run[g].items():
            for u in model.inputs[v]:
                sources = self._sources(g, u, end)
                if sources is not None:
                    mip.row([column, *sources], [1.0, *[-1.0] * len(sources)], upper=0.0)
        for v in range(cut + 1, end):  # the operands of a_g are held by their columns' lower bounds
            for u in model.inputs[v]:
                sources = self._sources(g, u, end)
                if sources is not None:
                    self._require(sources)
        following = self.hold[g + 1] if g + 1 < len(self.cuts) else {}
        for t, column in following.items():
            sources = self._sources(g, t, end)
            # A tensor that an update in this stage overwrites is there at the end only if it is read back.
            if sources and self.rules.cuts_expiry and cut < model.expiry[t] < end and t in self.hold[g]:
                sources.remove(self.hold[g][t])
            if sources is not None:
                mip.row([column, *sources], [1.0, *[-1.0] * len(sources)], upper=0.0)
        if g + 1 == len(self.cuts):
            for t in range(model.n_tensors):
                if model.ends_in_ram[t]:
                    sources = self._sources(g, t, end)
                    if sources is not None:
                        self._require(sources)

    def _suffix(self, g: int) -> None:
        """Add the rows of stages g and later taken together, as if a_g were the only cut.

        An operator that is executed at all since a_g reads tensors that are there at a_g or are made since. Integers
        imply it. Without these rows, an LP makes an operand by halves, twice.
        """
        mip, model, n = self.mip, self.model, self.model.n_ops
        cut, stages = self.cuts[g], range(g, len(self.cuts))

        def together(columns: list[int]) -> int:
            column = mip.column(integer=False)
            mip.row([column, *columns], [1.0, *[-1.0] * len(columns)], upper=0.0)
            return column

        run = {v: together([self.run[h][v] for h in stages if v in self.run[h]]) for v in self.run[g]}
        load: dict[int, int] = {}
        for t in self.hold[g]:
            columns = [self.load[h][t] for h in stages if t in self.load[h]]
            if columns:
                loaded = together(columns)
                self._link(t, loaded)  # a tensor that is read back by halves is still written as a whole
                load[t] = self.readable_since(g, t, loaded)

        def sources(t: int) -> list[int] | None:
            p = model.producer[t]
            if p >= cut or self.is_pinned(t, cut):
                return None
            columns = [self.hold[g][t]] if t in self.hold[g] else []
            columns += [run[p]] if p in run else []
            columns += [load[t]] if t in load else [self.load[h][t] for h in stages if t in self.load[h]]
            return columns

        for v, column in run.items():
            for u in model.inputs[v]:
                supply = sources(u)
                if supply is not None:
                    mip.row([column, *supply], [1.0, *[-1.0] * len(supply)], upper=0.0)
        required = {u for w in range(cut, n) for u in model.inputs[w] if model.producer[u] < cut}
        required |= {t for t in range(model.n_tensors) if model.ends_in_ram[t]}
        for u in sorted(required):
            supply = sources(u)
            if supply:
                mip.row(supply, [1.0] * len(supply), lower=1.0)

    def _require(self, sources: list[int]) -> None:
        if not sources:
            self.proven_infeasible = True
            return
        if len(sources) == 1:
            self.mip.lower[sources[0]] = 1.0
        else:
            self.mip.row(sources, [1.0] * len(sources), lower=1.0)

    def _ram(self, g: int, capacity: int) -> None:
        model, cut = self.model, self.cuts[g]
        fixed = self.fixed_bytes(cut) + operand_bytes(model, cut)
        terms = self.done(g, cut, {*model.inputs[cut], *model.outputs[cut], *self.hold[g]}) | self.hold[g]
        self.ram_row(list(terms.values()), [float(model.size[t]) for t in terms], capacity - fixed)

    def _link(self, t: int, column: int) -> None:
        """Where `column` is 1, `t` is on the store and the page buffer is there."""
        if t in self.store:
            self.mip.row([column, self.store[t]], [1.0, -1.0], upper=0.0)
        if self.pages >= 0:
            self.mip.row([column, self.pages], [1.0, -1.0], upper=0.0)

    def _links(self) -> None:
        mip, model = self.mip, self.model
        for load in self.load:
            for t, column in load.items():
                self._link(t, column)
        if model.store_limited and self.store:  # room on the store, and the limit on bytes written
            mip.within(list(self.store.values()), [model.footprint[t] for t in self.store], model.store_free)

    def _deadline(self, deadline_ns: int) -> None:
        """The time is at least that of the processor, and that of each bus where transfers overlap compute."""
        model = self.model
        nothing = [0] * model.n_tensors
        self._time_row(deadline_ns, model.op_ns, model.in_ns, model.out_ns)
        if model.overlaps:
            idle = [0] * model.n_ops
            if model.problem.dma_full_duplex:
                self._time_row(deadline_ns, idle, model.bus_in_ns, nothing)
                self._time_row(deadline_ns, idle, nothing, model.bus_out_ns)
            else:
                self._time_row(deadline_ns, idle, model.bus_in_ns, model.bus_out_ns)

    def _time_row(self, deadline_ns: int, op_ns: Sequence[int], in_ns: Sequence[int], out_ns: Sequence[int]) -> None:
        model = self.model
        fixed = sum(op_ns) + sum(out_ns[t] for t in model.page_outs_needed)
        # Operands of the first cut, or of an operator before it, were paged in before the first stage.
        early = [t for t in model.page_ins_needed if min(model.consumers[t], default=NEVER) <= self.cuts[0]]
        room = deadline_ns - fixed - sum(in_ns[t] for t in early)
        index, value = self._other_time(early, in_ns, out_ns)
        if room < sum(x for x in value if x < 0):
            self.proven_infeasible = True
            return
        for run in self.run:
            for v, column in run.items():
                index.append(column)
                value.append(op_ns[v])
        for load in self.load:
            for t, column in load.items():
                index.append(column)
                value.append(in_ns[t])
        needed = set(model.page_outs_needed)
        for t, column in self.store.items():
            if t not in needed:
                index.append(column)
                value.append(out_ns[t])
        if any(value):
            self.mip.within(index, value, room)

    def _other_time(
        self, early: Sequence[int], in_ns: Sequence[int], out_ns: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Further columns with their times; the time has the reads of `early` and all needed writes already."""
        return [], []

    def bound_of(self, answer: Answer) -> float:
        """The dual bound of an answer in the unit of the cost, less a tolerance; rounded up, as costs are integers."""
        if not math.isfinite(answer.bound):
            return self.model.base_cost
        return max(self.model.base_cost, math.ceil((answer.bound - CUTS.margin) * self.unit))

    def solve(
        self,
        *,
        time_limit_s: float,
        relax: bool = False,
        max_nodes: int | None = None,
        max_rounds: int | None = None,
        gap: float = 0.0,
        cutoff: float = math.inf,
        threads: int = 1,
        seed: int = 0,
        plain: bool = False,
        stop: threading.Event | None = None,
    ) -> Relaxation:
        """Solve the relaxation within the given time and work; see `Mip.solve`.

        `cutoff`: a bound this high is enough, and a plan this dear is none.
        """
        nothing: frozenset[int] = frozenset()
        if self.proven_infeasible:
            return Relaxation(self.cuts, math.inf, True, True, (), nothing)
        answer = self.mip.solve(
            time_limit_s=time_limit_s,
            relax=relax,
            max_nodes=max_nodes,
            max_rounds=max_rounds,
            gap=gap,
            cutoff=cutoff / self.unit if math.isfinite(cutoff) else None,
            threads=threads,
            seed=seed,
            plain=plain,
            stop=stop,
        )
        if answer.infeasible and math.isfinite(cutoff):
            return Relaxation(self.cuts, cutoff, False, True, (), nothing)
        if answer.infeasible:
            return Relaxation(self.cuts, math.inf, True, True, (), nothing)
        if answer.values is None or answer.objective > cutoff / self.unit:
            return Relaxation(self.cuts, self.bound_of(answer), False, answer.optimal, (), nothing)
        return self.relaxation_of(answer, answer.values)

    def work_s(self, *, lp: bool) -> float:
        """Work on solving it so far, or its LP, in seconds of a usual machine."""
        mip, iteration_s = self.mip, WORK.lp_iteration_s if lp else WORK.iteration_s
        root_s = simplex_s(mip.root_iterations, mip.entries, WORK.lp_iteration_s)
        return root_s + simplex_s(mip.iterations, mip.solved_entries, iteration_s)

    def relaxation_of(self, answer: Answer, values: npt.NDArray[np.float64]) -> Relaxation:
        """The plan that a solution stands for."""
        return Relaxation(
            self.cuts,
            self.bound_of(answer),
            False,
            answer.optimal,
            held=tuple(chosen(hold, values) for hold in self.hold),
            paged=chosen(self.store, values),
            run=tuple(chosen(run, values) for run in self.run),
            load=tuple(chosen(load, values) for load in self.load),
            pinned=tuple(
                frozenset(t for t in range(self.model.n_tensors) if self.is_pinned(t, cut)) for cut in self.cuts
            ),
        )


def chosen(columns: dict[int, int], values: npt.NDArray[np.float64]) -> frozenset[int]:
    return frozenset(key for key, column in columns.items() if values[column] > 0.5)
