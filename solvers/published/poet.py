"""POET's own MILP (Patil et al., ICML 2022), written in PuLP so that it reads like the paper.

It solves small problems, and is the reference for others. There are T stages, one an operator in the fixed order; stage
t executes operator t for the first time. The binaries of stage t are:

    R[t,k]     operator k is executed;
    SRam[t,i]  tensor i is in RAM when stage t begins, SSd[t,i] on the store;
    MIn[t,i]   i is paged in (to be used from stage t + 1), MOut[t,i] paged out (it must be in RAM when t begins);
    FreeE[t,e] edge e = (tensor i, reader k): i is freed right after k;

The continuous U[t,k] are the RAM while operator k runs in stage t. Minimise sum R e + MIn e_in + MOut e_out subject to:

    (correctness)  R[t,k] <= R[t,producer of i] + SRam[t,i] for each i that k reads;
                   SRam[t+1,i] <= SRam[t,i] + R[t,producer of i] + MIn[t,i];  SSd[t+1,i] <= SSd[t,i] + MOut[t,i];
                   MIn[t,i] <= SSd[t,i];  MOut[t,i] <= SRam[t,i];  R[t,t] = 1, nothing above the diagonal;
    (memory)       U[t,0] = sum of SRam[t,i] size_i + R[t,0] size of the outputs of 0;
                   U[t,k+1] = U[t,k] + R[t,k+1] size of the outputs of k+1 - sum over edges e = (i,k) of
                   FreeE[t,e] size_i;  U <= budget;
    (freeing)      1 - FreeE[t,e] <= hazards <= (largest number of hazards) (1 - FreeE[t,e]), where
                   hazards = (1 - R[t,k]) + SRam[t+1,i] + sum of R[t,j] over readers j > k of i;
    (deadline)     sum R time <= deadline.

The formulation follows sections 4.1-4.3 of the paper and the released code (commit 6e63098), which differ in nothing
that matters here.

The formulation decides less than a Problem allows. A page-in is usable one stage late. In the paper paging takes no
time; here the times of the Problem count for the deadline. In-place and the order of recomputation are not decided.
An unread output stays until its stage ends.

A Problem needs more than the paper has. It has tensors that are there at the start or wanted at the end, and several
outputs an operator. Workspace is added to U while its operator runs. Some operators must not be repeated, and tensors
that an update consumes are gone in later stages.

The solution becomes actions: page-outs at the start of a stage, page-ins at its end. The checker replays them as it
replays any schedule. A solution that it refuses is reported as infeasible for this formulation. The bound holds for the
schedules of this formulation alone; others may cost less.
"""

from __future__ import annotations

import math
import time
from typing import Any

import pulp

from poetc.errors import InfeasibleError, LimitError
from poetc.scheduling import (
    Completer,
    Problem,
    Proof,
    Repetition,
    Schedule,
    ScheduleError,
    Scope,
    SolveOptions,
    Status,
    verify,
)
from poetc.solvers.highs import COST_SCALE, TOLERANCE, Answer
from poetc.solvers.interface import Event, Progress, SolverInfo
from poetc.solvers.milp import from_pulp
from poetc.solvers.model import Model
from poetc.solvers.published._rounding import start_of
from poetc.solvers.published._stages import INTEGRAL, stages_of
from poetc.solvers.published.checkmate import Checkmate

INFO = SolverInfo(
    name="poet",
    title="POET's MILP, literally",
    citation="S. G. Patil et al., POET: Training Neural Networks on Tiny Devices with Integrated Rematerialization and "
    "Paging, ICML 2022",
    paging=True,
    energy=True,
    deadline=True,
    proof=True,
    milp=True,
    most_operators=140,  # beyond, PuLP takes minutes to build the model alone
    notes="5 T^2 + T E binaries: for problems of up to some tens of operators",
    read="sections 4.1 to 4.3, released code",
    differs="state and several outputs an operator; time of paging counts where the problem has it; layers",
    checked="exhaustive search on small problems; its own problems in `bench/poet.py`",
)

_Matrix = list[list[Any]]

CLOSED = 1e-7  # fraction of the cost: the optimum is proven where its gap is at most this


class _Formulation:
    def __init__(self, problem: Problem, options: SolveOptions) -> None:
        self.problem, self.model, self.options = problem, Model(problem), options
        self.stop_at = time.monotonic() + options.time_limit_s
        model = self.model
        self.n, self.m = model.n_ops, model.n_tensors
        self.pages = model.can_page
        self.capacity = model.capacity_for(self.pages)
        self.lp = pulp.LpProblem("POET", pulp.LpMinimize)
        self.variables: list[Any] = []
        self.rows: list[Any] = []  # PuLP's constraints
        self.edges = [(i, k) for k in range(self.n) for i in model.inputs[k]]
        self.size = [s / max(1, self.capacity) for s in model.size]  # RAM in units of the budget

    def binaries(self, name: str, columns: int, stages: int | None = None) -> _Matrix:
        rows = self.n if stages is None else stages
        return [[self.variable(f"{name}_{t}_{i}", cat="Binary") for i in range(columns)] for t in range(rows)]

    def variable(self, name: str, *ends: float, cat: str = "Continuous") -> Any:
        self.variables.append(self.lp.add_variable(name, *ends, cat=cat))
        return self.variables[-1]

    def left_s(self) -> float:
        """Raises LimitError at the time limit: building the model counts."""
        left_s = self.stop_at - time.monotonic()
        if left_s <= 0:
            raise LimitError(
                f"POET's formulation was not even built in {self.options.time_limit_s:g} s; allow more time"
            )
        return left_s

    def build(self) -> None:
        n, m = self.n, self.m
        self.R, self.SRam, self.SSd = self.binaries("R", n), self.binaries("SRam", m), self.binaries("SSd", m)
        self.MIn, self.MOut = self.binaries("MIn", m), self.binaries("MOut", m)
        self.FreeE = self.binaries("FreeE", len(self.edges))
        self.U = [[self.variable(f"U_{t}_{k}", 0, 1) for k in range(n)] for t in range(n)]
        self.objective()
        self.bounds()
        self.correctness()
        self.ends()
        self.memory()
        if self.problem.deadline_ns is not None:
            self.deadline(self.problem.deadline_ns)

    def objective(self) -> None:
        model, unit = self.model, max(1.0, float(self.model.base_cost)) / COST_SCALE
        cost = pulp.lpSum(self.R[t][k] * (model.op_cost[k] / unit) for t in range(self.n) for k in range(self.n))
        cost += pulp.lpSum(self.MIn[t][i] * (model.in_cost[i] / unit) for t in range(self.n) for i in range(self.m))
        cost += pulp.lpSum(self.MOut[t][i] * (model.out_cost[i] / unit) for t in range(self.n) for i in range(self.m))
        self.cost = cost

    def fix(self, variable: Any, value: int) -> None:
        variable.lowBound = variable.upBound = value

    def bounds(self) -> None:
        """The triangular structure: nothing exists before its first execution."""
        model = self.model
        for t in range(self.n):
            for k in range(self.n):
                if k == t:
                    self.fix(self.R[t][k], 1)
                elif k > t or not model.recomputable[k]:
                    self.fix(self.R[t][k], 0)
            for i in range(self.m):
                p = model.producer[i]
                if p >= t or (t == 0 and not model.in_ram[i]):
                    self.fix(self.SRam[t][i], 0)
                if t == 0 and model.in_ram[i]:
                    self.fix(self.SRam[t][i], 1)
                if (p >= t or t == 0) and not model.on_store[i]:
                    self.fix(self.SSd[t][i], 0)
                if not model.pageable[i]:
                    self.fix(self.MOut[t][i], 0)
                if not (model.pageable[i] or model.on_store[i]):
                    self.fix(self.MIn[t][i], 0)
                if model.expiry[i] < t and not (model.pageable[i] or model.on_store[i]):
                    self.fix(self.SRam[t][i], 0)

    def computed(self, t: int, i: int) -> Any:
        p = self.model.producer[i]
        return self.R[t][p] if p >= 0 else 0

    def correctness(self) -> None:
        model = self.model
        for t in range(self.n):
            self.left_s()
            for i, k in self.edges:
                self.rows.append(self.R[t][k] <= self.computed(t, i) + self.SRam[t][i])
            for i in range(self.m):
                self.rows.append(self.MIn[t][i] <= self.SSd[t][i])
                self.rows.append(self.MOut[t][i] <= self.SRam[t][i])
                if t + 1 < self.n:
                    # A tensor that an update consumes in stage t is in RAM afterwards only if it is paged in.
                    stays = 0 if model.expiry[i] == t else self.SRam[t][i] + self.computed(t, i)
                    self.rows.append(self.SRam[t + 1][i] <= stays + self.MIn[t][i])
                    stored = 1 if model.on_store[i] else self.SSd[t][i] + self.MOut[t][i]
                    self.rows.append(self.SSd[t + 1][i] <= stored)

    def ends(self) -> None:
        last = self.n - 1
        for i in range(self.m):
            if self.model.ends_in_ram[i]:
                self.rows.append(self.SRam[last][i] + self.computed(last, i) + self.MIn[last][i] >= 1)
            if self.model.ends_on_store[i] and not self.model.on_store[i]:
                self.rows.append(self.SSd[last][i] + self.MOut[last][i] >= 1)

    def memory(self) -> None:
        model, n = self.model, self.n
        readers_after = {(i, k): [j for j in model.consumers[i] if j > k] for i, k in self.edges}
        ends = [(e, i) for e, (i, _) in enumerate(self.edges)]
        leaving: list[list[tuple[int, int]]] = [[] for _ in range(n)]
        for e, i in ends:
            leaving[self.edges[e][1]].append((e, i))
        for t in range(n):
            self.left_s()
            for e, (i, k) in enumerate(self.edges):
                later = readers_after[i, k]
                hazards = 1 - self.R[t][k] + pulp.lpSum(self.R[t][j] for j in later)
                largest = 1 + len(later)
                if t + 1 < n:
                    hazards += self.SRam[t + 1][i]
                    largest += 1
                elif model.ends_in_ram[i]:
                    hazards += 1
                    largest += 1
                self.rows.append(1 - self.FreeE[t][e] <= hazards)
                self.rows.append(hazards <= largest * (1 - self.FreeE[t][e]))
            held = pulp.lpSum(self.SRam[t][i] * self.size[i] for i in range(self.m))
            for k in range(n):
                output_bytes = self.R[t][k] * sum(self.size[i] for i in model.outputs[k])
                if k == 0:
                    self.rows.append(self.U[t][0] == held + output_bytes)
                else:
                    freed = pulp.lpSum(self.FreeE[t][e] * self.size[i] for e, i in leaving[k - 1])
                    self.rows.append(self.U[t][k] == self.U[t][k - 1] + output_bytes - freed)
                if model.workspace[k]:
                    self.rows.append(self.U[t][k] + self.R[t][k] * (model.workspace[k] / max(1, self.capacity)) <= 1)

    def deadline(self, deadline_ns: int) -> None:
        model, unit = self.model, float(max(1, deadline_ns))
        used = pulp.lpSum(self.R[t][k] * (model.op_ns[k] / unit) for t in range(self.n) for k in range(self.n))
        used += pulp.lpSum(self.MIn[t][i] * (model.in_ns[i] / unit) for t in range(self.n) for i in range(self.m))
        used += pulp.lpSum(self.MOut[t][i] * (model.out_ns[i] / unit) for t in range(self.n) for i in range(self.m))
        self.rows.append(used <= 1)
        if model.overlaps:  # the bus alone is no longer busy than that; the replay says how long both take together
            moved = pulp.lpSum(
                self.MIn[t][i] * (model.bus_in_ns[i] / unit) for t in range(self.n) for i in range(self.m)
            )
            out = pulp.lpSum(
                self.MOut[t][i] * (model.bus_out_ns[i] / unit) for t in range(self.n) for i in range(self.m)
            )
            self.rows.append(moved <= 1)
            self.rows.append(out <= 1)

    def codes(self) -> list[int]:
        """The actions that the solution spells out."""
        n, m = self.n, self.m
        codes: list[int] = []
        for t in range(n):
            codes += [n + m + i for i in range(m) if _one(self.MOut[t][i])]
            codes += [k for k in range(n) if _one(self.R[t][k])]
            codes += [n + i for i in range(m) if _one(self.MIn[t][i])]
        return codes

    def start(self, codes: list[int]) -> list[tuple[Any, int]]:
        """All binaries, for a sequence that recomputes in ascending order and pages nothing."""
        n, model = self.n, self.model
        executed, held = stages_of(model, codes)
        ends = {i for i in range(self.m) if model.ends_in_ram[i]}
        values = []
        for t in range(n):
            after = held[t + 1] if t + 1 < n else ends
            values += [(self.R[t][k], int(k in executed[t])) for k in range(n)]
            values += [(self.SRam[t][i], int(i in held[t])) for i in range(self.m)]
            values += [(self.SSd[t][i], int(model.on_store[i])) for i in range(self.m)]
            values += [(variable, 0) for row in (self.MIn, self.MOut) for variable in row[t]]
            for e, (i, k) in enumerate(self.edges):
                later = any(j > k and j in executed[t] for j in model.consumers[i])
                values.append((self.FreeE[t][e], int(k in executed[t] and not later and i not in after)))
        return values


def _one(variable: Any) -> bool:
    return (pulp.value(variable) or 0.0) > INTEGRAL


def solve(problem: Problem, options: SolveOptions, progress: Progress | None = None) -> Schedule:
    """POET's optimum, if the time limit allows. Raises InfeasibleError, LimitError."""
    if len(problem.operators) > INFO.most_operators:
        raise LimitError(
            f"POET's formulation takes at most {INFO.most_operators} operators, here are {len(problem.operators)}; "
            "use --solver poetc"
        )
    formulation = _Formulation(problem, options)
    if formulation.capacity <= 0:
        raise InfeasibleError(f"no RAM is left for tensors in {problem.budget_bytes} bytes; raise the budget")
    start = start_of(INFO, Checkmate, problem, options)
    formulation.build()
    variables = formulation.variables
    column = {variable.name: i for i, variable in enumerate(variables)}
    mip = from_pulp(variables, formulation.cost, formulation.rows)
    answer = mip.solve(
        time_limit_s=formulation.left_s(),
        gap=options.gap,
        start=None if start is None else {column[v.name]: float(value) for v, value in formulation.start(start)},
        threads=options.threads,
        seed=options.seed,
    )
    if answer.infeasible:
        raise InfeasibleError(f"POET's formulation has no schedule for {problem.budget_bytes} bytes; raise the budget")
    if answer.values is None:
        raise LimitError(f"POET's formulation found no schedule in {options.time_limit_s:.3g} s; allow more time")
    for variable, value in zip(variables, answer.values.tolist(), strict=True):
        variable.varValue = value
    return _schedule(problem, formulation, answer, progress)


def _schedule(problem: Problem, formulation: _Formulation, answer: Answer, progress: Progress | None) -> Schedule:
    model = formulation.model
    codes = formulation.codes()
    completion = Completer(problem).run(model.decisions(codes))
    cost = problem.objective.cost(completion.energy_pj, completion.time_ns)
    unit = max(1.0, float(model.base_cost)) / COST_SCALE
    bound = math.ceil((answer.bound - TOLERANCE) * unit) if math.isfinite(answer.bound) else 0
    bound = max(0, min(bound, cost))
    gap = (cost - bound) / max(1, cost)
    if answer.optimal and gap <= CLOSED:
        state = Status.OPTIMAL
    else:
        state = Status.FEASIBLE if answer.optimal else Status.LIMIT
    scope = Scope(order=tuple(range(len(problem.operators))), repetition=Repetition.POET)
    proof = Proof(status=state, objective=cost, bound=bound, scope=scope, method="POET's MILP")
    if progress is not None:
        event = Event(stage="POET's MILP", objective=cost, bound=bound, order=problem.order, repetition=Repetition.POET)
        progress(event)
    log = (f"{answer.nodes} nodes",)
    schedule = Schedule(solver=INFO.name, actions=completion.actions, proof=proof, log=log)
    try:
        verify(problem, schedule)
    except ScheduleError as error:
        raise InfeasibleError(
            f"POET's solution breaks the exact rules ({error.reason}): infeasible for this formulation"
        ) from error
    return schedule
