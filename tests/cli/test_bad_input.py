"""What a user can get wrong: one line, the right exit code, nothing left behind."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from poetc import measure
from poetc.cli import _console, _text
from poetc.errors import CheckFailed
from poetc.scheduling import problem_to_json
from tests.cli.conftest import Ended
from tests.support.problems import training_problem

Run = Callable[..., Ended]
Solved = tuple[Path, Ended]


def one_line(ended: Ended, code: int, *says: str) -> None:
    assert ended.code == code, ended.err
    assert ended.out == ""
    assert ended.err.startswith("poetc: error: ")
    assert ended.err.count("\n") == 1
    assert "internal" not in ended.err
    for word in says:
        assert word in ended.err


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.mark.parametrize("command", ["analyze", "solve"])
def test_files_that_are_no_models(poetc: Run, model: Path, tmp_path: Path, command: str) -> None:
    limit = ("--budget", "1MB", "-o", tmp_path / "out") if command == "solve" else ()
    missing = tmp_path / "missing.onnx"
    one_line(poetc(command, missing, *limit), 2, "missing.onnx")
    one_line(poetc(command, tmp_path, *limit), 2, tmp_path.name)
    for name, content in (
        ("empty.onnx", b""),
        ("text.onnx", b"not a model\n" * 50),
        ("half.onnx", model.read_bytes()[: model.stat().st_size // 2]),
    ):
        (tmp_path / name).write_bytes(content)
        one_line(poetc(command, tmp_path / name, "--batch", "2", *limit), 2, name)
    (tmp_path / "problem.json").write_text('{"name": 3')
    if command == "solve":
        one_line(poetc(command, tmp_path / "problem.json", *limit), 2, "problem.json")
    assert not (tmp_path / "out").exists()


def test_an_open_batch_without_batch(poetc: Run, model: Path, out: Path) -> None:
    one_line(poetc("solve", model, "--budget", "1MB", "-o", out), 2, "--batch")
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--budget", "12parsecs"), "parsecs"),
        (("--budget", "-5"), "--budget"),
        (("--budget", "many"), "or 60%, or least"),
        (("--budget", "60%", "--deadline", "1.3"), "--deadline"),
        (("--budget", "60%", "--device", "vax780"), "vax780"),
        (("--budget", "60%", "--train", "nosuch*"), "nosuch*"),
        (("--budget", "60%", "--train", "last:none"), "last:"),
        (("--budget", "60%", "--solver", "oracle"), "oracle"),
        (("--budget", "60%", "--model-output", "nosuch"), "nosuch"),
        (("--budget", "60%", "--precision", "fp16"), "take f16"),
    ],
)
def test_wrong_values(poetc: Run, model: Path, out: Path, options: tuple[str, ...], says: str) -> None:
    one_line(poetc("solve", model, "--batch", "2", *options, "-o", out), 2, says)
    assert not out.exists()


def test_a_budget_that_cannot_work_says_what_does(poetc: Run, model: Path, out: Path) -> None:
    options = ("--batch", "2", "--device", "stm32f746", "--time-limit", "5", "--quiet")
    ended = poetc("solve", model, *options, "--budget", "6kB", "-o", out, "--json")
    one_line(replace(ended, out=""), 4)
    answer = ended.json
    assert answer["status"] == "infeasible"
    smallest = answer["min_budget_bytes"]
    assert f"{smallest}" in ended.err.replace(",", "")
    assert smallest > 6_000
    parts = dict(answer["tensors_at_peak"])
    assert sum(parts.values()) <= smallest
    assert any(name.startswith("workspace of ") for name in parts)
    assert not out.exists()


def test_a_deadline_that_cannot_work(poetc: Run, model: Path, out: Path) -> None:
    options = ("--batch", "2", "--device", "stm32f746", "--budget", "100%")
    one_line(poetc("solve", model, *options, "--deadline", "1us", "-o", out), 4, "deadline")
    assert not out.exists()


def test_weights_that_are_not_numbers(poetc: Run, model: Path, tmp_path: Path) -> None:
    damaged = onnx.load(model)
    weights = damaged.graph.initializer[0]
    array = numpy_helper.to_array(weights).copy()
    array.flat[3] = np.nan
    weights.CopyFrom(numpy_helper.from_array(array, weights.name))
    path = tmp_path / "nan.onnx"
    onnx.save(damaged, path)
    one_line(poetc("analyze", path, "--batch", "2"), 2, weights.name)


def test_operators_that_are_not_supported_are_all_named(poetc: Run, tmp_path: Path) -> None:
    nodes = [
        onnx.helper.make_node("NonZero", ["x"], ["a"], name="first"),
        onnx.helper.make_node("Unique", ["x"], ["b"], name="second"),
    ]
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3])
    results = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.INT64, None) for n in ("a", "b")]
    graph = onnx.helper.make_graph(nodes, "odd", [x], results)
    path = tmp_path / "odd.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), path)
    one_line(poetc("analyze", path), 3, "NonZero", "Unique", "first", "second")


@pytest.mark.parametrize("command", ["emit", "validate", "report"])
def test_directories_that_are_not_solved(poetc: Run, solved: Solved, tmp_path: Path, command: str) -> None:
    extra = ("-o", tmp_path / "src") if command == "emit" else ()
    one_line(poetc(command, tmp_path / "missing", *extra), 2, "missing")
    (tmp_path / "other").mkdir()
    one_line(poetc(command, tmp_path / "other", *extra), 2, "other")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in solved[0].iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    (damaged / "schedule.json").write_bytes(b"{")
    one_line(poetc(command, damaged, *extra), 2, "damaged")
    assert not (tmp_path / "src").exists()


def test_a_folder_that_was_not_solved_is_not_said_to_be(poetc: Run, tmp_path: Path) -> None:
    given = ("--data", tmp_path / "d.npz", "--loss", "mse", "-o", tmp_path / "out.onnx")
    one_line(poetc("train", tmp_path, *given, "--epochs", "1"), 2, f"{tmp_path}: not a directory made by poetc solve")
    one_line(poetc("importance", tmp_path, *given), 2, f"{tmp_path}: not a directory made by poetc solve")
    one_line(poetc("diff", tmp_path / "old", tmp_path), 2, f"{tmp_path / 'old'}: does not exist")


@pytest.mark.parametrize("command", ["report", "validate"])
def test_the_directory_of_a_training_names_the_one_within(
    poetc: Run, solved: Solved, tmp_path: Path, command: str
) -> None:
    within = tmp_path / "out.onnx.train" / "solved"
    shutil.copytree(solved[0], within)
    one_line(poetc(command, within.parent), 2, f"{within} is one")


def test_references_that_do_not_fit(poetc: Run, solved: Solved, tmp_path: Path) -> None:
    one_line(poetc("validate", solved[0], "--reference", tmp_path / "none.npz"), 2, "none.npz")
    (tmp_path / "text.npz").write_text("no archive")
    one_line(poetc("validate", solved[0], "--reference", tmp_path / "text.npz"), 2, "text.npz")
    np.savez(tmp_path / "other.npz", loss=np.float64(1))
    one_line(poetc("validate", solved[0], "--reference", tmp_path / "other.npz"), 2, "in.image")


def test_nothing_of_the_user_is_overwritten(poetc: Run, solved: Solved, model: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    one_line(poetc("solve", model, "--batch", "2", "--budget", "100%", "-o", mine), 2, "mine")
    one_line(poetc("emit", solved[0], "-o", mine), 2, "mine")
    one_line(poetc("emit", solved[0], "-o", mine / "thesis.txt"), 2, "thesis.txt")
    assert [p.name for p in mine.iterdir()] == ["thesis.txt"]
    assert (mine / "thesis.txt").read_text() == "years of work"


def test_what_the_user_added_or_changed_stays(poetc: Run, solved: Solved, tmp_path: Path) -> None:
    """In each kind of directory that a command writes again, named before anything is solved."""
    problem, out, compared = tmp_path / "p.json", tmp_path / "out", tmp_path / "compared"
    problem.write_bytes(problem_to_json(training_problem(Random(1), 4)))
    solve = ("solve", problem, "-b", "100%", "-o", out, "--json")
    compare = ("compare", problem, "--budgets", "100%", "--solvers", "keep_all", "-o", compared, "--json")
    src = tmp_path / "src"
    emit = ("emit", solved[0], "--target", "cortex-m", "-o", src, "--json")
    for command, place, changed in (
        (solve, out, "report.html"),
        (compare, compared, "comparison.csv"),
        (emit, src, "README.md"),
    ):
        assert poetc(*command).json["copies"] == []
        (place / "trained").mkdir()
        (place / "trained" / "store.bin").write_text("weights")
        assert poetc(*command).json["copies"] == []
        (place / changed).write_text("mine")
        refused = poetc(*command)
        assert refused.code == 2 and refused.json["changed"] == [changed]
        assert (place / changed).read_text() == "mine"
        forced = poetc(*command, "--force")
        assert forced.json["copies"] == [f"{changed}.orig"]
        assert forced.err.endswith(f"that you had changed are kept as {changed}.orig\n")
        assert ((place / f"{changed}.orig").read_text(), (place / changed).read_text() == "mine") == ("mine", False)
        assert (place / "trained" / "store.bin").read_text() == "weights"


def test_a_page_that_was_changed_is_not_written_over(poetc: Run, tmp_path: Path) -> None:
    """What `report` writes is recorded: it is poetc's, and solved again without a word."""
    problem, out = tmp_path / "p.json", tmp_path / "out"
    problem.write_bytes(problem_to_json(training_problem(Random(1), 4)))
    solve = ("solve", problem, "-b", "100%", "-o", out)
    assert poetc(*solve).code == 0
    page = out / "report.html"
    page.unlink()
    assert poetc("report", out).code == 0 and page.exists()
    for extra in ((), ("--curve", "--time-limit", "1"), ("--html", page)):
        assert poetc("report", out, *extra).code == 0
        assert poetc(*solve).code == 0
    page.write_text("mine")
    one_line(poetc("report", out, "--html", page), 2, "report.html: is not as poetc wrote it")
    assert poetc("report", out, "--html", tmp_path / "other.html").code == 0
    assert page.read_text() == "mine"


def test_a_kept_run_is_all_there_or_refused(poetc: Run, solved: Solved, tmp_path: Path) -> None:
    kept, mine = tmp_path / "kept", tmp_path / "solved"
    host = ("run", solved[0], "--on", "host", "--steps", "1")
    assert poetc(*host, "--keep", kept, "--json").json["copies"] == []
    # What an earlier one left is replaced, and what was built of it; nothing of the user's is.
    subprocess.run(["make", "-s", "-j2", "-C", kept / "src", "train", "CFLAGS=-O1"], check=True, capture_output=True)
    (kept / "old").write_text("mine")
    (kept / "src" / "libmodel.so").unlink()  # as a linker does: this process has it mapped
    (kept / "src" / "libmodel.so").write_text("built anew")
    (kept / "src" / "main.c").write_text(main := (kept / "src" / "main.c").read_text() + "\n")
    one_line(poetc(*host, "--keep", kept), 2, "src/main.c is not as", "--keep", "--force")
    ended = poetc(*host, "--keep", kept, "--json", "--force")
    assert ended.json["copies"] == ["src/main.c.orig"] and "src/main.c.orig" in ended.err
    assert ((kept / "old").read_text(), (kept / "src" / "main.c.orig").read_text()) == ("mine", main)
    assert (kept / "src" / "libmodel.so").read_bytes().startswith(b"\x7fELF")
    train, data = kept / "src" / "train", kept / "run" / "data.bin"
    for words, says in ((["x"], "STEPS"), (["1x"], "STEPS"), (["-1"], "STEPS"), ([""], "STEPS")):
        done = subprocess.run([train, data, *words], capture_output=True, text=True, cwd=kept / "src", check=False)
        assert (done.returncode, done.stdout) == (2, "") and says in done.stderr
    done = subprocess.run([train, data, "1", "state"], capture_output=True, text=True, cwd=kept / "src", check=False)
    assert float(done.stdout.split()[-1]) == pytest.approx(ended.json["loss"], rel=1e-6)
    assert (kept / "src" / "state").read_bytes() == (kept / "run" / "trained.bin").read_bytes()
    shutil.copytree(solved[0], mine)
    for on in ("host", "qemu:mps2-an386"):
        one_line(poetc("run", solved[0], "--on", on, "--keep", mine), 2, str(mine), "poetc run", "--keep")
    assert sorted(p.name for p in mine.iterdir()) == sorted(p.name for p in solved[0].iterdir())
    one_line(poetc(*host, "--checkpoint", "2", "--keep", tmp_path / "new"), 2, "--checkpoint 2", "host")
    one_line(poetc(*host, "--numerics", "fast", "--keep", tmp_path / "new"), 2, "--numerics fast", "separate or fused")
    assert not (tmp_path / "new").exists()


def test_a_run_that_is_interrupted_keeps_nothing(
    poetc: Run, solved: Solved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose check fails is kept: what is wrong can be looked at."""

    def ends(error: BaseException) -> Callable[..., None]:
        def raises(*words: object, **options: object) -> None:
            raise error

        return raises

    for error, code, there in ((KeyboardInterrupt(), 130, False), (CheckFailed("wrong"), 1, True)):
        monkeypatch.setattr(measure, "build_host", ends(error))
        ended = poetc("run", solved[0], "--on", "host", "--keep", tmp_path / "kept")
        assert (ended.code, [p.name for p in tmp_path.iterdir()]) == (code, ["kept"] if there else [])
    assert json.loads((tmp_path / "kept" / "poetc-run.json").read_text())["error"] == "wrong"


def test_a_full_disk_leaves_nothing(poetc: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.name == "plan.json":
            write(path, data[:10])
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    one_line(poetc("solve", model, "--batch", "2", "--budget", "100%", "-o", tmp_path / "out"), 2, "no space left")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written(poetc: Run, model: Path, tmp_path: Path) -> None:
    # /proc refuses new directories to everybody, root included.
    ended = poetc("solve", model, "--batch", "2", "--budget", "100%", "-o", "/proc/poetc/out")
    one_line(ended, 2, "/proc")


def test_ctrl_c_while_solving_leaves_nothing(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "poetc", "solve", model, "--batch", "16", "--device", "stm32f746", "-v"]
    command += ["--budget", "40%", "-o", tmp_path / "out"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert process.stderr is not None
    for line in process.stderr:
        if "solving" in line:
            break
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    try:
        _, rest = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130
    assert rest.splitlines()[-1] == "poetc: interrupted"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["graph.json", "inference.json", "values.npz", "device.yaml", "plan.json"])
@pytest.mark.parametrize("harm", ["missing", "changed"])
def test_a_directory_that_is_not_whole(poetc: Run, solved: Solved, tmp_path: Path, name: str, harm: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(solved[0], copy)
    if harm == "missing":
        (copy / name).unlink()
    else:
        (copy / name).write_bytes((copy / name).read_bytes() + b" ")
    for command in (["report", copy], ["validate", copy], ["emit", copy, "--target", "host", "-o", tmp_path / "src"]):
        one_line(poetc(*command), 2, name)
    assert not (tmp_path / "src").exists()


def test_not_a_number(poetc: Run, model: Path) -> None:
    one_line(poetc("solve", model, "--batch", "4", "--budget", "70%", "--gap", "nan"), 2, "--gap")
    for command in (("solve", "--budget", "70%"), ("compare",)):
        for value in ("nan", "inf", "0", "-1", "soon"):
            ended = poetc(command[0], model, "--batch", "4", *command[1:], "--time-limit", value)
            assert "'--time-limit'" in ended.err and f"{value} is no finite number above 0" in ended.err
            assert ended.code == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [(b"", "ends too early"), (b'{"name": 3', "ends too early"), (b"name: p", "invalid"), (b"\xff\xfe", "invalid")],
)
def test_json_that_is_none(poetc: Run, tmp_path: Path, text: bytes, says: str) -> None:
    (path := tmp_path / "p.json").write_bytes(text)
    one_line(poetc("solve", path, "-o", tmp_path / "out"), 2, f"{path}: is no whole JSON: ", says)


def test_transfers_that_cannot_overlap_name_the_option(poetc: Run, model: Path, tmp_path: Path) -> None:
    for device in ("nrf52840", "qemu-microbit"):
        ended = poetc("solve", model, "--batch", "2", "-d", device, "-b", "60%", "--dma", "-o", tmp_path / "out")
        one_line(ended, 2, "--dma: ", device)
    (path := tmp_path / "p.json").write_bytes(problem_to_json(training_problem(Random(1), 4)))
    one_line(poetc("solve", path, "-b", "60%", "--dma", "-o", tmp_path / "out"), 2, "--dma: ", "p.json", "'none'")


def test_limits_that_cannot_work_name_their_option_and_what_to_do(poetc: Run, model: Path, tmp_path: Path) -> None:
    options = ("solve", model, "--batch", "2", "--device", "stm32f746", "-o", tmp_path / "out")
    ended = poetc(*options, "-b", "6kB", "--optimizer", "adam", "--no-paging", "--quiet")
    one_line(ended, 4, "; raise --budget; at its peak", "; no single option that was tried fits")
    assert "; --no-paging keeps operands from streaming; " in ended.err
    (board := tmp_path / "bare.yaml").write_text("inherits: nrf52840\nstores: null\ndefault_store: null\ntitle: bare\n")
    ended = poetc(*options[:4], "-d", board, *options[6:], "-b", "6kB", "--optimizer", "adam", "--quiet")
    one_line(ended, 4, "; device 'bare' has no store, so no operand streams; ")
    one_line(poetc(*options, "-b", "60%", "--deadline", "1ns"), 4, "--deadline 1ns cannot be met", "takes 7.111 ms")
    problem = replace(training_problem(Random(1), 4), deadline_ns=1)
    (path := tmp_path / "p.json").write_bytes(problem_to_json(problem))
    one_line(
        poetc("solve", path, "-b", "60%", "-o", tmp_path / "out"), 4, "the deadline of 1 ns, which ", "p.json says,"
    )


def test_data_that_is_not_there(poetc: Run, solved: Solved, tmp_path: Path) -> None:
    for data, says in ((tmp_path / "none.npz", "does not exist"), (tmp_path, "is a directory")):
        one_line(poetc("run", solved[0], "--on", "host", "--data", data), 2, f"--data {data}: {says}")
    (half := tmp_path / "half.npz").write_bytes(b"PK\x03\x04 and no more")
    one_line(poetc("run", solved[0], "--on", "host", "--data", half), 2, "half.npz: not an .npz file")


def test_emitting_into_a_solved_directory(poetc: Run, solved: Solved) -> None:
    one_line(poetc("emit", solved[0], "-o", solved[0]), 2, f"{solved[0]}: holds something else than emitted C; choose")


def test_control_characters_in_names_are_escaped(poetc: Run, tmp_path: Path) -> None:
    problem = training_problem(Random(1), 4)
    tensors = tuple(replace(t, name=f"{t.name}\x1b[31m") for t in problem.tensors)
    (path := tmp_path / "p.json").write_bytes(problem_to_json(replace(problem, name="one\ntwo", tensors=tensors)))
    assert poetc("solve", path, "-b", "100%", "-o", tmp_path / "out").code == 0
    ended = poetc("report", tmp_path / "out")
    assert ended.out.startswith("one\\ntwo") and "\x1b" not in ended.out
    ended = poetc("solve", path, "-b", "1", "-o", tmp_path / "out")
    one_line(ended, 4, "\\x1b[31m (")
    assert "\x1b" not in ended.err
    ended = poetc("compare", path, "--budgets", "1", "--solvers", "poetc", "-o", tmp_path / "compared")
    assert ended.code == 0 and "\\x1b[31m (" in ended.out and "\x1b" not in ended.out


def test_control_characters_in_answers_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    assert _text.table(("device",), (("red\x1b[31m\nand more",),)) == "device\nred\\x1b[31m\\nand more"
    assert _text.fields((("title", "red\x1b[31m\nand more"),)) == "title  red\\x1b[31m\\nand more"
    console = _console.Console(as_json=False, quiet=False, verbose=False)
    console.answer({}, "a:\n\tred\x1b[31m")
    assert capsys.readouterr().out == "a:\n\tred\\x1b[31m\n"


def test_a_model_without_a_name(poetc: Run) -> None:
    one_line(poetc("solve", ""), 2, "directory")


def test_banks_that_there_are_not(poetc: Run, model: Path, out: Path) -> None:
    common = ("solve", str(model), "--batch", "4", "--device", "stm32h743", "-o", str(out), "--budget")
    one_line(poetc(*common, "axo=1kB"), 2, "--budget axo=1kB", "no RAM bank 'axo'; did you mean 'axi'?")
    one_line(poetc(*common, "flash=1kB"), 2, "no RAM bank 'flash'; it has: dtcm, itcm, axi, d2, d3")
    one_line(poetc(*common, "axi=600kB"), 2, "--budget axi=600kB: the bank has 524,288 bytes; give it that or less")
    one_line(poetc(*common, "axi=1kB,axi=2kB"), 2, "bank 'axi' has a budget already")
    one_line(poetc(*common, "axi=1kB,9"), 2, "give each bank a size")
    one_line(poetc(*common, "dtcm=3kB,d3=3kB"), 4, "fit in no bank: the largest budget is that of dtcm")


def test_processors_that_there_are_not(poetc: Run, model: Path, out: Path) -> None:
    common = ("solve", model, "--batch", "2", "--time-limit", "2", "--no-paging", "-o", out)
    one_line(poetc(*common, "--device", "rp2350", "--processors", "core2"), 2, "--processors core2", "'core1'")
    one_line(poetc(*common, "--device", "stm32f746", "--processors", "all"), 2, "has the main processor alone")
    one_line(poetc(*common, "--device", "rp2350", "--processors", ""), 2, "--processors '': name processors")
    one_line(
        poetc(*common, "--device", "rp2350", "--processors", "core1,"), 2, "--processors 'core1,': a name is empty"
    )
    one_line(poetc(*common, "--device", "rpi4", "--processors", "core1,core1"), 2, "'core1' stands there twice")
    said = ("--processors: 'dsp' runs no operator of", "i8", "'Conv(conv0)' is a Conv of floats")
    for names in ("dsp", "all"):
        one_line(poetc(*common, "--device", "phone-dsp", "--processors", names), 2, *said)
    one_line(poetc(*common, "--device", "rpi4", "--processors", "all,core1"), 2, "'all' stands for every processor")
    plans = ("bundle", model, "--batch", "2", "--budgets", "120%,95%", "-o", out)
    one_line(poetc(*plans, "--device", "rp2350", "--processors", "all"), 2, "--processors", "on one processor")
    late = ("--device", "rp2350", "--processors", "all", "--deadline", "1ns")
    said = ("--deadline 1ns cannot be met", "a step takes ", " ms at least, its critical path ")
    one_line(poetc(*common, *late), 4, *said)
    one_line(poetc(*common, *late, "--micro-batches", "auto"), 4, *said)
    banks = ("--device", "stm32h745", "--processors", "m4", "--budget", "dtcm=64kB")
    one_line(poetc(*common, *banks), 2, "--budget dtcm=64kB and --processors exclude each other")
    one_line(poetc(*common, *late[:4], "--solver", "melon"), 2, "melon: places operators on one processor alone")
    assert not out.exists()


def test_tables_of_switches_have_their_flash(poetc: Run, tmp_path: Path, out: Path) -> None:
    weights = [numpy_helper.from_array(np.ones((16, 16), np.float32), f"w{i}") for i in range(4)]
    nodes = []
    for i in range(4):
        nodes += [helper.make_node("MatMul", [f"y{i}", f"w{i}"], [f"h{i}"])]
        nodes += [helper.make_node("Relu", [f"h{i}"], [f"y{i + 1}"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [256, 16]) for name in ("y0", "y4")]
    graph = helper.make_graph(nodes, "four", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    common = ("bundle", tmp_path / "m.onnx", "-d", "stm32f746", "-b", "100%,70%", "--gap", "0.9", "-q", "-o", out)
    one_line(poetc(*common, "--switch-flash", "1"), 2, "--switch-flash 1: the tables take 48 bytes", "allow more")
    assert not out.exists()
    assert poetc(*common, "--switch-flash", "48").code == 0


def test_a_damaged_bundle_is_to_be_bundled_again(poetc: Run, solved: Solved, out: Path) -> None:
    shutil.copytree(solved[0], out)
    summary = (out / "summary.json").read_text()
    (out / "summary.json").write_text(summary.replace('"energy_pj": ', '"energy_pj": 1'))
    one_line(poetc("report", out), 2, "summary.json: not as poetc solve wrote it; run poetc solve again")
    (out / "summary.json").write_text(summary)
    (out / "plan.json").write_text("{}")
    one_line(poetc("report", out), 2, "plan.json: damaged (not as poetc solve wrote it); run poetc solve again")
    (out / "bundle.json").write_text("{}")
    one_line(poetc("report", out), 2, "plan.json: damaged (not as poetc bundle wrote it); run poetc bundle again")
    (out / "plan.json").unlink()
    one_line(poetc("report", out), 2, "plan.json: missing; run poetc bundle again")
    (out / "summary.json").write_text("{")
    one_line(poetc("report", out), 2, "summary.json: damaged; run poetc bundle again")


@pytest.mark.parametrize("part", ["35%", "0.35x"])
def test_an_option_that_would_fit_comes_with_the_bytes_of_a_budget_in_parts(
    poetc: Run, digits: Path, tmp_path: Path, part: str
) -> None:
    """The same part of the keep-all peak with that option would be another budget."""
    options = ("solve", digits, "--batch", "4", "--device", "stm32f746", "--no-paging", "--time-limit", "3")
    ended = poetc(*options, "--budget", part, "-o", tmp_path / "out")
    assert ended.code == 4, ended.err
    hint = re.search(r"; with (--budget \d+) it fits with (--train last:1) \(\d+ bytes\)", ended.err)
    assert hint is not None, ended.err
    followed = poetc(*options, *hint[1].split(), *hint[2].split(), "-o", tmp_path / "out")
    assert followed.code == 0, followed.err


@pytest.mark.long
def test_options_that_would_fit_are_named_where_the_budget_does_not(poetc: Run, digits: Path, tmp_path: Path) -> None:
    """In the message and in a table."""
    options = ("solve", digits, "--batch", "4", "--device", "stm32f746", "--no-paging", "-b", "230kB")
    ended = poetc(*options, "--optimizer", "adam", "--time-limit", "6", "-o", tmp_path / "out")
    assert ended.code == 4, ended.err
    *table, said = ended.err.splitlines()
    fits = re.search(r"; it fits with --optimizer sgd \((\d+) bytes\), or --train last:1 \(59584 bytes\)", said)
    assert fits is not None and int(fits[1]) <= 230_000
    rows = {line[: line.index("  ")]: line.split()[-5:-4] for line in table if "  " in line}
    assert {"as it is", "--batch 2", "--train last:2"} <= set(rows)
    assert rows["--optimizer sgd"] == ["yes"] and rows["--batch 2"] == ["no"]
    found = poetc(*options, "--optimizer", "adam", "--time-limit", "6", "--json").json
    least = {way["options"]: way["least_bytes"] for way in found["ways"]}
    assert all(n is None or n < found["min_budget_bytes"] for n in least.values())  # the others change nothing
