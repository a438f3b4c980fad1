"""The parameters that are trained: of all sets of updates, the one of the most importance whose schedule fits.

A MILP over sets (`update_sets.py`) counts the least that every set needs: each operator once, resident state, flash.
Its optimum bounds all sets. The set that it proposes is solved like any other problem. One that fits and reaches the
bound is the best there is. Where it does not fit, sets that need a smaller part of the limits are tried.

The MILP rests on one premise: a set has the operators, state and constants of each of its updates alone, at no less
cost. So a set that cannot fit proves the same of every larger one. The premise is compared with each set that is built.
Where it fails, the bound falls back to the sum of the best update of each parameter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from poetc.devices import format_bytes, format_ns, format_pj
from poetc.devices.units import format_cost
from poetc.errors import InfeasibleError, LimitError, UsageError, format_count
from poetc.planning.importance import Importance, update_text
from poetc.planning.kernels import Kernels
from poetc.planning.planner import Planner, Reduction
from poetc.planning.settings import UPDATES
from poetc.planning.solution import NAMED, SetImportance, Solution, cost_of_computing_once
from poetc.planning.update_sets import Chosen, Found, Option, Piece, SetModel
from poetc.scheduling import Objective, Paging, Problem, keep_all_peak_bytes, verify
from poetc.training import Updates

# A fusion takes these into the operator before them, in some sets and not in others: they count nothing.
ABSORBED = {("Sgd", "update"), ("Add", "backward")}
_SUFFIX = re.compile(r"(\.frozen)?(\.\d+)?$")  # of a layer beside its adapter; of a name that was in use
ROUNDED = 1e-5  # a relative gap of less is rounding


@dataclass(frozen=True, slots=True)
class Step:
    """A training step with certain updates: its problem, and its flash without code."""

    problem: Problem
    flash_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The most importance (`least` is 0), or the least cost of a set with an importance of at least `least`.

    `energy_pj` and `flash_bytes`: limits of a step, besides the budget and the deadline of its problem. A flash that is
    too small for every set is no limit: that is a note of its own.
    """

    least: float = 0.0
    energy_pj: int | None = None
    flash_bytes: int | None = None


class BestUpdates(Reduction[Updates]):
    """Sets of the candidates of `importance`. `build` makes the training step of a set, with the limits of all.

    `remedy` says which options let a set fit that needs so many bytes of RAM; "" where none does.
    """

    name = "updates"

    def __init__(
        self,
        importance: Importance,
        build: Callable[[Updates], Step],
        goal: Goal | None = None,
        remedy: Callable[[Updates, int], str] = lambda updates, ram_bytes: "",
    ) -> None:
        worth = tuple(c for c in importance.candidates if c.importance > 0)
        self.importance = replace(importance, candidates=worth)
        self.build, self.goal, self.remedy = build, goal or Goal(), remedy
        self._built: dict[Chosen, Step] = {}

    def step(self, chosen: Chosen) -> Step:
        """The training step of a set of candidates, by their numbers."""
        if chosen not in self._built:
            self._built[chosen] = self.build(self.importance.updates(chosen))
        return self._built[chosen]

    @property
    def singles(self) -> list[Chosen]:
        return [frozenset((k,)) for k in range(len(self.importance.candidates))]

    def is_open(self, problem: Problem) -> bool:
        return len(self.importance.candidates) > 1

    def usual(self, problem: Problem) -> Problem:
        """The update alone that needs the least RAM to keep everything."""
        return min((self.step(single).problem for single in self.singles), key=keep_all_peak_bytes)

    def propose(self, problem: Problem, incumbent: Solution | None) -> Iterator[Updates]:
        """Single updates, the most important first; the search proposes sets."""
        order = sorted(self.importance.candidates, key=lambda c: -c.importance)
        yield from (Updates({c.parameter: c.update}, self.importance.seed) for c in order)

    def fix(self, problem: Problem, choice: Updates) -> Problem:
        return self.build(choice).problem

    @classmethod
    def note(cls, asked: Problem, solution: Solution) -> str:
        """The updates that `--train best` chose, and the bound on all sets; "" where nothing was chosen."""
        worth, updates = solution.worth, cls.option(solution)
        if worth is None or updates is None:
            return ""
        names = [f"{name} {update_text(update)}" for name, update in updates]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        bound = f"no set of updates has more than {worth.bound / worth.total:.1%}"
        if worth.least is not None and worth.cost_bound is not None:
            shown = format_cost(solution.problem.objective, worth.cost_bound)
            bound = f"no set of {worth.least / worth.total:.1%} takes less than {shown}"
        elif worth.gap < ROUNDED:
            bound = "which no set of updates exceeds"
        have = "update has" if len(names) == 1 else "updates have"
        return (
            f"--train best: {len(names)} {have} {worth.value / worth.total:.1%} of all importance"
            f" ({bound} without encodings of saved tensors): {', '.join(names[:NAMED])}{more}"
        )

    def lower_bound_bytes(self, problem: Problem, inner: Planner) -> int:
        return min(inner.lower_bound_bytes(self.step(single).problem) for single in self.singles)

    def solve(self, problem: Problem, planner: Planner) -> Solution:
        """The best set found, with its schedule; `Solution.worth` has the bound on all sets."""
        return _Search(self, planner).solve()


def set_model(reduction: BestUpdates) -> SetModel:
    """The least amounts of all sets: time_ns, energy_pj, flash, ram of state (without paging), and a size to go by."""
    steps = [reduction.step(single) for single in reduction.singles]
    resident = [_resident(step.problem) for step in steps]
    common = set.intersection(*(set(r) for r in resident))
    least_flash = min(step.flash_bytes for step in steps)
    peaks = [keep_all_peak_bytes(step.problem) for step in steps]
    candidates = reduction.importance.candidates
    owned = [_pieces(step.problem, set(state)) for step, state in zip(steps, resident, strict=True)]
    users: dict[object, set[str]] = {}
    for candidate, own in zip(candidates, owned, strict=True):
        for key in own:
            users.setdefault(key, set()).add(candidate.parameter)
    pieces: dict[object, Piece] = {}
    options = []
    for j, (candidate, step, state, own) in enumerate(zip(candidates, steps, resident, owned, strict=True)):
        keys: list[object] = []
        for key, piece in own.items():
            # Updates of one parameter exclude each other, so that each counts a piece of its own at its own cost.
            keys.append(key if len(users[key]) > 1 else (key, j))
            known = pieces.get(keys[-1])
            pieces[keys[-1]] = piece if known is None else _lesser(known, piece)
        amounts = {
            "flash": float(step.flash_bytes - least_flash),
            "ram": float(sum(size for name, size in state.items() if name not in common)),
            "size": float(peaks[j] - min(peaks)),
        }
        options.append(Option(candidate.parameter, candidate.importance, frozenset(keys), amounts))
    return SetModel(options, pieces)


def _resident(problem: Problem) -> dict[str, int]:
    """Bytes that stay in RAM for the whole step, by the tensor at its start, where nothing is paged."""
    later = {pair.input: pair.output for op in problem.operators for pair in op.in_place if pair.required}
    resident = {}
    for k, tensor in enumerate(problem.tensors):
        last = k
        while last in later:
            last = later[last]
        if tensor.initial == "ram" and problem.tensors[last].final == "ram":
            resident[tensor.name] = tensor.size_bytes
    return resident


def _pieces(problem: Problem, resident: set[str]) -> dict[object, Piece]:
    """The operators of a problem by a name of their result that does not depend on other updates.

    Whatever operator makes a result in a set, one that costs no more makes it in this problem, or none does. Results
    with the same name are numbered from the dearest on. So each of a set is at least as dear as its namesake.
    """
    named: dict[str, list[Piece]] = {}
    least = Kernels().relax(problem)
    for op in least.operators:
        counts = 0.0 if (op.kind, op.phase) in ABSORBED else 1.0
        energy_pj = min((op.energy_pj, *(other.energy_pj for other in op.elsewhere)))
        amounts = {
            "time_ns": 0.0 if problem.processors else counts * op.time_ns,  # processors run side by side
            "energy_pj": counts * energy_pj,
        }
        there = {t for t in op.inputs if problem.tensors[t].name not in resident}
        outputs = set(op.outputs) - {pair.output for pair in op.in_place}
        peaks = {"ram": float(op.workspace_bytes + sum(problem.tensors[t].size_bytes for t in there | outputs))}
        name = _SUFFIX.sub("", problem.tensors[op.outputs[0]].name)
        named.setdefault(name, []).append(Piece(amounts, peaks))
    numbered: dict[object, Piece] = {}
    for name, pieces in named.items():
        columns = {r: sorted((p.amounts[r] for p in pieces), reverse=True) for r in ("time_ns", "energy_pj")}
        for k in range(len(pieces)):
            peaks = {r: sorted((p.peaks[r] for p in pieces), reverse=True)[k] for r in pieces[0].peaks}
            numbered[name, k] = Piece({r: column[k] for r, column in columns.items()}, peaks)
    return numbered


def _lesser(one: Piece, other: Piece) -> Piece:
    return Piece(
        {r: min(a, other.amounts[r]) for r, a in one.amounts.items()},
        {r: min(a, other.peaks.get(r, 0.0)) for r, a in one.peaks.items()},
    )


@dataclass(slots=True)
class _Search:
    reduction: BestUpdates
    planner: Planner
    model: SetModel = field(init=False)
    limits: dict[str, float] = field(init=False)
    impossible: list[Chosen] = field(default_factory=list)  # proven, with everything above them
    failed: list[Chosen] = field(default_factory=list)  # no schedule was found
    solved: dict[Chosen, Solution] = field(default_factory=dict)
    is_sound: bool = True  # the premise has held so far
    goal: Goal = field(init=False)

    @property
    def cheapest(self) -> str:
        """The resource to be minimised; "" where importance is the goal."""
        if not self.goal.least:
            return ""
        return "time_ns" if self._first.objective is Objective.TIME else "energy_pj"

    @property
    def _first(self) -> Problem:
        return self.reduction.step(self.reduction.singles[0]).problem

    def solve(self) -> Solution:
        count = len(self.reduction.singles)
        for k, single in enumerate(self.reduction.singles):
            if k % max(1, count // UPDATES.shown) == 0:
                self.planner.progress(f"the needs of each update alone: {k} of {count}")
            self.reduction.step(single)
        self.goal = self.reduction.goal
        least = min(self.reduction.step(single).flash_bytes for single in self.reduction.singles)
        if self.goal.flash_bytes is not None and least > self.goal.flash_bytes:
            self.goal = replace(self.goal, flash_bytes=None)
        self.model = set_model(self.reduction)
        self.limits = self._limits()
        self._exclude_singles()
        if self.goal.least > self.model.most * (1 + UPDATES.rounding):
            raise UsageError(
                f"--importance-at-least {self.goal.least:g}: all updates together have {self.model.most:.6g}"
            )
        return self._least_cost() if self.cheapest else self._most_important()

    def _limits(self) -> dict[str, float]:
        first, goal = self._first, self.goal
        limits: dict[str, float] = {}
        if first.deadline_ns is not None:
            limits["time_ns"] = float(first.deadline_ns)
        if goal.energy_pj is not None:
            limits["energy_pj"] = float(goal.energy_pj)
        if goal.flash_bytes is not None:
            least = min(self.reduction.step(single).flash_bytes for single in self.reduction.singles)
            limits["flash"] = float(max(0, goal.flash_bytes - least))
        if first.paging is Paging.NONE:
            limits |= self._ram_limit()
        return limits

    def _ram_limit(self) -> dict[str, float]:
        """The RAM beside the state of every set: a limit of all schedules that do not page."""
        first = self._first
        resident = [_resident(self.reduction.step(single).problem) for single in self.reduction.singles]
        common = set.intersection(*(set(r) for r in resident))
        fixed = first.base_bytes + sum(resident[0][name] for name in common)
        return {"ram": float(max(0, first.budget_bytes - fixed))}

    # --- proofs -------------------------------------------------------------------------------------------------------

    def _reason(self, chosen: Chosen) -> str:
        """Why no schedule of this set can be within the limits; "" where one may be."""
        step = self.reduction.step(chosen)
        problem, goal = step.problem, self.goal
        needed = self.planner.inner.lower_bound_bytes(problem)
        if needed > problem.budget_bytes:
            return f"needs {needed:,} bytes of RAM"
        one_by_one = not problem.processors
        if one_by_one and problem.deadline_ns is not None and problem.compute_once_ns > problem.deadline_ns:
            return f"takes {format_ns(problem.compute_once_ns)}"
        if goal.energy_pj is not None and problem.compute_once_pj > goal.energy_pj:
            return f"takes {format_pj(problem.compute_once_pj)}"
        if goal.flash_bytes is not None and step.flash_bytes > goal.flash_bytes:
            return f"needs {format_bytes(step.flash_bytes)} of flash"
        return ""

    def _exclude_singles(self) -> None:
        """InfeasibleError where not even one update alone is within the limits; it names the cheapest."""
        reasons = {single: self._reason(single) for single in self.reduction.singles}
        self.impossible += [single for single, reason in reasons.items() if reason]
        if all(reasons.values()):
            raise self._nothing_fits("no update is within these limits")

    def _nothing_fits(self, why: str) -> InfeasibleError:
        """With the cheapest update, which is the nearest to the limits, its needs, and the options with which it fits.

        Of two that are as near, it is the one of less RAM, then of less energy.
        """
        flash_bytes = self.goal.flash_bytes

        def needs(single: Chosen) -> tuple[float, ...]:
            step = self.reduction.step(single)
            ram, once = self.planner.inner.lower_bound_bytes(step.problem), step.problem
            pairs = (
                (ram, once.budget_bytes),
                (once.compute_once_ns, once.deadline_ns),
                (once.compute_once_pj, self.goal.energy_pj),
                (step.flash_bytes, flash_bytes),
            )
            worst = max(need / limit for need, limit in pairs if limit)
            return max(1.0, worst), ram, once.compute_once_pj

        best = min(self.reduction.singles, key=needs)
        (k,) = best
        step, candidate = self.reduction.step(best), self.reduction.importance.candidates[k]
        problem = step.problem
        smallest = self.planner.inner.search_ram(problem, 1.0).result
        ram = smallest.ram_bytes or int(needs(best)[1])
        limit = f"{problem.budget_bytes:,} bytes"
        if problem.deadline_ns is not None:
            limit += f" within {format_ns(problem.deadline_ns)}"
        if self.goal.energy_pj is not None:
            limit += f" for {format_pj(self.goal.energy_pj)}"
        costs = [format_ns(problem.compute_once_ns), format_pj(problem.compute_once_pj)]
        if flash_bytes is not None and step.flash_bytes > flash_bytes:
            costs.append(f"{format_bytes(step.flash_bytes)} of flash instead of {format_bytes(flash_bytes)}")
        remedy = (
            self.reduction.remedy(self.reduction.importance.updates(best), ram) if ram > problem.budget_bytes else ""
        )
        return InfeasibleError(
            f"--train best: {why}, {limit}; the cheapest is {candidate.label!r}: it needs {ram:,} bytes, and at least"
            f" {' and '.join(costs)}{f'; {remedy}' if remedy else ''}",
            details={"budget_bytes": problem.budget_bytes, "min_budget_bytes": smallest.ram_bytes},
        )

    def _compare(self, chosen: Chosen) -> None:
        """The premise: the amounts of the model are no more than those of the set."""
        step = self.reduction.step(chosen)
        actual = {"time_ns": step.problem.compute_once_ns, "energy_pj": step.problem.compute_once_pj}
        if any(self.model.amount(r, chosen) > amount * (1 + UPDATES.rounding) for r, amount in actual.items()):
            self.is_sound = False

    # --- sets ---------------------------------------------------------------------------------------------------------

    def _propose(
        self, share: float = 1.0, least_value: float = 0.0, *, known: bool = False, kept: bool = False
    ) -> Found:
        """The best set of the MILP within a share of the limits.

        `known`: without sets that failed as well. `kept`: within those of a schedule that does not page, too.
        """
        limits: dict[str, float] = {**self.limits, **(self._ram_limit() if kept else {})}
        if share < 1:
            size = sum(max(o.amounts["size"] for o in group) for group in self._groups())
            limits |= {"size": share * size}
            if not kept:  # a schedule that recomputes costs more than the least; one that keeps everything does not
                limits |= {r: share * limit for r, limit in limits.items() if r in ("time_ns", "energy_pj")}
        return self.model.solve(
            limits,
            cheapest=self.cheapest,
            least_value=least_value,
            without=[*self.impossible, *(self.failed if known else ())],
            gap=UPDATES.gap,
            time_limit_s=UPDATES.mip_share * self.planner.options.time_limit_s,
            seed=self.planner.options.seed,
        )

    def _groups(self) -> list[list[Option]]:
        groups: dict[str, list[Option]] = {}
        for option in self.model.options:
            groups.setdefault(option.group, []).append(option)
        return list(groups.values())

    def _try(self, chosen: Chosen, limit_s: float | None = None) -> Solution | None:
        """The solution of a set; None where it has none within the limits, which is noted."""
        self._compare(chosen)
        if self._reason(chosen):
            self.impossible.append(chosen)
            return None
        updates, options = self.reduction.importance.updates(chosen), self.planner.options
        value = self.model.value(chosen)
        self.planner.progress(f"{format_count(len(chosen), 'update')}, {self._share(value)} of all importance")
        seconds = UPDATES.try_share * options.time_limit_s if limit_s is None else limit_s
        part = self.planner.inner.part(
            seconds, work_limit_s=options.work_limit_s * seconds / max(options.time_limit_s, 1e-9)
        )
        try:
            solved = part.knowing(None).solve(self.reduction.step(chosen).problem)
        except (InfeasibleError, LimitError):
            self.failed.append(chosen)
            return None
        if self.goal.energy_pj is not None:
            energy = verify(solved.problem, solved.schedule).energy_pj
            if energy > self.goal.energy_pj:
                self.failed.append(chosen)
                return None
        solution = self.reduction.restore(solved.problem, updates, solved)
        self.solved[chosen] = solution
        return solution

    def _share(self, value: float) -> str:
        return f"{value / self.model.most:.1%}"

    # --- the most importance ------------------------------------------------------------------------------------------

    def _most_important(self) -> Solution:
        model = self.model
        bound, best = model.most, None
        for k in range(UPDATES.proofs):
            proposal = self._propose()
            bound = min(bound, proposal.bound)
            is_late = self.planner.left_s < UPDATES.proof_share * self.planner.options.time_limit_s
            if proposal.chosen is None or (k and is_late):
                break
            if self._try(proposal.chosen) is not None:
                best = proposal.chosen
            if best is not None or proposal.chosen in self.failed:
                break
        if best is None or not self._reaches(best, bound):
            best = self._within_parts(best, bound)
        if best is None:
            raise self._nothing_fits("no schedule was found for any set of updates")
        return self._finished(best, bound if self.is_sound else model.most)

    def _reaches(self, chosen: Chosen, bound: float) -> bool:
        return self.model.value(chosen) >= bound - UPDATES.close * self.model.most

    def _kept(self, best: Chosen | None) -> Chosen | None:
        """The best set that fits with every tensor kept, by bisection of the part of the limits.

        Such a set has its schedule at once.
        """
        low, high = 0.0, 1.0
        for _ in range(UPDATES.halvings):
            part = (low + high) / 2
            least = 0.0 if best is None else self.model.value(best) + UPDATES.close * self.model.most
            chosen = self._propose(part, least, known=True, kept=True).chosen
            if chosen is None:
                low = part
                continue
            problem = self.reduction.step(chosen).problem
            fits = keep_all_peak_bytes(problem) <= problem.budget_bytes and not self._reason(chosen)
            if fits and self._try(chosen) is not None:
                best, low = chosen, part
            else:
                high = part
        return best

    def _within_parts(self, best: Chosen | None, bound: float) -> Chosen | None:
        """Sets that need a smaller and smaller part of the limits until one fits; then parts between, by bisection."""
        best = self._kept(best)
        low, high, parts = 0.0, 1.0, list(UPDATES.parts)
        for _ in range(len(UPDATES.parts) + UPDATES.between):
            is_late = self.planner.left_s < UPDATES.try_share * self.planner.options.time_limit_s
            if not parts or (is_late and best is not None):
                break
            part = parts.pop(0)
            least = 0.0 if best is None else self.model.value(best) + UPDATES.close * self.model.most
            proposal = self._propose(part, least, known=True)
            if proposal.chosen is None and not low:
                break  # nothing better needs that little, nor less
            if proposal.chosen is None:
                low = part
            elif self._try(proposal.chosen) is None:
                high = part
            else:
                best, low = proposal.chosen, part
                if self._reaches(best, bound):
                    break
            if low:
                parts = [(low + high) / 2]
        if best is None:
            singles = [s for s in self.reduction.singles if s not in self.impossible and s not in self.failed]
            singles.sort(key=lambda s: keep_all_peak_bytes(self.reduction.step(s).problem))
            best = next((s for s in singles[: UPDATES.alone] if self._try(s) is not None), None)
        return best

    def _finished(self, best: Chosen, bound: float) -> Solution:
        """With the time that is left for its schedule, and its place among all sets."""
        solution = self.solved[best]
        if solution.proof.gap() > self.planner.options.gap and self.planner.left_s > 0:
            again = self._try(best, self.planner.left_s)
            if again is not None and again.cost < solution.cost:
                solution = again
        value = self.model.value(best)
        set_count = len({*self.solved, *self.failed})
        worth = SetImportance(value=value, bound=max(value, bound), total=self.model.most, tried=set_count)
        return replace(solution, worth=worth)

    # --- the least cost -----------------------------------------------------------------------------------------------

    def _least_cost(self) -> Solution:
        """Sets in the order of their least cost, until no other one can be cheaper than the best."""
        best: Chosen | None = None
        least_bound = math.inf  # of the sets that were solved, and all above them
        bound = 0.0
        for _ in range(UPDATES.cheap):
            proposal = self._propose(least_value=self.goal.least, known=True)
            bound = proposal.bound
            if best is not None and bound >= self.solved[best].cost:
                break
            if proposal.chosen is None or (best is not None and self.planner.left_s <= 0):
                break
            solution = self._try(proposal.chosen)
            once = cost_of_computing_once(self.reduction.step(proposal.chosen).problem)
            if solution is None:
                if proposal.chosen in self.failed:
                    least_bound = min(least_bound, once)
                continue
            self.failed.append(proposal.chosen)  # solved: no larger one is cheaper
            proof = solution.proof  # of some schedules alone it says nothing about other orders and other sets
            least_bound = min(least_bound, proof.bound if proof.scope.is_everything else once)
            if best is None or solution.cost < self.solved[best].cost:
                best = proposal.chosen
        if best is None:
            raise self._nothing_fits(f"no set of importance {self.goal.least:g} was found")
        solution = self._finished(best, self.model.most)
        cost = solution.cost
        cost_bound = min(cost, bound, least_bound) if self.is_sound else 0.0
        assert solution.worth is not None
        worth = replace(solution.worth, cost_bound=int(max(0.0, cost_bound)), least=self.goal.least)
        return replace(solution, worth=worth)
