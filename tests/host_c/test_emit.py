"""What is written: stable bytes, names of any kind, clean builds, a directory that is whole or not there."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from poetc.emit import (
    MANIFEST,
    comment,
    emit,
    floating,
    identifier,
    identifiers,
    integer,
    kernel_files,
    runtime_sources,
    string,
)
from poetc.errors import PoetcError, UsageError
from poetc.graph import Array
from poetc.program import Interpreter, Program, read_state, sample_inputs
from poetc.runtime import STACK_BYTES, WIDE_NESTED_STACK_BYTES
from tests.program.models import Case, mlp, paged_decisions, state_paged_decisions, training_case
from tests.support.kernels import CALLS, build_library

NESTED_STACK_BYTES = 1600  # on top of STACK_BYTES, where operands stream and a kernel is made of kernels; 64-bit frames
WEIRD = "1 net/a:b;c*/\\??/" + "n" * 200


@pytest.fixture(scope="module")
def case() -> Case:
    return training_case()


@pytest.fixture(scope="module")
def program(case: Case) -> Program:
    return case.program(paged_decisions(case, "a"))


def run(command: list[str], directory: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CFLAGS")}
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_data(path: Path, program: Program, records: int) -> list[dict[str, Array]]:
    batches = [sample_inputs(program, seed) for seed in range(records)]
    names = [b.name for b in (*program.inputs, program.target) if b]
    path.write_bytes(b"".join(batch[name].tobytes() for batch in batches for name in names))
    return batches


def losses(output: str) -> list[float]:
    return [float(line.split()[-1]) for line in output.splitlines()]


def digest(directory: Path) -> dict[str, str]:
    files = (p for p in sorted(directory.rglob("*")) if p.is_file())
    return {p.relative_to(directory).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


# --- printing ---------------------------------------------------------------------------------------------------------


def test_golden_sources(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    case = training_case(mlp(hidden=4))
    emit(
        [case.program(paged_decisions(case, "a"))],
        case.graph.values,
        model="tiny",
        target="host",
        out_dir=tmp_path / "o",
    )
    for name in ("model.c", "model.h", "model_data.S"):
        golden(name, (tmp_path / "o" / name).read_text())


def test_literals_read_back() -> None:
    assert floating(0.1) == "0x1.99999ap-4f"
    assert floating(0.0) == "0x0p+0f"
    assert (floating(float("inf")), floating(-1e300), floating(float("nan"))) == ("INFINITY", "-INFINITY", "NAN")
    for value in (1.0, -2.5, 1e-45, 3.4e38):
        assert np.float32(float.fromhex(floating(value)[:-1])) == np.float32(value)
    assert integer(-(2**31)) == "(-2147483647 - 1)"
    with pytest.raises(ValueError, match="32 bits"):
        integer(2**31)


def test_names_become_identifiers() -> None:
    assert identifier("fc1.weight") == "fc1_weight"
    assert identifier("9/x") == "m_9_x"
    assert identifier("///") == "x"
    assert len(identifier("n" * 200)) <= 48 and identifier("n" * 200) != identifier("n" * 201)
    labels = identifiers(["a.b", "a:b", "A_B", "n" * 200])
    assert len({label.upper() for label in labels.values()}) == 4
    assert comment("a */ b /* ??/ \n \\") == r"/* a *\u002f b /\u002a ?\u003f/ \u000a \u005c */"
    assert comment("\u00e9\U0001f600**//***") == r"/* \u00e9\ud83d\ude00**\u002f/\u002a** */"
    crafted = ["a.b", "a:b", identifiers(["a.b", "a:b"])["a:b"]]
    assert len({label.upper() for label in identifiers(crafted).values()}) == 3
    assert string('a"\\\n\u00e9') == '"a\\042\\134\\012\\303\\251"'


# --- the directory ----------------------------------------------------------------------------------------------------


def test_same_input_gives_the_same_bytes(tmp_path: Path, case: Case, program: Program) -> None:
    for name in ("a", "b"):
        emit([program], case.graph.values, model="mlp", target="host", out_dir=tmp_path / name)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    emit([program], case.graph.values, model="mlp", target="cortex-m", out_dir=tmp_path / "a")  # ours: replaced
    assert not (tmp_path / "a" / "main.c").exists()


def test_only_what_is_needed_is_copied(tmp_path: Path, case: Case, program: Program) -> None:
    out = emit([program], case.graph.values, model="mlp", target="host", out_dir=tmp_path / "o")
    kernels = {p.name for p in (out / "runtime/kernels").rglob("*.c")}
    assert {"matmul.c", "activation.c", "optimizer.c", "loss.c"} <= kernels
    assert "convolution.c" not in kernels
    assert str(tmp_path) not in "".join(p.read_text() for p in out.rglob("*") if p.suffix in (".c", ".h", ".S", ".md"))


def test_foreign_directory_is_left_alone(tmp_path: Path, case: Case, program: Program) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(UsageError):
        emit([program], case.graph.values, model="mlp", target="host", out_dir=tmp_path / "mine")
    with pytest.raises(UsageError, match="unknown target 'z80'"):
        emit([program], case.graph.values, model="mlp", target="z80", out_dir=tmp_path / "o")
    assert [p.name for p in tmp_path.rglob("*")] == ["mine", "thesis.tex"]


def test_what_the_user_made_or_changed_in_it_stays(tmp_path: Path, case: Case, program: Program) -> None:
    """As the emitted README invites to: weights that were trained, a store, data, and another program."""
    firmware = functools.partial(
        emit, [program], case.graph.values, model="mlp", target="cortex-m3", out_dir=tmp_path / "o"
    )
    out = firmware()
    theirs = {"trained.bin": "weights", "store.bin": "checkpoint", "data.bin": "data", "mine/notes.md": "notes"}
    (out / "mine").mkdir()
    for name, text in theirs.items():
        (out / name).write_text(text)
    before = digest(out)
    assert digest(firmware()) == before
    train = (out / "port/train.c").read_text()
    (out / "port/train.c").write_text(train + "/* with my sensor */\n")
    edited = digest(out)
    with pytest.raises(UsageError, match=r"o: port/train.c is not as poetc wrote it;"):
        firmware()
    assert digest(out) == edited
    copies: list[str] = []
    firmware(force=True, copies=copies)
    assert copies == ["port/train.c.orig"]
    assert digest(out) == before | {"port/train.c.orig": edited["port/train.c"]}


def test_what_was_built_for_another_target_is_built_anew(tmp_path: Path, case: Case, program: Program) -> None:
    """`make` finds objects of this machine in build/, which stay as all that is not emitted."""
    if shutil.which("arm-none-eabi-gcc") is None:
        pytest.skip("no arm-none-eabi-gcc: make setup-arm")
    machines = []
    for target in ("host", "cortex-m"):
        out = emit([program], case.graph.values, model="mlp", target=target, out_dir=tmp_path / "o")
        objects = [out / "build" / name for name in ("model.o", "model_data.o", "runtime/src/poetc.o")]
        run(["make", "-s", *(str(path.relative_to(out)) for path in objects)], out)
        machines.append({path.read_bytes()[18] for path in objects})  # e_machine
    assert len(machines[0]) == 1 and machines[1] == {40}


def test_programs_for_another_target_are_not_taken_for_the_new_one(
    tmp_path: Path, case: Case, program: Program
) -> None:
    """A file stays that the Makefile of another target alone would build."""
    out = emit([program], case.graph.values, model="mlp", target="host", out_dir=tmp_path / "o")
    built = ("train", "libmodel.a", "libmodel.so")
    for name in (*built, "firmware.elf", "build/model.o"):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("built")
    emit([program], case.graph.values, model="mlp", target="host", out_dir=out)
    assert all((out / name).exists() for name in built), "the same target: make sees their age"
    emit([program], case.graph.values, model="mlp", target="cortex-m3", out_dir=out)
    assert not any((out / name).exists() for name in built)
    assert (out / "firmware.elf").exists() and (out / "build/model.o").exists()
    for name in ("firmware.map", "train"):
        (out / name).write_text("built, or the user's")
    emit([program], case.graph.values, model="mlp", target="host", out_dir=out)
    assert not (out / "firmware.elf").exists() and not (out / "firmware.map").exists() and (out / "train").exists()


def test_programs_of_the_users_own_makefile_stay(tmp_path: Path, case: Case, program: Program) -> None:
    makefile, out = "train: train.py\n\tcp train.py train\n", tmp_path / "o"
    out.mkdir()
    for name, text in (("Makefile", makefile), ("train", "the user's")):
        (out / name).write_text(text)
    emit([program], case.graph.values, model="mlp", target="host", out_dir=out, force=True)
    assert (out / "train").read_text() == "the user's" and (out / "Makefile.orig").read_text() == makefile


def test_failure_leaves_nothing_half_written(
    tmp_path: Path, case: Case, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = emit([program], case.graph.values, model="mlp", target="host", out_dir=tmp_path / "o")
    before = digest(out)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    for name in ("o", "new"):
        with pytest.raises(OSError, match="No space"):
            emit([program], case.graph.values, model="other", target="host", out_dir=tmp_path / name)
    assert digest(out) == before
    assert [p.name for p in tmp_path.iterdir()] == ["o"]


def test_unknown_kernel_is_refused() -> None:
    with pytest.raises(PoetcError, match="no kernel poetc_op_nonsense"):
        runtime_sources(["poetc_op_nonsense"])


# --- building ---------------------------------------------------------------------------------------------------------


def test_sanitized_build_of_a_weirdly_named_model_trains(tmp_path: Path, case: Case, program: Program) -> None:
    out = emit([program], case.graph.values, model=WEIRD, target="host", out_dir=tmp_path / "o")
    flags = "-O1 -g -Werror -fsanitize=address,undefined -fno-sanitize-recover=all"
    run(["make", "-s", "-j2", f"CFLAGS={flags}"], out)
    batches = write_data(out / "data", program, 4)
    interpreter = Interpreter(program, case.graph.values)
    printed = losses(run(["./train", "data", "6", "state.out"], out))
    expected = [interpreter.run(batches[i % 4]) for i in range(6)]
    np.testing.assert_allclose(printed, expected, rtol=1e-5)
    state = read_state((out / "state.out").read_bytes(), program, "state.out")
    np.testing.assert_allclose(state["fc1.weight"], interpreter.state("fc1.weight"), rtol=1e-4, atol=1e-6)


def test_documented_compiler_line(tmp_path: Path) -> None:
    """And weights on the store, in a file that starts as the emitted image, twice."""
    names = ["fc1.weight", "fc1.weight:velocity"]
    case = training_case(on_store=names)
    program = case.program(state_paged_decisions(case, names))
    out = emit([program], case.graph.values, model="mlp", target="host", out_dir=tmp_path / "o")
    line = next(s for s in (out / "README.md").read_text().splitlines() if s.startswith("    gcc"))
    run([*shlex.split(line), "-Werror"], out)
    batches = write_data(out / "data", program, 3)
    interpreter = Interpreter(program, case.graph.values)
    expected = [interpreter.run(batch) for batch in batches]
    for _ in range(2):
        np.testing.assert_allclose(losses(run(["./train", "data"], out)), expected, rtol=1e-5)


def test_demo_refuses_bad_calls(tmp_path: Path, case: Case, program: Program) -> None:
    out = emit([program], case.graph.values, model="mlp", target="host", out_dir=tmp_path / "o")
    run(["make", "-s", "-j2", "CFLAGS=-O1 -Werror"], out)
    (out / "empty").write_bytes(b"")
    for arguments, code, message in ((), 2, "usage:"), (("missing",), 1, "cannot read"), (("empty",), 1, "no whole"):
        done = subprocess.run(["./train", *arguments], cwd=out, capture_output=True, text=True, check=False)
        assert done.returncode == code and message in done.stderr


@pytest.fixture(scope="module")
def runtime_objects() -> list[Path]:
    """Every source of the runtime compiled with all warnings as errors, and its call graph recorded."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CC", "POETC_TEST_CFLAGS"):
            patch.delenv(name, raising=False)
        built = build_library(CALLS)
    assert built.failures == {}
    return list(built.objects)


def symbols(objects: list[Path]) -> str:
    return run(["nm", *map(str, objects)], objects[0].parent)


def test_kernels_are_found_in_the_sources(runtime_objects: list[Path]) -> None:
    assert set(kernel_files()) == set(re.findall(r" T (poetc_op_\w+)", symbols(runtime_objects)))


def test_stack_stays_within_what_is_promised(runtime_objects: list[Path]) -> None:
    """The deepest chain of calls from each kernel, by the compiler's call graph, on top of the way from poetc_run."""
    frames: dict[str, int] = {}
    calls: dict[str, set[str]] = {}
    for path in runtime_objects:
        text = path.with_suffix(".ci").read_text()
        for name, size, kind in re.findall(r'node: { title: "([^"]+)" label: ".*\\n(\d+) bytes \(([\w,]+)', text):
            assert kind in ("static", "dynamic,bounded"), f"{name}: unbounded stack"
            frames[name] = int(size)
        for caller, callee in re.findall(r'edge: { sourcename: "([^"]+)" targetname: "([^"]+)"', text):
            calls.setdefault(caller, set()).add(callee)

    @functools.cache
    def depth(name: str) -> int:
        return frames.get(name, 0) + max((depth(callee) for callee in calls.get(name, ())), default=0)

    @functools.cache
    def above(name: str) -> float:
        """Down to the call of a kernel, which is one through a pointer."""
        if name == "__indirect_call":
            return 0
        return frames.get(name, 0) + max((above(callee) for callee in calls.get(name, ())), default=-math.inf)

    heads = [frames.pop(f"poetc_op_linear_cross_entropy{part}") for part in ("", "_classes")]
    turned = next(name for name in frames if "add_turned" in name)  # in attention's gradient, which is made of products
    heads += [frames.pop("poetc_op_attention"), frames.pop("poetc_op_attention_grad") + frames.pop(turned)]
    # Blocks of sums of coded weights: of processors with vectors, whose pointers have 64 bits.
    coded = frames.pop("poetc_op_matmul_coded") + max(frames.pop(name) for name in list(frames) if ":coded_" in name)
    # Under poetc_stream are transfers, which call the store, and the kernel; never both at once.
    others = "poetc_stream", "poetc_rows", "poetc_write_piece"
    in_files = [name for name in frames if "poetc_stream.c:" in name or "poetc_rows.c:" in name]
    of_stream = {name: frames.pop(name) for name in [*in_files, *others]}
    parts = {name.partition(":")[2]: size for name, size in of_stream.items()}
    windows = of_stream["poetc_stream"] + parts.get("run_block", 0) + parts["call_kernel"]
    nested = windows + max(heads)  # a head in blocks of classes streams

    def transfers(name: str) -> int:
        below = (transfers(callee) for callee in calls.get(name, ()) if not callee.endswith(":call_kernel"))
        return of_stream.get(name, frames.get(name, 0)) + max(below, default=0)

    assert of_stream["poetc_stream"] < transfers("poetc_stream") <= NESTED_STACK_BYTES
    deepest = max(depth(kernel) for kernel in kernel_files())
    assert 0 < deepest + above("poetc_run") <= STACK_BYTES
    assert 0 < depth("poetc_run") <= STACK_BYTES
    assert 0 < min(heads) < nested <= NESTED_STACK_BYTES
    assert nested < above("poetc_run") + windows + coded <= STACK_BYTES + WIDE_NESTED_STACK_BYTES


def test_no_heap_and_no_mutable_globals(runtime_objects: list[Path]) -> None:
    assert not re.search(r" U (malloc|calloc|realloc|free|printf)\b", symbols(runtime_objects))
    assert re.findall(r" [bBdDC] (\w+)", symbols(runtime_objects)) == []


def test_manifest_names_every_file(tmp_path: Path, case: Case, program: Program) -> None:
    out = emit([program], case.graph.values, model="mlp", target="cortex-a", out_dir=tmp_path / "o")
    manifest = json.loads((out / MANIFEST).read_text())
    found = digest(out)
    del found[MANIFEST]
    assert manifest["files"] == found
