"""Moccasin: few retention intervals for each tensor (Bartan, Li, Teague, Lott, Dilkina, ICML 2023, section 2).

Each operator is executed at most C = 2 times, so that each tensor has at most two intervals in which it is retained.
The paper gives the intervals' ends to a constraint solver (CP-SAT). Here the same schedules are a MILP for HiGHS. An
interval is the tensor's execution in some stage, and S[t,i] for the stages that it crosses. Within stage t it is
q[t,i,j] in [0, 1], "retained until the stage's j-th reader of i has run":

    q[t,i,j] >= q[t,i,j+1],  q[t,i,j] >= R[t, j-th reader],
    q[t,i,last + 1] = S[t+1,i],  q[t,i,1] <= S[t,i] + R[t,producer of i].

The memory while k runs is the sum of the tensors held before it, of those that it makes, and of its workspace. No
products and no big constants are needed. An operator is executed again at most C - 1 times: sum over t of R[t,k].
"""

from __future__ import annotations

from collections import Counter

from poetc.scheduling import Problem, Repetition, Schedule, SolveOptions
from poetc.solvers.interface import Progress, SolverInfo
from poetc.solvers.published._rounding import start_of
from poetc.solvers.published._stages import Linear, StageModel, build, solve_exactly
from poetc.solvers.published.checkmate import Checkmate

INFO = SolverInfo(
    name="moccasin",
    title="At most two retention intervals a tensor, as a MILP",
    citation="B. Bartan et al., Moccasin: Efficient Tensor Rematerialization for Neural Networks, ICML 2023",
    energy=True,
    proof=True,
    milp=True,
    most_operators=160,  # the number of binaries is that of Checkmate
    notes="The paper's constraint program as a MILP (HiGHS instead of CP-SAT): up to 160 operators. Recomputation "
    "only, no optional in-place.",
    read="section 2",
    differs="a MILP in HiGHS in place of CP-SAT; layers",
    checked="Checkmate with few intervals",
)

Expression = tuple[Linear, float]

INTERVALS = 2  # in which a tensor is retained: C, as in the paper's experiments


class Moccasin(StageModel):
    def memory(self) -> None:
        for t in range(self.n):
            self._stage(t)
        for k in range(self.n):
            again = [self.R[t, k] for t in range(self.n) if (t, k) in self.R]
            if len(again) >= INTERVALS:
                self.mip.row(again, [1.0] * len(again), upper=INTERVALS - 1)

    def _stage(self, t: int) -> None:
        running = [k for k in range(t + 1) if k == t or (t, k) in self.R]
        position = {k: j for j, k in enumerate(running)}
        retained: dict[int, list[Expression]] = {}  # tensor -> q[t,i,1], ..., q[t,i,last + 1]
        readers: dict[int, list[int]] = {}
        for i in self.free_tensors:
            p = self.model.producer[i]
            readers[i] = [k for k in self.model.consumers[i] if k in position]
            if p > t or (p < 0 and not self.model.in_ram[i]):
                continue
            chain: list[Expression] = [self.held(t + 1, i)]
            for k in reversed(readers[i]):
                q: Expression = ([(self.mip.column(integer=False), 1.0)], 0.0)
                self.at_most((chain[-1], 1.0), (q, -1.0), limit=0.0)
                self.at_most((self.executed(t, k), 1.0), (q, -1.0), limit=0.0)
                chain.append(q)
            chain.reverse()
            retained[i] = chain
            source = [(self.executed(t, p), -1.0)] if p >= 0 else []
            self.at_most((chain[0], 1.0), (self.held(t, i), -1.0), *source, limit=0.0)
        state: dict[int, Expression] = {i: self.held(t, i) for i in retained}
        for i in retained:
            if self.model.producer[i] not in position:
                # Nothing makes it in this stage: it is held as long as it is needed.
                state[i] = retained[i][0]
        used = [0] * self.model.n_tensors
        for k in running:
            # A copy that k makes anew takes the place of the old one.
            held_terms = [(state[i], self.weight[i]) for i in retained if i not in self.outputs[k]]
            output_share = sum(self.weight[i] for i in self.outputs[k]) + self.model.workspace[k] / self.room
            self.at_most(*held_terms, (self.executed(t, k), output_share), limit=1.0)
            for i in self.outputs[k]:
                state[i] = retained[i][0]
            for i in self.inputs[k]:
                used[i] += 1
                state[i] = retained[i][used[i]]


def solve(problem: Problem, options: SolveOptions, progress: Progress | None = None) -> Schedule:
    """Raises UnsupportedProblemError (too large, tensors on the store), InfeasibleError, LimitError."""
    baseline, stages = build(INFO, Moccasin, problem, options, progress)
    start = start_of(INFO, Checkmate, problem, options)
    if start is not None and max(Counter(start).values()) > INTERVALS:
        start = None
    return solve_exactly(baseline, stages, Repetition.MOCCASIN, start)
