"""Builds for this machine go through ccache where it is installed, and do without it where it cannot work."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from poetc.measure import make_library

pytestmark = pytest.mark.skipif(shutil.which("ccache") is None, reason="make setup-arm")
MAKEFILE = """ifeq ($(origin CC),default)
CC = gcc
endif
build/%.o: %.c
\t@mkdir -p $(dir $@)
\t$(CC) $(CFLAGS) -Iruntime/include -MMD -MP -c -o $@ $<
libmodel.so: build/runtime/src/poetc.o
\t$(CC) -shared -o $@ $<
"""


class Counting:
    """A directory like an emitted one, and a compiler that counts how often it makes an object."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sources, self.tools, self.runs_file = place / "src", place / "tools", place / "runs"
        self.tools.mkdir()
        others = [p for p in os.environ["PATH"].split(os.pathsep) if not Path(p, "remembering-cc").exists()]
        real = shutil.which("gcc", path=os.pathsep.join(others))
        self.compiler = self.tools / "gcc"
        self.compiler.write_text(
            f"#!/bin/sh\ncase \"$*\" in *'-###'*) echo one processor >&2;; *-c*) echo run >>{self.runs_file};; esac\n"
            f'exec {real} "$@"\n'
        )
        self.compiler.chmod(0o755)
        monkeypatch.setenv("PATH", os.pathsep.join([str(self.tools), *others]))
        monkeypatch.setenv("CCACHE_DIR", str(place / "cache"))
        monkeypatch.setenv("CCACHE_COMPILERCHECK", "none")  # its script changes below
        for name, text in (
            ("Makefile", MAKEFILE),
            ("runtime/include/a.h", '#include "b.h"\n'),
            ("runtime/include/b.h", "#define B 1\n"),
            ("runtime/src/poetc.c", '#include "a.h"\nint b(void);\nint b(void) { return B; }\n'),
        ):
            (self.sources / name).parent.mkdir(parents=True, exist_ok=True)
            (self.sources / name).write_text(text)

    def runs(self, *variables: str) -> int:
        """Objects that a build from nothing compiled."""
        shutil.rmtree(self.sources / "build", ignore_errors=True)
        self.runs_file.write_text("")
        make_library(self.sources, *variables)
        return len(self.runs_file.read_text().splitlines())


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counting:
    return Counting(tmp_path, monkeypatch)


def test_the_same_files_and_options_are_compiled_once(build: Counting) -> None:
    assert [build.runs(), build.runs()] == [1, 0]
    (build.sources / "runtime/include/b.h").write_text("#define B 2\n")
    assert [build.runs(), build.runs()] == [1, 0]
    assert [build.runs("CFLAGS=-O2"), build.runs("CFLAGS=-O2")] == [1, 0]


def test_an_object_is_of_one_kind_of_processor(build: Counting) -> None:
    """Two machines may share a cache, and `-march=native` is another option on each."""
    assert [build.runs("CFLAGS=-march=native"), build.runs("CFLAGS=-march=native")] == [1, 0]
    build.compiler.write_text(build.compiler.read_text().replace("one processor", "another"))
    assert build.runs("CFLAGS=-march=native") == 1


def test_a_cache_that_cannot_be_written_is_not_used(
    build: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "file" / "below"))
    assert [build.runs(), build.runs()] == [1, 1]


def test_ccache_in_cc_is_not_called_twice(build: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "ccache gcc")
    assert [build.runs(), build.runs()] == [1, 0]


def test_the_compiler_of_the_variables_is_called(build: Counting) -> None:
    other = build.tools / "other"
    other.write_text(build.compiler.read_text().replace("echo run", "echo other"))
    other.chmod(0o755)
    assert [build.runs(f"CC={other}"), build.runs_file.read_text()] == [1, "other\n"]
    assert build.runs() == 1
