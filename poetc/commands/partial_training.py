"""The parts of a training step that the chosen parameters do without, beside training all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from poetc import boards, emit
from poetc.commands.requests import ModelRequest, training_graph, with_any_weights
from poetc.devices import build_problem, load_profile
from poetc.devices.saved import saved_bytes
from poetc.graph import Graph, TrainingGraph
from poetc.ops import bind, spec
from poetc.scheduling import keep_all_peak_bytes
from poetc.scheduling.problem import Problem


def savings_of_part(
    request: ModelRequest, step: TrainingGraph, problem: Problem, load: Callable[[ModelRequest], Graph]
) -> dict[str, Any] | None:
    """The bytes, work, operators and kernels that `step` saves; None where all is trained.

    `load` reads the model. `code_bytes`: of the kernels that are not needed, None for devices without firmware.
    """
    options = request.training
    if options.train == "all" and not options.lora:
        return None
    everything = replace(request, training=replace(options, train="all", lora=(), lr_for=(), weight_decay_for=()))
    whole = training_graph(with_any_weights(everything), load)[1]
    profile = load_profile(request.device)
    full = build_problem(whole, profile, budget_bytes=0)
    before, after = _work(whole), _work(step)
    board = boards.board_like(profile.name, profile.cpu.core, profile.cpu.fpu)
    code_bytes = None
    if board is not None and emit.is_measured(board):
        code_bytes = emit.kernel_bytes(before[1], board) - emit.kernel_bytes(after[1], board)
    return {
        "saved_bytes": saved_bytes(full) - saved_bytes(problem),
        "keep_all_peak_bytes": keep_all_peak_bytes(full) - keep_all_peak_bytes(problem),
        "macs": before[0] - after[0],
        "time_ns": full.compute_once_ns - problem.compute_once_ns,
        "energy_pj": full.compute_once_pj - problem.compute_once_pj,
        "operators": len(whole.operators) - len(step.operators),
        "kernels": sorted(before[1] - after[1]),
        "code_bytes": code_bytes,
    }


def _work(step: TrainingGraph) -> tuple[int, set[str]]:
    """Multiply-accumulates, and the symbols of the kernels."""
    bound = [(spec(op.kind), bind(op, step.tensors)) for op in step.operators]
    macs = sum(kind.work(op).macs for kind, op in bound)
    return macs, {kind.kernel(op).symbol for kind, op in bound if not kind.is_view}
