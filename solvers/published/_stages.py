"""The stages of Checkmate's formulation, on which `checkmate`, `checkmate_lp` and `moccasin` are built.

Stage t executes operator t for the first time, after any recomputations of earlier operators in ascending order.
Binaries R[t,k] (operator k is executed in stage t) and S[t,i] (tensor i is in RAM when stage t begins) obey

    R[t,t] = 1;  R[t,k] <= R[t,producer of i] + S[t,i] for each i that k reads;
    S[t+1,i] <= S[t,i] + R[t,producer of i].

A Problem needs more than the papers have. It has several outputs an operator, inputs of the network, tensors wanted at
the end, and operators that must not be repeated. State that an update overwrites in place is always in RAM, so its
versions have no variables. No operator that reads a version is executed in a stage after the update. In-place that is
optional is not decided here.
"""

from __future__ import annotations

import math
import time

import numpy as np
import numpy.typing as npt

from poetc.errors import InfeasibleError, LimitError, UnsupportedProblemError
from poetc.scheduling import Problem, Repetition, Schedule, SolveOptions, state_chains
from poetc.solvers.highs import COST_SCALE, TOLERANCE, Answer, Mip
from poetc.solvers.interface import Progress, SolverInfo
from poetc.solvers.model import Model
from poetc.solvers.published._baseline import Baseline

Values = npt.NDArray[np.float64]
Linear = list[tuple[int, float]]  # columns with coefficients

INTEGRAL = 0.5  # a binary above this is one: HiGHS's values are off by its tolerances
SMALL = 1e-9  # in units of the row: a row without columns holds if it is missed by less


class StageModel:
    """The MILP with the variables R and S of above, and the rows that make a schedule of them.

    `room_bytes`: RAM for everything but state. Subclasses add the rows of `memory`.
    """

    def __init__(self, model: Model, room_bytes: int) -> None:
        problem = model.problem
        self.model, self.n = model, model.n_ops
        pinned = {t for chain in state_chains(problem) for t in chain}
        self.room = max(1, room_bytes)
        self.free_tensors = [t for t in range(model.n_tensors) if t not in pinned]
        self.inputs = [tuple(t for t in model.inputs[k] if t not in pinned) for k in range(self.n)]
        self.outputs = [tuple(t for t in model.outputs[k] if t not in pinned) for k in range(self.n)]
        self.weight = [s / self.room for s in model.size]
        self.unit = max(1.0, float(model.base_cost)) / COST_SCALE
        self.mip = Mip(offset=COST_SCALE)
        self.R: dict[tuple[int, int], int] = {}
        self.S: dict[tuple[int, int], int] = {}
        last_reader = [min((model.expiry[t] for t in model.inputs[k]), default=self.n) for k in range(self.n)]
        for t in range(self.n):
            for k in range(t):
                if model.recomputable[k] and last_reader[k] >= t:
                    self.R[t, k] = self.mip.column(model.op_cost[k] / self.unit)
            for i in self.free_tensors:
                if self._may_be_held(t, i):
                    self.S[t, i] = self.mip.column()
        self._correctness()
        self.memory()

    def _may_be_held(self, t: int, i: int) -> bool:
        """Later than it is made, and no longer than something can read it."""
        model = self.model
        maker = model.producer[i]
        if maker < 0 and not model.in_ram[i]:
            return False
        wanted = model.ends_in_ram[i] or any(u >= t or (t, u) in self.R for u in model.consumers[i])
        return maker < t and model.expiry[i] >= t and wanted

    # --- linear expressions ---

    def executed(self, t: int, k: int) -> tuple[Linear, float]:
        """R[t,k] as (columns, constant)."""
        if k == t:
            return [], 1.0
        column = self.R.get((t, k))
        return ([(column, 1.0)], 0.0) if column is not None else ([], 0.0)

    def held(self, t: int, i: int) -> tuple[Linear, float]:
        """S[t,i]; t = n is the end."""
        if t == self.n:
            return [], float(self.model.ends_in_ram[i])
        if t == 0 and self.model.in_ram[i]:
            return [], 1.0
        column = self.S.get((t, i))
        return ([(column, 1.0)], 0.0) if column is not None else ([], 0.0)

    def at_most(self, *terms: tuple[tuple[Linear, float], float], limit: float) -> None:
        """Row: sum of coefficient x expression <= limit."""
        columns: dict[int, float] = {}
        for (linear, constant), factor in terms:
            limit -= factor * constant
            for column, value in linear:
                columns[column] = columns.get(column, 0.0) + factor * value
        if columns or limit < -SMALL:
            self.mip.row(list(columns), list(columns.values()), upper=limit)

    def _correctness(self) -> None:
        model = self.model
        for t in range(self.n):
            for k in range(t + 1):
                if k != t and (t, k) not in self.R:
                    continue
                for i in self.inputs[k]:
                    self.at_most(
                        (self.executed(t, k), 1.0), (self._made(t, i), -1.0), (self.held(t, i), -1.0), limit=0.0
                    )
            for i in self.free_tensors:
                if t + 1 < self.n and (t + 1, i) not in self.S:
                    continue
                if t + 1 == self.n and not model.ends_in_ram[i]:
                    continue
                self.at_most((self.held(t + 1, i), 1.0), (self.held(t, i), -1.0), (self._made(t, i), -1.0), limit=0.0)

    def _made(self, t: int, i: int) -> tuple[Linear, float]:
        p = self.model.producer[i]
        return self.executed(t, p) if 0 <= p <= t else ([], 0.0)

    def memory(self) -> None:
        """Add the rows that keep RAM within the budget."""
        raise NotImplementedError

    # --- solutions ---

    def codes(self, values: Values) -> list[int]:
        """The operators in the order in which a solution executes them."""
        codes: list[int] = []
        for t in range(self.n):
            codes += [k for k in range(t) if (t, k) in self.R and values[self.R[t, k]] > INTEGRAL]
            codes.append(t)
        return codes

    def start(self, codes: list[int]) -> dict[int, float]:
        """The values of R and S of a sequence whose stages recompute in ascending order."""
        executed, held = stages_of(self.model, codes)
        values = {column: float(k in executed[t]) for (t, k), column in self.R.items()}
        return values | {column: float(i in held[t]) for (t, i), column in self.S.items()}

    def bound(self, answer: Answer) -> int:
        """The proven bound in the problem's own unit."""
        return 0 if not math.isfinite(answer.bound) else max(0, math.ceil((answer.bound - TOLERANCE) * self.unit))


def stages_of(model: Model, codes: list[int]) -> tuple[list[set[int]], list[set[int]]]:
    """By stage, the operators that a sequence executes in it, and the tensors that it needs when the stage begins."""
    executed: list[set[int]] = [set()]
    for code in codes:
        executed[-1].add(code)
        if code == len(executed) - 1:
            executed.append(set())
    executed = executed[: model.n_ops]
    held: list[set[int]] = [set() for _ in executed]
    needed = {i for i in range(model.n_tensors) if model.ends_in_ram[i]}
    for t in reversed(range(len(executed))):
        for k in sorted(executed[t], reverse=True):
            needed -= set(model.outputs[k])
            needed |= set(model.inputs[k])
        held[t] = set(needed)
    return executed, held


def build(
    info: SolverInfo,
    kind: type[StageModel],
    problem: Problem,
    options: SolveOptions,
    progress: Progress | None,
    fraction: float = 1.0,
) -> tuple[Baseline, StageModel]:
    """The formulation for `fraction` of the RAM beside the state. Raises UnsupportedProblemError, InfeasibleError."""
    baseline = Baseline(info, problem, options, progress)
    model = baseline.model
    if model.must_page:
        raise UnsupportedProblemError(f"{info.name}: recomputes only, but this problem has tensors on the store")
    if model.n_ops > info.most_operators:
        raise UnsupportedProblemError(
            f"{info.name}: {model.n_ops} operators make too large a program, at most {info.most_operators}"
        )
    state = sum(model.size[chain[0]] for chain in state_chains(problem))
    if model.capacity <= state:
        raise InfeasibleError(f"{info.name}: the state alone needs {state} bytes of RAM; raise the budget")
    return baseline, kind(model, int((model.capacity - state) * fraction))


def solve_exactly(
    baseline: Baseline, stages: StageModel, repetition: Repetition, start: list[int] | None = None
) -> Schedule:
    """The MIP's optimum, or its best solution at the time limit. Raises InfeasibleError, LimitError.

    `start`: the codes that the search begins with.
    """
    options, name = baseline.options, baseline.info.name
    if start is not None:
        baseline.offer(start, "rounded LP")
    baseline.check_time()
    answer = stages.mip.solve(
        time_limit_s=baseline.stop_at - time.monotonic(),
        gap=options.gap,
        start=None if start is None else stages.start(start),
        threads=options.threads,
        seed=options.seed,
    )
    if answer.infeasible:
        raise InfeasibleError(f"{name}: its formulation has no schedule for {baseline.problem.budget_bytes} bytes")
    if answer.values is not None:
        baseline.offer(stages.codes(answer.values), "optimum" if answer.optimal else "best at the limit")
    elif baseline.best is None:
        raise LimitError(f"{name}: found no schedule in {options.time_limit_s:g} s; allow more time")
    return baseline.finish(bound=stages.bound(answer), repetition=repetition)
