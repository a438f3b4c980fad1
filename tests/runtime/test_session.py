"""The session of Python: the bits of the runtime, its errors, and state by name; on numpy and ctypes alone."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import stat
import subprocess
import sys
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from poetc.graph import Array, Value
from poetc.measure import HostModel, compile_library
from poetc.program import Program, lower_inference, read_state, sample_inputs
from poetc.runtime import runtime_directory
from poetc.runtime.library import PART_BYTES, touched_bytes
from poetc.runtime.session import Session, SessionError
from poetc.scheduling import keep_all, pack
from tests.program.models import absent_state_decisions, make_problem, mlp, state_paged_decisions, training_case

STEPS = 4
WHERE = ("ram", "store")
TRANSFER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)


class Built:
    """A model with its library: state in RAM, with an inference program; or on the store."""

    def __init__(self, where: str, directory: Path) -> None:
        case = training_case(on_store=("fc1.weight:velocity", "fc2.weight") if where == "store" else (), block_bytes=64)
        names = [t.name for t in case.problem.tensors if t.initial == "store"]
        self.training = case.program(state_paged_decisions(case, names) if names else None)
        self.values: dict[str, Value] = dict(case.graph.values)
        self.programs: list[Program] = [self.training]
        if not names:
            forward = mlp()
            problem = make_problem(forward)
            schedule = keep_all(problem)
            self.programs.append(lower_inference(forward, problem, schedule, pack(problem, schedule), self.training))
        self.library = compile_library(self.programs, self.values, directory)
        self.manifest = self.library.with_name("poetc-emit.json")
        self.batches = [sample_inputs(self.training, seed) for seed in range(STEPS)]

    def session(self, **options: object) -> Session:
        return Session(self.library, self.manifest, **options)  # type: ignore[arg-type]

    def host(self) -> HostModel:
        return HostModel(self.library, self.programs, self.values)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    return {where: Built(where, tmp_path_factory.mktemp(where)) for where in WHERE}


@pytest.fixture
def session(built: dict[str, Built]) -> Iterator[Session]:
    with built["ram"].session() as session:
        yield session


def same(a: dict[str, Array], b: dict[str, Array]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[n], b[n]) for n in a)


@pytest.mark.parametrize("where", WHERE)
def test_the_bits_of_the_runtime(where: str, built: dict[str, Built], tmp_path: Path) -> None:
    model = built[where]
    with model.session() as session, model.host() as host:
        for i, batch in enumerate(model.batches):
            given = (batch["x"], batch["target"]) if i % 2 else (batch,)
            assert session.step(*given) == host.run(batch)
        assert session.steps == STEPS
        state = session.state_dict()
        assert same(state, {n: host.state(n) for n in host.state_names()})
        host.save(tmp_path)
        session.save(tmp_path / "session.bin")
        assert (tmp_path / "session.bin").read_bytes() == (tmp_path / "trained.bin").read_bytes()
        assert same(state, read_state((tmp_path / "session.bin").read_bytes(), model.training, "x"))
        assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".new")] == []
        expected = session.step(model.batches[0])
        for other_way in ("file", "arrays"):
            with model.session() as other:
                if other_way == "file":
                    other.load(tmp_path / "session.bin")
                    assert other.steps == STEPS
                else:
                    other.load_state_dict(state)
                assert same(other.state_dict(), state)
                assert other.step(model.batches[0]) == expected
        assert bool(session.page_ins) == bool(session.page_outs) == (where == "store")


@pytest.mark.parametrize("where", WHERE)
def test_peak_is_as_predicted_and_changes_nothing(where: str, built: dict[str, Built]) -> None:
    model = built[where]
    with model.session() as session:
        session.step(model.batches[0])
        before = session.state_dict()
        huge = {**model.batches[1], "x": np.full_like(model.batches[1]["x"], 3e38)}  # a loss that is no number
        for batch in (model.batches[1], huge):
            assert session.measure_peak(batch) == model.training.high_water_bytes
        assert session.steps == 1
        assert same(session.state_dict(), before)
    described = json.loads(model.manifest.read_text())["session"]["programs"]["train"]
    assert described["high_water_bytes"] == model.training.high_water_bytes


def test_predictions(built: dict[str, Built], session: Session) -> None:
    model = built["ram"]
    batch = model.batches[0]
    session.step(batch)
    with model.host() as host:
        host.run(batch)
        host.select(model.programs[1])
        host.run(batch)
        expected = host.output("logits")
    found = session.predict(batch["x"])
    assert np.array_equal(found, expected)
    assert np.array_equal(session.outputs()["logits"], expected)
    assert session.programs == ("train", "infer")
    with pytest.raises(SessionError, match="without a program 'evaluate'"):
        session.evaluate(batch["x"], batch["target"])
    session.step(batch)
    assert np.isfinite(found).all()
    with built["store"].session() as other, pytest.raises(SessionError, match="without a program 'infer'"):
        other.predict(batch["x"])


def test_types_that_numbers_fit_in(built: dict[str, Built], session: Session) -> None:
    x, target = (built["ram"].batches[0][n] for n in ("x", "target"))
    with built["ram"].session() as other:
        expected = [other.step(x, target) for _ in range(3)]
    assert session.step(x.astype(np.float64), target.astype(np.int64)) == expected[0]
    assert session.step(np.asfortranarray(x), np.repeat(target, 2)[::2]) == expected[1]
    assert session.step(x.tolist(), target.astype(np.uint8).tolist()) == expected[2]


def test_data_that_cannot_be_used_change_nothing(built: dict[str, Built], session: Session) -> None:
    x, target = (built["ram"].batches[0][n] for n in ("x", "target"))
    before = session.state_dict()
    nan = x.copy()
    nan[2, 1, 0] = np.nan
    classes = np.array([0, 1, 3, 0], np.int32)
    wrong = {
        r"1 arrays, the model takes 2: x, target": (x,),
        r"x: shape 4x6, the model takes 4x2x3": (x.reshape(4, 6), target),
        r"target: shape 3, the model takes 4": (x, target[:3]),
        r"target: float32, the model takes int32": (x, target.astype(np.float32)),
        r"x: complex64, the model takes float32": (x + 1j, target),
        r"x: no array of numbers": ([[1.0], [1.0, 2.0]], target),
        r"target: 4294967297, not 0 to 2": (x, target.astype(np.int64) + 2**32 + 1 - target),
        r"target\[2\] is 3, not 0 to 2": (x, classes),
        r"x\[2, 1, 0\] is nan, not a finite number": (nan, target),
        r"x\[0, 0, 0\] is inf, not a finite number": (np.full_like(x, 1e300, np.float64), target),
        r"target: not given; the model takes x, target": ({"x": x},),
        r"y: no input of the model": ({"x": x, "target": target, "y": x},),
    }
    for message, given in wrong.items():
        with pytest.raises(ValueError, match=message) as raised:
            session.step(*given)
        assert "\n" not in str(raised.value)
    assert session.steps == 0
    assert same(session.state_dict(), before)


def test_a_loss_that_is_no_number(built: dict[str, Built]) -> None:
    x, target = (built["ram"].batches[0][n] for n in ("x", "target"))
    huge = np.full_like(x, 3e38)
    with built["ram"].session(undo=True) as session, built["ram"].session() as plain:
        session.step(x, target)
        before = session.state_dict()
        for _ in range(2):
            with pytest.raises(SessionError, match=r"step 2: the loss is (nan|inf): lower the learning rate"):
                session.step(huge, target)
        assert session.steps == 1
        assert same(session.state_dict(), before)
        with pytest.raises(SessionError, match="step 1: the loss is"):
            plain.step(huge, target)
        assert plain.steps == 1


def test_the_learning_rate(built: dict[str, Built], session: Session) -> None:
    assert session.learning_rate == pytest.approx(float(session.state_dict()["learning_rate"][0]))
    session.learning_rate = 0.0
    before = session.state_dict()["fc1.weight"]
    session.step(built["ram"].batches[0])
    assert np.array_equal(session.state_dict()["fc1.weight"], before)
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="learning_rate"):
            session.learning_rate = wrong
    assert session.learning_rate == 0.0


@pytest.mark.parametrize("where", WHERE)
def test_state_by_name(where: str, built: dict[str, Built]) -> None:
    with built[where].session() as session:
        state = session.state_dict()
        state["fc2.weight"][...] = 0.5
        session.load_state_dict({"fc2.weight": state["fc2.weight"]}, strict=False)
        assert same(session.state_dict(), state)
        assert session.state_names() == list(state)
        assert same(session.state_dict(["fc2.weight"]), {"fc2.weight": state["fc2.weight"]})
        with pytest.raises(ValueError, match="fc9: no state of this model"):
            session.state_dict(["fc9"])
        wrong = {
            "fc9.weight: no state of this model": {**state, "fc9.weight": 1},
            "fc2.weight: not given": {k: v for k, v in state.items() if k != "fc2.weight"},
            "fc2.weight: shape 2, the model has 3x20": {**state, "fc2.weight": np.zeros(2)},
            "fc2.weight: complex64": {**state, "fc2.weight": state["fc2.weight"] + 1j},
        }
        for message, given in wrong.items():
            with pytest.raises(ValueError, match=message):
                session.load_state_dict(given)
        assert same(session.state_dict(), state)


@pytest.mark.parametrize("where", WHERE)
def test_files_that_are_no_state_of_the_model(where: str, built: dict[str, Built], tmp_path: Path) -> None:
    model = built[where]
    with model.session() as session:
        session.step(model.batches[0])
        session.save(tmp_path / "a.bin")
        session.step(model.batches[1])
        state, data = session.state_dict(), (tmp_path / "a.bin").read_bytes()
        for wrong, message in (
            (data[:-1], "no trained state of this model"),
            (b"", "no trained state of this model"),
            (data[:-16] + bytes([data[-16] ^ 1]) + data[-15:], "no trained state of this model"),
            (data[:5] + bytes([data[5] ^ 4]) + data[6:], "its checksum does not hold"),
        ):
            (tmp_path / "b.bin").write_bytes(wrong)
            with pytest.raises(SessionError, match=message):
                session.load(tmp_path / "b.bin")
        with pytest.raises(SessionError, match="no such file"):
            session.load(tmp_path / "none.bin")
        with pytest.raises(SessionError, match="No such file or directory"):
            session.save(tmp_path / "none" / "c.bin")
        assert same(session.state_dict(), state)
        assert session.steps == 2


def test_a_full_disk_keeps_the_last_file(session: Session, tmp_path: Path) -> None:
    """Files of at most 100 bytes stand for it."""
    import resource
    import signal

    path = tmp_path / "trained.bin"
    path.write_text("the last one")
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        with pytest.raises(SessionError, match=r"trained\.bin: File too large"):
            session.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert [p.name for p in tmp_path.iterdir()] == ["trained.bin"]
    assert path.read_text() == "the last one"


def test_devices_are_not_replaced(session: Session, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "device")
    for path, why in ((tmp_path / "device", "Invalid argument"), (tmp_path, "Is a directory")):
        with pytest.raises(SessionError, match=why):
            session.save(path)
    assert stat.S_ISFIFO((tmp_path / "device").stat().st_mode)


def test_what_is_no_model(built: dict[str, Built], tmp_path: Path) -> None:
    model = built["ram"]
    manifest = json.loads(model.manifest.read_text())
    with pytest.raises(SessionError, match="no such library"):
        Session(tmp_path / "libmodel.so", manifest)
    (tmp_path / "libmodel.so").write_bytes(b"\x7fELF of another machine")
    with pytest.raises(SessionError, match="cannot be loaded on this machine"):
        Session(tmp_path / "libmodel.so", manifest)
    with pytest.raises(SessionError, match="not built from the sources"):
        Session(model.library, built["store"].manifest)
    (tmp_path / "poetc-emit.json").write_text("{}")
    with pytest.raises(SessionError, match="no manifest of emitted C"):
        Session(model.library, tmp_path / "poetc-emit.json")


def test_a_closed_session(built: dict[str, Built], tmp_path: Path) -> None:
    session = built["store"].session(store=tmp_path / "pages.bin")
    session.step(built["store"].batches[0])
    assert (tmp_path / "pages.bin").stat().st_size > 0
    arena = weakref.ref(session._memory)
    session.close()
    session.close()
    assert arena() is None  # though somebody holds the session
    for call in (session.step, session.predict, session.measure_peak):
        with pytest.raises(SessionError, match="the session is closed"):
            call(built["store"].batches[0])
    with pytest.raises(SessionError, match="the session is closed"):
        session.state_dict()


def test_a_closed_session_unmaps_its_library(built: dict[str, Built]) -> None:
    session = built["ram"].session()
    path, library = str(built["ram"].library), session.library
    assert path in Path("/proc/self/maps").read_text()
    session.close()
    assert path not in Path("/proc/self/maps").read_text()
    with pytest.raises(SessionError, match="the session is closed"):
        library.text(0)
    with built["ram"].session() as one, built["ram"].session() as other:
        other.close()
        assert one.step(np.zeros((4, 2, 3)), [0, 1, 2, 0]) > 0  # another session has it still


def test_numpy_is_all_that_it_needs(built: dict[str, Built], tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.modules['poetc'] = None; import copied.session, numpy\n"
        "s = copied.session.Session(sys.argv[2], sys.argv[3])\n"
        "print(s.step(numpy.zeros((4, 2, 3)), [0, 1, 2, 0]).hex())"
    )
    (tmp_path / "copied").mkdir()
    for name in ("library.py", "session.py"):
        shutil.copy(runtime_directory() / name, tmp_path / "copied" / name)
    words = [sys.executable, "-c", code, str(tmp_path), str(built["ram"].library), str(built["ram"].manifest)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    with built["ram"].session() as session:
        assert session.step(np.zeros((4, 2, 3)), [0, 1, 2, 0]).hex() == done.stdout.strip()


def test_state_that_a_failed_step_left_on_the_store(tmp_path: Path) -> None:
    """It comes back once the store works; with `undo` it is that of before the step at once."""
    case = training_case(block_bytes=64)
    program = case.program(absent_state_decisions(case, "fc1.weight"))
    assert program.absences
    library = compile_library([program], case.graph.values, tmp_path)
    batches = [sample_inputs(program, seed) for seed in range(2)]

    def broken(*_: object) -> int:
        return -5

    failing = TRANSFER(broken)
    for undo in (False, True):
        manifest = library.with_name("poetc-emit.json")
        with Session(library, manifest, undo=undo) as session, Session(library, manifest) as other:
            session.step(batches[0])
            other.step(batches[0])
            before, store = session.state_dict(), session._raw.config.store
            works = store.page_in
            store.page_in = ctypes.cast(failing, ctypes.c_void_p).value
            with pytest.raises(SessionError, match="step 2: a file or the store cannot be read"):
                session.step(batches[1])
            if not undo:
                for call in (session.state_dict, partial(session.save, tmp_path / "a.bin"), session.measure_peak):
                    with pytest.raises(SessionError, match="a file or the store cannot be read"):
                        call()
                assert not (tmp_path / "a.bin").exists()
            store.page_in = works
            assert session.steps == 1
            weights = session.state_dict()["fc1.weight"]
            if undo:
                assert same(session.state_dict(), before)
                assert session.step(batches[1]) == other.step(batches[1])
                assert same(session.state_dict(), other.state_dict())
            else:
                assert np.array_equal(weights, before["fc1.weight"]), "its update had not run"
                assert np.isfinite(session.step(batches[1]))
    with Session(library, manifest) as session, Session(library, manifest) as other:
        other.step(batches[0])
        other.save(tmp_path / "good.bin")
        session._raw.config.store.page_in = ctypes.cast(failing, ctypes.c_void_p).value
        with pytest.raises(SessionError):
            session.step(batches[1])
        session.load(tmp_path / "good.bin")  # what was lost is not needed
        assert same(session.state_dict(), other.state_dict())


def test_where_touched_bytes_end() -> None:
    memory = np.full(10, 7, np.uint8)
    assert touched_bytes(memory, 7) == 0
    memory[4] = 1
    assert touched_bytes(memory, 7) == 5
    assert touched_bytes(memory[:0], 7) == 0
    large = np.full(3 * PART_BYTES + 5, 7, np.uint8)
    for index in (0, 4, PART_BYTES + 4, PART_BYTES + 5, large.size - 1):
        large[index] = 1
        assert touched_bytes(large, 7) == index + 1
