"""The settings of the published methods: one frozen record a method, with the paper's value where it gives one.

Each field says its unit and its reason. Limits on size keep a method from taking minutes where another solver takes
seconds: it says so and ends.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BinarySettings:
    """Formulations whose binaries grow with the square of the operators (`poet`, `checkmate`, `moccasin`)."""

    poet_operators: int = 140  # at most: beyond, PuLP takes minutes to build the model alone
    checkmate_operators: int = 160  # at most: T^2 is some 25,000 binaries then
    moccasin_operators: int = 160  # at most: the number of binaries is that of Checkmate
    moccasin_intervals: int = 2  # in which a tensor is retained: C, as in the paper's experiments
    integral: float = 0.5  # a binary above this is one: HiGHS's values are off by its tolerances
    small: float = 1e-9  # in units of the row: a row without columns holds if it is missed by less
    closed: float = 1e-7  # fraction of the cost: POET's optimum is proven where its gap is at most this


@dataclass(frozen=True, slots=True)
class RoundingSettings:
    """Checkmate's LP, rounded (`checkmate_lp`)."""

    most_operators: int = 220  # at most: larger LPs take minutes
    threshold: float = 0.5  # S is rounded up from here on, as in the paper
    # Shares of the budget that the LP is given, in turn: rounding adds to the RAM. The paper takes the first.
    allowances: tuple[float, ...] = (0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5)
    start_share: float = 0.3  # of the time limit of a MILP, at most, for the LP that it begins with
    least_s: float = 0.1  # time limit of an LP that starts when time is nearly up


@dataclass(frozen=True, slots=True)
class SlotSettings:
    """A dynamic program over slots of memory. It only estimates memory, so that several are tried."""

    slots: int  # of the budget: time and memory of the program grow with their number
    steps: int  # a budget: memories that are tried between one and none
    most: int = 2  # in budgets, the largest memory: the estimate may be twice the need of the replay
    least_share: int = 10  # the smallest memory is the budget over this: the estimate errs by less

    def memories(self) -> range:
        """The memories that are tried, in slots, from the largest down."""
        return range(self.most * self.slots, self.slots // self.least_share, -max(1, self.slots // self.steps))


@dataclass(frozen=True, slots=True)
class LowerSetSettings:
    """Dynamic programs over lower sets (`kusumoto`, `kusumoto_approx`)."""

    most_sets: int = 600  # lower sets, at most: time and memory of the exact program grow with their square
    units: int = 400  # parts of the forward pass's cost, in which recomputation is counted
    least_unit: float = 1e-12  # cost of such a part, where nothing costs anything
    # Memories that are tried, in per cent of the budget: the estimate leaves weights out.
    most_percent: int = 200
    least_percent: int = 5
    step_percent: int = 6

    def percents(self) -> range:
        """The memories that are tried, in per cent of the budget, from the largest down."""
        return range(self.most_percent, self.least_percent, -self.step_percent)


@dataclass(frozen=True, slots=True)
class OnlineSettings:
    """Methods that simulate a step and evict on demand (`_online`)."""

    thrashing: int = 20  # recomputation, in costs of the whole step, beyond which a simulation is given up
    time_check: int = 16  # operators between two looks at the clock: it costs hardly any time then


@dataclass(frozen=True, slots=True)
class ChenSettings:
    """Chen's greedy segments (`chen_greedy`)."""

    thresholds: int = 50  # values of b that are tried, in even steps up to the sum of bytes


@dataclass(frozen=True, slots=True)
class MelonSettings:
    """Melon's calibration (`melon`)."""

    rounds: int = 12  # runs with less and less RAM: a run takes time in proportion to the operators


@dataclass(frozen=True, slots=True)
class SageSettings:
    """Sage's inlining (`sage`)."""

    cone: int = 5  # operators times inputs of a cone that is still inlined: it runs again for each reader


@dataclass(frozen=True, slots=True)
class GeneticSettings:
    """SwapAdvisor's genetic search (`swapadvisor`)."""

    population: int = 12  # individuals of a generation
    generations: int = 12  # at most
    evaluations_x_operators: int = 30_000  # simulated steps times operators, at most: larger problems have fewer
    mutations: int = 4  # operators that a mutation moves, at most


BINARY = BinarySettings()
ROUNDED = RoundingSettings()
ROTOR = SlotSettings(slots=400, steps=80)
POFO = SlotSettings(slots=200, steps=50)
LOWER_SETS = LowerSetSettings()
ONLINE = OnlineSettings()
CHEN = ChenSettings()
MELON = MelonSettings()
SAGE = SageSettings()
GENETIC = GeneticSettings()
