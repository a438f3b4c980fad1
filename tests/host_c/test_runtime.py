"""The emitted C on the host, through ctypes: same numbers for every schedule, honest memory, faults of the store."""

from __future__ import annotations

import ctypes
import platform
import re
import subprocess
import weakref
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import poetc.runtime
from poetc.errors import CheckFailed, UsageError
from poetc.measure import HostModel, Spilled, StepError, compile_library, first_difference, recorded, validate
from poetc.program import (
    Interpreter,
    Move,
    Program,
    lower_inference,
    page_blocks,
    sample_inputs,
    store_image,
    without_loss,
)
from poetc.runtime import runtime_state_bytes
from poetc.scheduling import keep_all, pack
from poetc.training import evaluation
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

RUNTIME = Path(poetc.runtime.__file__).parent
EIO, EINVAL, ERANGE, ECORRUPT = -5, -22, -34, -84


class MemoryStore:
    """Blocks in a dictionary, with something that goes wrong: `fault(call number, data) -> code or data`."""

    def __init__(self, block_bytes: int) -> None:
        self.blocks: dict[int, bytes] = {}
        self.block_bytes = block_bytes
        self.fail_out = self.fail_in = 0  # code to return instead
        self.torn = False  # only the first block of what is written arrives
        self.flip: tuple[int, int] | None = None  # (byte, bit) of every block read
        self.lost = False  # writes are ignored

    def page_out(self, first: int, count: int, address: int) -> int:
        if self.fail_out:
            return self.fail_out
        data = ctypes.string_at(address, count * self.block_bytes)
        for i in range(0 if self.lost else 1 if self.torn else count):
            self.blocks[first + i] = data[i * self.block_bytes : (i + 1) * self.block_bytes]
        return 0

    def page_in(self, first: int, count: int, address: int) -> int:
        if self.fail_in:
            return self.fail_in
        empty = bytes(self.block_bytes)
        data = bytearray(b"".join(self.blocks.get(first + i, empty) for i in range(count)))
        if self.flip is not None:
            data[self.flip[0]] ^= 1 << self.flip[1]
        ctypes.memmove(address, bytes(data), len(data))
        return 0


@pytest.fixture(scope="module")
def case() -> Case:
    return training_case()


@pytest.fixture(scope="module")
def paged(case: Case) -> Program:
    return case.program(paged_decisions(case, "a"))


@pytest.fixture(scope="module")
def paged_library(case: Case, paged: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library([paged], case.graph.values, tmp_path_factory.mktemp("paged"))


@pytest.fixture
def store(paged: Program) -> MemoryStore:
    return MemoryStore(paged.block_bytes)


@pytest.fixture
def model(case: Case, paged: Program, paged_library: Path, store: MemoryStore) -> Iterator[HostModel]:
    with HostModel(paged_library, [paged], case.graph.values, store=(store.page_out, store.page_in)) as model:
        yield model


SCHEDULES = {"paged": paged_decisions, "recomputed": recomputed_decisions}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_validation_of_a_schedule(case: Case, schedule: str) -> None:
    program = case.program(SCHEDULES[schedule](case, "a"))
    result = validate(program, case.program(), case.graph.values, steps=3)
    assert result.problems() == ()
    assert result.bit_identical_to_keep_all
    assert result.peak_measured_bytes == result.peak_predicted_bytes == program.high_water_bytes
    assert {t.name for t in result.tensors} == set(case.graph.gradients)
    assert 0 < max(t.rel_error for t in result.tensors) < 1e-5 or result.max_grad_rel_error == 0
    assert (result.page_outs > 0) == (schedule == "paged")


@pytest.mark.parametrize("schedule", ["plain", *SCHEDULES])
def test_validation_of_a_schedule_with_moves(case: Case, schedule: str) -> None:
    program = case.wandering(1, SCHEDULES[schedule](case, "a") if schedule in SCHEDULES else None)
    moves = [i for i in program.instructions if isinstance(i, Move)]
    shifts = [m.operand.offset_bytes - m.source.offset_bytes for m in moves]
    near = [s for s, m in zip(shifts, moves, strict=True) if abs(s) < m.operand.type.size_bytes]
    assert min(near) < 0 < max(near), "old and new place overlap, in both directions"
    result = validate(program, case.program(), case.graph.values, steps=3)
    assert result.problems() == ()
    assert result.bit_identical_to_keep_all
    assert result.peak_measured_bytes == result.peak_predicted_bytes == program.high_water_bytes


def test_comparison_finds_another_learning_rate(
    case: Case, paged: Program, paged_library: Path, tmp_path: Path
) -> None:
    with HostModel(paged_library, [paged], case.graph.values) as a, HostModel(paged_library, [paged], a._values) as b:
        b.set_state("learning_rate", np.full(1, 0.06, np.float32))
        one, other = (
            recorded(model, [sample_inputs(paged)], Spilled(tmp_path / name), ())
            for model, name in ((a, "a"), (b, "b"))
        )
    assert first_difference(one, other, paged) == "step 1: the state fc1.weight"


def test_an_alarm_is_compared_with_last_bits_of_the_inputs(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """They bound the error of rounding alone, and hide no fault that is larger."""
    program = case.program()
    quiet = validate(program, program, case.graph.values, steps=1)
    assert quiet.last_bits_grad_rel_error == 0 and "last_bits_grad_rel_error" not in quiet.to_json()
    monkeypatch.setattr("poetc.measure._validate.GRADIENT_TOLERANCE", -1.0)
    result = validate(program, program, case.graph.values, steps=1)
    assert 0 < result.last_bits_grad_rel_error < 1e-4 and result.last_bits_loss_rel_error < 1e-4
    rounding = replace(result, max_grad_rel_error=7 * result.last_bits_grad_rel_error)
    fault = replace(result, max_grad_rel_error=9 * result.last_bits_grad_rel_error)
    assert not rounding.problems(gradient=0) and fault.problems(gradient=0)


def test_reference_is_compared(case: Case) -> None:
    program = case.program()
    inputs = sample_inputs(program)
    interpreter = Interpreter(program, case.graph.values)
    loss = interpreter.run(inputs)
    reference = {"in.x": inputs["x"], "target": inputs["target"].astype(np.int64), "loss": np.float64(loss)}
    reference |= {f"grad.{name}": gradient for name, gradient in interpreter.probes.items()}
    good = validate(program, program, case.graph.values, reference=reference, steps=1)
    assert good.against == "reference" and good.problems() == ()
    bad = dict(reference) | {"grad.fc2.weight": reference["grad.fc2.weight"] * 1.001}
    result = validate(program, program, case.graph.values, reference=bad, steps=1)
    assert [p.split(" ")[0] for p in result.problems()] == ["gradients"]
    assert result.max_grad_rel_error == pytest.approx(1e-3, rel=0.01)
    units = [replace(result, narrow_rounding=0.5 * share * result.max_grad_rel_error) for share in (0.9, 1.1)]
    assert [bool(found.problems()) for found in units] == [True, False]  # a flipped rounding costs a whole unit
    with pytest.raises(UsageError, match=r"no 'in\.x'"):
        validate(program, program, case.graph.values, reference={"loss": np.float64(0)}, steps=1)
    with pytest.raises(UsageError, match="does not compute the gradient of unknown"):
        unknown = dict(reference) | {"grad.unknown": np.zeros(1)}
        validate(program, program, case.graph.values, reference=unknown, steps=1)


def test_weights_on_the_store(tmp_path: Path, case: Case) -> None:
    names = ["fc1.weight", "fc1.weight:velocity"]
    on_store = training_case(on_store=names)
    program = on_store.program(state_paged_decisions(on_store, names))
    result = validate(program, case.program(), on_store.graph.values, steps=3)
    assert result.problems() == ()
    library = compile_library([program], on_store.graph.values, tmp_path)
    with HostModel(library, [program], on_store.graph.values) as model:
        interpreter = Interpreter(program, on_store.graph.values)
        initial = store_image(program, on_store.graph.values)
        assert model.store_path.read_bytes()[: len(initial)] == initial == (tmp_path / "src/store.img").read_bytes()
        for seed in range(3):
            model.run(sample_inputs(program, seed))
            interpreter.run(sample_inputs(program, seed))
        # What the page table says is what the file holds: version 3 in slot 1, and version 2 untouched in slot 0.
        data = model.store_path.read_bytes()
        for index, page in enumerate(program.pages):
            size = page.block_count * program.block_bytes
            start = page.first_block * program.block_bytes + size
            blocks = page_blocks(index, 3, model.state(page.tensor).tobytes(), program.block_bytes)
            assert data[start : start + size] == blocks
            np.testing.assert_allclose(model.state(page.tensor), interpreter.state(page.tensor), rtol=1e-4, atol=1e-6)


def test_train_then_predict_in_the_same_arena(tmp_path: Path, case: Case) -> None:
    training = case.program()
    forward = mlp()
    problem = make_problem(forward)
    schedule = keep_all(problem)
    infer = lower_inference(forward, problem, schedule, pack(problem, schedule), training)
    library = compile_library([training, infer], case.graph.values, tmp_path)
    inputs = sample_inputs(training, 5)
    with HostModel(library, [training, infer], case.graph.values) as model:
        losses = [model.run(inputs) for _ in range(20)]
        assert losses[-1] < 0.7 * losses[0]
        state = {n: model.state(n) for n in model.state_names()}
        model.select(infer)
        model.run(inputs)
        h = np.maximum(inputs["x"].reshape(4, 6) @ state["fc1.weight"].T, 0)
        np.testing.assert_allclose(model.output("logits"), h @ state["fc2.weight"].T, rtol=1e-5, atol=1e-5)
        model.select(training)
        assert all(np.array_equal(model.state(n), state[n]) for n in state)
        assert model.run(inputs) < losses[-1]
        model.set_state("learning_rate", np.zeros(1, np.float32))
        weight = model.state("fc1.weight")
        model.run(inputs)
        assert np.array_equal(model.state("fc1.weight"), weight)


def test_evaluation_in_the_same_arena_has_the_bits_of_the_step(tmp_path: Path, case: Case) -> None:
    """The model has neither batch-norm nor dropout: its loss in inference mode is that of the training step."""
    training, forward = case.program(), evaluation(mlp(), case.graph)
    problem = make_problem(forward)
    schedule = keep_all(problem)
    evaluate = lower_inference(forward, problem, schedule, pack(problem, schedule), training, name="evaluate")
    infer = without_loss(evaluate)
    assert [b.name for b in evaluate.outputs] == ["loss", "logits"]
    assert [b.name for b in (*infer.inputs, *infer.outputs)] == ["x", "logits"]
    assert (infer.target, len(infer.instructions)) == (None, len(evaluate.instructions) - 1)
    programs = [training, infer, evaluate]
    library = compile_library(programs, case.graph.values, tmp_path)
    with HostModel(library, programs, case.graph.values) as model:
        for step in range(3):
            inputs = sample_inputs(training, step)
            model.select(evaluate)
            evaluated, logits = model.run(inputs), model.output("logits")
            model.select(infer)
            model.run(inputs)
            assert np.array_equal(model.output("logits"), logits)
            interpreter = Interpreter(evaluate, case.graph.values)
            state = training.state_bytes
            interpreter.arena[:state] = model.arena[:state]
            np.testing.assert_allclose(evaluated, interpreter.run(inputs), rtol=1e-6)
            model.select(training)
            assert model.run(inputs) == evaluated


def test_target_out_of_range_is_an_error(model: HostModel) -> None:
    inputs = sample_inputs(model.program)
    inputs["target"] = np.full(4, 3, np.int32)
    with pytest.raises(StepError) as error:
        model.run(inputs)
    assert error.value.code == ERANGE


# --- faults of the store ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "code"), [("fail_out", -7), ("fail_in", -7), ("fail_out", 3), ("fail_in", 3)])
def test_driver_error_stops_the_step_and_keeps_the_weights(
    case: Case, model: HostModel, store: MemoryStore, fault: str, code: int
) -> None:
    inputs = sample_inputs(model.program)
    first = model.run(inputs)
    state = {n: model.state(n) for n in model.state_names()}
    setattr(store, fault, code)
    with pytest.raises(StepError) as error:
        model.run(inputs)
    assert error.value.code == (code if code < 0 else EIO)
    # `a` is paged in the forward pass: no update has run
    changed = [n for n in state if not np.array_equal(model.state(n), state[n])]
    assert changed in ([], ["fc2.weight", "fc2.weight:velocity"])
    setattr(store, fault, 0)
    model.reset()
    assert model.run(inputs) == first


@pytest.mark.parametrize("byte", [0, 17, 63])
def test_bit_flip_is_found(model: HostModel, store: MemoryStore, byte: int) -> None:
    store.flip = byte, 3
    with pytest.raises(StepError) as error:
        model.run(sample_inputs(model.program))
    assert error.value.code == ECORRUPT


def test_torn_page_is_found(model: HostModel, store: MemoryStore) -> None:
    store.torn = True
    with pytest.raises(StepError) as error:
        model.run(sample_inputs(model.program))
    assert error.value.code == ECORRUPT


def test_page_of_an_earlier_run_is_found(model: HostModel, store: MemoryStore) -> None:
    """The same data, checksum and all, but not written in this run."""
    inputs = sample_inputs(model.program)
    model.set_state("learning_rate", np.zeros(1, np.float32))
    model.run(inputs)
    store.lost = True
    with pytest.raises(StepError) as error:
        model.run(inputs)
    assert error.value.code == ECORRUPT


def test_failed_run_leaves_the_last_version_on_the_store(tmp_path: Path) -> None:
    names = ["fc1.weight", "fc1.weight:velocity"]
    case = training_case(on_store=names)
    program = case.program(state_paged_decisions(case, names))
    store = MemoryStore(program.block_bytes)
    library = compile_library([program], case.graph.values, tmp_path)
    with HostModel(library, [program], case.graph.values, store=(store.page_out, store.page_in)) as model:
        for seed in range(2):
            model.run(sample_inputs(program, seed))
        blocks = dict(store.blocks)
        store.torn = True
        with pytest.raises(StepError):
            for seed in range(2, 4):
                model.run(sample_inputs(program, seed))
        for page in program.pages:  # two runs made version 2, in slot 0
            for block in range(page.first_block, page.first_block + page.block_count):
                assert store.blocks[block] == blocks[block]


ABSENT = {
    "velocity until its update": ("momentum", 8, lambda case: absent_state_decisions(case, "fc2.weight:velocity")),
    "weight before and after its update": ("sgd", 20, lambda case: absent_versions_decisions(case, ["fc2.weight"])),
    "all weights": ("sgd", 8, lambda case: absent_versions_decisions(case, ["fc1.weight", "fc2.weight"])),
}


class FailingStore(MemoryStore):
    """The transfer number `failing` (from 1) does what `fault` says, the others go well."""

    def __init__(self, block_bytes: int) -> None:
        super().__init__(block_bytes)
        self.calls = self.failing = 0
        self.fault = "error"

    def page_out(self, first: int, count: int, address: int) -> int:
        self.calls += 1
        return EIO if self.calls == self.failing else super().page_out(first, count, address)

    def page_in(self, first: int, count: int, address: int) -> int:
        self.calls += 1
        if self.calls == self.failing and self.fault == "error":
            return EIO
        self.flip = (self.block_bytes - 1, 3) if self.calls == self.failing else None
        return super().page_in(first, count, address)


def test_large_images_lie_behind_the_program(tmp_path: Path, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code of x86-64 reaches 2 GiB: a library with an image of 2.9 GB beside its code did not link."""
    monkeypatch.setattr("poetc.emit.layouts._contents.LARGE_BYTES", 0)
    program = case.program()
    library = compile_library([program], case.graph.values, tmp_path)
    with HostModel(library, [program], case.graph.values) as model:
        assert model.run(sample_inputs(program, 0)) > 0
    if platform.machine() == "x86_64":
        sections = subprocess.run(["readelf", "-SW", str(library)], check=True, capture_output=True, text=True).stdout
        places = {name: int(at, 16) for name, at in re.findall(r"(\.\w+) +\w+ +([0-9a-f]{16}) ", sections)}
        assert places[".lrodata"] > max(places[name] for name in (".text", ".data", ".bss"))


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("absent", ABSENT)
def test_state_moved_to_the_store_survives_an_error_at_any_transfer(tmp_path: Path, absent: str, moved: bool) -> None:
    """State leaves RAM and its place is used; then each transfer fails in turn, and after it one of the recovery."""
    optimizer, hidden, decisions = ABSENT[absent]
    case = training_case(mlp(hidden=hidden), optimizer)
    program = case.wandering(1, decisions(case)) if moved else case.program(decisions(case))
    store = FailingStore(program.block_bytes)
    library = compile_library([program], case.graph.values, tmp_path)
    first, second = sample_inputs(program, 0), sample_inputs(program, 1)
    with HostModel(library, [program], case.graph.values, store=(store.page_out, store.page_in)) as model:

        def states() -> dict[str, np.ndarray]:
            return {n: model.state(n) for n in model.state_names()}

        def fail(n: int) -> None:
            store.failing = 0
            model.reset()
            model.run(first)
            store.calls, store.failing = 0, n
            with pytest.raises(StepError) as error:
                model.run(second)
            assert error.value.code in ((EIO,) if store.fault == "error" else (EIO, ECORRUPT))

        model.run(first)
        old = states()
        store.calls = 0
        model.run(second)
        new, per_step = states(), store.calls
        assert per_step >= 4 and not any(np.array_equal(old[n], new[n]) for n in case.graph.updates)
        for store.fault in ("error", "flip"):
            for n in range(1, per_step + 1):
                fail(n)
                found = states()
                assert all(any(np.array_equal(found[s], v[s]) for v in (old, new)) for s in found), (store.fault, n)


def test_a_large_state_is_read_part_by_part(tmp_path: Path, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """As poetc_init reads it, into an arena that is full of other bytes."""
    program = case.program()
    library = compile_library([program], case.graph.values, tmp_path)
    with HostModel(library, [program], case.graph.values) as model:
        model.reset(0xA5)
        whole = model.arena.copy()
        for limit in (64, 100):
            monkeypatch.setattr("poetc.measure._host.LARGE_BYTES", limit)
            model.reset(0xA5)
            assert np.array_equal(model.arena, whole)
        assert model.run(sample_inputs(program, 0)) > 0
    arena = weakref.ref(model.arena)
    del model
    assert arena() is None  # a validation holds one after the other


@pytest.mark.parametrize("moved", [False, True])
def test_the_bytes_between_tensors_of_the_state_do_not_tell_the_schedule(tmp_path: Path, moved: bool) -> None:
    """State whose size is no multiple of 16 leaves, its place is used, and it comes home: behind it are zeros again."""
    case = training_case(mlp(hidden=7), "sgd")
    decisions = absent_versions_decisions(case, ["fc1.weight", "fc2.weight"])
    program = case.wandering(1, decisions) if moved else case.program(decisions)
    assert any(page.size_bytes % 16 for page in program.pages)
    library = compile_library([program], case.graph.values, tmp_path)
    with HostModel(library, [program], case.graph.values) as model:
        model.reset(0xA5)
        for seed in range(2):
            model.run(sample_inputs(program, seed))
        for binding in program.state:
            end = binding.operand.offset_bytes + binding.operand.type.size_bytes
            assert not model.arena[end : -(-end // 16) * 16].any(), binding.name


def test_recovery_leaves_out_a_page_that_is_not_whole(tmp_path: Path) -> None:
    """It does not touch what is in the place of that state, and brings back the others."""
    case = training_case(mlp(hidden=8), "sgd")
    names = ["fc1.weight", "fc2.weight"]
    program = case.program(absent_versions_decisions(case, names))
    store = MemoryStore(program.block_bytes)
    library = compile_library([program], case.graph.values, tmp_path)
    with HostModel(library, [program], case.graph.values, store=(store.page_out, store.page_in)) as model:
        model.run(sample_inputs(program, 0))
        instruction, lost, kept = next(
            (i, a, b)
            for i in range(len(program.instructions))
            for a in program.absences
            for b in program.absences
            if a is not b and a.begin <= i < a.end and b.begin <= i < b.end
        )
        model.run(sample_inputs(program, 1))
        whole = {a: store_data(store, program, a.page) for a in (lost, kept)}
        store.blocks[program.pages[lost.page].first_block] = bytes(program.block_bytes)
        for absence in (lost, kept):
            model._view(absence.operand)[...] = 7
        model._runtime.instruction = instruction
        assert model._dll.poetc_recover(ctypes.byref(model._runtime)) == ECORRUPT
        assert (model._view(lost.operand) == 7).all()
        assert model._view(kept.operand).tobytes() == whole[kept]


def store_data(store: MemoryStore, program: Program, page: int) -> bytes:
    """The tensor in a page."""
    where = program.pages[page]
    blocks = range(where.first_block, where.first_block + where.block_count)
    return b"".join(store.blocks[b] for b in blocks)[: where.size_bytes]


def test_write_outside_the_arena_is_noticed(model: HostModel) -> None:
    model._after[0] ^= 1
    with pytest.raises(CheckFailed, match="outside its arena"):
        model.run(sample_inputs(model.program))


# --- initialisation ---------------------------------------------------------------------------------------------------


def _init(model: HostModel) -> int:
    program = ctypes.c_void_p(model._address("train"))
    code = model._dll.poetc_init(ctypes.byref(model._runtime), program, ctypes.byref(model._config), None)
    return int(code)


@pytest.mark.parametrize("flags", ["-O2", "-O3 -march=native"])
def test_checksum_of_any_length_and_alignment(tmp_path: Path, flags: str) -> None:
    """Instructions for it, where the processor has them, give what zlib does; -O2 goes byte by byte."""
    source, include = RUNTIME / "src" / "poetc.c", RUNTIME / "include"
    library = tmp_path / "poetc.so"
    command = ["gcc", "-std=c99", *flags.split(), "-fPIC", "-shared", f"-I{include}", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    crc32 = ctypes.CDLL(str(library)).poetc_crc32
    crc32.restype, crc32.argtypes = ctypes.c_uint32, [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t]
    data = np.random.default_rng(0).integers(0, 256, 1000, np.uint8)
    for begin in range(17):
        for size in (*range(200), 500, 983):
            part = data[begin : begin + size]
            found = crc32(size, part.ctypes.data, size)
            assert found == zlib.crc32(part.tobytes(), size), (begin, size)


def test_init_checks_its_arguments(model: HostModel) -> None:
    config = model._config
    assert _init(model) == 0
    arena = config.arena
    for wrong in (None, arena + 4, arena + 8):
        config.arena = wrong
        assert _init(model) == EINVAL
    config.arena = arena
    config.arena_bytes -= 1
    assert _init(model) == EINVAL
    config.arena_bytes += 1
    config.store.page_in = None
    assert _init(model) == EINVAL
    assert model._dll.poetc_init(None, None, None, None) == EINVAL


def test_runtime_takes_the_ram_that_devices_count(model: HostModel) -> None:
    assert ctypes.sizeof(model._runtime) == runtime_state_bytes(ctypes.sizeof(ctypes.c_void_p)) == 40
    assert runtime_state_bytes(4) == 28
