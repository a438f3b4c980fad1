"""A thin builder over highspy: sparse rows go straight into HiGHS, status and dual bound come from HiGHS itself."""

from __future__ import annotations

import atexit
import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import highspy
import numpy as np
import numpy.typing as npt

from poetc.solvers.folding import Rows, folded

INFINITY = math.inf
COST_SCALE = 1000.0  # the cost of every operator once, in the units of MIPs: raw energies are below HiGHS's tolerances
TESTED_VERSIONS = (1, 10), (1, 17)  # of HiGHS: from the first one on, and below the second one
TOLERANCE = 1e-6  # of HiGHS's objectives, in its units
MANY_ENTRIES = 20_000  # coefficients, from which on it pays to solve the LP first
LONG_ROW = 2_000  # columns of a row, from which on it pays to do without presolve
NEAR_LP = 1e-6  # of the bound: columns whose reduced costs are more keep their values in the LP
# The right side of a row for RAM. With 1 the least tensors are below the tolerances of HiGHS, and its presolve may
# strengthen a row of hundreds of them without end.
ROOM = 1024.0
STOP_S, LOOK_S = 5.0, 0.1  # the grace after an event that ends it, and how often one is looked for
AT_EXIT_S = 2.0  # for a MIP that was left behind, when Python ends
ENUMERATION = 1 << 16  # a rule of the presolve of HiGHS 1.16, which has called a MIP infeasible that was not
NO_DUAL = 1e-9  # a row whose dual is at most this is not needed by the LP
GRACE_S = 10.0  # HiGHS may take so much longer than its limit, which the machine's other work explains


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of HiGHS: `bound` is proven (-inf if none), `values` is the best solution, or None."""

    bound: float
    objective: float
    values: npt.NDArray[np.float64] | None
    optimal: bool
    infeasible: bool
    nodes: int


# A program in place of HiGHS. It takes a MIP, time limit, gap, threads and start; None leaves the MIP to HiGHS.
Handler = Callable[["Mip", float, float, int, dict[int, float]], Answer | None]
_handler: ContextVar[Handler | None] = ContextVar("handler", default=None)


@contextlib.contextmanager
def handed_to(handler: Handler) -> Iterator[None]:
    """Inside, every MIP goes to `handler` first."""
    token = _handler.set(handler)
    try:
        yield
    finally:
        _handler.reset(token)


@dataclass(slots=True)
class Mip:
    """A MIP: minimise cost x + offset subject to rows. `column` and `row` append one and return its index."""

    offset: float = 0.0
    cost: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    index: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    # Rows that a large MIP has only where its LP needs them: without them its bound may be lower.
    optional: list[range] = field(default_factory=list)
    # Simplex iterations in all calls of `solve`, which are work that does not depend on the machine, and the
    # coefficients of the last program. Those of LPs that come first, with all rows, are counted apart.
    iterations: int = 0
    root_iterations: int = 0
    solved_entries: int = 0
    is_part: bool = False  # most columns are fixed, so that presolve has few left to look at

    def column(self, cost: float = 0.0, lower: float = 0.0, upper: float = 1.0, *, integer: bool = True) -> int:
        self.cost.append(cost)
        self.lower.append(lower)
        self.upper.append(upper)
        self.integer.append(integer)
        return len(self.cost) - 1

    def row(
        self, index: Sequence[int], value: Sequence[float], lower: float = -INFINITY, upper: float = INFINITY
    ) -> int:
        self.index.extend(index)
        self.value.extend(value)
        self.starts.append(len(self.index))
        self.row_lower.append(lower)
        self.row_upper.append(upper)
        return len(self.row_lower) - 1

    def within(self, index: Sequence[int], value: Sequence[float], room: float, unit: float | None = None) -> int:
        """A row of bytes or nanoseconds, at most `room`. It is in units of `unit`, or of the room itself.

        It is at least 0 as well, where nothing is negative. The presolve of HiGHS strengthens rows with one side alone,
        and with tiny coefficients beside large ones that may not end.
        """
        scale = ROOM / max(1.0, abs(room) if unit is None else unit)
        is_positive = min(value, default=0.0) >= 0.0 <= min((self.lower[i] for i in index), default=0.0)
        least = 0.0 if is_positive and room >= 0.0 else -INFINITY
        return self.row(index, [x * scale for x in value], lower=least, upper=room * scale)

    @property
    def columns(self) -> int:
        return len(self.cost)

    @property
    def entries(self) -> int:
        """The number of nonzero coefficients."""
        return len(self.index)

    def solve(
        self,
        *,
        time_limit_s: float,
        relax: bool = False,
        gap: float = 0.0,
        max_nodes: int | None = None,
        cutoff: float | None = None,
        start: dict[int, float] | None = None,
        max_rounds: int | None = None,
        threads: int = 1,
        seed: int = 0,
        plain: bool = False,
        stop: threading.Event | None = None,
    ) -> Answer:
        """Solve the MIP, or its LP (`relax`).

        `gap`: relative, on the total with the offset. `max_nodes`: nodes of the tree. `cutoff`: dearer solutions are of
        no use. `start`: values of integer columns to begin with. `max_rounds`: how often HiGHS may look at its limits
        before it has finished the root node. Like `max_nodes` it counts work and not time, so that the answer is the
        same every time. `plain`: without two heuristics of HiGHS that take longer than all the rest of a small MIP.
        `stop`: ends a MIP when another thread sets it.
        """
        is_mip = not relax and any(self.integer)
        handler = _handler.get()
        if is_mip and handler is not None and not self.is_part and not (stop is not None and stop.is_set()):
            answer = handler(self, time_limit_s, gap, threads, start or {})
            if answer is not None:
                bound = answer.bound if cutoff is None else min(answer.bound, cutoff)
                return replace(answer, bound=bound)
        if is_mip and gap > 0.0 and self._is_long and not (stop is not None and stop.is_set()):
            limits, started = {"max_nodes": max_nodes, "max_rounds": max_rounds}, time.monotonic()
            answer = self._near_lp(time_limit_s, gap, cutoff, threads=threads, seed=seed, stop=stop, **limits)
            if answer is not None:
                return answer
            time_limit_s = max(0.0, time_limit_s - (time.monotonic() - started))
        left_out: npt.NDArray[np.bool_] | None = None
        proven = -INFINITY  # by the LP; HiGHS then solves it again with fewer rows
        if is_mip and self.optional and self.entries >= MANY_ENTRIES:
            # Rows that the LP at the root does not need slow down every node.
            started = time.monotonic()
            root, duals = self._root(time_limit_s, threads, seed)
            if root.infeasible or (cutoff is not None and root.bound - TOLERANCE >= cutoff):
                return replace(root, values=None, infeasible=True)
            if stop is not None and stop.is_set():
                return replace(root, optimal=False)
            time_limit_s -= time.monotonic() - started
            proven = root.bound - TOLERANCE
            if duals is not None:
                left_out = np.zeros(len(self.row_lower), dtype=np.bool_)
                for rows in self.optional:
                    left_out[rows.start : rows.stop] = np.abs(duals[rows.start : rows.stop]) <= NO_DUAL
        lp = self._integer(self._lp(left_out)) if is_mip else self._lp(left_out)
        solver = quiet_solver(time_limit_s, threads, seed)
        self._without_presolve(solver)
        if is_mip:
            solver.setOptionValue("mip_rel_gap", gap)
            solver.setOptionValue("mip_abs_gap", 1e-9)
            solver.setOptionValue("presolve_rule_off", ENUMERATION)
            if max_nodes is not None:
                solver.setOptionValue("mip_max_nodes", max_nodes)
            if cutoff is not None:
                solver.setOptionValue("objective_bound", cutoff)
            if plain:
                solver.setOptionValue("mip_heuristic_run_feasibility_jump", False)
                solver.setOptionValue("mip_heuristic_run_root_reduced_cost", False)
        solver.passModel(lp)
        if start and is_mip:
            # The start has integer columns alone: HiGHS completes the rest.
            solver.setSolution(len(start), np.array(list(start), dtype=np.int32), np.array(list(start.values())))
        with _interrupts() as interrupted:
            events = [event for event in (stop, interrupted) if event is not None]
            if is_mip:
                _stop_after(solver, max_rounds, events)
            if not is_mip:
                solver.run()
            elif not _comes_back(solver, time_limit_s, events):
                return Answer(proven, INFINITY, None, False, False, 0)
        status, info = solver.getModelStatus(), solver.getInfo()
        self.iterations += max(0, int(info.simplex_iteration_count))
        self.solved_entries = len(lp.a_matrix_.index_)
        optimal = status == highspy.HighsModelStatus.kOptimal
        infeasible = status == highspy.HighsModelStatus.kInfeasible
        has_values = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        values = np.array(solver.getSolution().col_value) if has_values else None
        if is_mip:
            bound = max(proven, info.mip_dual_bound if math.isfinite(info.mip_dual_bound) else -INFINITY)
            if cutoff is not None:
                bound = min(bound, cutoff)  # HiGHS may call the best of dearer solutions optimal
        else:
            bound = info.objective_function_value if optimal else -INFINITY
        objective = info.objective_function_value if has_values else INFINITY
        nodes = int(info.mip_node_count) if is_mip else 0
        return Answer(bound, objective, values, optimal, infeasible, nodes)

    def write(self, path: Path) -> bool:
        """To a file, in the format that its name ends with (`.mps`, `.lp`); False where that fails."""
        solver = quiet_solver(1.0, 1, 0)
        solver.passModel(self._integer(self._lp()))
        return bool(solver.writeModel(str(path)) != highspy.HighsStatus.kError)

    def _integer(self, lp: highspy.HighsLp) -> highspy.HighsLp:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[i] for i in self.integer]
        return lp

    def duals(self, *, time_limit_s: float) -> npt.NDArray[np.float64] | None:
        """The duals of the rows of the LP; None if it was not solved to the end."""
        return self._root(time_limit_s, 1, 0)[1]

    def dual_bound(self, *, time_limit_s: float) -> float:
        """A lower bound of the LP, computed from its duals: valid up to rounding, whatever HiGHS's tolerances.

        Rows must have no upper limits, and costs must not be negative. -inf if the LP was not solved to the end.
        """
        solved = self.duals(time_limit_s=time_limit_s)
        if solved is None:
            return -INFINITY
        duals = np.maximum(solved, 0.0)
        cost, lower, upper = np.array(self.cost), np.array(self.lower), np.array(self.upper)
        paid = np.zeros(len(cost))
        np.add.at(paid, self.index, np.array(self.value) * np.repeat(duals, np.diff(self.starts)))
        above = np.isinf(upper) & (paid > cost)
        share = float(np.min(cost[above] / paid[above])) if above.any() else 1.0
        reduced = np.where(np.isinf(upper), np.maximum(0.0, cost - share * paid), cost - share * paid)
        ends = np.where(reduced >= 0, lower, np.where(np.isinf(upper), 0.0, upper))
        return share * float(duals @ np.array(self.row_lower)) + float(reduced @ ends)

    def rows(self, left_out: npt.NDArray[np.bool_] | None = None) -> Rows:
        """The LP in arrays. `left_out`: one flag a row; those rows are not in it."""
        starts, index = np.array(self.starts, dtype=np.int64), np.array(self.index, dtype=np.int64)
        value, kept = np.array(self.value, dtype=np.float64), np.ones(len(self.row_lower), dtype=np.bool_)
        if left_out is not None:
            kept, lengths = ~left_out, np.diff(starts)
            entries = np.repeat(kept, lengths)
            index, value = index[entries], value[entries]
            starts = np.concatenate(([0], np.cumsum(lengths[kept])))
        return Rows(
            cost=np.array(self.cost, dtype=np.float64),
            lower=np.array(self.lower, dtype=np.float64),
            upper=np.array(self.upper, dtype=np.float64),
            row_lower=np.array(self.row_lower, dtype=np.float64)[kept],
            row_upper=np.array(self.row_upper, dtype=np.float64)[kept],
            starts=starts,
            index=index,
            value=value,
        )

    def _lp(self, left_out: npt.NDArray[np.bool_] | None = None) -> highspy.HighsLp:
        """The model for HiGHS. `left_out`: one flag a row; those rows are not in it."""
        return _for_highs(self.rows(left_out), self.offset)

    @property
    def _is_long(self) -> bool:
        """Whether a row has thousands of columns that are not fixed."""
        return not self.is_part and bool(np.diff(self.starts).max(initial=0) >= LONG_ROW)

    def _without_presolve(self, solver: highspy.Highs) -> None:
        """Presolve looks at all columns of a row for each that it fixes, which takes long where a row has thousands.

        An LP of 38,000 coefficients took 3.9 s with it and 0.04 s without, with the same optimum.
        """
        if self._is_long:
            solver.setOptionValue("presolve", "off")

    def _near_lp(
        self, time_limit_s: float, gap: float, cutoff: float | None, *, threads: int, seed: int, **limits: Any
    ) -> Answer | None:
        """The answer of a MIP with long rows: columns stay at their values in the LP where others cost more.

        None where that MIP has no solution within the gap, or the LP was not solved. With 89,000 integer columns it
        takes 2 s in place of 20 s.
        """
        started = time.monotonic()
        solver = quiet_solver(time_limit_s, threads, seed)
        self._without_presolve(solver)
        solver.passModel(self._lp())
        solver.run()
        status, info, solution = solver.getModelStatus(), solver.getInfo(), solver.getSolution()
        self.iterations += max(0, int(info.simplex_iteration_count))
        self.solved_entries = self.entries
        if status == highspy.HighsModelStatus.kInfeasible:
            return Answer(-INFINITY, INFINITY, None, False, True, 0)
        if status != highspy.HighsModelStatus.kOptimal:
            return None
        bound = info.objective_function_value - TOLERANCE
        if cutoff is not None and bound >= cutoff:
            return Answer(cutoff, INFINITY, None, False, True, 0)
        values, costs = np.array(solution.col_value), np.abs(np.array(solution.col_dual))
        nearest = np.round(values)
        stays = np.array(self.integer) & (np.abs(values - nearest) <= TOLERANCE) & (costs > NEAR_LP * abs(bound))
        lower, upper = (np.where(stays, nearest, limit) for limit in (self.lower, self.upper))
        part = replace(self, lower=lower.tolist(), upper=upper.tolist(), optional=[], iterations=0, is_part=True)
        left_s = time_limit_s - (time.monotonic() - started)
        answer = part.solve(time_limit_s=left_s, gap=gap, cutoff=cutoff, threads=threads, seed=seed, **limits)
        self.iterations += part.iterations
        if answer.values is None or answer.objective - bound > gap * abs(answer.objective):
            return None
        return replace(answer, bound=bound, optimal=True)

    def _root(self, time_limit_s: float, threads: int, seed: int) -> tuple[Answer, npt.NDArray[np.float64] | None]:
        """The answer of the LP, and the duals of its rows if it was solved to the end."""
        solver = quiet_solver(time_limit_s, threads, seed)
        self._without_presolve(solver)
        solver.passModel(self._lp())
        solver.run()
        status, info = solver.getModelStatus(), solver.getInfo()
        self.root_iterations += max(0, int(info.simplex_iteration_count))
        optimal = status == highspy.HighsModelStatus.kOptimal
        bound = info.objective_function_value if optimal else -INFINITY
        answer = Answer(bound, bound, None, optimal, status == highspy.HighsModelStatus.kInfeasible, 0)
        return answer, np.array(solver.getSolution().row_dual) if optimal else None


class Series:
    """The LP of a MIP again and again, with other limits. Each solve begins with the basis of the one before.

    It is folded, so that its optimum may be a little lower. `rows`, `columns`: those whose limits will change.
    """

    def __init__(self, mip: Mip, rows: Sequence[int], columns: Sequence[int]) -> None:
        self._solver = quiet_solver(INFINITY, 1, 0)
        mip._without_presolve(self._solver)
        lp = mip.rows()
        self._folded = folded(lp, (columns, rows))
        self._solver.passModel(_for_highs(lp if self._folded is None else self._folded.lp, mip.offset))

    def row_upper(self, row: int, upper: float) -> None:
        at = row if self._folded is None else int(self._folded.rows[row])
        self._solver.changeRowBounds(at, -INFINITY, upper)

    def column_upper(self, column: int, upper: float) -> None:
        at = column if self._folded is None else int(self._folded.columns[column])
        self._solver.changeColBounds(at, 0.0, upper)

    def least(self, *, time_limit_s: float) -> float | None:
        """The optimum, inf where there is no solution; None where it was not solved to the end."""
        solver = self._solver
        solver.setOptionValue("time_limit", solver.getRunTime() + max(0.01, time_limit_s))  # of all runs together
        solver.run()
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return INFINITY
        if status != highspy.HighsModelStatus.kOptimal:
            return None
        return float(solver.getInfo().objective_function_value)


def _for_highs(rows: Rows, offset: float) -> highspy.HighsLp:
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(rows.cost), len(rows.row_lower)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = rows.cost, rows.lower, rows.upper
    lp.row_lower_, lp.row_upper_ = rows.row_lower, rows.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = rows.starts.astype(np.int32)
    lp.a_matrix_.index_, lp.a_matrix_.value_ = rows.index.astype(np.int32), rows.value
    lp.offset_ = offset
    return lp


def pinned(threads: int, seed: int) -> dict[str, object]:
    """The options of HiGHS that its versions and the machine's cores would otherwise choose.

    Version 1.16 runs MIPs in parallel where `parallel` is left to it, as many ways as there are cores.
    """
    return {
        "threads": threads,
        "random_seed": seed,
        "parallel": "on" if threads > 1 else "off",
        "simplex_min_concurrency": 1,
        "simplex_max_concurrency": threads,
    }


# The number of HiGHS's workers for each thread that calls it: once there are some, HiGHS refuses another number.
_workers = threading.local()


class _Quiet(highspy.Highs):  # type: ignore[misc]
    """HiGHS without its banner: version 1.16 prints it when callbacks are enabled, which its constructor does."""

    def enableCallbacks(self) -> None:  # noqa: N802 - HiGHS's name
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()


def quiet_solver(time_limit_s: float, threads: int, seed: int) -> highspy.Highs:
    """An empty HiGHS that prints nothing, limited in seconds of wall time."""
    if getattr(_workers, "number", threads) != threads:
        highspy.Highs.resetGlobalScheduler(True)
    _workers.number = threads
    solver = _Quiet()
    for name, value in pinned(threads, seed).items():
        if solver.setOptionValue(name, value) == highspy.HighsStatus.kError:
            raise RuntimeError(f"HiGHS {solver.version()} has no option {name!r}: see TESTED_VERSIONS")
    solver.setOptionValue("time_limit", max(0.01, time_limit_s))
    return solver


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event | None]:
    """Inside, Ctrl-C sets the event, and counts at the end: HiGHS swallows the exceptions of its callbacks.

    None where no signal comes: in other threads than the main one, and in programs that ignore this signal.
    """
    interrupted, before = threading.Event(), signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield None
        return
    signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted.is_set():
        before(signal.SIGINT, None)


def _comes_back(solver: highspy.Highs, time_limit_s: float, events: Sequence[threading.Event] = ()) -> bool:
    """Whether a MIP ends soon after its limit, or after one of `events`, which are to end it; raises its error.

    Otherwise its thread is left behind, and ends with us.

    The presolve of HiGHS has loops that look neither at the clock nor at callbacks. One that
    strengthens rows took 14 minutes of a limit of four seconds.
    """
    ended, errors = threading.Event(), list[BaseException]()

    def task() -> None:
        try:
            solver.run()
        except BaseException as error:
            errors.append(error)
        finally:
            ended.set()

    threading.Thread(target=task, daemon=True).start()
    stop_at = time.monotonic() + max(0.0, time_limit_s) + GRACE_S
    while not ended.wait(LOOK_S):
        if any(event.is_set() for event in events):
            stop_at = min(stop_at, time.monotonic() + STOP_S)
            events = ()
        if time.monotonic() >= stop_at:
            atexit.register(_end, ended)
            return False
    if errors:
        raise errors[0]
    return True


def _end(ended: threading.Event) -> None:
    """End a MIP that was left behind, since a callback while Python ends aborts the process.

    One that does not look at its callback in that time may abort it still. The command leaves without such an end.
    """
    _ending.set()
    ended.wait(AT_EXIT_S)


_ending = threading.Event()  # set when Python ends


def _stop_after(solver: highspy.Highs, max_rounds: int | None, events: Sequence[threading.Event]) -> None:
    """Interrupt the root node after `max_rounds` rounds of separation and heuristics, the MIP once an event is set."""
    rounds = 0

    def check(kind: object, message: str, out: Any, answer: Any, data: object) -> None:
        nonlocal rounds
        rounds += out.mip_node_count == 0
        too_many = max_rounds is not None and out.mip_node_count == 0 and rounds > max_rounds
        answer.user_interrupt = too_many or any(e.is_set() for e in (*events, _ending))

    solver.setCallback(check, None)
    solver.startCallback(highspy.cb.HighsCallbackType.kCallbackMipInterrupt)
