"""What is made of a solved directory: C, a validation, a report. A command parses, calls one function here, prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from poetc import artifact, codegen, reporting
from poetc.artifact import Artifact
from poetc.codegen import Validation
from poetc.codegen.program import Program
from poetc.devices import build_problem
from poetc.errors import CheckFailed, UsageError
from poetc.events import Progress, silent
from poetc.files import read_arrays, write_text
from poetc.graph import Array, TrainingGraph
from poetc.output_directory import replace_file
from poetc.planning import Choices, Kernels, Planner, Solution, StatePlacement, inference, solve_curve
from poetc.planning.kernels import choice_of
from poetc.planning.state import placement_of
from poetc.reporting import budget_curve
from poetc.scheduling import (
    DEFAULT_GAP,
    Paging,
    Problem,
    ScheduleError,
    SolveOptions,
    all_in_ram,
    keep_all,
    pack,
)


def training_program(solved: Artifact) -> Program:
    """The training step under the schedule that was solved."""
    return codegen.lower(_graph(solved), solved.problem, solved.schedule, solved.plan)


def keep_all_program(solved: Artifact) -> Program:
    """The same step with every tensor kept until its last use, and all state in RAM."""
    problem = all_in_ram(solved.problem)
    schedule = keep_all(problem)
    return codegen.lower(_graph(solved), problem, schedule, pack(problem, schedule))


def inference_program(solved: Artifact, training: Program) -> Program | None:
    """The model itself, on the state and the constants of `training`. None if the model was not recorded."""
    if solved.inference is None or solved.profile is None:
        return None
    found = inference.InferencePlan(
        problem=solved.inference_problem, schedule=solved.inference_schedule, plan=solved.inference_plan
    )
    return inference.program(solved.inference, solved.profile, solved.problem, training, found)


def _graph(solved: Artifact) -> TrainingGraph:
    if solved.graph is None:
        raise UsageError("solved from a problem alone: there is no model in it to run; solve the ONNX file itself")
    return solved.graph


def memory_of(solved: Artifact) -> codegen.Memory:
    """The RAM that firmware is linked for: the budget that was solved for, and in it the profile's stack."""
    if solved.profile is None:
        raise UsageError("solved without a device profile: its stack is not known; run poetc solve again")
    return codegen.Memory(solved.problem.budget_bytes, int(solved.profile.memory.stack_bytes.value))


SIZE_KEYS = ("flash_bytes", "flash_code_bytes", "flash_tables_bytes", "flash_image_bytes", "firmware_ram_bytes")


def predicted_sizes(solved: Artifact) -> dict[str, Any]:
    """Flash and RAM that firmware for the solved device takes, before anything is compiled; every value None for
    devices that no firmware is built for. `firmware_ram_bytes`: stack, variables and arena, as linked.
    """
    profile = solved.profile
    board = None if profile is None else codegen.board_like(profile.name, profile.cpu.core, profile.cpu.fpu)
    if board is None or solved.graph is None:
        return {"firmware_board": None, **dict.fromkeys(SIZE_KEYS)}
    size = codegen.firmware_size(training_program(solved), board, memory=memory_of(solved))
    values = (size.flash_bytes, size.code_bytes, size.tables_bytes, size.image_bytes, size.ram_bytes)
    return {"firmware_board": board.name, **dict(zip(SIZE_KEYS, values, strict=True))}


def require_room(program: Program, board: codegen.Board, size: codegen.FirmwareSize) -> None:
    """UsageError where a board has less RAM or flash than the firmware will take: before the linker has to say it."""
    assert board.ram is not None and board.code is not None
    stack, excess = size.ram_bytes - size.arena_bytes, size.ram_bytes - board.ram.size_bytes
    if excess > 0:
        raise UsageError(
            f"{board.name} has {board.ram.size_bytes} bytes of RAM; the arena of {program.arena_bytes} with {stack} for"
            f" stack and variables needs {size.ram_bytes}, {excess} too many: solve for --budget"
            f" {board.ram.size_bytes} or less"
        )
    excess = size.flash_bytes - board.code.size_bytes
    if excess > 0:
        raise UsageError(
            f"{board.name} has {board.code.size_bytes} bytes of flash; code, tables and initial state need about"
            f" {size.flash_bytes}, {excess} too many: train a smaller model, or emit for a board with more"
        )


def emit(
    directory: Path,
    target: str,
    out: Path,
    progress: Progress = silent,
    *,
    board: str | None = None,
    numerics: codegen.Numerics = "portable",
    checkpoint: int | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Write C for `target` (and `board`, for firmware) to `out`; what it needs, in bytes. `force`: files there that the
    user changed are replaced, and copies kept.
    """
    solved = artifact.read(directory)
    device = _core(solved)
    chosen, its_board = codegen.resolve(target, board, numerics == "portable", device)
    notes = list(solved.notes)  # such as weights that were absent: what is emitted starts from other numbers
    if device is not None:
        notes += codegen.check_device(target, board, device, solved.problem.device)
    progress("lowering")
    training = training_program(solved)
    inference = inference_program(solved, training)
    programs = [training] if inference is None else [training, inference]
    if chosen.build == "firmware":
        # Firmware has RAM for the training step; the model itself comes along where it needs no more.
        programs = [p for p in programs if p.arena_bytes <= training.arena_bytes]
    size = _firmware_size(training, its_board, numerics, memory_of(solved), checkpoint)
    progress("writing C")
    graph = _graph(solved)
    # Inference may read constants that training dropped.
    values = {**(solved.inference.values if solved.inference else {}), **graph.values}
    copies: list[str] = []
    codegen.emit(
        programs,
        values,
        model=graph.name.removesuffix(".onnx"),
        target=target,
        out_dir=out,
        numerics=numerics,
        board=board,
        memory=memory_of(solved),
        device=device,
        checkpoint=checkpoint,
        force=force,
        copies=copies,
    )
    arena_bytes, budget_bytes = max(program.arena_bytes for program in programs), solved.problem.budget_bytes
    if arena_bytes > training.arena_bytes and solved.problem.base_bytes + arena_bytes > budget_bytes:
        notes.append(
            f"training fits the budget of {budget_bytes:,} bytes with an arena of {training.arena_bytes:,};"
            f" predictions with the program infer take one of {arena_bytes:,}"
        )
    return {
        "out": str(out),
        "target": target,
        "board": its_board.name if its_board is not None else None,
        "device": solved.problem.device,
        "core": device.name if device is not None else None,
        "flags": chosen.flags,
        "makes": codegen.GOALS[chosen.build],
        "programs": [program.name for program in programs],
        "arena_bytes": arena_bytes,
        "train_arena_bytes": training.arena_bytes,
        "state_bytes": training.state_bytes,
        "flash_bytes": max(program.flash_bytes for program in programs),
        "store_bytes": max(codegen.store_blocks(p) for p in programs) * training.block_bytes,
        "steps": len(training.instructions),
        "firmware_flash_bytes": size.flash_bytes if size else None,
        "firmware_ram_bytes": size.ram_bytes if size else None,
        "copies": copies,
        "notes": notes,
    }


def _firmware_size(
    program: Program,
    board: codegen.Board | None,
    numerics: codegen.Numerics,
    memory: codegen.Memory,
    checkpoint: int | None,
) -> codegen.FirmwareSize | None:
    """Of what is emitted, if that is firmware; UsageError where the board has no room for it."""
    if board is None or board.code is None:
        return None
    size = codegen.firmware_size(program, board, numerics=numerics, memory=memory, checkpoint=checkpoint)
    require_room(program, board, size)
    return size


def _core(solved: Artifact) -> codegen.Core | None:
    if solved.profile is None:
        return None
    cpu = solved.profile.cpu
    return codegen.Core(cpu.core, cpu.fpu, cpu.simd)


@dataclass(frozen=True, slots=True)
class Checked:
    """A validation as `poetc validate` answers it. Peaks are of the RAM that a budget counts."""

    document: Mapping[str, Any]
    problems: tuple[str, ...]

    def require(self) -> None:
        """Raise CheckFailed if something does not hold."""
        if self.problems:
            raise CheckFailed("; ".join(self.problems), details=self.document)


def validate(directory: Path, reference: Path | None = None, progress: Progress = silent) -> Checked:
    """Compile and run the emitted C on this machine, and compare."""
    solved = artifact.read(directory)
    expected = None if reference is None else _read_reference(reference)
    progress("lowering")
    training, kept = training_program(solved), keep_all_program(solved)
    progress("compiling and running")
    graph = _graph(solved)
    result: Validation = codegen.validate(
        training, kept, graph.values, reference=expected, zero_gradients=graph.zero_gradients
    )
    problems = result.problems()
    base_bytes = solved.problem.base_bytes
    document = {
        **result.to_json(),
        "passed": not problems,
        "peak_predicted_bytes": base_bytes + result.peak_predicted_bytes,
        "peak_measured_bytes": base_bytes + result.peak_measured_bytes,
    }
    return Checked(document, problems)


def _read_reference(path: Path) -> dict[str, Array]:
    return read_arrays(path, "; docs/SPEC.md says what a reference holds")


def _asked(solved: Artifact, state: str) -> tuple[Problem, Solution]:
    """The problem before kernels and the placement of state were chosen, and the solution in its words.

    Where an earlier version of poetc solved it, whose costs were others, the kernels are those that were chosen.
    """
    problem = asked = solved.problem
    if solved.graph is not None and solved.profile is not None:
        paging = problem.paging if problem.paging is Paging.DMA else None
        built = build_problem(solved.graph, solved.profile, budget_bytes=problem.budget_bytes, paging=paging)
        asked = replace(
            built,
            deadline_ns=problem.deadline_ns,
            objective=problem.objective,
            paging=problem.paging,
            write_limit_bytes=problem.write_limit_bytes,
        )
    try:
        kernels = choice_of(asked, problem)
    except (ScheduleError, ValueError):
        asked = all_in_ram(problem)
        kernels = choice_of(asked, problem)
    choices = Choices(kernels=kernels, state=placement_of(asked, problem) if state == "auto" else None)
    return asked, Solution(problem=problem, schedule=solved.schedule, plan=solved.plan, choices=choices)


def report(
    directory: Path, html: Path | None = None, curve_s: float | None = None, progress: Progress = silent
) -> tuple[dict[str, Any], str]:
    """Totals and text; the page also goes to `html` if that is given. `curve_s`: with a curve of other budgets in the
    page, each of them solved for so long if it were alone.
    """
    solved = artifact.read(directory)
    reports = reporting.reports(solved)
    if curve_s is not None:
        options = SolveOptions(time_limit_s=curve_s, gap=DEFAULT_GAP)
        state = str(solved.summary.get("state", "ram"))
        problem, known = _asked(solved, state)
        planner = Planner(options=options, reductions=(Kernels(), StatePlacement(state)), progress=progress)
        points = solve_curve(problem, budget_curve.budgets(problem), planner, known)
        section = budget_curve.section(problem, points)
        reports["report.html"] = reporting.html(reporting.Solved.from_artifact(solved), section)
        html = html or directory / "report.html"
    page = directory / "report.html"
    if html is not None and html.resolve() != page.resolve():
        write_text(html, reports["report.html"])
        page = html
    elif html is not None or not page.exists():
        replace_file(directory, artifact.KIND, page.name, reports[page.name])
    document = {**json.loads(json.dumps(solved.summary)), "report": str(page)}
    return document, f"{reports['report.txt']}\nPage: {page}\n"
