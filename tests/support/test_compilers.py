"""The compilers that remember: the same object, and never that of another source, header, option or warning."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.compilers import WRAPPER

HEADER = "runtime/twice.h"


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to compile in, with a compiler that counts its runs behind one that remembers, with nothing yet."""
    real, remembering = tmp_path / "real", tmp_path / "remembering"
    others = [p for p in os.environ["PATH"].split(os.pathsep) if not Path(p, WRAPPER.name).exists()]
    for folder in (real, remembering / "objects", tmp_path / "runtime", tmp_path / "build/runtime"):
        folder.mkdir(parents=True)
    gcc = shutil.which("gcc", path=os.pathsep.join(others))
    (real / "gcc").write_text(f'#!/bin/sh\necho run >>{tmp_path}/runs\nexec {gcc} "$@"\n')
    (real / "gcc").chmod(0o755)
    shutil.copy(WRAPPER, remembering / "gcc")
    monkeypatch.delenv("POETC_TEST_LEVEL", raising=False)
    monkeypatch.setenv("PATH", os.pathsep.join([str(remembering), str(real), *others]))
    (tmp_path / HEADER).write_text("#define TWICE(x) (2 * (x))\n")
    (tmp_path / "runtime/a.c").write_text('#include "twice.h"\nint a(int x);\nint a(int x) { return TWICE(x); }\n')
    return tmp_path


def compile_in(directory: Path, *options: str) -> tuple[bytes, int, str]:
    """The object, how often the real compiler has run, and what was said."""
    words = ["gcc", "-Wall", *options, "-MMD", "-MP", "-c", "-o", "build/runtime/a.o", "runtime/a.c"]
    made = directory / "build/runtime/a.o"
    made.unlink(missing_ok=True)
    done = subprocess.run(words, cwd=directory, capture_output=True, text=True, check=True)
    return made.read_bytes(), len((directory / "runs").read_text().splitlines()), done.stderr


def test_same_object_without_the_compiler(build: Path) -> None:
    first, runs, _ = compile_in(build)
    assert runs == 1
    assert compile_in(build) == (first, 1, "")
    assert (build / "build/runtime/a.d").exists()


def test_another_header_source_or_option_is_compiled(build: Path) -> None:
    first, _, _ = compile_in(build)
    assert compile_in(build, "-O2")[1] == 2
    (build / HEADER).write_text("#define TWICE(x) (3 * (x))\n")
    changed, runs, _ = compile_in(build)
    assert runs == 3 and changed != first
    (build / HEADER).write_text("#define TWICE(x) (2 * (x))\n")
    assert compile_in(build)[:2] == (first, 3)
    source = build / "runtime/a.c"
    source.write_text(source.read_text() + "int b;\n")
    assert compile_in(build)[1] == 4


def test_the_level_of_a_session_stands_for_every_higher_one(build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POETC_TEST_LEVEL", "-O1")
    first, _, _ = compile_in(build, "-O1")
    assert compile_in(build, "-O2") == compile_in(build, "-O3") == (first, 1, "")
    assert compile_in(build, "-O0")[1] == 2
    monkeypatch.delenv("POETC_TEST_LEVEL")
    assert compile_in(build, "-O2")[1] == 3


def test_warnings_are_said_each_time(build: Path) -> None:
    (build / HEADER).write_text("#define TWICE(x) (2 * (x))\nstatic int unused;\n")
    for runs in (1, 2):
        _, counted, said = compile_in(build)
        assert counted == runs and "unused" in said


def test_a_macro_counts_where_a_file_names_it(build: Path) -> None:
    compile_in(build, "-DPOETC_EPOCHS=1", "-DPOETC_LOG")
    assert compile_in(build, "-DPOETC_EPOCHS=2", "-Werror")[1] == 1
    assert compile_in(build, "-DOTHER=2")[1] == 2
    more = '#ifdef POETC_FUSED\n#include "fused.h"\n#endif\n'
    (build / HEADER).write_text(f"{more}#define TWICE(x) (2 * (x))\n")
    (build / "runtime/fused.h").write_text("static inline int once(int x) { return POETC_EPOCHS * x; }\n")
    _, runs, _ = compile_in(build, "-DPOETC_EPOCHS=1")
    assert runs == 3 and compile_in(build)[1] == 3
    fused = ("-DPOETC_FUSED", "-DPOETC_EPOCHS=1")
    assert compile_in(build, *fused)[1] == 4 and compile_in(build, *fused)[1] == 4
    assert compile_in(build, "-DPOETC_FUSED", "-DPOETC_EPOCHS=2")[1] == 5  # the header that it leads to names it
    (build / "runtime/fused.h").write_text("static inline int once(int x) { return POETC_EPOCHS + x; }\n")
    assert compile_in(build, *fused)[1] == 6
