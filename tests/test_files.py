"""Temporary files on a full disk, and in messages: they name what the user knows."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import pytest

from poetc.errors import CheckFailed, UsageError
from poetc.files import new_files, read_file, scratch_directory, write_text
from poetc.output_directory import Kind, replacing


class _Usage(NamedTuple):
    free: int


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("TMPDIR", raising=False)
    return tmp_path


@pytest.mark.parametrize("named", [True, False])
def test_a_full_directory_of_temporary_files_is_named(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: _Usage(0))
    with pytest.raises(UsageError, match="TMPDIR") as raised, scratch_directory("poetc-test-") as place:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *([str(place / "a.c")] if named else []))
    assert str(temporary) in str(raised.value) and "\n" not in str(raised.value)
    assert list(temporary.iterdir()) == []


def test_a_compiler_without_room_is_not_a_defect_of_the_code(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: _Usage(0))
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    for place in (temporary, elsewhere):  # a compiler looks for its own
        with pytest.raises(UsageError, match=f"no space left in {place}"), scratch_directory("poetc-test-"):
            raise CheckFailed("the emitted C does not build: /tmp/cc.s: No space left on device")
        monkeypatch.setenv("TMPDIR", str(elsewhere))


def test_a_directory_for_temporary_files_that_is_of_no_use_is_refused(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python takes another one without a word."""
    (temporary / "file").touch()
    for name in ("absent", "file"):
        monkeypatch.setenv("TMPDIR", str(temporary / name))
        with pytest.raises(UsageError, match=f"TMPDIR .*{name}: no directory"), scratch_directory("poetc-test-"):
            raise AssertionError


def test_a_directory_of_temporary_files_that_takes_no_more(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**options: str) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(temporary / options["prefix"]))

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(UsageError, match=f"no space left in {temporary}"), scratch_directory("poetc-test-"):
        raise AssertionError


def test_other_errors_stay_what_they_are(temporary: Path) -> None:
    """Another disk that is full; another error."""
    elsewhere = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/mnt/out/plan.json")
    compilers = CheckFailed("cannot write /mnt/out/a.o: No space left on device")
    others = (OSError(errno.ENOSPC, "no file named"), CheckFailed("weights differ"), PermissionError())
    for error in (elsewhere, compilers, *others):
        with pytest.raises(type(error)) as raised, scratch_directory("poetc-test-"):
            raise error
        assert raised.value is error
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_full_disk_is_named_where_a_write_names_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A write to a file that is open says nothing of its name."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: _Usage(0))
    out = tmp_path / "out"
    places = new_files(out) if kind == "file" else replacing(out, Kind("summary.json", "files of a test"))
    with pytest.raises(OSError, match="No space left") as raised, places:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert raised.value.filename == str(out)


def test_what_cannot_be_written_is_named_as_the_user_did(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        write_text(tmp_path / "nowhere" / "mine.yaml", "")
    assert (raised.value.filename, raised.value.filename2) == (str(tmp_path / "nowhere" / "mine.yaml"), None)


def test_no_message_names_temporary_files(temporary: Path) -> None:
    with pytest.raises(PermissionError) as denied, scratch_directory("poetc-test-") as place:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place / "src" / "train"))
    assert denied.value.filename == str(temporary)
    with pytest.raises(CheckFailed) as failed, scratch_directory("poetc-test-") as place:
        raise CheckFailed(f"nm: {place}/src/firmware.elf: no symbols", details={"steps": 1})
    assert str(failed.value) == "nm: src/firmware.elf: no symbols" and failed.value.details == {"steps": 1}


def test_memory_is_taken_for_the_size_of_a_file_and_not_for_its_limit(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.write_bytes(b"12345")
    tracemalloc.start()
    try:
        assert read_file(small, 1 << 30) == b"12345"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_file_that_says_it_is_empty_is_read_and_its_limit_holds() -> None:
    assert read_file(Path("/proc/self/status")).startswith(b"Name:")
    with pytest.raises(UsageError, match="larger than the 9 bytes"):
        read_file(Path("/proc/self/status"), 9)


def test_an_output_that_is_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link, end = tmp_path / "trained.onnx", tmp_path / "elsewhere" / "real.onnx"
    link.symlink_to(end)
    for text in ("first", "second"):  # the file behind the link does not exist yet, then it does
        with new_files(link, force=True) as place:
            place.write_text(text)
        assert link.is_symlink() and end.read_text() == text
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["elsewhere", "real.onnx", "trained.onnx"]
    with pytest.raises(UsageError, match="exists"), new_files(link) as place:
        place.write_text("third")


def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "c").symlink_to(tmp_path / "no" / "such" / "model.onnx")
    for name, why in (("a", "leads back to itself"), ("c", "whose directory does not exist")):
        with pytest.raises(UsageError, match=why), new_files(tmp_path / name):
            pass
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "c"]
