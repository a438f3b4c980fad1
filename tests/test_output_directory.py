"""Directories that are written again: what is ours is replaced, what is the user's stays, nothing is half-written."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from poetc.errors import UsageError
from poetc.output_directory import Kind, check_replaceable, replace_file, replacing
from tests.support.power import Power

KIND = Kind("made.json", "what a test wrote")
OURS = {"model.c": "int x;\n", "port/train.c": "loop\n", "report.txt": "fits\n"}


def write(out: Path, files: Mapping[str, str] = OURS, *, force: bool = False, kind: Kind = KIND) -> list[str]:
    with replacing(out, kind, force=force) as staging:
        for name, text in files.items():
            path = staging.directory / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        staging.document = {"of": sorted(files)}
    return staging.copies


def contents(out: Path) -> dict[str, str]:
    """Of every file but the manifest; bytes that are no text do not occur here."""
    files = (p for p in sorted(out.rglob("*")) if p.is_file() and p.name != KIND.manifest)
    return {p.relative_to(out).as_posix(): p.read_text() for p in files}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    write(tmp_path / "out")
    return tmp_path / "out"


def test_what_the_user_added_stays(out: Path) -> None:
    theirs = {"trained.bin": "weights", "build/model.o": "object", "port/mine.c": "mine", "notes/a/b.txt": ""}
    for name, text in theirs.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text)
    assert write(out, {"model.c": "int y;\n", "main.c": "main\n"}) == []
    assert contents(out) == {**theirs, "model.c": "int y;\n", "main.c": "main\n"}


def test_what_a_build_made_is_no_newer_after_a_clock_was_put_back(out: Path) -> None:
    """Else make would go on with the program of the files before."""
    kind = Kind(KIND.manifest, KIND.content, built=("build", "train"))
    (out / "build").mkdir()
    for name, ahead in (("build/model.o", 3600), ("train", 3600), ("build/old.o", -3600), ("notes.txt", 3600)):
        (out / name).write_text("built")
        os.utime(out / name, (time.time() + ahead,) * 2)
    write(out, {"model.c": "int y;\n"}, kind=kind)
    written = (out / "model.c").stat().st_mtime
    assert all((out / name).stat().st_mtime < written for name in ("build/model.o", "train", "build/old.o"))
    assert (out / "notes.txt").stat().st_mtime > written


def test_what_is_no_longer_written_goes_unless_it_was_changed(out: Path) -> None:
    (out / "report.txt").write_text("fits, and I said so\n")
    write(out, {"model.c": "int y;\n"})
    assert contents(out) == {"model.c": "int y;\n", "report.txt": "fits, and I said so\n"}
    assert not (out / "port").exists()
    with pytest.raises(UsageError, match=r"report.txt is not as"):  # the user's from then on
        write(out)


@pytest.mark.parametrize("early", [True, False])
def test_what_the_user_changed_is_refused_by_name(out: Path, early: bool) -> None:
    (out / "port" / "train.c").write_text("loop\r\n")  # the ends of lines alone
    (out / "model.c").write_text("int x = 1;\n")
    before = contents(out)
    with pytest.raises(
        UsageError, match=f"^{out}: model.c, port/train.c are not as poetc wrote them; .* -o,.*--force"
    ) as e:
        check_replaceable(out, KIND, names=OURS) if early else write(out)
    assert e.value.details == {"changed": ["model.c", "port/train.c"]}
    assert contents(out) == before


def test_force_keeps_copies_under_free_names(out: Path) -> None:
    for text in ("first", "second"):
        (out / "model.c").write_text(text)
        copies = write(out, force=True)
    assert copies == ["model.c.orig2"]
    assert contents(out) == {**OURS, "model.c.orig": "first", "model.c.orig2": "second"}
    write(out)  # as it was recorded: nothing to refuse


def test_many_changed_files_are_one_short_line(tmp_path: Path) -> None:
    files = {f"f{i:02}.c": "" for i in range(30)}
    write(tmp_path / "out", files)
    for name in files:
        (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(UsageError, match=r"f00.c, .*, f07.c and 22 more are not"):
        write(tmp_path / "out", files)


def test_links_and_other_things_in_the_way_are_the_users(out: Path, tmp_path: Path) -> None:
    """A link to a file, a linked folder with the very same file in it, a folder, a pipe that nobody writes."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (out / "port").rename(elsewhere / "port")
    (out / "port").symlink_to(elsewhere / "port")
    (out / "model.c").rename(elsewhere / "model.c")
    (out / "model.c").symlink_to(elsewhere / "model.c")
    (out / "report.txt").unlink()
    os.mkfifo(out / "report.txt")
    (out / "main.c").mkdir()
    files = {**OURS, "main.c": "main\n"}
    with pytest.raises(UsageError, match=r"main.c, model.c, port, report.txt are not"):
        write(out, files)
    assert write(out, files, force=True) == ["main.c.orig", "model.c.orig", "port.orig", "report.txt.orig"]
    assert {name: (out / name).read_text() for name in files} == files
    assert contents(elsewhere) == {"model.c": OURS["model.c"], "port/train.c": OURS["port/train.c"]}


@pytest.mark.parametrize(
    "name", ["../mine.txt", "/etc/hostname", "a/../../mine.txt", "", "a\0b", "./model.c", "\ud800"]
)
def test_a_manifest_reaches_no_file_outside(out: Path, name: str) -> None:
    """One that was made by somebody else, with the right checksum."""
    mine = out.parent / "mine.txt"
    mine.write_text("mine")
    document = json.loads((out / KIND.manifest).read_text())
    document["files"][name] = "d28c29a34fd5ee45d63a4dfe6e3cf9a5dd4fd9ee5fb7ba1d4b5a1fba5f8a5e73"
    del document["sha256"]
    (out / KIND.manifest).write_text(json.dumps(document, indent=1) + "\n")
    with pytest.raises(UsageError, match=r"are not as poetc wrote them"):
        write(out)
    write(out, force=True)
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("damage", ["{", "[]", "[" * 100_000, '{"files": 3}', '{"files": {"model.c": []}}', "\xff"])
def test_a_damaged_manifest_makes_every_file_the_users(out: Path, damage: str) -> None:
    (out / KIND.manifest).write_text(damage, encoding="latin-1")
    with pytest.raises(UsageError, match=r"made.json, model.c, port/train.c, report.txt are not"):
        write(out)
    assert len(write(out, force=True)) == 4
    write(out)


def test_an_edited_manifest_is_refused_too(out: Path) -> None:
    path = out / KIND.manifest
    path.write_text(path.read_text().replace('"of"', '"my_own"'))
    with pytest.raises(UsageError, match=r"made.json is not as"):
        write(out)
    assert write(out, force=True) == ["made.json.orig"]


def test_directories_of_an_earlier_poetc(out: Path) -> None:
    """With checksums, but not of the manifest and the reports; without any."""
    path = out / KIND.manifest
    document = json.loads(path.read_text())
    del document["sha256"], document["files"]["report.txt"]
    path.write_text(json.dumps(document, indent=1) + "\n")
    with pytest.raises(UsageError, match=r"report.txt is not as"):
        write(out)
    path.write_text("{}")
    with pytest.raises(UsageError, match=r"an earlier poetc wrote it and recorded no checksums; .*--force"):
        check_replaceable(out, KIND, names=())
    with pytest.raises(UsageError, match=r"model.c, port/train.c, report.txt are not"):
        write(out)


def test_one_file_of_a_directory_is_replaced_and_recorded(out: Path) -> None:
    replace_file(out, KIND, "report.txt", "with a curve\n")
    replace_file(out, KIND, "page.html", "<p>\n")
    assert contents(out) == {**OURS, "report.txt": "with a curve\n", "page.html": "<p>\n"}
    write(out)
    assert contents(out) == OURS
    (out / "report.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"report.txt: is not as"):
        replace_file(out, KIND, "report.txt", "with a curve\n")


# --- places -----------------------------------------------------------------------------------------------------------


def test_the_working_directory_a_link_and_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "real"
    real.mkdir(mode=0o750)
    (tmp_path / "link").symlink_to(real)
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and contents(real) == OURS
    monkeypatch.chdir(real)
    write(Path(), {"model.c": "int y;\n"})
    assert contents(real) == {"model.c": "int y;\n"} and real.stat().st_mode & 0o777 == 0o750
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]


def test_a_moved_directory_is_still_ours(out: Path) -> None:
    moved = out.rename(out.parent / "moved")
    write(moved, {"model.c": "int y;\n"})
    assert contents(moved) == {"model.c": "int y;\n"}


def test_places_that_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    for name in ("file", "dangling", "file/below"):
        with pytest.raises(UsageError, match=r"not a directory|cannot be made in"):
            write(tmp_path / name)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match=r"thesis: holds something else than what a test wrote; choose .*--force"):
        write(tmp_path / "thesis")
    assert write(tmp_path / "thesis", force=True) == []
    assert contents(tmp_path / "thesis") == {**OURS, "thesis.tex": "x"}


def test_permissions(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files they stay; folders that may not be written are found before anything is changed (by `os.access`, which
    root passes everywhere).
    """
    (out / "model.c").chmod(0o640)
    (out / "report.txt").chmod(0o444)
    write(out)
    assert [(out / name).stat().st_mode & 0o777 for name in ("model.c", "report.txt")] == [0o640, 0o444]
    check_replaceable(out, KIND)
    before = contents(out)
    monkeypatch.setattr(os, "access", lambda path, mode: path != out / "port")
    with pytest.raises(UsageError, match=f"{out}/port: cannot be written"):
        write(out, dict.fromkeys(OURS, "new"))
    assert contents(out) == before
    monkeypatch.setattr(os, "access", lambda path, mode: path != out)
    with pytest.raises(UsageError, match=f"{out}: cannot be replaced without permission; .* with --keep"):
        check_replaceable(out, Kind(KIND.manifest, "ours", "--keep"))
    # As of a card whose switch is at "lock".
    flags = os.statvfs_result((*os.statvfs(out)[:8], os.ST_RDONLY, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: flags)
    with pytest.raises(UsageError, match=f"{out}: is on a read-only file system; .* with --keep"):
        check_replaceable(out, Kind(KIND.manifest, "ours", "--keep"))


def test_errors_name_the_directory_as_the_user_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "net.poetc"
    with pytest.raises(PermissionError) as refused, replacing(out, KIND) as staging:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(staging.directory / "plan.json"))
    assert refused.value.filename == str(out)
    assert list(tmp_path.iterdir()) == []

    def denied(**options: object) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), f"{options['dir']}/{options['prefix']}x")

    monkeypatch.setattr(tempfile, "mkdtemp", denied)
    with pytest.raises(PermissionError) as refused:
        write(out)
    assert refused.value.filename == str(out)


# --- interruptions and others who write -------------------------------------------------------------------------------


@pytest.mark.power_loss(at_least=5)
def test_after_a_loss_of_power_everything_is_still_ours(out: Path, power: Power) -> None:
    """Each rename may be the last one; every file is the old one or the new one, and the next run replaces both."""
    new = {"model.c": "int y;\n", "port/board.c": "board\n", "report.txt": "tight\n"}
    really = os.replace

    def replace(source: Path, place: Path) -> None:
        power.operate(place)
        really(source, place)

    if power.boot == 0:
        shutil.rmtree(out)
        write(out)
        with pytest.MonkeyPatch.context() as patch, power.may_go():
            patch.setattr(os, "replace", replace)
            write(out, new)
    for name, text in contents(out).items():
        assert text in (OURS.get(name), new.get(name))
    write(out, {"main.c": "main\n"})
    assert contents(out) == {"main.c": "main\n"}
    assert not [p for p in out.iterdir() if p.name.startswith(".poetc-")]


def test_a_failure_while_files_are_made_changes_nothing(out: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file()}
    with pytest.raises(KeyboardInterrupt), replacing(out, KIND) as staging:
        (staging.directory / "model.c").write_text("half")
        raise KeyboardInterrupt
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file()} == before
    assert not [p for p in out.iterdir() if p.name.startswith(".poetc-")]


def test_what_a_killed_process_left_goes(out: Path) -> None:
    """But not what another one is at, or the user's."""
    old = time.time() - 3600
    for name in (".poetc-staging-old", ".poetc-staging-used", ".poetc-mine"):
        (out / name).mkdir()
        (out / name / "model.c").write_text("half")
        os.utime(out / name, (old, old))
    handle = os.open(out / ".poetc-staging-used", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with replacing(out, KIND):  # this one's is new
        write(out)
    os.close(handle)
    assert sorted(p.name for p in out.iterdir() if p.name.startswith(".")) == [".poetc-mine", ".poetc-staging-used"]


def test_interrupts_between_two_files_wait_for_the_last(out: Path) -> None:
    """Ctrl-C after each rename."""
    program = """
import os, signal, sys
from pathlib import Path
from tests.test_output_directory import write
really = os.replace
def replace(source, place):
    really(source, place)
    os.kill(os.getpid(), signal.SIGINT)
os.replace = replace
write(Path(sys.argv[1]), {"model.c": "int y;", "z.c": "int z;"})
"""
    ended = subprocess.run([sys.executable, "-c", program, out], capture_output=True, text=True, check=False)
    assert "KeyboardInterrupt" in ended.stderr
    assert contents(out) == {"model.c": "int y;", "z.c": "int z;"}
    assert "replacing" not in json.loads((out / KIND.manifest).read_text())


def test_two_at_once_leave_one_of_both(tmp_path: Path) -> None:
    """Neither a mixture nor files that nobody owns."""
    out, sets = tmp_path / "out", [{f"{i}-{k}.c": str(i) for k in range(9)} | {"model.c": str(i)} for i in range(4)]
    for _ in range(5):
        threads = [threading.Thread(target=write, args=(out, files)) for files in sets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert contents(out) in sets
    write(out)
    assert contents(out) == OURS
