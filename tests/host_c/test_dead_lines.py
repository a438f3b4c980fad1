"""C for a microcontroller: without the lines of other processors, and the same to its compiler."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from poetc.boards import TARGETS, Core
from poetc.emit import without_dead_lines
from poetc.runtime import runtime_directory

M4F = Core("cortex-m4", "single", "dsp")


def left(text: str, core: Core = M4F) -> str:
    return without_dead_lines({"a.c": text}, core)["a.c"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#if defined(__AVX__) && A\nx\n#endif\ny\n", "y\n"),
        ("#if !defined(__AVX__) || A\nx\n#else\ny\n#endif\n", "x\n"),
        ("#if A\nx\n#elif defined(__aarch64__)\ny\n#else\nz\n#endif\n", "#if A\nx\n#else\nz\n#endif\n"),
        ("#ifdef __SSE2__\nx\n#elif A\ny\n#endif\n", "#if A\ny\n#endif\n"),
        ("#if A\nx\n#elif !defined(__AVX__)\ny\n#elif B\nz\n#endif\n", "#if A\nx\n#else\ny\n#endif\n"),
        ("#ifdef __AVX__\n#if A\nx\n#else\ny\n#endif\n#endif\nz\n", "z\n"),
        ("#ifdef __AVX__\n#define B 1\n#endif\n#ifdef B\nx\n#else\ny\n#endif\n", "y\n"),
        ("#ifdef __AVX__\n#define N 8\n#else\n#define N 1\n#endif\n#if N > 4\nx\n#endif\n", "#define N 1\n"),
        ("#if A \\\n && defined(__AVX__)\nx\n#endif\n", ""),
    ],
)
def test_lines_that_another_processor_would_read_are_left_out(text: str, expected: str) -> None:
    assert left(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "#if A == 5\nx\n#endif\n",  # anything may be defined from outside
        "#ifdef A\nx\n#else\ny\n#endif\n",
        "#if A & 2\nx\n#endif\n",
        "#if defined(POETC_FUSED)\nx\n#endif\n",
        "#ifndef N\n#define N 3\n#endif\n#if N > 4\nx\n#endif\n",  # a default
        "#if A\n#define N 1\n#else\n#define N 4\n#endif\n#if N > 2\nx\n#endif\n",
        "#if A\n#define N 1\n#endif\n#if N == 0\nx\n#endif\n",  # N may be undefined
        "#ifdef __ARM_FP\nx\n#endif\n",
        "/* #if defined(__AVX__)\n x */\n",
    ],
)
def test_what_is_not_known_stays(text: str) -> None:
    assert left(text) == text


def test_a_macro_that_whoever_compiles_may_define_is_not_taken_for_undefined() -> None:
    text = "#ifdef __AVX__\n#define POETC_CHAINED 1\n#endif\n#ifdef POETC_CHAINED\nx\n#endif\n"
    assert left(text) == "#ifdef POETC_CHAINED\nx\n#endif\n"


def test_a_core_with_helium_keeps_its_lines_and_one_without_an_fpu_loses_them() -> None:
    text = "#ifdef __ARM_FEATURE_MVE\nx\n#endif\n#ifdef __ARM_FP\ny\n#endif\n"
    assert left(text, Core("cortex-m55", "double", "helium")) == text
    assert left(text, Core("cortex-m0")) == ""


def test_headers_that_nothing_includes_any_more_are_left_out() -> None:
    source = '#ifdef __AVX__\n#include "b.h"\n#endif\nint x;\n'
    files = {"kernels/a.c": source, "kernels/b.h": "int y;\n", "include/c.h": ""}
    assert without_dead_lines(files, M4F) == {"kernels/a.c": "int x;\n", "include/c.h": ""}


@pytest.mark.parametrize(
    ("target", "flags"),
    [
        ("cortex-m4f", "-mfpu=fpv4-sp-d16"),
        ("cortex-m0", ""),
        pytest.param("cortex-m4f", "-mfpu=fpv4-sp-d16 -DPOETC_FUSED", marks=pytest.mark.long),
        pytest.param("cortex-m4f", "-mfpu=fpv4-sp-d16 -DPOETC_PLAIN_C -O0", marks=pytest.mark.long),
        pytest.param("cortex-m55", "", marks=pytest.mark.long),
        pytest.param("cortex-m7", "-mfpu=fpv5-d16", marks=pytest.mark.long),
    ],
)
def test_the_compiler_reads_the_same(target: str, flags: str, tmp_path: Path) -> None:
    """The same tokens behind the preprocessor, of each file, so the same object files."""
    root = runtime_directory()
    core = TARGETS[target].core
    assert core is not None
    paths = (path for folder in ("include", "src", "kernels") for path in (root / folder).rglob("*.[ch]"))
    texts = {path.relative_to(root).as_posix(): path.read_text() for path in paths}
    fewer = without_dead_lines(texts, core)
    before, now = (sum(map(len, t.values())) for t in (texts, fewer))
    assert now < before * (0.98 if "helium" in core.features else 0.81)
    abi = "-mfloat-abi=hard" if core.fpu != "none" else ""
    command = f"arm-none-eabi-gcc -E -P -std=c99 -O2 -mthumb -mcpu={core.name} {abi} {flags}".split()
    command += ["-Iinclude", "-Isrc", "-Ikernels", *(name for name in fewer if name.endswith(".c"))]
    read = []
    for folder, files in (("whole", texts), ("fewer", fewer)):
        for name, text in files.items():
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).write_text(text)
        done = subprocess.run(command, cwd=tmp_path / folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        read.append(done.stdout.split())
    assert len(read[0]) > 50_000 and read[0] == read[1]
