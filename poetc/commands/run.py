"""The work of `poetc run`: a solved directory on an emulated board, or on this machine, measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from poetc import artifact, boards, emit, measure
from poetc.artifact import Artifact
from poetc.batches import read_batches
from poetc.boards import BOARDS
from poetc.commands import programs
from poetc.commands.band import ENDS, priced_as, without_price
from poetc.devices import DeviceProfile, build_problem, load_profile
from poetc.devices.modelled import at_end
from poetc.errors import CheckFailed, UsageError
from poetc.events import Progress, silent
from poetc.files import scratch_directory
from poetc.graph import Array, TrainingGraph, Value
from poetc.output_directory import Kind, check_replaceable, replacing
from poetc.program import Call, Move, PageIn, PageOut, Program, bank_high_water, chance_loss, slot_blocks
from poetc.scheduling import Problem

OnStep = Callable[[int, float], None]
SHOWN = 3  # operators in a note
ABSURD = 3  # times the loss of guessing, for a first loss
PRODUCTS = ("counter.so", *(f"src/{name}" for name in emit.PRODUCTS))
KEPT = Kind("poetc-run.json", "files of poetc run", "--keep", PRODUCTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """`on`: qemu:BOARD or host. `steps`: default one pass over the data, or DEFAULT_STEPS of random data without any.

    `keep`: where the emitted project (src) and the files of the run (run) stay. `force`: files there that the user
    changed are replaced, and copies kept.
    """

    directory: Path
    on: str
    steps: int | None = None
    data: Path | None = None
    numerics: boards.Numerics | None = None
    keep: Path | None = None
    force: bool = False
    checkpoint: int | None = None
    gradients: bool = False
    any_range: bool = False  # train on inputs that look as if nobody had scaled them


def board_names() -> list[str]:
    """The values that `--on` takes."""
    return ["host", *(f"qemu:{name}" for name in BOARDS)]


def run(request: RunRequest, progress: Progress, on_step: OnStep, note: Progress = lambda text: None) -> dict[str, Any]:
    """Emit, build, run, measure.

    `note` gets the suspicious facts about the data. Raises UsageError without the toolchain and for data that cannot be
    trained on, CheckFailed where something does not hold or the loss is no number.
    """
    board = _board(request.on)
    if board is None:
        _require_host(request)
    if request.keep is not None:
        check_replaceable(request.keep, KEPT, force=request.force, names=())
    if board is not None:
        boards.require_toolchain(boards.find_board(board))
    solved = artifact.read(request.directory)
    target = "host" if board is None else boards.find_board(board).target
    numerics = programs.numerics_of(solved, target, board, request.numerics)
    request = replace(request, numerics=numerics)
    progress("lowering")
    program = programs.training_program(solved, None if board is None else boards.find_board(board))
    batches = read_batches(program, request.data, request.steps, note, any_range=request.any_range)
    assert solved.graph is not None  # training_program says so
    values = solved.graph.values
    copies: list[str] = []
    with _place(request, copies) as directory:
        if board is None:
            progress("compiling for this machine")
            document = _on_host(request, numerics, solved, program, values, batches, directory, on_step)
        else:
            document = _on_board(request, board, solved, program, values, batches, directory, progress, on_step, note)
    for text in _odd_losses(document["losses"], chance_loss(program)):
        note(text)
    return {**document, "copies": copies}


def _odd_losses(losses: Sequence[float], chance: float | None) -> Iterator[str]:
    """Suspicious facts about the losses of all steps, as the emitted programs judge them. `chance`: of guessing."""
    if chance is not None and losses[0] > ABSURD * chance:
        yield (
            f"the first loss is {losses[0]:.3g}, that of guessing {chance:.3g}: are inputs scaled and classes numbered"
            " as the model was trained?"
        )
    if len(losses) >= 16 and 0 < 2 * sum(losses[:4]) < sum(losses[-4:]):
        yield "the loss rose to more than twice its first value: lower the learning rate, or scale the inputs"


def _on_board(
    request: RunRequest,
    board: str,
    solved: Artifact,
    program: Program,
    values: Mapping[str, Value],
    batches: Sequence[Mapping[str, Array]],
    directory: Path,
    progress: Progress,
    on_step: OnStep,
    note: Progress,
) -> dict[str, Any]:
    on_board = boards.find_board(board)
    size = _predicted_size(solved, program, request, on_board)
    if size is not None:
        programs.require_room(program, on_board, size)
    elif on_board.folder is not None and not program.banks:
        programs.require_ram(program, programs.values_of(solved), on_board, programs.memory_of(solved))
    progress(f"compiling for {board}")
    firmware = measure.build_firmware(
        program,
        values,
        board,
        directory,
        memory=programs.memory_of(solved),
        numerics=request.numerics or "separate",
        checkpoint=request.checkpoint,
        gradients=request.gradients,
    )
    _require_stack(firmware, request.on)
    progress(f"running on {board}")
    measured = measure.execute(firmware, batches, on_step)
    document = _document(solved, program, firmware, measured)
    document["cycles_modelled"] = None if measured.cycles else _modelled_cycles(solved, board, measured, note)
    document["flash_predicted_bytes"] = size.flash_bytes if size else None
    document["ram_predicted_bytes"] = size.ram_bytes if size else None
    predicted = _predicted(solved, program, request, len(document["losses"]))
    in_cycles = document.get("cycles") is not None
    document["cycles_predicted"] = predicted if in_cycles else None
    document["instructions_predicted"] = None if in_cycles else predicted
    return {**document, "on": request.on, "numerics": request.numerics}


@contextmanager
def _place(request: RunRequest, copies: list[str]) -> Iterator[Path]:
    """Where it is built and run: kept if that was asked for, also when a check fails, but not half of it.

    `copies` gets the names under which files of the user were kept.
    """
    if request.keep is None:
        with scratch_directory("poetc-run-") as scratch:
            yield scratch
        return
    failed = None
    with replacing(request.keep, KEPT, force=request.force) as staging:
        try:
            yield staging.directory
        except CheckFailed as error:
            failed = error
        said = None if failed is None else str(failed)
        staging.document = {"on": request.on, "solved": str(request.directory), "error": said}
    copies += staging.copies
    if failed is not None:
        raise failed


def _require_host(request: RunRequest) -> None:
    """Raises UsageError for options that need a board."""
    if request.checkpoint:
        raise UsageError(
            f"--checkpoint {request.checkpoint}: a run on host saves nothing between steps; leave it out, or run the"
            " program that `poetc emit --target host` makes with -c"
        )
    if request.numerics == "fast":
        raise UsageError("--numerics fast: only Helium has it; choose separate or fused, or run on a board with Helium")


def _board(on: str) -> str | None:
    if on == "host":
        return None
    emulator, _, name = on.partition(":")
    if emulator != "qemu" or (name not in BOARDS and not Path(name).is_dir()):
        close = boards.close_names(name if emulator == "qemu" else on)
        hint = f"did you mean qemu:{close[0]}?" if close else f"choose from {', '.join(board_names())}"
        raise UsageError(f"--on {on}: {hint}; qemu: and a folder with board.yaml does, too")
    if not boards.find_board(name).qemu:
        raise UsageError(f"--on {on}: its board.yaml has no `qemu`, the machine that emulates it")
    return name


def _predicted_size(
    solved: Artifact, program: Program, request: RunRequest, board: boards.Board
) -> emit.FirmwareSize | None:
    """As it is known before anything is compiled, to stand beside that of the program. None: it is no firmware."""
    if board.code is None or not emit.is_measured(board) or program.banks:
        return None
    memory = programs.memory_of(solved)
    return emit.firmware_size(
        program,
        board,
        values=programs.values_of(solved),
        numerics=request.numerics or "separate",
        memory=memory,
        checkpoint=request.checkpoint,
        gradients=request.gradients,
    )


def _predicted(solved: Artifact, program: Program, request: RunRequest, steps: int) -> int | None:
    """Predicted time of all steps.

    None unless the schedule is for this very board, whose nanoseconds are cycles or instructions, with the numerics
    that its profile was measured with.
    """
    if solved.profile is None or request.on != solved.problem.device.replace("-", ":", 1):
        return None
    if request.numerics != solved.profile.cpu.numerics:
        return None
    return steps * predicted_ns(solved.problem, program)


def _modelled_cycles(solved: Artifact, board: str, run: measure.Run, note: Progress) -> dict[str, int] | None:
    """Cycles of all operators of the training steps, at the value of the device's profile and the ends of its band.

    For cores whose manual has no table: each operator's instructions, times the cycles that the profile's model of the
    pipeline gives to one of them. None where the profile has no such model of this board, or operands are streamed.
    `note` hears of operators whose kernels a profile does not price.
    """
    profile, step = solved.profile, solved.graph
    model = None if profile is None else profile.compute.cycles
    streams = any(op.is_streamed for op in solved.problem.operators)
    if profile is None or step is None or model is None or model.counted != f"qemu-{board}" or streams:
        return None
    counted = _times_ns(solved.problem, step, load_profile(model.counted), note)
    cycles: dict[str, int] = {}
    for end, priced in (("value", profile), *((end, at_end(profile, "compute", end)) for end in ENDS)):
        times_ns = _times_ns(solved.problem, step, priced, silent if cycles else note)
        operators = [c for c in run.counts if counted.get(c.name)]
        total = sum(c.instructions * times_ns[c.name] / counted[c.name] for c in operators)
        cycles[end] = round(total * profile.cpu.clock_hz.value / 1e9)
    return cycles


def _times_ns(problem: Problem, step: TrainingGraph, profile: DeviceProfile, note: Progress) -> dict[str, float]:
    """By operator of a problem, the time of its kernel by a profile."""
    there = build_problem(step, profile, budget_bytes=problem.budget_bytes)
    if left := without_price(problem, there):
        more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
        note(
            f"modelled cycles: profile {profile.name!r} does not price the kernels of {', '.join(left[:SHOWN])}{more};"
            " they have the times of the schedule"
        )
    return {op.name: op.time_ns for op in priced_as(problem, there).operators}


def predicted_ns(problem: Problem, program: Program) -> int:
    """The costs in the problem of one step of the program lowered from it: its operators and transfers, one by one."""
    costs = {op.name: op.time_ns for op in problem.operators}
    tensors = {t.name: t for t in problem.tensors}
    total = 0
    for instruction in program.instructions:
        match instruction:
            case Call():
                total += costs[instruction.operator]
            case PageOut():
                total += tensors[program.pages[instruction.page].tensor].page_out_ns
            case PageIn():
                total += tensors[program.pages[instruction.page].tensor].page_in_ns
            case Move():
                total += tensors[instruction.operand.tensor].move_ns or 0
    return total


def _bank_peaks(program: Program, run: measure.Run) -> dict[str, Any]:
    """The peak in each part of an arena that lies in two memories; CheckFailed where one is not as predicted."""
    rows = [
        {"name": part.name, "peak_predicted_bytes": predicted, "peak_measured_bytes": measured}
        for part, predicted, measured in zip(program.banks, bank_high_water(program), run.bank_bytes, strict=True)
    ]
    for row in rows:
        if row["peak_predicted_bytes"] != row["peak_measured_bytes"]:
            raise CheckFailed(
                f"measured a peak of {row['peak_measured_bytes']} bytes in {row['name']}, predicted were"
                f" {row['peak_predicted_bytes']}"
            )
    return {"banks": rows} if rows else {}


def _document(solved: Artifact, program: Program, firmware: measure.Firmware, run: measure.Run) -> dict[str, Any]:
    """The answer.

    Peaks are of the RAM that a budget counts: the share set aside for runtime and stack, and the arena.
    """
    base = solved.problem.base_bytes
    elf = firmware.elf
    return {
        "board": firmware.board.name,
        "target": firmware.board.target,
        "processors": max(1, len(program.queues)) if firmware.has_processors else 1,
        "steps": len(run.losses),
        "loss": run.losses[-1],
        "losses": list(run.losses),
        "peak_measured_bytes": base + run.arena_bytes,
        "peak_predicted_bytes": base + (sum(bank_high_water(program)) if program.banks else program.high_water_bytes),
        "budget_bytes": solved.problem.budget_bytes,
        "arena_bytes": programs.arena_ram_bytes(program),
        **_bank_peaks(program, run),
        "instructions": run.instructions,
        "total_instructions": run.total_instructions,
        "cycles": run.cycles or None,
        "queue_instructions": list(run.queue_instructions),
        "longest_instructions": run.longest_instructions or None,
        "page_ins": run.page_ins,
        "page_outs": run.page_outs,
        "store_written_bytes": _written_bytes(program),
        "state_sha256": run.state_sha256,
        "gradients_crc": [f"{crc:08x}" for crc in run.gradients_crc] or None,
        "checkpoint_steps": firmware.checkpoint_steps,
        "checkpoint_written_bytes": _checkpoint_bytes(program) if firmware.checkpoint_steps else 0,
        "flash_bytes": elf.flash_bytes,
        "ram_bytes": elf.data_bytes + elf.bss_bytes + (programs.arena_ram_bytes(program) if program.banks else 0),
        "variables_bytes": _span(elf, "poetc_data", "poetc_bss_end"),
        "stack_measured_bytes": run.stack_bytes,
        "stack_bound_bytes": firmware.stack_bound_bytes,
        "stack_reserved_bytes": _span(elf, "poetc_stack", "poetc_stack_top"),
        "operators": [
            {
                "name": c.name,
                "kind": c.kind,
                "times": c.times,
                "instructions": c.instructions,
                "cycles": c.cycles if run.cycles else None,
            }
            for c in run.counts
        ],
    }


def _written_bytes(program: Program) -> int:
    """The bytes that one step writes to the store, in whole blocks."""
    pages = [i.page for i in program.instructions if isinstance(i, PageOut)]
    streamed = [i.blocks for i in program.instructions if isinstance(i, Call) and i.blocks is not None]
    pages += [s.page for blocks in streamed for s in blocks.streams if s.source is None and s.page is not None]
    whole = sum(program.pages[page].block_count for page in pages) * program.block_bytes
    return whole + sum(blocks.rewritten_bytes for blocks in streamed)


def _checkpoint_bytes(program: Program) -> int:
    """The bytes that one checkpoint writes to the store, in whole blocks."""
    return slot_blocks(program) * program.block_bytes


def _span(elf: boards.Elf, first: str, end: str) -> int | None:
    return elf.symbols[end] - elf.symbols[first] if first in elf.symbols else None


def _require_stack(firmware: measure.Firmware, on: str) -> None:
    """CheckFailed where the stack may need more than is set aside: before it overflows in the run."""
    bound, reserved = firmware.stack_bound_bytes, _span(firmware.elf, "poetc_stack", "poetc_stack_top")
    if bound is not None and reserved is not None and bound > reserved:
        raise CheckFailed(
            f"{on}: the stack may need {bound} bytes, the device profile sets {reserved} aside: raise its"
            " memory.stack_bytes and solve again"
        )


def require(document: Mapping[str, Any]) -> None:
    """CheckFailed where the measured peak is not the predicted one."""
    if document["peak_measured_bytes"] != document["peak_predicted_bytes"]:
        raise CheckFailed(
            f"{document['on']}: measured a peak of {document['peak_measured_bytes']} bytes, predicted were"
            f" {document['peak_predicted_bytes']}"
        )


def _on_host(
    request: RunRequest,
    numerics: boards.Numerics,
    solved: Artifact,
    program: Program,
    values: Mapping[str, Value],
    batches: list[dict[str, Array]],
    directory: Path,
    on_step: OnStep,
) -> dict[str, Any]:
    with measure.build_host([program], values, directory=directory, numerics=numerics) as model:
        try:
            arena_bytes = model.measure_high_water(batches[0])
        except measure.StepError as error:
            raise CheckFailed(f"step 1: {error}") from error
        losses, checksums = [], []
        for step, batch in enumerate(batches, 1):
            try:
                losses.append(model.run(batch))
            except measure.StepError as error:
                raise CheckFailed(f"step {step}: {error}") from error
            checksums.append(f"{model.gradients_crc():08x}")
            on_step(step, losses[-1])
            if not math.isfinite(losses[-1]):
                raise CheckFailed(
                    f"step {step}: the loss is {losses[-1]}: lower the learning rate, or scale the inputs"
                )
        state = {name: model.state(name) for name in model.state_names()}
        if request.keep is not None:
            (place := directory / "run").mkdir()
            measure.write_records(place / "data.bin", program, batches)
            model.save(place)
        base = solved.problem.base_bytes
        return {
            "on": "host",
            "board": "host",
            "target": "host",
            "processors": max(1, len(program.queues)),
            "numerics": numerics,
            "steps": len(losses),
            "loss": losses[-1],
            "losses": losses,
            "peak_measured_bytes": base + arena_bytes,
            "peak_predicted_bytes": base + program.high_water_bytes,
            "budget_bytes": solved.problem.budget_bytes,
            "arena_bytes": program.arena_bytes,
            "instructions": None,
            "page_ins": model.page_ins,
            "page_outs": model.page_outs,
            "store_written_bytes": _written_bytes(program),
            "state_sha256": measure.state_digest(state),
            "gradients_crc": checksums if request.gradients else None,
            "flash_bytes": None,
        }
