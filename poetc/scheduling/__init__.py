"""The scheduling problem and its answers: Problem, Schedule, the checker, packing.

docs/reference/formats.md describes their files.
"""

from poetc.scheduling._banks import allocation_banks, arrival_banks
from poetc.scheduling._checker import ScheduleError, Trace, trace_of, verify, verify_parts
from poetc.scheduling._completion import Completer, Completion, Decision, choose_pairs, complete
from poetc.scheduling._joined import joined
from poetc.scheduling._json import (
    plan_from_json,
    plan_to_json,
    problem_from_json,
    problem_schema,
    problem_to_json,
    schedule_from_json,
    schedule_to_json,
)
from poetc.scheduling._keep_all import keep_all, keep_all_decisions, keep_all_peak_bytes
from poetc.scheduling._packing import Lifetime, lifetimes_of, pack, pack_around
from poetc.scheduling._plan_checker import PlanError, verify_plan
from poetc.scheduling._queues import FROM_STORE, TO_STORE
from poetc.scheduling._recent import for_recent, remember
from poetc.scheduling._relocation import pack_with_moves, without_moves
from poetc.scheduling._state import (
    all_in_ram,
    movable_state,
    on_store,
    state_chains,
    stored_state,
    unchanged_state,
)
from poetc.scheduling._transfers import settled
from poetc.scheduling._validation import validate_problem
from poetc.scheduling.objective import Objective
from poetc.scheduling.problem import (
    BankSpec,
    Elsewhere,
    InPlace,
    OperatorSpec,
    Paging,
    Place,
    Problem,
    ProcessorSpec,
    TensorSpec,
    Variant,
)
from poetc.scheduling.schedule import (
    DEFAULT_GAP,
    TRAINING_GAP,
    Action,
    Allocation,
    BankUse,
    Compute,
    Free,
    MemoryPlan,
    Move,
    PageIn,
    PageOut,
    Proof,
    Schedule,
    SolveOptions,
    Status,
    first_executions,
)
from poetc.scheduling.scope import ANY, Repetition, Scope
from poetc.scheduling.switch import Stay, Switch, Transition, buffer_offset

__all__ = [
    "ANY",
    "DEFAULT_GAP",
    "FROM_STORE",
    "TO_STORE",
    "TRAINING_GAP",
    "Action",
    "Allocation",
    "BankSpec",
    "BankUse",
    "Completer",
    "Completion",
    "Compute",
    "Decision",
    "Elsewhere",
    "Free",
    "InPlace",
    "Lifetime",
    "MemoryPlan",
    "Move",
    "Objective",
    "OperatorSpec",
    "PageIn",
    "PageOut",
    "Paging",
    "Place",
    "PlanError",
    "Problem",
    "ProcessorSpec",
    "Proof",
    "Repetition",
    "Schedule",
    "ScheduleError",
    "Scope",
    "SolveOptions",
    "Status",
    "Stay",
    "Switch",
    "TensorSpec",
    "Trace",
    "Transition",
    "Variant",
    "all_in_ram",
    "allocation_banks",
    "arrival_banks",
    "buffer_offset",
    "choose_pairs",
    "complete",
    "first_executions",
    "for_recent",
    "joined",
    "keep_all",
    "keep_all_decisions",
    "keep_all_peak_bytes",
    "lifetimes_of",
    "movable_state",
    "on_store",
    "pack",
    "pack_around",
    "pack_with_moves",
    "plan_from_json",
    "plan_to_json",
    "problem_from_json",
    "problem_schema",
    "problem_to_json",
    "remember",
    "schedule_from_json",
    "schedule_to_json",
    "settled",
    "state_chains",
    "stored_state",
    "trace_of",
    "unchanged_state",
    "validate_problem",
    "verify",
    "verify_parts",
    "verify_plan",
    "without_moves",
]
