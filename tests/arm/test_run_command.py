"""`poetc run`: its answer, its data files, and what it says when something is missing."""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poetc import artifact, boards, emit, measure
from poetc.commands import programs
from poetc.commands import run as running
from poetc.errors import CheckFailed, UsageError
from poetc.measure import CallGraph, library_frames
from poetc.runtime import STACK_BYTES, runtime_directory
from tests.arm.conftest import Solve
from tests.cli.conftest import run as poetc

KEYS = (
    "loss",
    "peak_measured_bytes",
    "peak_predicted_bytes",
    "instructions",
    "page_ins",
    "page_outs",
    "state_sha256",
    "flash_bytes",
)


@pytest.fixture(scope="module")
def directory(solve: Solve, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("solved") / "mlp.poetc"
    artifact.write(solve("mlp", 4, "qemu-microbit", "16KiB").artifact, path, {})
    return path


def answer(*words: object) -> dict[str, Any]:
    done = poetc(*words, "--json")
    assert done.code == 0, done.err
    return done.json


def test_answer_and_streamed_losses(directory: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = tmp_path / "digits.npz"
    np.savez(data, image=rng.random((14, 1, 8, 8), np.float32), target=np.arange(14, dtype=np.int32) % 10)
    words = ["run", directory, "--on", "qemu:mps2-an385", "--data", data, "--keep", tmp_path / "kept", "--json"]
    done = subprocess.run([sys.executable, "-m", "poetc", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document.keys() >= set(KEYS)
    losses = [float(x) for x in re.findall(r"^step \d+ loss (\S+)$", done.stderr, re.MULTILINE)]
    assert losses == pytest.approx(document["losses"], abs=1e-6)
    assert len(losses) == 3  # whole batches of four
    assert document["peak_measured_bytes"] == document["peak_predicted_bytes"] <= document["budget_bytes"]
    assert document["stack_measured_bytes"] <= document["stack_bound_bytes"] <= document["stack_reserved_bytes"]
    assert sum(o["instructions"] for o in document["operators"]) == document["instructions"]
    assert document["instructions"] < document["total_instructions"]
    # arm-none-eabi-size says the same.
    elf = tmp_path / "kept" / "src" / "firmware.elf"
    sizes = subprocess.run(["arm-none-eabi-size", elf], capture_output=True, text=True, check=True).stdout.split()[6:9]
    assert document["flash_bytes"] == int(sizes[0]) + int(sizes[1])
    assert document["ram_bytes"] == int(sizes[1]) + int(sizes[2])
    # This machine, and a repetition, agree.
    again = answer("run", directory, "--on", "host", "--data", data)
    assert (again["losses"], again["state_sha256"]) == (document["losses"], document["state_sha256"])
    twice = answer("run", directory, "--on", "qemu:mps2-an385", "--data", data)
    assert twice["instructions"] == document["instructions"]


@pytest.mark.long
def test_the_emulator_works_within_512_mb(directory: Path) -> None:
    """By itself QEMU asks for 1 GiB for the code that it translates to."""
    words = [sys.executable, "-m", "poetc", "run", str(directory), "--on", "qemu:mps2-an385", "--steps", "1", "--quiet"]
    limit = 512_000 << 10
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert done.returncode == 0, done.stderr


def test_a_checksum_of_gradients_counts_as_ram(directory: Path) -> None:
    """RAM is never predicted below what is linked."""
    plain, logged = (
        answer("run", directory, "--on", "qemu:microbit", "--steps", 1, *words) for words in ((), ("--gradients",))
    )
    assert logged["gradients_crc"] and logged["ram_bytes"] >= plain["ram_bytes"]  # four bytes, or within the rounding
    for document in (plain, logged):
        assert 0 <= document["ram_predicted_bytes"] - document["ram_bytes"] <= 64


@pytest.mark.long
def test_fused_numerics_has_the_bits_of_the_host(directory: Path) -> None:
    """By vfma of a Cortex-M4F, with fewer instructions."""
    separate, fused, host = (
        answer("run", directory, "--on", on, "--steps", 2, "--numerics", n)
        for on, n in (("qemu:mps2-an386", "separate"), ("qemu:mps2-an386", "fused"), ("host", "fused"))
    )
    assert fused["instructions"] < separate["instructions"]
    assert fused["state_sha256"] == host["state_sha256"] != separate["state_sha256"]


@pytest.mark.parametrize("board", ["microbit", "armhf"])
def test_without_toolchain_one_line_says_how_to_get_it(
    board: str, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = poetc("run", directory, "--on", f"qemu:{board}")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "make setup-arm" in done.err and "apt-get install" in done.err


def test_unknown_board_and_target(directory: Path, tmp_path: Path) -> None:
    done = poetc("run", directory, "--on", "qemu:toaster")
    assert done.code == 2 and "mps2-an386" in done.err
    done = poetc("emit", directory, "--target", "cortex-m3", "--board", "microbit", "-o", tmp_path / "x")
    assert done.code == 2 and "cortex-m0" in done.err


def test_what_a_board_has_no_room_for_is_not_built(solve: Solve, tmp_path: Path) -> None:
    artifact.write(solve("ds-cnn", 2, "qemu-mps2-an386", "60%").artifact, tmp_path / "large", {})
    done = poetc("run", tmp_path / "large", "--on", "qemu:microbit", "--steps", "1")
    said = re.fullmatch(
        r"poetc: error: microbit has 16384 bytes of RAM; the arena of (\d+) with (\d+) for stack and variables needs"
        r" (\d+), (\d+) too many: solve for --budget 16384 or less\n",
        done.err.splitlines(keepends=True)[-1],
    )
    assert said is not None, done.err
    arena, rest, needed, excess = map(int, said.groups())
    assert (done.code, needed, excess) == (2, arena + rest, needed - 16384)


def test_a_refusal_names_the_device_where_the_usual_board_of_a_target_is_smaller(solve: Solve, tmp_path: Path) -> None:
    artifact.write(solve("ds-cnn", 2, "rp2040", "60%").artifact, tmp_path / "large", {})
    emitted = poetc("emit", tmp_path / "large", "--target", "cortex-m0", "-o", tmp_path / "src")
    assert (emitted.code, emitted.err.count("\n")) == (2, 1), emitted.err
    assert re.search(
        r"^poetc: error: microbit has 16384 bytes of RAM; .* --budget 16384 or less; microbit is the usual board of"
        r" cortex-m0: for the rp2040 with 262\.1 kB of RAM give --board DIR, or the --layout of a project$",
        emitted.err.rstrip(),
    ), emitted.err
    named = poetc("emit", tmp_path / "large", "--board", "microbit", "-o", tmp_path / "src")
    assert named.code == 2 and "rp2040" not in named.err


def test_linkers_words_come_without_the_linker() -> None:
    lines = [
        "/usr/lib/gcc/bin/arm-none-eabi-ld: the arena of 9 bytes does not fit",
        "src/kernels/pool.c:3:1: error: expected",
        "collect2: error: ld returned 1 exit status",
        "make: *** [Makefile:9: firmware.elf] Error 1",
    ]
    assert boards.telling(lines) == ["the arena of 9 bytes does not fit", "pool.c:3:1: error: expected"]
    assert boards.telling(["killed"]) == ["killed"]


def test_data_that_does_not_fit(directory: Path, tmp_path: Path) -> None:
    program = programs.training_program(artifact.read(directory))
    good = {"image": np.zeros((8, 1, 8, 8), np.float32), "target": np.zeros(8, np.int32)}
    path = tmp_path / "d.npz"
    for change, message in (
        ({"image": None}, "has no array 'image'"),
        ({"image": np.zeros((8, 1, 9, 9), np.float32)}, "has shape"),
        ({"image": np.zeros((3, 1, 8, 8), np.float32), "target": np.zeros(3, np.int32)}, "less than one batch"),
        ({"target": np.zeros(6, np.int32)}, "different numbers of samples: 8 of image, 6 of target"),
        ({"target": np.arange(3, 11)}, r"target\[7\] is 10, not 0 to 9; classes count from 0"),
        ({"target": np.full(8, 1.5)}, r"target\[0\] is 1.5, no whole number \(8 such values\)"),
        ({"target": np.array(["one"] * 8)}, "target is of type <U3; needed are numbers"),
        ({"image": np.full((8, 1, 8, 8), np.inf)}, r"image\[0, 0, 0, 0\] is inf, not a finite number of 32 bits"),
    ):
        arrays = {k: v for k, v in {**good, **change}.items() if v is not None}
        np.savez(path, **arrays)
        with pytest.raises(UsageError, match=message):
            running.read_batches(program, path, None)
    np.savez(path, **good)
    notes: list[str] = []
    assert len(running.read_batches(program, path, 5, notes.append)) == 5
    assert notes == [f"{path}: image from 0 to 0"]
    other = {"x": good["image"] + np.float32(0.5), "y": np.arange(8), "target": good["target"]}
    np.savez(path, **other)
    (first, _) = running.read_batches(program, Path(f"{path}:x,y"), 2)
    assert first["target"].tolist() == [0, 1, 2, 3] and first["image"].max() == 0.5
    (named, _) = running.read_batches(program, Path(f"{path}:image=x"), 2)
    assert named["target"].tolist() == [0, 0, 0, 0]
    with pytest.raises(UsageError, match="has no array 'z'"):
        running.read_batches(program, Path(f"{path}:x,z"), None)
    with pytest.raises(UsageError, match="3 arrays are named; the model takes 2"):
        running.read_batches(program, Path(f"{path}:x,y,target"), None)
    for pixels in (255.0, 254.5):
        np.savez(path, image=np.linspace(0, pixels, 576).reshape(9, 1, 8, 8), target=np.zeros(9, np.int64))
        with pytest.raises(UsageError, match=rf"image from 0 to {pixels:g} looks unscaled: .*--any-range"):
            running.read_batches(program, path, None)
    running.read_batches(program, path, None, notes.append, any_range=True)
    assert "9 samples make 2 batches of 4; unused at the end: 1" in notes[1]
    assert notes[2:] == [f"{path}: image from 0 to 254.5"]
    np.savez(path, **good)
    archive = bytearray(path.read_bytes())
    archive[archive.index(b"PK\x01\x02") + 10] = 99  # a compression that there is not
    for data in (b"no archive", bytes(archive)):
        path.write_bytes(data)
        with pytest.raises(UsageError, match="not an"):
            running.read_batches(program, path, None)


def test_losses_that_start_absurd_or_rise_are_noted(directory: Path, tmp_path: Path) -> None:
    image = np.random.default_rng(1).random((16, 1, 8, 8), np.float32) * 255
    np.savez(path := tmp_path / "d.npz", image=image, target=np.zeros(16, np.int64))
    notes: list[str] = []
    request = running.RunRequest(directory=directory, on="host", data=path, any_range=True)
    document = running.run(request, lambda text: None, lambda step, loss: None, notes.append)
    absurd = [
        text
        for text in notes
        if text.startswith(f"the first loss is {document['losses'][0]:.3g}, that of guessing 2.3")
    ]
    assert len(absurd) == (document["losses"][0] > 3 * np.log(10)) == 1
    assert [*running._odd_losses([1.0] * 8 + [3.0] * 8, None)] == [
        "the loss rose to more than twice its first value: lower the learning rate, or scale the inputs"
    ]
    assert [*running._odd_losses([6.8] + [1.0] * 15, np.log(10))] == []


def test_every_tool_of_the_recipe_is_installed() -> None:
    """Boards are tested, not skipped: `make test` runs scripts/setup-arm."""
    for name in ("arm-none-eabi-gcc", "aarch64-linux-gnu-gcc", "arm-linux-gnueabihf-gcc", "qemu-system-arm"):
        assert shutil.which(name), f"{name}: run make setup-arm"


# --- the bound on the stack -------------------------------------------------------------------------------------------


def test_stack_that_may_not_suffice_is_not_run(
    directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    budget_bytes = programs.memory_of(artifact.read(directory)).budget_bytes
    monkeypatch.setattr(programs, "memory_of", lambda _: emit.Memory(budget_bytes, 512))
    monkeypatch.setattr(measure, "execute", lambda *_: pytest.fail("it was run"))
    request = running.RunRequest(directory=directory, on="qemu:mps2-an386", steps=1, keep=tmp_path)
    with pytest.raises(CheckFailed, match=r"^qemu:mps2-an386: the stack may need \d+ bytes, .* sets 512 aside"):
        running.run(request, lambda _: None, lambda *_: None)


def test_bound_follows_the_deepest_way() -> None:
    graph = CallGraph()
    graph.read(
        'node: { title: "a" label: "a\\nx.c:1:1\\n16 bytes (static)" }\n'
        'node: { title: "b" label: "b\\nx.c:2:1\\n100 bytes (dynamic,bounded)" }\n'
        'node: { title: "c" label: "c\\nx.c:3:1\\n8 bytes (static)" }\n'
        'edge: { sourcename: "a" targetname: "b" label: "x.c:1:1" }\n'
        'edge: { sourcename: "a" targetname: "c" label: "x.c:1:2" }\n'
        'edge: { sourcename: "c" targetname: "b" label: "x.c:3:2" }\n'
    )
    assert graph.depth("a") == 16 + 8 + 100
    graph.calls["b"] = {"a"}
    with pytest.raises(CheckFailed, match="recursion"):
        graph.depth("a")
    with pytest.raises(CheckFailed, match="no bound"):
        graph.read('node: { title: "d" label: "d\\nx.c:1:1\\n16 bytes (dynamic)" }')


def test_pointers_of_a_kernel_lead_to_functions_of_its_file() -> None:
    """Not back to the kernels, which poetc_run calls through pointers."""
    graph = CallGraph()
    graph.read(
        'node: { title: "poetc_op_x" label: "poetc_op_x\\nk.c:1:1\\n16 bytes (static)" }\n'
        'node: { title: "k.c:direct" label: "direct\\nk.c:2:1\\n100 bytes (static)" }\n'
        'node: { title: "k.c:square" label: "square\\nk.c:3:1\\n8 bytes (static)" }\n'
        'edge: { sourcename: "poetc_op_x" targetname: "k.c:direct" label: "k.c:1:1" }\n'
        'edge: { sourcename: "k.c:direct" targetname: "__indirect_call" label: "k.c:2:2" }\n',
        kernels=True,
    )
    graph.calls["__indirect_call"] = {"poetc_op_x"}
    assert graph.depth("poetc_op_x") == 16 + 100 + 8


@pytest.mark.parametrize("kernel", ["convolution/convolution_winograd", "depthwise/depthwise"])
@pytest.mark.long_but("depthwise/depthwise")
def test_deepest_kernels_of_helium_stay_within_what_is_promised(kernel: str, tmp_path: Path) -> None:
    """Its eight vector registers leave most on the stack."""
    root, graph = runtime_directory(), CallGraph()
    target = boards.TARGETS["cortex-m55"]
    include = [f"-I{root / folder}" for folder in ("include", "src", "kernels")]
    for name in ("src/poetc.c", f"kernels/{kernel}.c", "kernels/gemm/poetc_gemm.c"):
        built = tmp_path / "kernel.o"
        words = [f"{target.cross_compile}gcc", "-std=c99", *target.flags.split(), "-ffp-contract=fast", *include]
        boards.command([*words, "-fcallgraph-info=su", "-c", root / name, "-o", built], name)
        graph.read(built.with_suffix(".ci").read_text(), kernels=name.startswith("kernels"))
    deepest = max(graph.depth(name) for name in graph.frames if name.startswith("poetc_op_"))
    assert 0 < deepest + graph.frames["poetc_run"] <= STACK_BYTES


def test_stack_of_library_functions_is_what_they_push() -> None:
    frames = library_frames(
        "00000000 <f>:\n   0:\tb5f0      \tpush\t{r4, r5, r6, r7, lr}\n   2:\tb082      \tsub\tsp, #8\n"
        "   4:\tf000 f800 \tbl\t10 <g>\n00000010 <g>:\n  10:\te92d 41f0 \tstmdb\tsp!, {r4-r8, lr}\n"
    )
    assert frames == {"f": 20 + 8 + 24, "g": 24}


@pytest.mark.parametrize(("device", "board"), [("stm32f746", "mps2-an500"), ("cortex-m55", "mps3-an547")])
def test_cycles_of_cores_without_a_table_have_a_band(device: str, board: str, solve: Solve, tmp_path: Path) -> None:
    """They are those of the profile, but for the instructions, which are counted."""
    solved = solve("mlp", 4, device, "100%").artifact
    artifact.write(solved, tmp_path / "solved", {})
    document = answer("run", tmp_path / "solved", "--on", f"qemu:{board}", "--steps", 2)
    cycles, profile = document["cycles_modelled"], solved.profile
    assert document["cycles"] is None and profile is not None
    assert cycles["low"] < cycles["value"] < cycles["high"]
    predicted = 2 * sum(op.time_ns for op in solved.problem.operators) * profile.cpu.clock_hz.value / 1e9
    assert cycles["value"] == pytest.approx(predicted, rel=0.1)
    first, *others = solved.problem.operators
    absent = replace(solved.problem, operators=(replace(first, kernel="absent"), *others))
    notes: list[str] = []
    assert solved.graph is not None
    times_ns = running._times_ns(absent, solved.graph, profile, notes.append)
    assert times_ns[first.name] == first.time_ns
    (note,) = notes
    assert note.startswith(f"modelled cycles: profile {device!r} does not price the kernels of {first.name}; ")


def test_cycles_of_cores_with_a_table_are_counted(directory: Path) -> None:
    document = answer("run", directory, "--on", "qemu:mps2-an385", "--steps", 1)
    assert document["cycles"] and document["cycles_modelled"] is None


@pytest.mark.parametrize("on", ["qemu:an385", "an385", "qemu:mps2-an386x"])
def test_a_board_that_is_nearly_named(directory: Path, on: str) -> None:
    done = poetc("run", directory, "--on", on)
    assert done.code == 2 and "did you mean qemu:mps2-an38" in done.err
