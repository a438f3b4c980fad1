"""Objects that are kept between builds: taken for the same files, options and compiler, and never for others."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from poetc.measure import _object_cache

MAKEFILE = """CFLAGS ?= -O1
build/%.o: %.c
\t@mkdir -p $(dir $@)
\tgcc $(CFLAGS) -Iruntime/include -MMD -MP -c -o $@ $<
libmodel.so: build/runtime/src/poetc.o
\tgcc -shared -o $@ $<
"""


class Counting:
    """A directory like an emitted one, and a compiler that counts how often it makes an object."""

    def __init__(self, place: Path) -> None:
        self.sources, self.tools, self.runs_file = place / "src", place / "tools", place / "runs"
        self.place = place / "cache" / "objects"
        self.tools.mkdir()
        others = [p for p in os.environ["PATH"].split(os.pathsep) if not Path(p, "remembering-cc").exists()]
        self.environment = {**os.environ, "PATH": os.pathsep.join([str(self.tools), *others])}
        real = shutil.which("gcc", path=os.pathsep.join(others))
        script = f'#!/bin/sh\ncase "$*" in *\'-###\'*) ;; *-c*) echo run >>{self.runs_file};; esac\nexec {real} "$@"\n'
        (self.tools / "gcc").write_text(script)
        (self.tools / "gcc").chmod(0o755)
        for name, text in (
            ("Makefile", MAKEFILE),
            ("runtime/include/a.h", '#include "b.h"\n'),
            ("runtime/include/b.h", "#define B 1\n"),
            ("runtime/include/unread.h", "#define C 1\n"),
            ("runtime/src/poetc.c", '#include "a.h"\nint b(void);\nint b(void) { return B; }\n'),
        ):
            (self.sources / name).parent.mkdir(parents=True, exist_ok=True)
            (self.sources / name).write_text(text)

    def runs(self, *variables: str) -> int:
        """Objects that a build from nothing compiled."""
        shutil.rmtree(self.sources / "build", ignore_errors=True)
        return self.rebuilt(*variables)

    def rebuilt(self, *variables: str) -> int:
        self.runs_file.write_text("")
        make = ["make", "-s", "-C", str(self.sources), *variables]
        with _object_cache.kept_objects(self.sources, make, self.environment):
            subprocess.run([*make, "libmodel.so"], env=self.environment, check=True)
        return len(self.runs_file.read_text().splitlines())

    def built(self) -> bytes:
        return (self.sources / "build/runtime/src/poetc.o").read_bytes()


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counting:
    monkeypatch.setenv("POETC_CACHE", str(tmp_path / "cache"))
    return Counting(tmp_path)


def test_the_same_files_and_options_are_compiled_once(build: Counting) -> None:
    assert build.runs() == 1
    first = build.built()
    assert build.runs() == 0
    assert build.built() == first
    (build.sources / "runtime/include/unread.h").write_text("#define C 2\n")
    assert build.runs() == 0
    (build.sources / "runtime/include/b.h").write_text("#define B 2\n")
    assert build.runs() == 1
    assert build.built() != first
    assert build.runs("CFLAGS=-O2") == 1
    assert build.runs("CFLAGS=-O1") == 0
    assert build.runs("CFLAGS=-O2") == 0


def test_another_compiler_compiles_again(build: Counting) -> None:
    assert build.runs() == 1
    script = build.tools / "gcc"
    script.write_text(script.read_text().replace("exec", "echo another version >&2\nexec"))
    assert build.runs() == 1


def test_options_that_name_other_files_keep_nothing(build: Counting, tmp_path: Path) -> None:
    (tmp_path / "more.h").write_text("#define MORE 1\n")
    for _ in range(2):
        assert build.runs(f"CFLAGS=-include {tmp_path}/more.h") == 1


def test_an_object_of_other_options_is_not_kept_under_these(build: Counting) -> None:
    assert build.runs("CFLAGS=-O1") == 1
    first = build.built()
    assert build.rebuilt("CFLAGS=-O1 -DB2") == 0  # make knows no better
    assert build.built() == first
    assert build.runs("CFLAGS=-O1 -DB2") == 1


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "another"])
def test_a_damaged_entry_is_compiled_again(build: Counting, damage: str) -> None:
    assert build.runs() == 1
    (entry,) = build.place.iterdir()
    first, data = build.built(), bytearray(entry.read_bytes())
    if damage == "changed":
        data[60] ^= 0xFF
    entry.write_bytes({"empty": b"", "cut": data[:-30], "another": b"PK" + bytes(100)}.get(damage, data))
    assert build.runs() == 1
    assert build.built() == first
    assert build.runs() == 0


def test_the_folder_is_bounded_and_loses_what_was_not_used(build: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.runs("CFLAGS=-O0") == 1
    (first,) = build.place.iterdir()
    long_ago = time.time() - 1000
    os.utime(first, (long_ago, long_ago))
    monkeypatch.setattr(_object_cache, "LIMIT_BYTES", int(first.stat().st_size * 1.5))
    assert build.runs("CFLAGS=-O2") == 1
    assert not first.exists()
    assert len(list(build.place.iterdir())) == 1
    assert build.runs("CFLAGS=-O2") == 0


def test_the_folder_is_measured_now_and_then(build: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of entries that takes longer than a build of objects that are kept."""
    measured: list[Path] = []
    monkeypatch.setattr(_object_cache, "_evict", measured.append)
    for k, (names, counted) in enumerate(((("g",), 0), (tuple("0123456789abcdef"), 1))):
        monkeypatch.setattr(_object_cache, "_MEASURED_AFTER", names)
        assert build.runs(f"CFLAGS=-O1 -DB{k}") == 1 and len(measured) == counted
    monkeypatch.setattr(_object_cache, "_MEASURED_AFTER", ("g",))
    monkeypatch.setattr(_object_cache, "LIMIT_BYTES", 1000)
    assert build.runs("CFLAGS=-O2") == 1 and len(measured) == 2, "a large one"


def test_nothing_is_kept_where_nothing_can_be_written_or_is_to_be(
    build: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for value in ("off", str(tmp_path / "file" / "below")):
        monkeypatch.setenv("POETC_CACHE", value)
        assert [build.runs(), build.runs()] == [1, 1]


def test_the_folder_is_where_caches_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("POETC_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _object_cache.folder() == tmp_path / "poetc" / "objects"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert _object_cache.folder() == tmp_path / "home" / ".cache" / "poetc" / "objects"
    monkeypatch.setenv("POETC_CACHE", str(tmp_path / "mine"))
    assert _object_cache.folder() == tmp_path / "mine" / "objects"
