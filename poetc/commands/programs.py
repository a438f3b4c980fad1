"""The programs of a solved directory, and the RAM and flash that firmware of them takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from poetc import boards, emit, measure, passes, training
from poetc.artifact import Artifact
from poetc.devices import build_problem
from poetc.errors import UsageError
from poetc.graph import TrainingGraph, Value
from poetc.planning import Bundle, Solution, Switching, inference
from poetc.planning.safe_points import within_flash
from poetc.program import Program, ProgramBundle, bank_high_water, lower, lower_bundle, packed_state_bytes
from poetc.scheduling import Switch, Trace, all_in_ram, keep_all, pack

SIZE_KEYS = ("flash_bytes", "flash_code_bytes", "flash_tables_bytes", "flash_image_bytes", "firmware_ram_bytes")


def training_program(
    solved: Artifact, board: boards.Board | None = None, starts: Mapping[str, int] | None = None
) -> Program:
    """The program of a training step: its schedule, lowered to calls and offsets.

    Several banks of RAM lie one behind the other, or at the addresses of the memories of `board`. `starts` gives their
    addresses by bank, for a library.
    """
    if solved.problem.banks and board is not None and starts is None:
        starts = emit.bank_starts(board, solved.problem, solved.plan, memory_of(solved))
    return lower(graph_of(solved), solved.problem, solved.schedule, solved.plan, starts=starts)


def peak_bytes(program: Program | None, solution: Solution, trace: Trace) -> int:
    """The RAM up to the highest byte of the arena that a step uses, as `validate` measures it.

    Of a problem without a model: the most that is alive at once.
    """
    if program is None:
        return trace.peak_bytes
    used = sum(bank_high_water(program)) if program.banks else program.high_water_bytes
    return solution.problem.base_bytes + used


def keep_all_program(solved: Artifact) -> Program:
    """The same step with every tensor kept until its last use, and all state in RAM.

    It has no lossless encodings of saved tensors: they change no bit.
    """
    return _kept(solved, passes.without_encodings(graph_of(solved)))


def program_of_history(solved: Artifact, history: measure.History) -> tuple[Program, dict[str, Value]]:
    """The training step of a bundle that keeps every tensor, and adds up the batch as `history` says; its values."""
    graphs = graphs_of(solved)
    step = graphs[history[0][0]]
    for plan, share in history[1:]:
        step = training.continued(step, graphs[plan], share)
    return _kept(solved, step), dict(step.values)


def exact_program(solved: Artifact) -> Program | None:
    """The same without lossy encodings either; None if there are none."""
    graph = graph_of(solved)
    lossless, exact = passes.without_encodings(graph), passes.without_encodings(graph, lossy=True)
    return None if exact.operators == lossless.operators else _kept(solved, exact)


def _kept(solved: Artifact, graph: TrainingGraph) -> Program:
    """`graph`, the solved step or that step with fewer encodings, with every tensor kept."""
    problem = solved.problem
    has_blocks = any(op.cut for op in problem.operators)
    if (has_blocks or graph.operators != graph_of(solved).operators) and solved.profile is not None:
        problem = build_problem(graph, solved.profile, budget_bytes=problem.budget_bytes)
    problem = replace(all_in_ram(problem), banks=())
    schedule = keep_all(problem)
    return lower(graph, problem, schedule, pack(problem, schedule))


def numerics_of(
    solved: Artifact, target: str = "host", board: str | None = None, asked: boards.Numerics | None = None
) -> boards.Numerics:
    """How multiply-adds round in a program of `solved`: as `asked`, else as its device's do where `target` can.

    A directory from before there were profiles with numerics has those that were the only ones then: separate.
    """
    if asked is not None:
        return asked
    if solved.profile is None:
        return "separate"
    cpu = solved.profile.cpu
    core = boards.built_for(boards.TARGETS[target], board, boards.Core(cpu.core, cpu.fpu, cpu.simd))
    known = boards.numerics_of_target(boards.TARGETS[target], core)
    return cpu.numerics if cpu.numerics in known else "separate"


def inference_programs(solved: Artifact, training: Program) -> tuple[Program, ...]:
    """The model itself (`infer`), and with the loss (`evaluate`), on the state and the constants of `training`.

    Empty if the model was not recorded.
    """
    if solved.inference is None or solved.profile is None or solved.graph is None:
        return ()
    plan = inference.InferencePlan(
        problem=solved.inference_problem, schedule=solved.inference_schedule, plan=solved.inference_plan
    )
    return inference.programs(solved.graph, solved.inference, solved.profile, solved.problem, training, plan)


def all_programs(
    solved: Artifact,
    bundle: ProgramBundle | None = None,
    board: boards.Board | None = None,
    starts: Mapping[str, int] | None = None,
) -> list[Program]:
    """The emitted programs: the training step, or that of each plan of a bundle; then `infer` and `evaluate`."""
    training = (training_program(solved, board, starts),) if bundle is None else bundle.programs
    return [*training, *inference_programs(solved, training[0])]


def arena_ram_bytes(program: Program) -> int:
    """All RAM of the arena: in banks, of its parts without the addresses between them."""
    return sum(emit.bank_size(program, b.name) for b in program.banks) if program.banks else program.arena_bytes


POINTER_BYTES = 4  # of the boards that count flash


def switches_of(solved: Artifact) -> tuple[ProgramBundle, list[Switch], Switching]:
    """The programs and switches of a bundle, found again from its plans: the same every time."""
    plans = [(solved.problem, solved.schedule, solved.plan), *solved.others]
    bundle = Bundle(solutions=tuple(Solution(problem=p, schedule=s, plan=m) for p, s, m in plans))
    switching = Switching(bundle)
    count = len(plans)
    switches = [s for i in range(count) for j in range(count) if i != j for s in switching.switches(i, j)]
    lowered = lower_bundle(graphs_of(solved), plans, switches)
    switches = [switches[k] for k in lowered.kept]
    limit_bytes = solved.summary["bundle"]["switch_flash_bytes"]
    if limit_bytes is None:
        return lowered, switches, switching
    place = {id(s): k for k, s in enumerate(switches)}

    def only(chosen: Sequence[Switch]) -> ProgramBundle:
        return replace(lowered, switches=tuple(lowered.switches[place[id(s)]] for s in chosen))

    chosen = within_flash(switching, switches, lambda own: emit.switch_bytes(only(own), POINTER_BYTES), limit_bytes)
    return only(chosen), chosen, switching


def values_of(solved: Artifact) -> dict[str, Value]:
    """The values that state and constants of all programs begin with.

    Inference may read constants that training dropped.
    """
    values = dict(solved.inference.values if solved.inference else {})
    for graph in graphs_of(solved):
        values |= graph.values
    return values


def graphs_of(solved: Artifact) -> list[TrainingGraph]:
    """The training step of each plan of a bundle; of the one plan, if it is no bundle."""
    return [graph_of(solved), *(solved.other_graphs or len(solved.others) * [graph_of(solved)])]


def graph_of(solved: Artifact) -> TrainingGraph:
    if solved.graph is None:
        raise UsageError("solved from a problem alone: there is no model in it to run; solve the ONNX file itself")
    return solved.graph


def memory_of(solved: Artifact) -> emit.Memory:
    """The RAM that firmware is linked for: the budget that was solved for, and in it the profile's stack."""
    if solved.profile is None:
        raise UsageError("solved without a device profile: its stack is not known; run poetc solve again")
    problem = solved.problem
    budget_bytes = problem.banks[0].budget_bytes if problem.banks else problem.budget_bytes
    return emit.Memory(budget_bytes, int(solved.profile.memory.stack_bytes.value))


def predicted_sizes(solved: Artifact, training: Program | None = None) -> dict[str, Any]:
    """Flash and RAM that firmware for the solved device takes, before anything is compiled.

    Every value is None for devices that no firmware is built for. `firmware_ram_bytes`: stack, variables and arena, as
    linked. `training`: the program of the step, if it is lowered already.
    """
    profile = solved.profile
    board = None if profile is None else boards.board_like(profile.name, profile.cpu.core, profile.cpu.fpu)
    if board is None or solved.graph is None or solved.problem.banks:
        return {"firmware_board": None, **dict.fromkeys(SIZE_KEYS)}
    size = emit.firmware_size(
        training_program(solved) if training is None else training,
        board,
        values=values_of(solved),
        numerics=numerics_of(solved, board.target),
        memory=memory_of(solved),
    )
    values = (size.flash_bytes, size.code_bytes, size.tables_bytes, size.image_bytes, size.ram_bytes)
    return {"firmware_board": board.name, **dict(zip(SIZE_KEYS, values, strict=True))}


def require_ram(
    program: Program, values: Mapping[str, Value], board: boards.Board, memory: emit.Memory, instead: str = ""
) -> None:
    """UsageError where a board whose code nobody has measured has too little RAM for arena and stack alone.

    The same for its flash: constants and initial state. The linker finds the code and variables beside them.
    `instead`: another way out, for the message.
    """
    assert board.ram is not None and board.code is not None
    needed_bytes = program.arena_bytes + memory.stack_bytes
    if needed_bytes > board.ram.size_bytes:
        raise UsageError(
            f"{board.name} has {board.ram.size_bytes} bytes of RAM; the arena of {program.arena_bytes} with"
            f" {memory.stack_bytes} for the stack needs {needed_bytes}, {needed_bytes - board.ram.size_bytes} too many:"
            f" solve for --budget {board.ram.size_bytes} or less{instead}"
        )
    image_bytes = program.flash_bytes + packed_state_bytes(program, values)
    if image_bytes > board.code.size_bytes:
        raise UsageError(
            f"{board.name} has {board.code.size_bytes} bytes of flash; constants and initial state alone are"
            f" {image_bytes}, {image_bytes - board.code.size_bytes} too many: train a smaller model, or emit for a"
            f" board with more{instead}"
        )


def require_room(program: Program, board: boards.Board, size: emit.FirmwareSize, instead: str = "") -> None:
    """UsageError where a board has less RAM or flash than the firmware will take: before the linker has to say it."""
    assert board.ram is not None and board.code is not None
    stack, excess = size.ram_bytes - size.arena_bytes, size.ram_bytes - board.ram.size_bytes
    if excess > 0:
        raise UsageError(
            f"{board.name} has {board.ram.size_bytes} bytes of RAM; the arena of {program.arena_bytes} with {stack} for"
            f" stack and variables needs {size.ram_bytes}, {excess} too many: solve for --budget"
            f" {board.ram.size_bytes} or less{instead}"
        )
    excess = size.flash_bytes - board.code.size_bytes
    if excess > 0:
        raise UsageError(
            f"{board.name} has {board.code.size_bytes} bytes of flash; code, tables and initial state need about"
            f" {size.flash_bytes}, {excess} too many: train a smaller model, or emit for a board with more{instead}"
        )
