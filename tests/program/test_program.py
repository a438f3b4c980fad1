"""Lowering, the program checker and the interpreter: numbers must not depend on the schedule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from poetc.errors import UsageError
from poetc.graph import materialize
from poetc.ops import bind, spec
from poetc.program import (
    Absence,
    BankRange,
    Call,
    Interpreter,
    Move,
    PageIn,
    PageOut,
    PageSource,
    Program,
    ProgramError,
    check_program,
    lower,
    lower_inference,
    paged_bytes,
    sample_inputs,
)
from poetc.scheduling import Allocation, Paging, ScheduleError, keep_all, pack, verify, verify_plan
from tests.program.models import (
    Case,
    absent_state_decisions,
    absent_versions_decisions,
    make_problem,
    mlp,
    paged_decisions,
    recomputed_decisions,
    state_paged_decisions,
    training_case,
)


@pytest.fixture(scope="module")
def case() -> Case:
    return training_case()


def run(program: Program, case: Case, steps: int = 3):
    interpreter = Interpreter(program, case.graph.values)
    losses = [interpreter.run(sample_inputs(program, seed)) for seed in range(steps)]
    return interpreter, losses


def direct(case: Case, steps: int = 3):
    """The same steps without any arena: a dictionary of tensors."""
    graph = case.graph
    state = {n: materialize(v, graph.tensors[n].type) for n, v in graph.values.items()}
    losses = []
    program = case.program()
    for seed in range(steps):
        tensors = dict(state) | sample_inputs(program, seed)
        for op in graph.operators:
            results = spec(op.kind).evaluate(bind(op, graph.tensors), [tensors[t] for t in op.inputs])
            tensors.update(zip(op.outputs, results, strict=True))
        losses.append(float(tensors[graph.loss].reshape(-1)[0]))
        state |= {old: tensors[new] for old, new in graph.updates.items()}
    return losses, state, {p: tensors[g] for p, g in graph.gradients.items()}


def test_schedules_whose_transfers_overlap_compute_run_synchronously_too(case: Case) -> None:
    """Page-ins issued ahead and frees put off, executed in the order of the actions: the same numbers."""
    tensors = tuple(replace(t, page_in_ns=2, page_out_ns=2) for t in case.problem.tensors)
    operators = tuple(replace(o, time_ns=1) for o in case.problem.operators)
    slow = replace(case.problem, tensors=tensors, operators=operators)
    plain, ahead = (Case(case.graph, replace(slow, paging=mode)) for mode in (Paging.SYNC, Paging.DMA))
    decisions = paged_decisions(case, "a")
    assert ahead.schedule(decisions).actions != plain.schedule(decisions).actions
    times = [verify(c.problem, c.schedule(decisions)).time_ns for c in (plain, ahead)]
    assert times[1] < times[0]
    _, losses = run(ahead.program(decisions), ahead)
    assert losses == direct(case)[0]


SCHEDULES = {
    "keep-all": lambda case: None,
    "paged": lambda case: paged_decisions(case, "a"),
    "recomputed": lambda case: recomputed_decisions(case, "a"),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_gives_the_numbers_of_plain_evaluation(case: Case, schedule: str) -> None:
    program = case.program(SCHEDULES[schedule](case))
    interpreter, losses = run(program, case)
    expected, state, gradients = direct(case)
    assert losses == expected
    for name in case.graph.updates:
        assert np.array_equal(interpreter.state(name), state[name]), name
    assert interpreter.probes.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert np.array_equal(interpreter.probes[name], gradient), name
    assert interpreter.high_water_bytes == program.high_water_bytes


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tensors_that_are_moved_about_give_the_same_numbers(case: Case, schedule: str) -> None:
    program = case.wandering(1, SCHEDULES[schedule](case))
    moves = [i for i in program.instructions if isinstance(i, Move)]
    shifts = [m.operand.offset_bytes - m.source.offset_bytes for m in moves]
    near = [s for s, m in zip(shifts, moves, strict=True) if abs(s) < m.operand.type.size_bytes]
    assert min(near) < 0 < max(near), "old and new place overlap, in both directions"
    interpreter, losses = run(program, case)
    expected, state, gradients = direct(case)
    assert losses == expected
    for name in case.graph.updates:
        assert np.array_equal(interpreter.state(name), state[name]), name
    for name, gradient in gradients.items():
        assert np.array_equal(interpreter.probes[name], gradient), name
    assert interpreter.high_water_bytes == program.high_water_bytes


def test_wrong_moves_are_found(case: Case) -> None:
    program = case.wandering(1)
    index, move = next((i, m) for i, m in enumerate(program.instructions) if isinstance(m, Move))

    def changed(*instead: Move) -> Program:
        instructions = (*program.instructions[:index], *instead, *program.instructions[index + 1 :])
        return replace(program, instructions=instructions)

    check_program(program)
    further = replace(move.operand, offset_bytes=move.operand.offset_bytes + 4096)
    state = replace(move.operand, offset_bytes=0)
    other = replace(move.operand, tensor="other")
    for wrong in (
        changed(),
        changed(replace(move, operand=further)),
        changed(replace(move, operand=state)),
        changed(replace(move, operand=other)),
        changed(replace(move, source=replace(move.source, offset_bytes=move.source.offset_bytes + 16))),
        changed(move, move),
    ):
        with pytest.raises(ProgramError):
            check_program(wrong)


def test_paged_tensor_has_two_residences_and_one_page(case: Case) -> None:
    program = case.program(paged_decisions(case, "a"))
    assert [p.tensor for p in program.pages] == ["a"]
    assert sum(isinstance(i, PageOut) for i in program.instructions) == 1
    readers = sum(isinstance(i, PageIn) for i in program.instructions)
    assert readers >= 2
    interpreter, _ = run(program, case, steps=1)
    assert (interpreter.page_outs, interpreter.page_ins) == (1, readers)
    # 4 x 20 floats and the trailer: 336 bytes, in blocks of 64
    assert program.pages[0].block_count == 6


def test_in_place_output_stands_where_its_input_was(case: Case) -> None:
    program = case.program()
    relu = next(i for i in program.instructions if isinstance(i, Call) and i.kind == "Relu")
    assert relu.inputs[0].offset_bytes == relu.outputs[0].offset_bytes


def test_view_has_the_bytes_of_its_root(case: Case) -> None:
    program = case.program()
    first = next(i for i in program.instructions if isinstance(i, Call))
    assert first.inputs[0].tensor == "x" and first.inputs[0].type.shape == (4, 6)
    assert first.inputs[0].offset_bytes == program.inputs[0].operand.offset_bytes


def test_weights_that_live_on_the_store_train_alike(case: Case) -> None:
    on_store = training_case(on_store=["fc1.weight", "fc1.weight:velocity"])
    decisions = state_paged_decisions(on_store, ["fc1.weight", "fc1.weight:velocity"])
    program = on_store.program(decisions)
    assert {(p.tensor, p.slots, p.image) for p in program.pages} == {
        ("fc1.weight", 2, True),
        ("fc1.weight:velocity", 2, True),
    }
    sources = [i.source for i in program.instructions if isinstance(i, PageIn)]
    assert set(sources) == {PageSource.LAST_RUN}
    interpreter, losses = run(program, on_store)
    kept, expected = run(case.program(), case)
    assert losses == expected
    for name in case.graph.updates:
        assert np.array_equal(interpreter.state(name), kept.state(name)), name
    assert program.state_bytes < case.program().state_bytes


def test_inference_shares_state_and_predicts_with_what_training_left(case: Case) -> None:
    training = case.program()
    forward = mlp()
    problem = make_problem(forward)
    schedule = keep_all(problem)
    infer = lower_inference(forward, problem, schedule, pack(problem, schedule), training)
    assert [(b.name, b.operand) for b in infer.state] == [(b.name, b.operand) for b in training.state]
    assert not infer.updates_state and training.updates_state
    trained, _ = run(training, case)
    inputs = sample_inputs(infer, 7)
    predictor = Interpreter(infer, case.graph.values)
    predictor.arena[: training.state_bytes] = trained.arena[: training.state_bytes]
    predictor.run(inputs)
    h = np.maximum(inputs["x"].reshape(4, 6) @ trained.state("fc1.weight").T, 0)
    logits = h @ trained.state("fc2.weight").T
    np.testing.assert_allclose(predictor.output("logits"), logits, rtol=1e-5, atol=1e-5)
    assert np.array_equal(
        predictor.arena[: training.state_bytes], trained.arena[: training.state_bytes]
    )  # velocities too


def test_inference_in_banks_of_which_the_last_is_too_small(case: Case) -> None:
    """The program is made, with the bytes that it needs there: whoever builds it leaves it out, or gives them."""
    training = case.program()
    banks = (BankRange("near", 0, training.state_bytes),)
    forward = mlp()
    problem = make_problem(forward)
    schedule = keep_all(problem)
    infer = lower_inference(forward, problem, schedule, pack(problem, schedule), replace(training, banks=banks))
    assert infer.banks[0].end == infer.arena_bytes > training.state_bytes


def test_state_with_room_between_its_homes_trains_alike(case: Case) -> None:
    """The target lies there when a run begins, other things later."""
    velocity, target = case.tensor("fc2.weight:velocity"), case.tensor(case.graph.target)
    schedule = case.schedule(absent_state_decisions(case, "fc2.weight:velocity"))
    plan = pack(case.problem, schedule)
    home = next(a.offset_bytes for a in plan.allocations if a.tensors[:1] == ((velocity, 0),))

    def raised(a: Allocation) -> Allocation:
        if a.tensors[:1] == ((target, 0),):
            return replace(a, offset_bytes=home)
        return replace(a, offset_bytes=a.offset_bytes + 64) if a.offset_bytes >= home else a

    plan = replace(
        plan,
        allocations=tuple(raised(a) for a in plan.allocations),
        arena_bytes=plan.arena_bytes + 64,
        state_bytes=plan.state_bytes + 64,
    )
    verify_plan(case.problem, schedule, plan)
    program = lower(case.graph, case.problem, schedule, plan)
    kept, losses = run(case.program(), case)
    found, found_losses = run(program, case)
    assert found_losses == losses
    assert all(np.array_equal(found.state(b.name), kept.state(b.name)) for b in program.state)
    assert program.target is not None and program.target.operand.offset_bytes < program.state_bytes
    forward = mlp()
    problem = make_problem(forward)
    infer = lower_inference(forward, problem, keep_all(problem), pack(problem, keep_all(problem)), program)
    assert [(b.name, b.operand) for b in infer.state] == [(b.name, b.operand) for b in program.state]


ABSENT = {
    "velocity until its update": ("momentum", lambda case: absent_state_decisions(case, "fc2.weight:velocity")),
    "weight before and after its update": ("sgd", lambda case: absent_versions_decisions(case, ["fc2.weight"])),
    "all weights": ("sgd", lambda case: absent_versions_decisions(case, ["fc1.weight", "fc2.weight"])),
}


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("hidden", [8, 20])
@pytest.mark.parametrize("absent", ABSENT)
def test_absences_bring_back_a_version_of_all_state_whatever_step_fails(absent: str, hidden: int, moved: bool) -> None:
    """Replays the first steps byte by byte, spoils what the failing one writes, and recovers as the runtime does."""
    optimizer, decisions = ABSENT[absent]
    case = training_case(mlp(hidden=hidden), optimizer)
    program = case.wandering(1, decisions(case)) if moved else case.program(decisions(case))
    brought_back = set()
    for failing, instruction in enumerate(program.instructions):
        if isinstance(instruction, Move):
            continue  # which cannot fail
        arena: list[str | None] = [None] * program.arena_bytes
        pages: dict[int, str] = {}

        def put(operand, tensor: str | None, arena: list[str | None] = arena) -> None:  # type: ignore[no-untyped-def]
            start = operand.offset_bytes
            arena[start : start + operand.type.size_bytes] = [tensor] * operand.type.size_bytes

        for binding in program.state:
            put(binding.operand, binding.name)
        for i, instruction in enumerate(program.instructions[: failing + 1]):
            if isinstance(instruction, Call):
                updates = any(b.name != b.final_tensor == o.tensor for b in program.state for o in instruction.outputs)
                for operand in () if i == failing and updates else instruction.outputs:  # an update is all or nothing
                    put(operand, operand.tensor if i < failing else None)
                if instruction.workspace:
                    put(instruction.workspace, None)
            elif isinstance(instruction, PageIn | Move):
                put(instruction.operand, instruction.operand.tensor if i < failing else None)
            elif i < failing:
                pages[instruction.page] = instruction.operand.tensor
        for absence in program.absences:
            if absence.begin <= failing < absence.end:
                put(absence.operand, pages[absence.page])
                brought_back.add(pages[absence.page])
        for b in program.state:
            found = set(arena[b.operand.offset_bytes : b.operand.offset_bytes + b.operand.type.size_bytes])
            assert found in ({b.name}, {b.final_tensor}), (failing, b.name)
    names = {"velocity until its update": {"fc2.weight:velocity"}}.get(absent, {"fc2.weight", "fc2.weight@1"})
    assert moved or brought_back >= names
    homes = {b.operand.offset_bytes for b in program.state}
    ends = [i for i in program.instructions if isinstance(i, Move) and i.operand.offset_bytes in homes]
    assert bool(ends) == moved


def test_state_may_come_back_elsewhere_and_is_still_absent() -> None:
    case = training_case(optimizer="sgd")
    program = case.program(absent_versions_decisions(case, ["fc2.weight"]))
    home = next(b.operand for b in program.state if b.name == "fc2.weight")
    away = [
        i
        for i, instruction in enumerate(program.instructions)
        if isinstance(instruction, PageIn) and instruction.operand.offset_bytes != home.offset_bytes
    ]
    assert any(a.begin < i < a.end for i in away for a in program.absences), "such a plan is what this is about"
    assert {(a.operand.offset_bytes, a.operand.type) for a in program.absences} == {(home.offset_bytes, home.type)}


@pytest.mark.parametrize("block_bytes", [64, 512])
def test_the_checker_counts_the_blocks_of_the_store_that_the_program_takes(block_bytes: int) -> None:
    stored = ["fc1.weight", "fc1.weight:velocity"]
    on_store = training_case(block_bytes=block_bytes, on_store=stored)
    for case, decisions in (
        (on_store, state_paged_decisions(on_store, stored)),
        (training_case(block_bytes=block_bytes), paged_decisions(training_case(block_bytes=block_bytes), "a")),
    ):
        schedule = case.schedule(decisions)
        needed = paged_bytes(case.program(decisions))
        assert verify(case.problem, schedule).store_bytes == needed
        Case(case.graph, replace(case.problem, store_capacity_bytes=needed)).program(decisions)
        with pytest.raises(ScheduleError, match=f"would hold {needed} bytes"):
            verify(replace(case.problem, store_capacity_bytes=needed - 1), schedule)


# --- what must be refused ---------------------------------------------------------------------------------------------


def _moved(program: Program, index: int, output: int, offset: int) -> Program:
    call = program.instructions[index]
    assert isinstance(call, Call)
    outputs = list(call.outputs)
    outputs[output] = replace(outputs[output], offset_bytes=offset)
    instructions = list(program.instructions)
    instructions[index] = replace(call, outputs=tuple(outputs))
    return replace(program, instructions=tuple(instructions))


def test_tensor_over_state_is_found(case: Case) -> None:
    program = case.program()
    weight = next(b for b in program.state if b.name == "fc2.weight")

    def move(operands):
        return tuple(replace(o, offset_bytes=weight.operand.offset_bytes) if o.tensor == "h" else o for o in operands)

    moved = tuple(
        replace(i, inputs=move(i.inputs), outputs=move(i.outputs)) if isinstance(i, Call) else i
        for i in program.instructions
    )
    with pytest.raises(ProgramError, match=r"reads fc2\.weight at \d+, where h is"):
        check_program(replace(program, instructions=moved))


def test_output_over_an_input_that_does_not_allow_it_is_found(case: Case) -> None:
    program = case.program()
    first = program.instructions[0]
    assert isinstance(first, Call)
    with pytest.raises(ProgramError, match="over its input x"):
        check_program(_moved(program, 0, 0, first.inputs[0].offset_bytes))


def test_misaligned_and_outside_operands_are_found(case: Case) -> None:
    program = case.program()
    with pytest.raises(ProgramError, match="not aligned"):
        check_program(_moved(program, 0, 0, 8))
    with pytest.raises(ProgramError, match="outside the arena"):
        check_program(_moved(program, 0, 0, program.arena_bytes))


def test_read_before_write_is_found(case: Case) -> None:
    program = case.program()
    with pytest.raises(ProgramError, match=r"reads .* where"):
        check_program(replace(program, instructions=program.instructions[1:]))


def test_update_elsewhere_than_in_place_is_found(case: Case) -> None:
    program = case.program()
    index = next(i for i, c in enumerate(program.instructions) if isinstance(c, Call) and c.kind == "Momentum")
    with pytest.raises(ProgramError, match="not in the place of"):
        check_program(_moved(program, index, 0, program.arena_bytes - 512))


def test_page_of_another_run_is_found(case: Case) -> None:
    program = case.program(paged_decisions(case, "a"))
    instructions = tuple(i for i in program.instructions if not isinstance(i, PageOut))
    with pytest.raises(ProgramError, match="page 0"):
        check_program(replace(program, instructions=instructions))


def test_absence_whose_page_is_not_written_yet_is_found() -> None:
    case = training_case(optimizer="sgd")
    program = case.program(absent_versions_decisions(case, ["fc2.weight"]))
    written = next(i for i, s in enumerate(program.instructions) if isinstance(s, PageOut) and "@" in s.operand.tensor)
    last = program.absences[-1]
    assert last.operand.tensor == "fc2.weight@1"
    early = Absence(written, last.end, last.page, last.operand)
    with pytest.raises(ProgramError, match="does not have it yet"):
        check_program(replace(program, absences=(early,)))
    elsewhere = replace(last.operand, offset_bytes=last.operand.offset_bytes + 16)
    with pytest.raises(ProgramError, match="where no state lives"):
        check_program(replace(program, absences=(replace(last, operand=elsewhere),)))


def test_plan_that_forgets_a_tensor_is_refused(case: Case) -> None:
    schedule = case.schedule()
    plan = pack(case.problem, schedule)
    holed = replace(plan, allocations=tuple(a for a in plan.allocations if a.start == 0))
    with pytest.raises(ProgramError, match="is not in RAM"):
        lower(case.graph, case.problem, schedule, holed)


def test_inputs_are_checked(case: Case) -> None:
    program = case.program()
    interpreter = Interpreter(program, case.graph.values)
    with pytest.raises(UsageError, match="no value for input 'target'"):
        interpreter.run({"x": np.zeros((4, 2, 3))})
    with pytest.raises(UsageError, match="shape"):
        interpreter.run({"x": np.zeros((4, 6)), "target": np.zeros(4)})
