"""The bound for the parts of a step before, beside and after an operator, against searches for cheaper schedules.

`python -m tests.solvers.bounds.test_phases COUNT` compares so many random problems.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from random import Random

import pytest

from poetc.devices.streaming import streamed_problem
from poetc.errors import InfeasibleError, LimitError
from poetc.planning import Planner, reductions
from poetc.planning.kernels import KERNELS
from poetc.planning.order import in_order
from poetc.scheduling import (
    Action,
    Compute,
    Elsewhere,
    Free,
    Objective,
    OperatorSpec,
    PageIn,
    PageOut,
    Paging,
    Problem,
    ProcessorSpec,
    ScheduleError,
    TensorSpec,
    Variant,
    keep_all_peak_bytes,
    movable_state,
    on_store,
    verify_parts,
)
from poetc.scheduling.schedule import SolveOptions, first_executions
from poetc.solvers import bound_of_any_placement, phased_bound
from poetc.solvers.highs import Series
from poetc.solvers.poetc.placement.around import AroundOne
from poetc.solvers.processors import above_idle, relaxed
from tests.support.oracle import optimum
from tests.support.problems import random_dag, training_problem, with_budget

LISTS = 4_000  # random lists, a problem


def random_list(random: Random, problem: Problem) -> tuple[Action, ...] | None:
    """Any actions that do every operator, with placements, transfers, frees and repetitions by chance."""
    tensors, room = problem.tensors, problem.budget_bytes - problem.base_bytes
    ram = {k for k, t in enumerate(tensors) if t.initial == "ram"}
    store = {k for k, t in enumerate(tensors) if t.initial == "store"}
    ran = [0] * len(problem.operators)
    processors = range(max(1, len(problem.processors)))
    actions: list[Action] = []
    eager, repeats = random.random(), random.choice((0.0, 0.0, 0.2))
    for _ in range(40):
        missing = [k for k, t in enumerate(tensors) if t.final == "ram" and k not in ram]
        missing += [k for k, t in enumerate(tensors) if t.final == "store" and k not in store]
        if all(ran) and not missing:
            return tuple(actions)
        computes: list[Action] = []
        for k, operator in enumerate(problem.operators):
            if ran[k] and (not operator.recomputable or random.random() > repeats):
                continue
            if ram.issuperset(operator.inputs) and ram.isdisjoint(operator.outputs):
                taken = tuple((p.input, p.output) for p in operator.in_place if p.required or random.random() < 0.3)
                if len({i for i, _ in taken}) == len({o for _, o in taken}) == len(taken):
                    computes += [Compute(k, taken, p) for p in processors if operator.cost_on(p) is not None]
        pages: list[Action] = [PageIn(t) for t in store - ram]
        outs: list[Action] = [PageOut(t) for t in ram - store if tensors[t].pageable]
        frees: list[Action] = [Free(t) for t in ram]
        kinds = [kind for kind in (computes, computes, pages, pages, outs, frees) if kind]
        if not kinds:
            return None
        action = random.choice(computes if computes and random.random() < eager else random.choice(kinds))
        after, stored = set(ram), set(store)
        if isinstance(action, Compute):
            after = (ram - {i for i, _ in action.in_place}) | set(problem.operators[action.operator].outputs)
        elif isinstance(action, PageIn):
            after.add(action.tensor)
        elif isinstance(action, PageOut):
            stored.add(action.tensor)
        elif isinstance(action, Free):
            after.remove(action.tensor)
        if sum(tensors[t].size_bytes for t in after) > room:
            eager *= 0.8  # something must leave first
            continue
        if isinstance(action, Compute):
            ran[action.operator] += 1
        actions.append(action)
        ram, store = after, stored
    return None


def cheapest_by_order(random: Random, problem: Problem, count: int = LISTS) -> dict[tuple[int, ...], int]:
    """The costs of random lists that fit, by the order of first executions, with state in RAM or on the store."""
    best: dict[tuple[int, ...], int] = {}
    homes = [frozenset[int](), frozenset(c[0] for c in movable_state(problem))]
    seen: set[tuple[Action, ...]] = set()
    for home in dict.fromkeys(homes):
        placed = on_store(problem, home)
        for _ in range(count // len(homes)):
            actions = random_list(random, placed)
            if actions is None or actions in seen:
                continue
            seen.add(actions)
            try:
                trace = verify_parts([(placed, actions)])
            except ScheduleError:
                continue
            cost, order = placed.objective.cost(trace.energy_pj, trace.time_ns), first_executions(actions)
            best[order] = min(cost, best.get(order, cost))
    return best


def on_cores(random: Random, problem: Problem) -> Problem:
    """With equal or unequal processors, slow transfers, and an operator with another kernel."""
    idle = random.choice((0, 500, 2000))
    specs = [ProcessorSpec(name="main", active_uw=idle + 3000, idle_uw=idle)]
    specs += [
        ProcessorSpec(name=f"p{n}", active_uw=3000, idle_uw=random.choice((0, 500)), hand_over_ns=random.choice((0, 2)))
        for n in range(random.choice((1, 1, 2)))
    ]
    slow = random.choice((1, 3, 8))
    operators = []
    for o in problem.operators:
        ns = random.randint(5, 60)
        elsewhere = tuple(
            Elsewhere(processor=p, time_ns=ns + (0 if random.random() < 0.7 else 7), energy_pj=ns * 3 + 30)
            for p in range(1, len(specs))
            if random.random() < 0.9
        )
        variants: tuple[Variant, ...] = ()
        if o.workspace_bytes and random.random() < 0.5:
            more = tuple(replace(e, time_ns=2 * e.time_ns, energy_pj=2 * e.energy_pj) for e in elsewhere)
            variants = (Variant(workspace_bytes=0, time_ns=2 * ns, energy_pj=6 * ns + 20, elsewhere=more),)
        operators.append(replace(o, time_ns=ns, energy_pj=ns * 3 + 10, elsewhere=elsewhere, low_workspace=variants))
    tensors = []
    for t in problem.tensors:
        out, back = slow * t.page_out_ns, slow * t.page_in_ns
        tensors.append(
            replace(
                t,
                page_out_ns=out,
                page_in_ns=back,
                page_out_pj=idle * out // 1000 + 2,
                page_in_pj=idle * back // 1000 + 1,
                move_ns=None,
                move_pj=0,
            )
        )
    return replace(
        problem,
        operators=tuple(operators),
        tensors=tuple(tensors),
        processors=tuple(specs),
        objective=Objective.ENERGY,
    )


def with_bus(random: Random, problem: Problem) -> Problem:
    """With transfers that overlap compute on one processor, which draws power while it waits."""
    cores = on_cores(random, problem)
    operators = tuple(replace(o, elsewhere=(), low_workspace=()) for o in cores.operators)
    full = random.random() < 0.4
    return replace(
        cores,
        operators=operators,
        processors=(),
        paging=Paging.DMA,
        idle_uw=random.choice((500, 2000)),
        dma_full_duplex=full,
    )


def with_stream(random: Random, problem: Problem) -> Problem:
    """With an operator that streams frozen state, on the main processor alone, if any reads such state."""
    taken = {p.input for o in problem.operators for p in o.in_place if p.required}
    frozen = {k for k, t in enumerate(problem.tensors) if t.initial and t.pageable} - taken
    readers = [(k, t) for k, o in enumerate(problem.operators) for t in sorted(frozen.intersection(o.inputs))]
    if not readers:
        return problem
    k, t = random.choice(readers)
    plain, tensor = problem.operators[k], problem.tensors[t]
    streamed = replace(
        plain,
        inputs=tuple(i for i in plain.inputs if i != t),
        in_place=tuple(p for p in plain.in_place if p.input != t),
        reads_store=(t,),
        cut="units",
        block=1,
        time_ns=plain.time_ns + 2 * tensor.page_in_ns,
        energy_pj=plain.energy_pj + 2 * tensor.page_in_pj,
        elsewhere=(),
        low_workspace=(),
    )
    return streamed_problem(problem, {k: streamed})


def tight(random: Random, problem: Problem) -> Problem:
    peak = keep_all_peak_bytes(replace(problem, budget_bytes=2**30))
    return replace(problem, budget_bytes=int(peak * random.choice((0.7, 0.85, 1.0, 1.2, 2.0))))


def small(seed: int) -> Problem:
    random = Random(seed)
    problem = random_dag(random, random.randint(2, 4), paging=True)
    made = on_cores(random, problem) if seed % 3 else with_bus(random, problem)
    return tight(random, with_stream(random, made) if seed % 4 == 1 else made)


def bound_in_order(problem: Problem, order: tuple[int, ...], cutoff: int) -> int:
    """For operators side by side in that order of first executions, with any kernels and placement of state."""
    plain, shifted, bounds = relaxed(problem).problem, above_idle(problem), [0]
    for priced, idle in ((plain, 0), shifted or (None, 0)):
        if priced is not None:
            asked = in_order(KERNELS.relax(replace(priced, deadline_ns=None)), order)
            cutoff_above = max(0, cutoff - idle)
            bounds.append(idle + bound_of_any_placement(asked, cutoff_above, work_s=1.0, stop_at=math.inf))
    return max(bounds)


def compare(seed: int) -> tuple[bool, float]:
    """Whether a schedule was found, and the bound as part of its cost."""
    problem = small(seed)
    bound, costs = phased_bound(problem, time_limit_s=60.0), cheapest_by_order(Random(seed), problem)
    if not costs:
        return False, 0.0
    assert bound <= min(costs.values()), seed
    for order, cost in costs.items() if problem.processors else ():
        assert bound_in_order(problem, order, 2 * cost) <= cost, (seed, order)
    return True, bound / max(1, min(costs.values()))


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 25), marks=pytest.mark.long)], ids=str)
@pytest.mark.long
def test_no_list_of_a_small_problem_costs_less(seeds: range) -> None:
    shares = [share for found, share in map(compare, seeds) if found]
    assert len(shares) > len(seeds) // 4
    assert sum(share > 0.95 for share in shares) > len(seeds) // 7


def test_exhaustive_search_on_one_processor_finds_nothing_cheaper() -> None:
    shares = []
    for seed in range(16):
        random = Random(seed)
        problem = random_dag(random, random.randint(3, 5), paging=True)
        tensors = tuple(replace(t, move_ns=None, move_pj=0) for t in problem.tensors)
        problem = replace(problem, tensors=tensors, idle_uw=1000)
        problem = with_budget(problem, random.choice((0.7, 0.9)))
        best = optimum(problem, fixed_order=False)
        if best is not None:
            shares.append(phased_bound(problem, time_limit_s=60.0) / best.cost)
            assert shares[-1] <= 1, seed
    assert len(shares) > 6 and max(shares) > 0.9


def solved(problem: Problem) -> int | None:
    options = SolveOptions(time_limit_s=10.0, work_limit_s=0.1, gap=0.0)
    try:
        return Planner(options=options, reductions=reductions()).solve(problem).cost
    except (InfeasibleError, LimitError):
        return None


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 12), marks=pytest.mark.long)], ids=str)
def test_no_schedule_that_the_planner_finds_costs_less(seeds: range) -> None:
    found = 0
    for seed in seeds:
        random = Random(seed)
        problem = training_problem(random, random.choice((2, 3)), paging=True)
        problem = on_cores(random, problem) if seed % 3 else with_bus(random, problem)
        problem = tight(random, problem)
        cost = solved(problem)
        found += cost is not None
        assert cost is None or phased_bound(problem, time_limit_s=60.0) <= cost, seed
    assert found > len(seeds) // 2 - 1


@pytest.mark.parametrize("seed", [0, 25])
def test_a_tensor_is_written_before_it_is_read_back(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without these rows an LP reads back a half of a tensor that nobody wrote. With a bus, and on two processors."""
    random = Random(seed)
    problem = training_problem(random, random.choice((3, 4, 5, 6)), paging=True)
    problem = on_cores(random, problem) if seed % 3 else with_bus(random, problem)
    problem = replace(problem, budget_bytes=keep_all_peak_bytes(replace(problem, budget_bytes=2**30)) // 2)
    bound, cost = phased_bound(problem, time_limit_s=60.0), solved(problem)
    assert cost is not None and bound <= cost
    monkeypatch.setattr(AroundOne, "has_times", lambda self, t: False)
    assert phased_bound(replace(problem, name="other"), time_limit_s=60.0) < bound


def frozen_chain(layers: int = 3, *, in_bus: bool = False) -> Problem:
    """Frozen weights that are read from the store before the loss and after it, which fills the RAM by itself."""
    tensors = [TensorSpec(name="x", size_bytes=16, initial="ram")]
    weight = TensorSpec(name="w", size_bytes=160, initial="store", page_in_ns=100, page_in_pj=10 + 100 * in_bus)
    operators: list[OperatorSpec] = []
    cores = () if in_bus else (Elsewhere(processor=1, time_ns=50, energy_pj=150),)

    def add(name: str, inputs: list[int], phase: str, workspace_bytes: int = 0) -> int:
        tensors.append(TensorSpec(name=name, size_bytes=16, final="ram" if name == "b0" else "", pageable=False))
        out = len(tensors) - 1
        operators.append(
            OperatorSpec(
                name=name,
                phase=phase,
                inputs=tuple(inputs),
                outputs=(out,),
                time_ns=50,
                energy_pj=150 + 100 * in_bus,
                workspace_bytes=workspace_bytes,
                elsewhere=cores,
            )
        )
        return out

    weights = []
    for _ in range(layers):
        tensors.append(weight)
        weights.append(len(tensors) - 1)
    at = 0
    for k, w in enumerate(weights):
        at = add(f"f{k}", [at, w], "forward")
    at = add("loss", [at], "loss", workspace_bytes=400)
    for k, w in reversed(list(enumerate(weights))):
        at = add(f"b{k}", [at, w], "backward")
    specs = (ProcessorSpec(name="m", active_uw=1000), ProcessorSpec(name="p", active_uw=3000, idle_uw=2000))
    return Problem(
        name="frozen",
        operators=tuple(operators),
        tensors=tuple(replace(t, name=f"{n}.{t.name}") for n, t in enumerate(tensors)),
        budget_bytes=432,
        paging=Paging.DMA if in_bus else Paging.SYNC,
        idle_uw=2000 if in_bus else 0,
        processors=() if in_bus else specs,
    )


@pytest.mark.parametrize("in_bus", [False, True])
def test_transfers_that_fit_neither_before_nor_beside_the_loss_are_waited_for(in_bus: bool) -> None:
    """All six reads take 600 ns, and the loss, beside which nothing is read, 50 ns more."""
    problem = frozen_chain(in_bus=in_bus)
    bound = phased_bound(problem, time_limit_s=10.0)
    above = sum(o.energy_pj for o in problem.operators) - 7 * 50 * 2
    least = above + 6 * problem.tensors[1].page_in_pj + 2 * (6 * 100 + 50)
    assert least - 5 <= bound <= least
    roomy = phased_bound(replace(problem, budget_bytes=4000), time_limit_s=10.0)
    assert roomy < least - 2 * 150
    cost = solved(problem)
    assert cost is not None and bound <= cost <= 1.2 * bound
    if not in_bus:
        assert relaxed(problem, 600).least < bound


def test_the_bound_for_all_kernels_hides_what_the_longest_of_them_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """With less workspace, a kernel may take less time on a processor that is not the first."""
    problem = frozen_chain()
    slow, quick = (Elsewhere(processor=1, time_ns=ns, energy_pj=2 * ns + 150) for ns in (300, 20))
    variant = Variant(workspace_bytes=0, time_ns=50, energy_pj=150, elsewhere=(quick,))
    operators = tuple(
        replace(o, elsewhere=(slow,), low_workspace=(variant,)) if o.phase == "loss" else o for o in problem.operators
    )
    limits: list[float] = []
    series_limit = Series.column_upper

    def limit(series: Series, column: int, upper: float) -> None:
        limits.append(upper)
        series_limit(series, column, upper)

    monkeypatch.setattr(Series, "column_upper", limit)
    assert phased_bound(replace(problem, operators=operators), time_limit_s=10.0) > 0
    unit_ns = problem.compute_once_ns
    assert max(limits) == pytest.approx(300 / unit_ns)
    assert limits[0] == max(limits)


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        compare(number)
