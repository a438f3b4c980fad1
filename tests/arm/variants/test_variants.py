"""Kernels with less workspace, on boards: the bits of the fastest ones, and the predicted peak."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from poetc import measure
from poetc.boards import BOARDS, TARGETS, Numerics, compiler_prefix, read_elf
from poetc.devices import build_problem
from poetc.emit import Memory
from poetc.measure import Firmware, Run, build_firmware, execute
from poetc.planning.kernels import fastest, low_workspace_operators, with_least_workspace
from poetc.program import Program, lower, sample_inputs
from poetc.scheduling import Problem, keep_all, pack
from tests.arm.conftest import Solve, Solved, bits, run_host
from tests.program.models import mlp, training_case
from tests.support.planning import planner


def asked(solved: Solved) -> Problem:
    """With every variant that there is."""
    artifact = solved.artifact
    assert artifact.graph is not None and artifact.profile is not None
    return build_problem(artifact.graph, artifact.profile, budget_bytes=artifact.problem.budget_bytes)


def kept(solved: Solved, problem: Problem) -> Program:
    """Every operator once, with these kernels."""
    assert solved.artifact.graph is not None
    schedule = keep_all(problem)
    return lower(solved.artifact.graph, problem, schedule, pack(problem, schedule))


@pytest.mark.parametrize("board", ["mps2-an386", "mps3-an547"])
def test_a_tight_budget_has_such_kernels_and_the_bits_of_keep_all(
    board: str, solve: Solve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less RAM than any schedule of the fastest kernels needs, without streamed operands, which need less still."""
    monkeypatch.setattr("poetc.commands.solve.streams_of", lambda *_, **__: ())
    solved = solve("resnet", 1, "qemu-mps2-an386", "36kB", "store")
    problem, found = asked(solved), solved.artifact.problem
    quick = fastest(problem)
    assert found.budget_bytes < planner("store").lower_bound_bytes(quick)
    chosen = low_workspace_operators(problem, found)
    assert chosen and solved.artifact.summary["low_workspace_kernels"] == len(chosen)
    with measure.build_host([kept(solved, quick)], solved.values) as model:
        expected = run_host(model, solved.batches(2))
    run = solved.on_board(board, tmp_path, 2, gradients=True)
    assert (run.losses, run.state_sha256) == (expected.losses, expected.state_sha256)
    assert run.arena_bytes == solved.program.high_water_bytes


@pytest.mark.parametrize(
    ("board", "network", "numerics"),
    [("mps2-an386", "ds-cnn", "fused"), ("mps3-an547", "strips", "fast"), ("mps3-an547", "resnet", "fast")],
)
@pytest.mark.long_but("mps2-an386-ds-cnn-fused")
def test_other_numerics_have_the_same_bits_whatever_kernels_run(
    board: str, network: str, numerics: Numerics, solve: Solve, tmp_path: Path
) -> None:
    """On one target, with multiply-adds and vectors that round in their own way."""
    solved = solve(network, 2, "qemu-mps2-an386", "100%")
    problem = asked(solved)
    programs = [kept(solved, plain) for plain in (fastest(problem), with_least_workspace(problem))]
    assert programs[0].instructions != programs[1].instructions
    digests = set()
    for i, program in enumerate(programs):
        name = f"program{i}"
        firmware = measure.build_firmware(program, solved.values, board, tmp_path / name, numerics=numerics)
        run = measure.execute(firmware, solved.batches(2))
        digests.add((run.losses, run.state_sha256))
        assert run.arena_bytes == program.high_water_bytes
    assert len(digests) == 1


def with_and_without(build: Callable[[Path], Run], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """POETC_PLAIN_C leaves out all assembly of Cortex-M: losses, gradients and state stay as they are."""
    runs = []
    for name, flags in (("assembly", ""), ("plain", "-DPOETC_PLAIN_C")):
        monkeypatch.setenv("CPPFLAGS", flags)
        runs.append(build(folder / name))
    assert bits(runs[0]) == bits(runs[1])
    assert runs[0].total_instructions < runs[1].total_instructions  # the flag had an effect


def test_assembly_has_the_bits_of_its_body_in_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = training_case(mlp(21))
    program, memory = case.program(), Memory(65536, 4096)

    def build(folder: Path) -> Run:
        firmware = build_firmware(program, case.graph.values, "mps2-an386", folder, memory=memory, gradients=True)
        return execute(firmware, [dict(sample_inputs(program, 0))])

    with_and_without(build, tmp_path, monkeypatch)


@pytest.mark.long_but("mps2-an386-lenet-fused")
@pytest.mark.parametrize(
    ("board", "network", "numerics"),
    [
        ("mps2-an386", "lenet", "fused"),
        ("mps2-an386", "ds-cnn", "separate"),
        ("mps2-an386", "resnet", "fused"),
        ("mps2-an500", "ds-cnn", "separate"),
    ],
)
def test_assembly_has_these_bits_in_whole_networks(
    board: str, network: str, numerics: Numerics, solve: Solve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solved = solve(network, 1, "qemu-mps2-an386", "100%")

    def build(folder: Path) -> Run:
        return solved.on_board(board, folder, 1, numerics=numerics, gradients=True)

    with_and_without(build, tmp_path, monkeypatch)


@pytest.mark.parametrize("side", range(2, 10))
@pytest.mark.long_but("3")
def test_depthwise_windows_in_assembly_have_the_bits_of_c(
    side: int, solve: Solve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planes that fit the registers, squares and rows: filters of 3 x 3 to 7 x 7, side by side and two apart."""
    solved = solve(f"depthwise-{side}", 2, "qemu-mps2-an386", "100%")

    def build(folder: Path) -> Run:
        return solved.on_board("mps2-an386", folder, 1, gradients=True)

    with_and_without(build, tmp_path, monkeypatch)


CLANG = """#!/bin/sh
# Kernels by clang, all else by GCC.
case "$*" in *runtime/kernels/*.c) ;; *) exec arm-none-eabi-gcc "$@" ;; esac
for word; do
    shift
    case "$word" in -fcallgraph-info* | -fno-tree* | -Werror) ;; *) set -- "$@" "$word" ;; esac
done
headers=$(arm-none-eabi-gcc -E -Wp,-v -xc /dev/null 2>&1 | sed -n 's/^ / -idirafter /p')
exec clang --target=thumbv7em-none-eabihf -fno-math-errno $headers "$@"
"""


LEVELS = ("-O1", "-Os", "-O2 -fno-inline", "-O3")


def built_with(firmware: Firmware, flags: str, compiler: str | None = None) -> Firmware:
    """The same sources, with other options or another compiler."""
    source, board = firmware.directory / "src", firmware.board
    shutil.rmtree(source / "build")
    words = ["make", "-s", "-C", str(source), "GRADIENTS=1", "ANY_RANGE=1", f"CFLAGS={flags}"]
    words += [f"CC={compiler}"] if compiler else []
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    elf = read_elf(source / "firmware.elf", compiler_prefix(board))
    assert elf != firmware.elf  # it is another program
    return replace(firmware, elf=elf)


@pytest.mark.parametrize(
    ("board", "numerics", "changes"),
    [
        ("mps2-an386", "fused", ("-Os", "clang")),
        ("mps2-an386", "separate", (*LEVELS, "clang")),
        ("mps2-an386", "fused", tuple(level for level in LEVELS if level != "-Os")),
        ("mps2-an500", "separate", ("-Os", "-O3", "clang")),  # which has the assembly of mps2-an386
        ("mps3-an547", "fast", LEVELS),
    ],
)
@pytest.mark.long_but("mps2-an386-fused-changes0")
def test_assembly_has_the_same_bits_by_other_options_and_compilers(
    board: str, numerics: Numerics, changes: tuple[str, ...], solve: Solve, tmp_path: Path
) -> None:
    """Rows of one to four, in place and packed, biases, pools, depthwise windows, dense layers, and what moves them."""
    solved = solve("mixed", 2, "qemu-mps2-an386", "100%")
    batches = solved.batches(2)
    firmware = measure.build_firmware(
        solved.program,
        solved.values,
        board,
        tmp_path,
        memory=Memory(512 << 10, 8192),
        numerics=numerics,
        gradients=True,
    )
    expected = bits(execute(firmware, batches))
    if numerics != "fast":  # vectors of the M55 flush subnormal numbers
        assert expected == solved.on_host(2, numerics=numerics)
    flags = TARGETS[BOARDS[board].target].flags
    compiler = tmp_path / "cc"
    compiler.write_text(CLANG)
    compiler.chmod(0o755)
    for change in changes:
        by = (flags, str(compiler)) if change == "clang" else (flags.replace("-O2", change),)
        assert bits(execute(built_with(firmware, *by), batches)) == expected, change
