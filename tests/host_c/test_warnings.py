"""All C is free of warnings, conversions included, for three compilers: kernels, runtime and the programs of boards."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from poetc.emit import emit
from poetc.runtime import runtime_directory
from tests.program.models import paged_decisions, training_case

RUNTIME = runtime_directory()
# With -O1, as in emitted Makefiles, the intrinsics of vectors are functions and no macros.
FLAGS = ("-std=c99", "-O1", "-fsyntax-only", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror")
M4F = ("-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16")
BOARDS = (
    ("host", None, ("gcc", "-march=native", "-DPOETC_THREADS=4"), False),
    ("host", None, ("clang", "-march=native"), False),
    ("cortex-m3", "lm3s6965evb", ("arm-none-eabi-gcc", "-mcpu=cortex-m3"), False),
    ("cortex-m4f", None, ("arm-none-eabi-gcc", *M4F), True),
    ("cortex-a-bare", "raspi3b", ("aarch64-linux-gnu-gcc", "-mcpu=cortex-a53"), False),
)


def check(compiler: tuple[str, ...], folders: list[Path], sources: list[Path]) -> None:
    done = subprocess.run(
        [*compiler, *FLAGS, *(f"-I{folder}" for folder in folders), *map(str, sources)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    "compiler",
    [
        ("clang", "-march=native"),
        ("gcc", "-DPOETC_FUSED", "-march=native"),
        ("gcc", "-DPOETC_FUSED", "-march=haswell"),
        ("arm-none-eabi-gcc", "-mcpu=cortex-m0"),
        ("arm-none-eabi-gcc", *M4F),
        ("arm-none-eabi-gcc", "-mcpu=cortex-m55", "-mfloat-abi=hard"),
        ("aarch64-linux-gnu-gcc", "-mcpu=cortex-a72", "-DPOETC_THREADS=4"),
    ],
    ids=lambda compiler: "".join(compiler[:3]),
)
def test_kernels(compiler: tuple[str, ...]) -> None:
    """With the host's compiler every test of a kernel builds them so."""
    folders = [RUNTIME / name for name in ("include", "src", "kernels")]
    check(compiler, folders, sorted([*RUNTIME.glob("src/*.c"), *RUNTIME.glob("kernels/**/*.c")]))


@pytest.mark.parametrize(("target", "board", "compiler", "fleet"), BOARDS)
def test_emitted(tmp_path: Path, target: str, board: str | None, compiler: tuple[str, ...], fleet: bool) -> None:
    case = training_case()
    program = case.program(paged_decisions(case, "a"))
    steps = None if fleet or target == "host" else 1
    out = tmp_path / "o"
    emit(
        [program],
        case.graph.values,
        model="tiny",
        target=target,
        board=board,
        checkpoint=steps,
        fleet=fleet,
        out_dir=out,
    )
    folders = [out, *(p for p in out.rglob("*") if p.is_dir())]
    check(compiler, folders, [p for p in sorted(out.rglob("*.c")) if "kernels" not in p.parts])


def test_a_big_endian_target_is_refused(tmp_path: Path) -> None:
    """Weights would be read with their bytes turned."""
    (tmp_path / "a.c").write_text('#include "poetc.h"\nint a;\n')
    command = ["gcc", "-fsyntax-only", "-w", f"-I{RUNTIME / 'include'}", str(tmp_path / "a.c")]
    assert subprocess.run(command).returncode == 0
    turned = subprocess.run([*command, "-D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__"], capture_output=True, text=True)
    assert turned.returncode != 0 and "this target is big-endian" in turned.stderr


M55 = ("arm-none-eabi-gcc", "-mcpu=cortex-m55", "-mfloat-abi=hard")
PLACES = (
    (
        M55,
        "convolution/poetc_direct_helium.h",
        "convolution/poetc_convolution_packed.c",
        "    int32_t lines, skip;",
        "    int32_t lines, more, skip;",
    ),
    (
        ("arm-none-eabi-gcc", *M4F),
        "gemm/poetc_gemm_fpu.h",
        "gemm/poetc_gemm.c",
        "    int32_t pairs, odd;",
        "    int32_t odd, pairs;",
    ),
)


@pytest.mark.parametrize(("compiler", "header", "source", "old", "new"), PLACES, ids=[case[1] for case in PLACES])
def test_assembly_that_reads_a_struct_does_not_compile_with_other_places(
    tmp_path: Path, compiler: tuple[str, ...], header: str, source: str, old: str, new: str
) -> None:
    text = (RUNTIME / "kernels" / header).read_text()
    assert old in text
    kernels = shutil.copytree(RUNTIME / "kernels", tmp_path / "kernels")
    folders = [f"-I{folder}" for folder in (RUNTIME / "include", RUNTIME / "src", kernels)]
    command = [*compiler, *folders, "-std=c99", "-O1", "-fsyntax-only", "-w", str(kernels / source)]
    assert subprocess.run(command).returncode == 0
    (kernels / header).write_text(text.replace(old, new, 1))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and "_places" in done.stderr


def test_a_register_that_is_named_holds_a_value_for_the_assembly_that_follows_alone() -> None:
    """A register keeps no value from one C statement to the next: a call in between may overwrite it."""
    found = 0
    for path in sorted((RUNTIME / "kernels").rglob("*.[ch]")):
        lines = path.read_text().replace("\\\n", " ").split("\n")
        bodies = [line for line in lines if line.startswith("#define")]
        bodies.append("\n".join(line for line in lines if not line.startswith("#")))
        for body in (re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL) for text in bodies):
            for match in re.finditer(r"\bregister\b[^;]*;", body):
                found += 1
                follows = body[match.end() :].lstrip()
                assert follows.startswith(("register ", "__asm__")), f"{path.name}: {match[0]}"
    assert found
