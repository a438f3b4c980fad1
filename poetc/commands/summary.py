"""The answer of `poetc solve --json`, which `summary.json` of a solved directory holds too."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from poetc import reporting
from poetc.commands import programs
from poetc.commands.from_profile import guesses_of, wear_of
from poetc.commands.requests import SolveRequest, processors_of
from poetc.devices import DeviceProfile, equal_cores, fit_notes
from poetc.devices.profile import MAIN
from poetc.devices.streaming import may_stream
from poetc.graph import TrainingGraph
from poetc.output_directory import digest
from poetc.planning import ENGINE, BestUpdates, Solution, ram_bytes
from poetc.planning.importance import update_text
from poetc.planning.kernels import low_workspace_operators
from poetc.planning.pieces import longest_piece
from poetc.planning.solution import least_once
from poetc.planning.ways import CoreUsage
from poetc.program import Program, lower
from poetc.scheduling import MemoryPlan, Objective, Trace, stored_state, verify
from poetc.scheduling.problem import Problem


def summary_of(
    request: SolveRequest,
    asked: Problem,
    keep_all_bytes: int,
    solution: Solution,
    step: TrainingGraph | None,
    profile: DeviceProfile | None,
    min_budget_bytes: int | None,
    started: float,
    notes: Sequence[str] = (),
    saved: Sequence[dict[str, Any]] = (),
    once: Sequence[Problem] = (),
    program: Program | None = None,
) -> dict[str, Any]:
    """The answer of `solve --json`.

    `asked`: the problem with its choices open. `keep_all_bytes`: the RAM that a budget in per cent refers to.

    `min_budget_bytes`: the smallest one found; None where nobody searched for it. `started`: by `time.perf_counter`.
    `saved`: the encodings of saved tensors. `once`: the problems of all ways before other choices, for the cost of
    computing once; none: that of the solution. `program`: that of `step`, if it is lowered already.
    """
    problem, schedule, plan = solution.problem, solution.schedule, solution.plan
    trace, streamed = verify(problem, schedule), sum(op.is_streamed for op in problem.operators)
    if program is None and step is not None:
        program = lower(step, problem, schedule, plan)
    once_pj, once_ns = (least_once(once or (problem,), objective) for objective in (Objective.ENERGY, Objective.TIME))
    cores = _core_ways(request, solution, profile)
    proof, needed_bytes = schedule.proof, ram_bytes(problem, plan)
    stored_bytes = sum(problem.tensors[chain[0]].size_bytes for chain in stored_state(problem))
    budget_bytes = 0 if problem.banks else problem.budget_bytes  # that of a bank is at most the bank
    return {
        "status": proof.status.value,
        "energy_pj": trace.energy_pj,
        "energy_bound_pj": proof.bound if problem.objective is Objective.ENERGY else once_pj,
        "compute_once_pj": once_pj,
        "compute_once_ns": once_ns,
        "objective": problem.objective,
        "gap": proof.gap(),
        "asked_gap": request.options.gap,
        "overhead_gap": proof.overhead_gap(problem.objective.cost(once_pj, once_ns)),
        "schedule_class": reporting.scope_sentence(proof.scope, cores),
        "core_ways": cores,
        "scope": proof.scope.kinds(),
        "time_ns": trace.time_ns,
        "stall_ns": trace.stall_ns,
        "longest_piece": asdict(longest_piece(problem, schedule)),
        "longest_piece_limit_ns": request.longest_ns,
        "deadline_ns": problem.deadline_ns,
        "budget_bytes": problem.budget_bytes,
        "peak_bytes": programs.peak_bytes(program, solution, trace),
        "live_bytes": trace.peak_bytes,
        "arena_bytes": plan.arena_bytes,
        "ram_bytes": needed_bytes,
        **_banks(problem, trace, plan),
        "keep_all_peak_bytes": keep_all_bytes,
        "min_budget_bytes": needed_bytes if min_budget_bytes is None else min(min_budget_bytes, needed_bytes),
        "min_budget_searched": min_budget_bytes is not None,
        "recomputes": trace.recomputes,
        "recomputed_operators": sum(n > 1 for n in trace.executions),
        "streamed_operators": streamed,
        "overlapping_operators": sum(op.overlaps for op in problem.operators),
        "may_stream": request.solver == ENGINE and profile is not None and may_stream(problem),
        "page_outs": trace.page_outs,
        "page_ins": trace.page_ins,
        "low_workspace_kernels": len(low_workspace_operators(asked, problem)),
        "moves": trace.moves,
        "moved_bytes": trace.moved_bytes,
        "move_pj": trace.move_pj,
        "move_ns": trace.move_ns,
        "saved": list(saved),
        "state": request.state_mode,
        "state_on_store_bytes": stored_bytes,
        "store_bytes": trace.store_bytes,
        "store_written_bytes": trace.written_bytes,
        "store_write_limit_bytes": problem.write_limit_bytes,
        **wear_of(problem, schedule, profile, trace.time_ns),
        "guesses": guesses_of(problem, schedule, profile, trace),
        "operators": len(problem.operators),
        "solver": schedule.solver,
        "solve_seconds": round(time.perf_counter() - started, 3),
        "model": str(request.model.source),
        "source": _source(request),
        "device": problem.device,
        "micro_batches": step.options["micro_batches"] if step else 1,
        "threads": CoreUsage.option(solution) or 1,
        "one_core_of": _unused_cores(solution, profile),
        **_worth(solution),
        "notes": [
            *(step.notes if step else ()),
            *notes,
            *(fit_notes(step, profile, budget_bytes, stored_bytes) if step and profile else ()),
        ],
        "out": str(request.out) if request.out is not None else None,
    }


def _core_ways(request: SolveRequest, solution: Solution, profile: DeviceProfile | None) -> dict[str, Any] | None:
    """The cores, and the number of ways of using them for all of which the bound holds; None where there was one."""
    if profile is None or not solution.ways:
        return None
    return {"cores": [MAIN, *processors_of(request, profile)], "ways": len(solution.ways)}


def _unused_cores(solution: Solution, profile: DeviceProfile | None) -> int | None:
    """The number of equal cores of the device, if only schedules for one of them were searched; else None."""
    cores = 1 + len(equal_cores(profile)) if profile else 1
    several = solution.ways or solution.problem.processors or CoreUsage.option(solution) is not None
    return cores if cores > 1 and not several else None


def _banks(problem: Problem, trace: Trace, plan: MemoryPlan) -> dict[str, Any]:
    """The use of each bank of RAM; nothing where the problem names none."""
    if not problem.banks:
        return {}
    rows = [
        {"name": b.name, "budget_bytes": b.budget_bytes, "peak_bytes": peak, "arena_bytes": use.arena_bytes}
        for b, peak, use in zip(problem.banks, trace.bank_peaks, plan.banks, strict=True)
    ]
    return {"banks": rows, "bank_pj": trace.bank_pj, "bank_ns": trace.bank_ns}


def _source(request: SolveRequest) -> dict[str, Any] | None:
    """The data by which `poetc export` finds and reads the ONNX file; None for a Problem.

    The batch is that of predictions."""
    model = request.model
    if request.is_problem:
        return None
    return {
        "path": str(model.source.absolute()),
        "sha256": digest(model.source),
        "batch": model.infer_batch or model.batch,
        "dim": model.training.dim,
        "shape": model.training.shape,
        "constant": model.training.constant,
        "random_weights": model.training.random_weights,
        "new_head": model.training.new_head,
        "output": model.training.output,
        "head_seed": model.training.head_seed,
        **({"train": model.training.train, "lora": list(model.training.lora)} if model.training.lora else {}),
    }


def _worth(solution: Solution) -> dict[str, Any]:
    """The importance of the updates, and their names; None where they were not chosen."""
    worth, updates = solution.worth, BestUpdates.option(solution)
    if worth is None or updates is None:
        return dict.fromkeys(("updates", "importance", "importance_bound", "importance_total", "cost_bound"))
    train, lora = updates.options()
    return {
        "updates": {"train": train, "lora": list(lora), "names": [f"{n} {update_text(u)}" for n, u in updates]},
        "importance": worth.value,
        "importance_bound": worth.bound,
        "importance_total": worth.total,
        "cost_bound": worth.cost_bound,
    }
