"""The settings of poetc's own solver: one frozen record a stage.

Each field says its unit and its reason. Work is counted in seconds of a usual machine (see `work`). Shares of work are
of `work_limit_s`, so that the work does not depend on the clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkSettings:
    """Work of the two things that are counted (`work`), measured on a usual machine."""

    iteration_s: float = 2.5e-6  # a simplex iteration, times the square root of the coefficients
    lp_iteration_s: float = 2.5e-6 / 3  # likewise, where only an LP is solved
    run_s: float = 6e-5  # a run of the eviction heuristic, times the operators
    least_left_s: float = 0.1  # time limit of a stage that starts when time is nearly up


@dataclass(frozen=True, slots=True)
class BesideSettings:
    """Threads beside the caller's (`beside`)."""

    # Python's switch interval meanwhile, s. HiGHS's callbacks wait for Python's lock thousands of times. With Python's
    # own 5 ms a relaxation takes more than twice as long beside a busy caller as alone. With this it takes as long.
    switch_s: float = 1e-4


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How much work each stage of a solve gets: runs, windows, relaxations, orders (`engine`, `solving`)."""

    small_operators: int = 200  # up to so many, a problem is small: its relaxations take milliseconds
    small_gap: float = 1e-6  # fraction of the total: small problems are closed so far where that costs next to nothing
    tiny_operators: int = 12  # up to so many, exhaustive search comes before any relaxation with several cuts
    wide_gap: float = 0.05  # fraction of the cost, from which on spread cuts are worth their work

    # Runs of the heuristic: about as many as take as long as a relaxation.
    small_runs: int = 240  # for small numbers of operators
    small_runs_operators: int = 100  # the largest such number
    least_runs: int = 8  # for the largest problems
    most_runs: int = 600  # for any problem, unless `runs_x_operators` allows more
    runs_x_operators: int = 60_000  # runs times operators: a run takes time in proportion to the operators
    runs_x_operators_squared: int = 24_000_000  # runs times operators squared: the time of relaxations grows faster
    first_runs: int = 2  # before any relaxation: something to show
    quick_runs: int = 32  # of a small problem, in all, before relaxations with several cuts
    race_share: float = 0.3  # work on runs beside a relaxation, of the work on the last one: at least

    # Windows of the best schedule (`search.neighbourhoods`).
    first_windows_share: float = 0.08  # of the work limit: at first, and once more at the end
    windows_share: float = 0.3  # of the work on the last relaxation: beside the next

    # Relaxations with more and more cuts.
    refinements: int = 30  # rounds, at most
    short_s: float = 1.0  # work on a small problem's relaxation up to which its plan is followed before the next

    # The order of first executions.
    order_share: float = 0.2  # of the work limit, for its search
    order_stop_share: float = 0.5  # of the time limit: where the search stops on a slow machine
    own_order_operators: int = 100  # up to so many, the problem's own order is solved beside the chosen one

    # The smallest budget, for the message that nothing fits.
    smallest_least_s: float = 2.0  # time limit, at least: the message is of little use without a number
    smallest_most_s: float = 20.0  # time limit, at most

    def runs(self, operators: int) -> int:
        """Runs of the heuristic for a problem of this size."""
        if operators <= self.small_runs_operators:
            return self.small_runs
        most = min(self.most_runs, self.runs_x_operators_squared // operators**2)
        return max(self.least_runs, self.runs_x_operators // operators, most)


@dataclass(frozen=True, slots=True)
class RelaxingSettings:
    """How much work HiGHS does on a relaxation of the problem, an LP or a MIP (`relaxing`)."""

    rounds: int = 100  # HiGHS's rounds at the root: its bound stands still after about as many
    nodes: int = 200  # of the tree, at most
    least_nodes: int = 20  # however many coefficients there are
    nodes_x_entries: int = 10_000_000  # nodes times coefficients: a node takes time in proportion
    between_operators: int = 8000  # up to so many there are rows inside stages, whose number grows with the square
    most_entries: int = 1_500_000  # coefficients: larger relaxations with several cuts are not tried
    ties_share: int = 4  # ties are broken where that costs at most the inverse of this of the gap
    coarse_cuts: int = 4  # of the positions of single cuts, every so many first; then beside the best
    promising_cuts: int = 2  # of the LPs with one cut of a small problem, so many are solved as MIPs
    best_cut_share: float = 0.08  # of the work limit, to find out which operator of a stretch is the best cut
    gap_share: float = 0.25  # of the gap that was asked for, or is aimed at: how closely a relaxation is solved

    def most_nodes(self, entries: int) -> int:
        """Nodes for a relaxation with so many coefficients."""
        return max(self.least_nodes, min(self.nodes, self.nodes_x_entries // max(1, entries)))


@dataclass(frozen=True, slots=True)
class LadderSettings:
    """The choice of cuts (`bounds.ladder`)."""

    single_cuts: int = 24  # stretches of the backward pass, each with one position for a single cut
    coarse_tensors: int = 100  # problems with more tensors first do without their smallest
    free_share: float = 1e-3  # of the capacity: bytes of those smallest tensors, in all
    reach: float = 0.35  # of the gap left: the part that a relaxation is asked to close; dearer plans are not looked at
    small_reach: float = 1.0  # the same for a small problem: its relaxations are solved to the end, and have a plan
    least_reach: float = 0.05  # half of the reach is next where a relaxation found no plan in time, down to this
    small_gap: float = 1e-3  # fraction of the cost: so small a gap is closed at once
    slack: float = 0.1  # of the gap left: how closely the first are solved; their plans soon show other cuts
    climb: float = 2.5  # work on relaxations in a row, in times the work on schedules beside them
    effort_factor: int = 4  # more work, and less slack, where no cut is new
    new_cuts: int = 4  # cuts added at a time, at least
    overfull_a_cut: int = 12  # operators with too much RAM for each cut that is added
    apart: int = 2  # operators between cuts that are added together: neighbours say nearly the same


@dataclass(frozen=True, slots=True)
class CutSettings:
    """A relaxation with cuts (`bounds.cuts`)."""

    # Ties: where many operators are alike (cells of recurrent layers), HiGHS chooses between them for long, and its
    # choice is scattered. So the first ones are made a little cheaper to execute again.
    alike: int = 32  # operators that are alike, from which on ties are broken
    alike_share: float = 0.3  # of the forward pass's operators: likewise
    tie: float = 1e-3  # fraction of an operator's cost; as much of the overhead is lost for the bound
    margin: float = 1e-6  # taken off HiGHS's bound before it is rounded up, in its units: its tolerances


@dataclass(frozen=True, slots=True)
class BetweenSettings:
    """RAM rows inside a stage (`bounds.between`), for the operators at which the most could be in RAM."""

    first_rows: int = 8  # a stage, for first executions: at least
    first_total: int = 160  # in all stages: fewer stages have more each
    again_rows: int = 8  # a stage, for executions again: at least
    again_total: int = 60  # in all stages
    chain_rows: int = 3  # of these, a stage: those that count the rest of a chain of recomputation, at least
    chain_total: int = 30  # in all stages
    large_share: float = 0.03  # of the capacity: smaller tensors are not counted in chains


@dataclass(frozen=True, slots=True)
class SpreadSettings:
    """Cuts spread over the step (`bounds.spread`)."""

    counts: tuple[int, ...] = (4, 8, 12, 16, 24, 32, 48)  # of cuts, one after the other
    patience: int = 2  # counts in turn that prove no more, after which the search ends
    least_share: float = 0.02  # of the capacity: the smallest tensors that are decided about
    most_pairs: int = 1_500_000  # operators times tensors that are decided about: larger problems are left
    again_share: float = 0.2  # of the capacity: the least working set of an operator whose repetitions have such rows
    most_again_entries: int = 700_000  # coefficients, from which on operators that run again have no rows for RAM
    pair_share: float = 0.2  # of the capacity: the least size of two tensors that are looked at together
    alike: float = 0.1  # relative: state that saves about as much for its bytes, where it is small
    chain: int = 4  # makers of operands in turn that are looked at, where two tensors are in RAM together
    work_share: float = 0.15  # of the work limit, for all numbers of cuts
    placement_share: float = 0.08  # likewise, with an open placement, which plans of other relaxations choose
    widest_gap: float = 0.2  # from which on that has `work_share`, too: there no plan is near
    growth: float = 2.0  # times the work on the last relaxation: the next one begins if so much is left
    rounds: int = 30  # of HiGHS at the root: ten times as many prove .2 % more, in two to three times the time


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """The choice of an order (`orders.best_order`)."""

    most_operators: int = 1500  # larger problems keep their order: a few hundred moves find nothing there
    heats: tuple[float, ...] = (0.2, 0.05, 0.01, 0.2, 0.05)  # of the annealings: first temperature, of the overflow
    moves_per_operator: int = 150  # moves an annealing: the least of this and the next two
    most_moves: int = 8000
    moves_x_operators: int = 1_000_000
    move_s: float = 25e-6  # work a move
    move_operator_s: float = 55e-9  # work a move and operator, on top
    anneal_share: float = 0.5  # of the work on orders, for annealing
    raced: int = 3  # annealed orders that are raced
    runs: int = 12  # of the race of an order, at most
    least_runs: int = 3  # however large the problem is
    runs_x_operators: int = 2000  # runs times operators of such a race
    bound_every: int = 4  # of the positions of single cuts, every so many bounds an order
    tiny_share: float = 1e-3  # of the capacity: these bounds do without tensors of so many bytes in all
    near: float = 0.01  # fraction of the cost: within it, short races and bounds say little about two orders
    windows_share: float = 0.05  # of the work limit: windows of each order's schedule then decide
    clear: float = 0.2  # fraction of the cost: where a first schedule saves as much, its order is taken at once

    def moves(self, operators: int) -> int:
        """Moves of an annealing for a problem of this size."""
        return min(self.moves_per_operator * operators, self.most_moves, self.moves_x_operators // operators)

    def race_runs(self, operators: int) -> int:
        """Runs of a race for a problem of this size."""
        return max(self.least_runs, min(self.runs, self.runs_x_operators // operators))


@dataclass(frozen=True, slots=True)
class LowTrafficSettings:
    """The low-traffic order (`orders.low_traffic`)."""

    ahead: int = 6  # operators executed together because less is left between afterwards, at most


@dataclass(frozen=True, slots=True)
class RaceSettings:
    """Runs of the eviction heuristic (`search.race`, `search.plans`)."""

    fair_runs: int = 3  # every arm has so many before arms are compared
    explore: float = 0.25  # probability of any arm, in place of the best
    near_best: float = 0.5  # probability of a policy near the arm's best
    favours: tuple[float, ...] = (
        0.0,
        1.0,
        3.0,
    )  # added to the score of tensors that a relaxation holds, drawn from these
    # The weight on time, where there is a deadline: bisected between a weight that misses it and one that meets it.
    weight_factor: float = 4.0  # a larger weight, as long as none meets it
    weight_range: float = 64.0  # how far below one that meets it the search begins
    weight_near: float = 1.05  # the bisection ends within this factor
    weight_first: float = 0.05  # of the cost of a ns of the whole step: the first weight
    # Parameters of a random policy (see `search.eviction`), uniform in these ranges.
    alpha: tuple[float, float] = (0.2, 2.0)
    beta: tuple[float, float] = (0.0, 2.0)
    gamma: tuple[float, float] = (0.2, 1.5)
    spread: float = 0.2  # standard deviation of the logarithm of a parameter near another policy's
    noises: tuple[float, ...] = (0.0, 0.0, 0.1, 0.3, 0.8)  # standard deviation of the noise, drawn from these
    keep_noise: float = 0.7  # probability that a near policy has the other's noise too
    depth_first: float = 0.3  # probability that closures are made depth first


@dataclass(frozen=True, slots=True)
class EvictionSettings:
    """One run of the eviction heuristic (`search.eviction`)."""

    longest_closure: int = 300  # operators executed again for one tensor, at most
    executions_a_look: int = 64  # between two looks at the clock
    # Actions after which a run is given up, since it makes the same things again and again: the sum of these.
    actions_an_operator: int = 40
    actions_a_tensor: int = 4
    actions_anyway: int = 1000

    def most_actions(self, operators: int, tensors: int) -> int:
        """Actions of a run for a problem of this size."""
        return self.actions_an_operator * operators + self.actions_a_tensor * tensors + self.actions_anyway


@dataclass(frozen=True, slots=True)
class ExhaustiveSettings:
    """Exhaustive search (`search.exhaustive`)."""

    tries_a_state: int = 100  # sets of tensors to drop or page out, looked at for a state on average: at most
    tries_a_look: int = 4096  # between two looks at the clock


@dataclass(frozen=True, slots=True)
class FlattenSettings:
    """Peaks taken down (`search.flatten`)."""

    longest: int = 60  # operators made again for one tensor, at most
    patience: int = 40  # steps without a lower peak or less above the capacity, after which it is given up
    lateness: float = 0.05  # `beta`, for steps of a schedule


@dataclass(frozen=True, slots=True)
class UnwrittenSettings:
    """Tensors made again in place of being written (`search.unwritten`)."""

    most_operators: int = 2000  # larger problems are left
    rounds: int = 16  # with a clean-up after each, which makes room for others
    least_saved: float = 0.01  # of the cost: a round that saves less is the last, since others take as long
    unlooked: int = 50  # tensors between two looks at the clock, which may take longer than one of them
    late_s: float = 0.1  # seconds that it may take after the time is up: windows end with it, and new writes


@dataclass(frozen=True, slots=True)
class NestedSettings:
    """Nested checkpoints (`search.nested`)."""

    most_operators: int = 2000  # larger problems are left
    dear: float = 1.2  # times the cost of every operator once: cheaper schedules are left, little is made again
    most_segments: tuple[int, ...] = (144, 64)  # of two programs
    fewest_segments: int = 8  # shorter chains are left
    slots: int = 128  # the capacity; bytes are rounded up to slots
    memory: float = 1.6  # of the capacity: programs may count on it, since evictions take plans below it
    cheap: float = (
        0.01  # of the forward pass's cost: a tensor that takes less to make, of tensors in RAM, is not handed on
    )
    # Backward operators: one that needs an earlier segment is early where one of so many after it does not need it.
    ahead: int = 8
    memories: tuple[int, ...] = (0, 4, 8, 13, 20, 32, 48, 64, 80)  # memories, slots beyond the least that has a plan
    failures: int = 2  # memories in a row without a schedule, after which the program is left
    near: float = 1.08  # times the capacity: how far plans are flattened before evictions
    flattenings: int = 60  # steps of that, at most
    lateness: float = 0.5  # `beta` of that
    margin: float = 1.3  # times the overhead: plans this much dearer are followed, since clean-up makes them cheaper
    entry_s: float = 3e-9  # work a choice of a program
    try_s: float = 1e-3  # work a memory and action of its sequence


WHOLE = 0  # in place of a window's length: all decisions about which an LP disagrees with the schedule
WIDE = -1  # likewise: all decisions about tensors on which it disagrees


@dataclass(frozen=True, slots=True)
class NeighbourhoodSettings:
    """Windows of a schedule decided anew (`search.neighbourhoods`)."""

    # Windows tried in turn, the quickest first: length in executions, and how many operators deep candidates go.
    levels: tuple[tuple[int, int], ...] = (
        (WHOLE, 1),
        (WHOLE, 2),
        (WIDE, 1),
        (30, 2),
        (WHOLE, 3),
        (WIDE, 2),
        (60, 2),
        (120, 2),
    )
    nodes: int = 60  # of HiGHS's tree, at most
    rounds: int = 300  # of HiGHS at the root, at most
    gap: float = 1e-3  # how closely it is solved, and the least saving of a better schedule, in the MIP's units
    agreed: float = 1e-6  # how near an LP's value is to the schedule's for the two to agree
    few: int = 8  # columns kept at once: so few stand in every RAM row themselves
    most_in_lp: int = 12_000  # integer columns: larger LPs are not tried
    most_decisions: int = 1500  # integer columns of the MIP behind an LP: larger ones are not tried
    entry_s: float = 2.5e-6  # work a coefficient, beside HiGHS's iterations


@dataclass(frozen=True, slots=True)
class ListSettings:
    """A race whose schedules are judged by their lists side by side (`lists`)."""

    transfers: float = 0.7  # of the idle power, in the price of a transfer: work hides the rest
    work: float = 0.85  # of it, in the price of an operator: others run beside it
    shares: tuple[float, ...] = (0.995, 0.97)  # of the budget, in turn
    first: float = 0.5  # of the work, for all races: the one with the cheapest list has the rest
    near: float = 1.06  # times the least price so far: dearer schedules are not listed
    list_s: float = 9e-5  # the work of a list, an action


@dataclass(frozen=True, slots=True)
class CandidateSettings:
    """Schedules from elsewhere than the race (`candidates`)."""

    exhaustive_operators: int = 40  # up to so many, all schedules are searched
    exhaustive_states: int = 30_000  # at most
    flattened_operators: int = 3000  # up to so many, keep-all is flattened
    flattened_twice_operators: int = 500  # up to so many, without paging as well as with it
    flattened_late_operators: int = 1500  # up to so many, with the second lateness too
    lateness: tuple[float, ...] = (0.05, 0.5)  # `beta` of flattening
    overhead_factor: float = 1.5  # of the best schedule's: dearer ones are left, clean-up takes away a third at most


@dataclass(frozen=True, slots=True)
class HeuristicSettings:
    """Schedules of published heuristics (`search.heuristics`)."""

    most_operators: int = 400  # up to so many, the slow ones are asked too
    stop_share: float = 0.2  # of the time limit: where they stop on a slow machine


@dataclass(frozen=True, slots=True)
class SmallestBudgetSettings:
    """The smallest budget with a schedule (`search.smallest_budget`)."""

    resolution: int = 400  # the bisection ends within the lower bound divided by this, bytes
    step_factor: int = 4  # by which its steps grow as long as nothing is found
    first_runs: int = 3  # of the heuristic for a budget, before the bisection that takes more
    work_s: float = 4.0  # at most: DenseNet-121 takes a third of it
    tensors: int = 8  # the largest at the peak, which a message names


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """The search for a state placement (`placement.search`)."""

    rounds: int = 100  # of HiGHS at the root, times the effort
    nodes: int = 200  # of HiGHS's tree, times the effort
    gap: float = 1e-4  # how closely relaxations are solved
    gap_share: float = 0.25  # of the gap that was asked for, if that is more
    large_entries: int = 500_000  # coefficients, from which on they are solved less closely
    slack: float = 0.05  # of the gap left: how closely then
    most_entries: int = 1_500_000  # coefficients: larger relaxations with several cuts are not tried
    effort_factor: int = 4  # more work where no cut is new
    most_effort: int = 64  # times the first work
    small_operators: int = 200  # up to so many, all single cuts are solved, as MIPs; else some, as LPs
    coarse_cuts: int = 4  # of the positions of single cuts, every so many first; then beside the best
    coarse_tensors: int = 100  # problems with more tensors first do without their smallest
    free_share: float = 1e-3  # of the capacity: bytes of those smallest tensors, in all
    runs: int = 12  # of the race of a placement, at most
    runs_x_operators: int = 12_000  # runs times operators of it
    least_beside_share: float = 0.08  # of the work limit: work on schedules beside a relaxation, at least
    most_runs: int = 240  # beside a relaxation
    largest: int = 16  # state tensors that change places at the end
    tightened: int = 4  # plans for less RAM, where the first one needs a little too much
    tightened_gap: float = 1e-3  # how closely these are solved
    tightened_share: float = 0.05  # of the capacity: the most that is a little
    # Of the room beside the largest working set: the state in RAM that saves the most for its bytes.
    thrifty_shares: tuple[float, ...] = (0.05, 0.2, 1.0)
    near: float = 1.01  # times the best cost: placements whose races found as much are worth a solve
    nested_from: float = (
        0.9  # of the best cost: with the cost of every operator once below it, nested checkpoints are tried
    )


WORK = WorkSettings()
BESIDE = BesideSettings()
ENGINE = EngineSettings()
RELAXING = RelaxingSettings()
LADDER = LadderSettings()
CUTS = CutSettings()
BETWEEN = BetweenSettings()
SPREAD = SpreadSettings()
ORDERS = OrderSettings()
LOW_TRAFFIC = LowTrafficSettings()
RACE = RaceSettings()
EVICTION = EvictionSettings()
EXHAUSTIVE = ExhaustiveSettings()
FLATTEN = FlattenSettings()
UNWRITTEN = UnwrittenSettings()
NESTED = NestedSettings()
NEIGHBOURHOODS = NeighbourhoodSettings()
LISTS = ListSettings()
CANDIDATES = CandidateSettings()
HEURISTICS = HeuristicSettings()
SMALLEST_BUDGET = SmallestBudgetSettings()
PLACEMENT = PlacementSettings()
