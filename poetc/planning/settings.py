"""The settings of planning: one frozen record a stage.

Each field says its unit and its reason. Shares of work are of `work_limit_s`, which is the time limit unless given.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlainSettings:
    """Solving and packing a problem without choices (`plain`)."""

    # Shares of the time limit. HiGHS ends up to some seconds late, and some time is left to solve again.
    solve_share: float = 0.88  # the first solve
    pack_share: float = 0.075  # packing
    first_share: float = 0.01  # packing a first schedule for the log
    kept_share: float = 0.99  # of the cost of the best schedule that packs: a cheaper one is packed as it comes
    kept_effort: float = 0.05  # of the usual work of packing, for that
    quick_effort: float = 0.1  # of packing, where a good schedule is wanted soon
    tight_share: float = 0.5  # of the first solve, where its first schedule does not pack
    retry_share: float = 0.05  # with less time left than that, short races solve again, at most that much too late
    late_s: float = 1.0  # and no more than that many seconds too late
    attempts: int = 6  # to pack, each for a schedule that needs less
    moment_s: float = 0.001  # the time limit of a search for which no time is left
    late_from: float = 0.95  # of a solver's time limit: a solve that lasts so long was ended by the clock
    late_left: float = 0.5  # of the time limit of all: with more left, it is not the clock that ended the search


@dataclass(frozen=True, slots=True)
class StateSettings:
    """The placement of state (`state`)."""

    # Shares of the time limit, counted in work.
    order_share: float = 0.1  # the search for an order
    choice_share: float = 0.2  # the first search for a placement, before anything is solved
    more_share: float = 0.1  # each search after that, before another placement is solved
    least_share: float = 0.05  # the least that is left for one more placement
    # Of the time limit, on the clock: the end of the search on a slow machine. Half of it ends that for an order.
    stop_share: float = 0.6
    floor_s: float = 1.0  # the least work for a schedule once state is placed, but no more than `floor_share`
    floor_share: float = 0.1
    low_traffic_saves: float = 0.01  # of the cost with all state on the store: less is no sign that other orders profit
    worth_a_choice: float = 0.1  # of the budget: less state than that stays in RAM if it can
    looser: int = 4  # how often a placement gives way that leaves packing too little
    solves: int = 12  # for other placements, at most
    packed_instead: int = 6  # schedules for other placements, where the best does not pack


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """The choice of kernels (`kernels`)."""

    tight: float = 1.1  # times the RAM of the fastest kernels: smaller budgets have others considered at once
    open_share: float = 0.45  # of the time that is left, with kernels open
    chosen_share: float = 0.6  # of the time that is left then, for the choice
    floor_share: float = 0.1  # of the work limit: the least that a solve gets, but no more than `floor_s`
    floor_s: float = 1.0
    proof_share: float = 0.15  # of both limits, for a bound under the order of the answer
    fullest_share: float = 0.15  # of the time limit, at most, for the kernel of the fullest operator
    fullest_s: float = 0.5  # and so many seconds at least, if they are left
    rooms: int = 4  # of the room beside a schedule, so many parts are given back until it packs


@dataclass(frozen=True, slots=True)
class StreamingSettings:
    """The choice of streamed operands (`streaming`)."""

    # Of the room in RAM: an operator whose operands take more streams some of them. Each share is one proposal.
    shares: tuple[float, ...] = (1.0, 0.75, 0.5, 0.25)
    quick_shares: tuple[float, ...] = (1.0,)  # where a good schedule is wanted soon
    floor_share: float = 0.1  # of the time limit: the least that a proposal gets
    first_share: float = 0.4  # of the work, for all proposals in turn; the cheapest of them gets the rest
    # Of the budget: where an operator's operands take more, streams are tried although a schedule without them fits.
    crowded_share: float = 0.5
    promising_share: float = 0.8  # of the time limit, then, for schedules with streams
    proofs: int = 3  # operators, of those with the largest floors, that may prove a budget too small
    most_operands: int = 8  # of such an operator, since every set of them is looked at


@dataclass(frozen=True, slots=True)
class BankSettings:
    """The banks of tensors (`banks`)."""

    # Shares of the work limit. Each stage has `patience` times its share on the clock, for slow machines.
    patience: float = 2.0
    first_share: float = 0.4  # for a schedule for all RAM and the bound
    less_share: float = 0.15  # for each schedule for less RAM
    between: tuple[float, ...] = (0.0, 0.35, 0.7)  # from the RAM of the cheapest banks to that of the first schedule
    place_share: float = 0.15  # to choose banks for one schedule
    bound_share: float = 0.25  # for each bound on all placements
    repeat_share: float = 0.4  # to choose banks for schedules with repeated operators, in all
    attempts: int = 6  # to pack, each with less room in the banks that were too small
    tightenings: int = 4  # of the RAM of a schedule whose tensors fit in no banks
    tighter: float = 0.93  # of the RAM before
    tight_share: float = 0.05  # for each of these schedules
    late: float = 1.0  # of the time limit: how much later the search for a first schedule may end


@dataclass(frozen=True, slots=True)
class AlternativesSettings:
    """Options that are solved one after the other (`alternatives`)."""

    least_share: float = 0.02  # of the time limit, for each of them at least
    late_share: float = 0.25  # of the time limit, beyond it: where nothing is found yet, others are tried until then
    rival_patience: float = 1.5  # the same for the second round, which must leave time for the last one
    # Times its share of the time, on the clock: counted work is to end it, so that results repeat.
    patience: int = 4


@dataclass(frozen=True, slots=True)
class SavedSettings:
    """The choice of encodings (`saved`)."""

    operators_per_s: float = 40.0  # of the time limit: with more, a share of the limit finds no more than its schedule


@dataclass(frozen=True, slots=True)
class WaysSettings:
    """The ways of using several processors (`ways`)."""

    least_share: float = 0.02  # of the time limit, for each that is solved at least
    late_share: float = 0.25  # of the time limit, beyond it: where nothing is found yet, others are tried until then
    worth_share: float = 0.1  # of the time limit: with less another way is not begun once there is a schedule
    phases_share: float = 0.2  # of the time limit, at least, for the bound from the parts of a step
    in_order_share: float = 0.15  # of both limits, for the bound side by side under the order of another way
    apart_saves: float = 0.01  # of the cost, by an estimate: transfers beside the work that save more are tried first
    first_share: float = 0.1  # of the limits, for a schedule in turn, before transfers are tried apart
    near: float = 1.01  # times the cost of a way, by the steps at hand: dearer ways get no share beside it
    first_operators_per_s: float = 50.0  # of the time limit: with more operators that share finds nothing
    bounds_share: float = 0.22  # of the time limit, left for bounds at the end
    lists_share: float = 0.3  # of the time limit, left for lists side by side where RAM is short
    narrower: float = 0.1  # of the gap: a claim about fewer schedules that closes no more of it is not made
    equal: float = 1e-6  # relative: such costs are equal, and the faster way is taken
    patience: float = 1.2  # times its share of the time that is left, on the clock: a slow machine leaves some, too


@dataclass(frozen=True, slots=True)
class UpdatesSettings:
    """The choice of the updates that are trained (`updates`). Shares are of the time limit."""

    proofs: int = 8  # sets at the bound that may prove not to fit
    cheap: int = 12  # sets that are solved for by their least cost
    halvings: int = 7  # of the limits, for sets that fit with every tensor kept
    between: int = 4  # more of them, between one that fitted and one that did not
    shown: int = 10  # lines of progress while updates are built alone
    alone: int = 4  # updates that are tried alone, where no set was found
    try_share: float = 0.06  # for each set; the best one gets the rest
    mip_share: float = 0.1  # for each MILP
    proof_share: float = 0.6  # the least that is left for another set at the bound
    gap: float = 1e-4  # relative, of a MILP
    close: float = 2e-4  # of all importance: more than that is worth another set
    rounding: float = 1e-6  # relative
    # Parts of the limits, for sets that are solved for.
    parts: tuple[float, ...] = (0.995, 0.98, 0.95, 0.9, 0.8, 0.65, 0.45, 0.2)


@dataclass(frozen=True, slots=True)
class CurveSettings:
    """The curve over budgets (`curve`)."""

    cost: float = 3.0  # the time limit of a whole curve, in those of one solve
    at_once: float = 2.0  # a budget may take as long as so many of those that are left, since others need less


@dataclass(frozen=True, slots=True)
class InferenceSettings:
    """The inference plan (`inference`)."""

    late_share: float = 0.05  # of the limit: a search that ends so near to it was ended by it
    loose: float = 1.05  # keep-all that needs so much less RAM than there is packs
    attempts: int = 6  # to pack, each for a schedule that needs less


@dataclass(frozen=True, slots=True)
class SmallestRamSettings:
    """The search for the smallest RAM (`smallest_ram`)."""

    share: float = 0.1  # of a time limit, at most
    pack_share: float = 0.4  # of the search, for packing
    pack_s: float = 12.0  # work of packing a large schedule with all effort; moves save the rest
    nearly: float = 1.001  # an arena within this factor of the most that is alive at once is small enough
    attempts: int = 6  # to pack into the live bytes, or as little more as possible


@dataclass(frozen=True, slots=True)
class ArenaSettings:
    """Packing where transfers overlap compute (`arena`)."""

    attempts: int = 6  # to issue fewer transfers ahead


@dataclass(frozen=True, slots=True)
class OverlapSettings:
    """Shares of the time for transfers that overlap compute (`overlap`)."""

    first_part: float = 0.6  # of the time that is left, and of the work, for the first solve
    pack_share: float = 0.03  # of the time limit, for packing with page-ins issued ahead
    phases_share: float = 0.1  # of the time limit, at least, for the bound from the parts of a step
    parts: tuple[float, ...] = (0.6, 0.3)  # the same for each solve with another share


@dataclass(frozen=True, slots=True)
class BundleSettings:
    """Plans for several budgets and the switches between them (`bundle`, `safe_points`, `switching`)."""

    attempts: int = 6  # to pack a plan around the layout of the smallest, each for a schedule that needs less
    halvings: int = 24  # of the longest wait, to find the shortest that the flash pays for
    behind: int = 40  # joins behind the same operator that are looked at, at most
    most_transitions: int = 3  # of them, the most promising, for which a transition is made


PLAIN = PlainSettings()
STATE = StateSettings()
STREAMING = StreamingSettings()
KERNEL = KernelSettings()
BANK = BankSettings()
ALTERNATIVES = AlternativesSettings()
SAVED = SavedSettings()
WAYS = WaysSettings()
UPDATES = UpdatesSettings()
CURVE = CurveSettings()
INFERENCE = InferenceSettings()
SMALLEST_RAM = SmallestRamSettings()
ARENA = ArenaSettings()
OVERLAP = OverlapSettings()
BUNDLE = BundleSettings()
