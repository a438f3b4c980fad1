"""Several processors: bounds and schedules against exhaustive search on tiny problems, and the published rules.

`python -m tests.solvers.test_processors COUNT` compares so many random problems.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import pytest

from poetc.errors import InfeasibleError, UnsupportedProblemError
from poetc.planning import Planner, Solution, reductions, solve_curve
from poetc.planning.kernels import KERNELS, Kernels, fastest, least_workspace, with_least_workspace
from poetc.planning.micro_batches import MicroBatches
from poetc.planning.processors import Processors
from poetc.planning.saved import Saved
from poetc.planning.solution import cost_of_computing_once, everything
from poetc.planning.state import StatePlacement
from poetc.planning.ways import CoreUsage
from poetc.scheduling import (
    Action,
    Compute,
    Elsewhere,
    Free,
    Objective,
    Paging,
    Problem,
    ProcessorSpec,
    Repetition,
    ScheduleError,
    SolveOptions,
    Status,
    Variant,
    complete,
    keep_all_decisions,
    keep_all_peak_bytes,
    validate_problem,
    verify,
    verify_parts,
    verify_plan,
)
from poetc.scheduling.scope import ANY, Option, Scope
from poetc.solvers import solve
from poetc.solvers.highs import Mip
from poetc.solvers.processors import (
    above_idle,
    can_search,
    hand_overs,
    one_at_a_time,
    placed,
    relaxed,
    runs_on,
    search,
    shortest_ns,
    side_by_side,
    without_long_transfers,
)
from tests.support.oracle import optimum
from tests.support.problems import ProblemBuilder, random_dag, training_problem

NODES = 200_000


def with_processors(random: Random, problem: Problem, count: int = 2) -> Problem:
    """With costs on other processors that are lower or higher, some of which cannot run everything."""
    processors = []
    for p in range(count):
        idle = random.choice((0, 100_000, 2_000_000))
        active = idle + random.choice((0, 500_000, 4_000_000))
        hand_over, flush = random.choice((0, 3, 30)), random.choice((0, 0, 500))
        processors.append(
            ProcessorSpec(name=f"p{p}", active_uw=active, idle_uw=idle, hand_over_ns=hand_over, flush_ps_per_byte=flush)
        )
    operators = []
    for operator in problem.operators:
        time_ns = random.randint(5, 100)
        elsewhere = []
        for p in range(1, count):
            if random.random() < 0.85:
                ns = random.randint(5, 100)
                elsewhere.append(Elsewhere(processor=p, time_ns=ns, energy_pj=ns * processors[p].active_uw // 1000 + 1))
        energy_pj = time_ns * processors[0].active_uw // 1000 + random.randint(1, 20)
        operators.append(replace(operator, time_ns=time_ns, energy_pj=energy_pj, elsewhere=tuple(elsewhere)))
    result = replace(
        problem,
        operators=tuple(operators),
        processors=tuple(processors),
        objective=random.choice(tuple(Objective)),
        budget_bytes=2**30,
    )
    validate_problem(result)
    return result


def placements(problem: Problem) -> Iterator[tuple[int, ...]]:
    options = [[p for p in range(len(problem.processors)) if runs_on(o, p)] for o in problem.operators]
    yield from itertools.product(*options)


def orders(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Orders of the operators that keep their dependences."""
    makers = {t: k for k, o in enumerate(problem.operators) for t in o.outputs}
    before = [{makers[t] for t in o.inputs if t in makers} for o in problem.operators]
    for k, o in enumerate(problem.operators):
        taken = {p.input for p in o.in_place if p.required}
        before[k] |= {j for j, other in enumerate(problem.operators) if j != k and taken & set(other.inputs)}
    for order in itertools.permutations(range(len(problem.operators))):
        place = {k: n for n, k in enumerate(order)}
        if all(place[b] < place[k] for k in order for b in before[k]):
            yield order


def least_cost(problem: Problem) -> int:
    """The least cost of all lists without Frees in which every operator runs once."""
    costs = []
    for order in orders(problem):
        for placement in placements(problem):
            actions = tuple(
                Compute(
                    k,
                    tuple((p.input, p.output) for p in problem.operators[k].in_place if p.required),
                    placement[k],
                )
                for k in order
            )
            trace = verify_parts([(problem, actions)])
            costs.append(problem.objective.cost(trace.energy_pj, trace.time_ns))
    return min(costs)


def least_in(problem: Problem) -> int | None:
    """The least cost in the budget, with Frees anywhere behind the last use; None where nothing fits."""
    costs = []
    for order in orders(problem):
        plain = tuple(s for s in complete(problem, [Compute(k) for k in order]))
        computes = [s for s in plain if isinstance(s, Compute)]
        earliest: dict[int, int] = {}
        seen = 0
        for action in plain:
            seen += isinstance(action, Compute)
            if isinstance(action, Free):
                earliest[action.tensor] = seen
        delays = itertools.product(*([*range(n, len(computes) + 1)] for n in earliest.values()))
        for delay in itertools.islice(delays, 60):
            at = dict(zip(earliest, delay, strict=True))
            for placement in placements(problem):
                actions: list[Action] = []
                for n, c in enumerate(computes):
                    actions += [Free(t) for t, when in at.items() if when == n]
                    actions.append(replace(c, processor=placement[c.operator]))
                actions += [Free(t) for t, when in at.items() if when == len(computes)]
                try:
                    trace = verify_parts([(problem, actions)])
                except ScheduleError:
                    continue
                costs.append(problem.objective.cost(trace.energy_pj, trace.time_ns))
    return min(costs, default=None)


def least_of_lists(problem: Problem, repeats: int) -> int | None:
    """The least cost of all lists of any actions but page-ins and page-outs, with at most so many repetitions."""
    operators, costs = problem.operators, list[int]()
    fences = (False, True) if any(o.workspace_bytes for o in operators) else (False,)

    def go_on(actions: tuple[Action, ...], there: frozenset[int], done: tuple[int, ...]) -> None:
        if set(done) == set(range(len(operators))):
            try:
                trace = verify_parts([(problem, actions)])
            except ScheduleError:
                return
            costs.append(problem.objective.cost(trace.energy_pj, trace.time_ns))
        if len(done) == len(operators) + repeats:
            return
        for freed, (k, o), p, fence in itertools.product(
            [c for n in range(len(there) + 1) for c in itertools.combinations(sorted(there), n)],
            enumerate(operators),
            range(len(problem.processors)),
            fences,
        ):
            left = there - set(freed)
            again = k in done and not o.recomputable
            if again or not runs_on(o, p) or not set(o.inputs) <= left or set(o.outputs) & left:
                continue
            for count in range(len(o.in_place) + 1):
                for chosen in itertools.combinations(o.in_place, count):
                    pairs = tuple((q.input, q.output) for q in chosen)
                    action = Compute(k, pairs, p, fence)
                    after = (left - {i for i, _ in pairs}) | set(o.outputs)
                    go_on((*actions, *map(Free, freed), action), after, (*done, k))

    go_on((), frozenset(t for t, spec in enumerate(problem.tensors) if spec.initial == "ram"), ())
    return min(costs, default=None)


def compare_tight(seed: int) -> bool:
    """Exact search on two or three operators in little RAM beside all lists; whether there was anything to compare."""
    random = Random(seed)
    problem = with_processors(random, random_dag(random, random.choice((2, 2, 3))))
    alone = replace(placed(problem, (0,) * len(problem.operators)), budget_bytes=2**30)
    budget_bytes = keep_all_peak_bytes(alone) - random.choice((0, 0, 16, 32))
    problem = replace(problem, budget_bytes=random.choice((budget_bytes, 2**30)))
    repeats = 1 if len(problem.operators) == 2 else 0
    if not can_search(problem):
        return False
    least = least_of_lists(problem, repeats)
    found = search(problem, 2**60 if least is None else least + 1, NODES)
    if least is None:
        assert found.actions is None or repeats == 0
        return False
    assert found.is_complete and found.actions is not None
    assert relaxed(problem).least <= least
    trace = verify_parts([(problem, found.actions)])
    assert found.cost == problem.objective.cost(trace.energy_pj, trace.time_ns) <= least
    if trace.recomputes <= repeats:
        assert found.cost == least
    return True


def compare(seed: int) -> None:
    """One random problem: no bound is above the exhaustive optimum, and no schedule below it."""
    random = Random(seed)
    make = random_dag(random, random.randint(2, 4)) if random.random() < 0.8 else training_problem(random, 1)
    if len(make.operators) > 5:
        make = random_dag(random, 4)
    problem = with_processors(random, make, random.choice((2, 2, 3)))
    bound, least = relaxed(problem), least_cost(problem)
    assert bound.least <= least
    assert relaxed(replace(problem, paging=Paging.SYNC), random.randint(1, 200)).least <= least  # in other weights
    single = min(
        problem.objective.cost(q.compute_once_pj, q.compute_once_ns)
        for q in (placed(problem, p) for p in placements(problem))
    )
    placement, proven = one_at_a_time(problem, 10.0)
    alone = placed(problem, placement)
    # Energies of hand-overs and of idling are rounded up, an operator each.
    slack = 2 * len(problem.operators)
    assert proven <= single * (1 + 1e-6) + 1e-6
    if len(problem.processors) == 2:
        found = problem.objective.cost(alone.compute_once_pj, alone.compute_once_ns)
        assert single <= found <= single * (1 + 1e-6) + slack
    actions = complete(alone, keep_all_decisions(alone))
    beside = side_by_side(problem, actions, placement)
    assert beside is not None
    assert problem.objective.cost(beside[1].energy_pj, beside[1].time_ns) >= least
    assert beside[1].time_ns <= alone.compute_once_ns  # side by side nothing takes longer
    exact = search(problem, 2**60, NODES, once=True)
    assert exact.is_complete and exact.cost == least
    assert shortest_ns(problem) <= least_cost(replace(problem, objective=Objective.TIME))
    if len(problem.operators) > 3:
        return
    tight = replace(problem, budget_bytes=keep_all_peak_bytes(replace(alone, budget_bytes=2**30)))
    within = least_in(tight)
    assert within is None or bound.least <= within
    if bound.problem is not None and within is not None:
        plain = optimum(replace(bound.problem, budget_bytes=tight.budget_bytes), fixed_order=False)
        assert plain is not None
        assert plain.cost <= within
    shifted = above_idle(problem)
    if shifted is not None and within is not None:
        above, idle = shifted
        plain = optimum(replace(above, budget_bytes=tight.budget_bytes, deadline_ns=None), fixed_order=False)
        assert plain is not None
        assert plain.cost + idle <= within
    fitting = side_by_side(tight, actions, placement)
    assert fitting is not None


@pytest.mark.parametrize("seed", range(40))
def test_random_problems_against_exhaustive_search(seed: int) -> None:
    compare(seed)


def test_exact_search_in_little_ram_against_all_lists() -> None:
    assert sum(compare_tight(seed) for seed in range(8)) >= 4


def trained() -> Problem:
    return with_processors(Random(3), training_problem(Random(3), 4))


@pytest.mark.parametrize("solver", ["heft", "mandheling", "weight_gradients"])
def test_published_rules(solver: str) -> None:
    problem = trained()
    schedule = solve(problem, solver)
    assert verify(problem, schedule).busy_ns[1] > 0 or solver == "mandheling"  # which may see no profit
    assert schedule.proof.bound <= schedule.proof.objective
    with pytest.raises(InfeasibleError, match="does not fit the budget"):
        solve(replace(problem, budget_bytes=64), solver)
    with pytest.raises(UnsupportedProblemError, match="the problem has one processor"):
        solve(training_problem(Random(0), 1), solver)


def planner(solver: str = "poetc", time_limit_s: float = 3.0) -> Planner:
    options = SolveOptions(time_limit_s=time_limit_s, work_limit_s=3.0)
    return Planner(options=options, solver=solver, reductions=reductions("ram"))


@pytest.mark.long
def test_the_planner_is_no_worse_than_the_rules_and_obeys_the_budget() -> None:
    problem = trained()
    rules = [solve(problem, s).proof.objective for s in ("heft", "mandheling", "weight_gradients")]
    solution = planner().solve(problem)
    verify(solution.problem, solution.schedule)
    assert solution.cost <= min(rules)
    assert solution.choices["processors"] is not None
    tight = replace(problem, budget_bytes=640)
    assert tight.budget_bytes < keep_all_peak_bytes(placed(problem, (0,) * len(problem.operators)))
    solution = planner().solve(tight)
    trace = verify(solution.problem, solution.schedule)
    verify_plan(solution.problem, solution.schedule, solution.plan)
    assert trace.recomputes > 0
    assert solution.problem.base_bytes + solution.plan.arena_bytes <= tight.budget_bytes
    with pytest.raises(UnsupportedProblemError, match="melon: places operators on one processor alone"):
        planner("melon").solve(problem)


def test_a_deadline_that_only_two_processors_meet() -> None:
    problem = replace(trained(), objective=Objective.TIME)
    fastest = planner().solve(problem)
    alone = placed(problem, one_at_a_time(problem, 1.0)[0])
    assert fastest.cost < alone.compute_once_ns
    hurried = replace(problem, objective=Objective.ENERGY, deadline_ns=int(1.03 * fastest.cost))
    solution = planner().solve(hurried)
    assert verify(hurried, solution.schedule).time_ns < alone.compute_once_ns


def test_small_problems_are_proven_optimal_or_state_their_scope() -> None:
    """Every schedule that search proves is the cheapest of its scope."""
    scopes = set()
    for seed in (4, 5, 6):
        random = Random(seed)
        problem = with_processors(random, random_dag(random, random.randint(6, 11)), random.choice((2, 2, 3)))
        solution = planner(time_limit_s=300.0).solve(problem)
        verify_plan(solution.problem, solution.schedule, solution.plan)
        proof, executions = solution.proof, verify(solution.problem, solution.schedule).executions
        assert (proof.status is Status.OPTIMAL) == (proof.bound == proof.objective)
        if proof.scope.repetition is Repetition.ONCE:
            assert set(executions) == {1}
        assert search(solution.problem, proof.objective, 5_000, once=True).actions is None
        scopes.add((proof.status, proof.scope.repetition))
    assert {(Status.OPTIMAL, Repetition.ONCE), (Status.OPTIMAL, Repetition.ANY)} <= scopes


def test_a_schedule_that_search_finds_at_the_bound_is_optimal() -> None:
    random = Random(1004)
    problem = with_processors(random, random_dag(random, random.randint(2, 6)), random.choice((2, 2, 3)))
    proof = planner().solve(problem).proof
    assert (proof.bound, proof.status) == (proof.objective, Status.OPTIMAL)


def two_processors(costs: Sequence[tuple[int, int | None]], *, is_chain: bool = False) -> Problem:
    """Operators that take so many ns on each of two processors; None: it cannot run there."""
    builder = ProblemBuilder(Random(0), paging=False)
    last = builder.tensor("x", 1, initial="ram")
    for k, (cost, _) in enumerate(costs):
        made = builder.tensor(f"t{k}", 1, final="ram")
        builder.operator(f"o{k}", (last,), (made,), cost=cost)
        last = made if is_chain else last
    plain = builder.problem("two processors")
    elsewhere = [() if ns is None else (Elsewhere(processor=1, time_ns=ns, energy_pj=0),) for _, ns in costs]
    return replace(
        plain,
        operators=tuple(
            replace(o, time_ns=c[0], energy_pj=0, elsewhere=e)
            for o, c, e in zip(plain.operators, costs, elsewhere, strict=True)
        ),
        processors=tuple(ProcessorSpec(name=f"p{p}", active_uw=0, idle_uw=0) for p in range(2)),
        paging=Paging.NONE,
        objective=Objective.TIME,
        budget_bytes=2**20,
    )


def test_the_bound_counts_hand_overs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain whose operators each prefer the other processor, where a hand-over costs more than that saves."""
    plain = two_processors([(10, 1), (1, 10), (10, 1), (1, 10)], is_chain=True)
    specs = tuple(replace(p, active_uw=1_000_000, hand_over_ns=50) for p in plain.processors)
    operators = tuple(
        replace(
            o, energy_pj=1000 * o.time_ns, elsewhere=tuple(replace(e, energy_pj=1000 * e.time_ns) for e in o.elsewhere)
        )
        for o in plain.operators
    )
    problem = replace(plain, processors=specs, operators=tuple(operators), objective=Objective.ENERGY)
    assert least_cost(problem) == 22_000
    assert 0.999 * 22_000 < relaxed(problem).least <= 22_000
    free = replace(problem, processors=plain.processors)
    assert relaxed(free).least == 4_000
    monkeypatch.setattr(Mip, "dual_bound", lambda self, *, time_limit_s: -math.inf)  # as after its time limit
    assert relaxed(replace(problem, name="again")).least <= 22_000


class Slow(Kernels):
    """Takes the kernels with the least workspace."""

    def solve(self, problem: Problem, planner: Planner) -> Solution:
        return self.restore(problem, least_workspace(problem), planner.inner.solve(with_least_workspace(problem)))


def test_a_claim_about_any_kernels_is_not_made_with_slow_ones() -> None:
    """The fast kernel of an operator has room only where a tensor is made again, which pays on the other processor."""
    problem = two_processors([(5, 5), (5, 5), (50, 20), (5, 5)], is_chain=True)
    sizes = [16, 1600, 16, 16, 16]
    tensors = tuple(
        replace(t, size_bytes=size, final="ram" if n == 4 else "")
        for n, (t, size) in enumerate(zip(problem.tensors, sizes, strict=True))
    )
    slow = Variant(
        workspace_bytes=0, time_ns=51, energy_pj=0, elsewhere=(Elsewhere(processor=1, time_ns=45, energy_pj=0),)
    )
    first, second, third, fourth = problem.operators
    operators = (
        first,
        second,
        replace(third, workspace_bytes=1600, low_workspace=(slow,)),
        replace(fourth, inputs=(1, 3)),
    )
    problem = replace(problem, tensors=tensors, operators=operators, budget_bytes=problem.base_bytes + 1760)
    proof = replace(planner(), reductions=(Processors(), Slow(), StatePlacement("ram"))).solve(problem).proof
    cheapest = search(fastest(problem), 2**60, NODES)
    assert cheapest.actions is not None and cheapest.cost < proof.objective
    assert proof.bound <= cheapest.cost or proof.scope.choice("kernels") is not ANY


def test_nothing_is_paged_whose_write_takes_a_large_part_of_the_chain() -> None:
    problem = training_problem(Random(3), 2, paging=True)
    writes = sorted({t.page_out_ns for t in problem.tensors if t.pageable})
    assert len(writes) > 1
    shorter = without_long_transfers(problem, 5 * writes[-2])
    assert {t.page_out_ns for t in shorter.tensors if t.pageable} == set(writes[:-1])
    assert without_long_transfers(problem, 5 * writes[-1]) == problem


def with_kernels(random: Random, problem: Problem) -> Problem:
    """With kernels that the main processor runs no faster and no cheaper, but another one perhaps."""
    operators = []
    for operator in problem.operators:
        variants = []
        for number in range(random.randint(0, 2)):
            before = variants[-1] if variants else operator
            elsewhere = [
                replace(e, time_ns=max(1, e.time_ns + random.randint(-20, 20)), energy_pj=random.randint(0, 400))
                for e in operator.elsewhere
            ]
            variants.append(
                Variant(
                    workspace_bytes=32 * (1 - number),
                    time_ns=before.time_ns + random.choice((0, 5, 30)),
                    energy_pj=before.energy_pj + random.choice((0, 0, 9)),
                    elsewhere=tuple(elsewhere),
                )
            )
        operators.append(replace(operator, workspace_bytes=64, low_workspace=tuple(variants)))
    result = replace(problem, operators=tuple(operators))
    validate_problem(result)
    return result


def compare_kernels(seed: int) -> None:
    """No bound for any kernels is above the least cost of some kernels."""
    random = Random(seed)
    problem = with_kernels(random, with_processors(random, random_dag(random, random.randint(2, 3))))
    numbers = [range(1 + len(o.low_workspace)) for o in problem.operators]
    least = min(least_cost(KERNELS.fix(problem, choice)) for choice in itertools.product(*numbers))
    bound, shifted = relaxed(problem), above_idle(problem)
    assert bound.least <= least
    priced = [] if bound.problem is None else [(bound.problem, 0)]
    for plain, idle in priced if shifted is None else [*priced, shifted]:
        once = cost_of_computing_once(KERNELS.relax(plain))
        assert once + idle <= least
        for choice in itertools.product(*numbers):
            assert once <= cost_of_computing_once(KERNELS.fix(plain, choice))


@pytest.mark.parametrize("seeds", [range(60)], ids=str)
def test_bounds_for_any_kernels(seeds: range) -> None:
    """A kernel with less workspace may cost less above idling, and on another processor."""
    for seed in seeds:
        compare_kernels(seed)


def test_once_on_the_main_processor_is_no_bound_side_by_side() -> None:
    """Nor for the points of a curve, for sets of encodings, or for the other ways of cutting a batch."""
    problem = two_processors([(30, 30), (30, 30), (20, 20), (20, 20), (20, 20)])
    (point,) = solve_curve(problem, [problem.budget_bytes], planner("heft"))
    assert point.solution is not None and point.solution.cost > planner().solve(problem).cost == 60
    assert point.solution.proof.bound <= 60 < cost_of_computing_once(problem)
    uneven = two_processors([(50, 50), (40, 40), (30, 30)])
    found = planner().solve(uneven)
    assert relaxed(uneven).least < found.proof.bound == found.cost == 70
    assert Saved(()).restore(uneven, (0,), found).proof.scope.choice("saved") == (0,)
    alone = two_processors([(100, None)])
    chosen = replace(planner(), reductions=(MicroBatches({1: alone, 2: problem}), *planner().reductions)).solve(alone)
    assert (chosen.choices["micro_batches"], chosen.cost) == (2, 60)


def test_a_bound_of_one_way_holds_in_the_scope_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound of side by side about one order alone says nothing of other orders, which may cost less."""
    beside = two_processors([(50, 50), (40, 40), (30, 30)])
    alone = replace(placed(beside, (0, 0, 0)), processors=())
    threads = replace(alone, operators=tuple(replace(o, time_ns=o.time_ns - 18) for o in alone.operators))
    side, plain = planner().solve(beside), planner().solve(threads)
    least = relaxed(beside).least
    assert least < 70 == side.cost

    def bound_with(scope: Scope) -> tuple[int, Option]:
        """Of `plain`, priced at 66 ns with a bound for everything, where the other way's bound of 70 has this scope.

        The bound for both ways, and the order that it is about.
        """
        ways = CoreUsage([{0: alone, 1: beside, 2: threads}])

        def cheapest(problem: Problem, planner: Planner) -> Solution:
            ways.solved[1] = ways.restore(problem, 1, side.with_proof(replace(side.proof, scope=scope)))
            best = plain.with_proof(replace(plain.proof, objective=66, bound=66, scope=everything()))
            ways.solved[2] = ways.restore(problem, 2, best)
            return ways.solved[2]

        monkeypatch.setattr(ways, "_cheapest", cheapest)
        proof = ways.solve(alone, planner()).proof
        return proof.bound, proof.scope.order

    assert bound_with(everything()) == (66, ANY)
    assert bound_with(replace(everything(), order=(0, 1, 2))) == (66, (0, 1, 2))  # the order of `plain`
    assert bound_with(replace(everything(), order=(0, 2, 1))) == (least, ANY)


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        compare(number)
    compared = sum(compare_tight(number) for number in range(int(sys.argv[1])))
    print(f"{sys.argv[1]} problems agree, and {compared} in little RAM")


@pytest.mark.parametrize(("others", "is_solved"), [(1, True), (2, False)])
def test_hand_overs_between_many_equal_processors_take_no_time(
    monkeypatch: pytest.MonkeyPatch, others: int, is_solved: bool
) -> None:
    """Each operator in equal parts on all of them has no hand-over. The MIP took most of a solve on four cores."""
    plain = training_problem(Random(3), 3)
    own = tuple(
        replace(
            o,
            elsewhere=tuple(Elsewhere(processor=p, time_ns=o.time_ns, energy_pj=o.energy_pj) for p in (1, 2)[:others]),
        )
        for o in plain.operators
    )
    cores = tuple(ProcessorSpec(name=f"p{p}", active_uw=3000, idle_uw=500, hand_over_ns=5) for p in range(1 + others))
    monkeypatch.setattr(hand_overs, "_least", lambda problem, path_ns: (path_ns, ()))
    bound = hand_overs.least_with_hand_overs(replace(plain, operators=own, processors=cores), 7)
    assert bound == (7 if is_solved else 0)
