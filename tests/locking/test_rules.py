"""The rules of a check, on entries made by hand; the file; the formats."""

from __future__ import annotations

import errno
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import msgspec
import pytest

from poetc.commands.locking import (
    Comparison,
    Entry,
    Hashes,
    LockFile,
    Options,
    Report,
    Result,
    check,
    dumps,
    entry_text,
    findings_of,
    github,
    hash_of,
    hash_of_entry,
    junit,
    line_of,
    parse_tolerance,
    read,
    text,
    write,
)
from poetc.errors import CheckFailed, InfeasibleError, UsageError

RESULT = Result(
    status="optimal",
    objective=1_000_000,
    bound=1_000_000,
    schedule_class="fixed order",
    scope={"order": "problem", "repetition": "any"},
    energy_pj=1_000_000,
    time_ns=5_000,
    budget_bytes=4096,
    peak_bytes=4000,
    arena_bytes=3900,
    ram_bytes=4000,
    recomputes=3,
    page_outs=1,
    page_ins=1,
)
ENTRY = Entry(
    name="a model, 50%",
    options=Options(model="a.onnx", device="host", budget="50%"),
    hashes=Hashes(model="m", profile="p", options="o", problem="q"),
    result=RESULT,
    versions={"poetc": "0"},
)


def changed(**changes: Any) -> Entry:
    return msgspec.structs.replace(ENTRY, result=msgspec.structs.replace(RESULT, **changes))


def rules(now: Entry, locked: Entry = ENTRY, tolerance: float = 0.001) -> list[str]:
    return [finding.rule for finding in findings_of(locked, now, tolerance)]


def test_the_same_again_says_nothing() -> None:
    assert rules(ENTRY) == []


def test_a_tie_never_fails() -> None:
    """Another schedule of the same cost: other actions, another peak and arena, another time."""
    tie = changed(recomputes=9, page_outs=4, page_ins=5, peak_bytes=4090, arena_bytes=3990, ram_bytes=4090, time_ns=1)
    assert rules(tie) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"objective": 1_000_900, "bound": 1_000_900}, []),  # within the tolerance
        ({"objective": 1_002_000, "bound": 1_002_000}, ["worse"]),
        ({"objective": 990_000, "bound": 990_000}, ["better"]),
        ({"status": "limit", "bound": 999_500}, []),
        ({"status": "feasible", "bound": 950_000}, ["proof"]),
        ({"objective": 1_100_000, "status": "feasible"}, ["worse", "proof"]),
        ({"status": "limit", "bound": 950_000}, ["time"]),
        ({"status": "limit", "objective": 1_100_000, "bound": 999_000}, ["time", "time"]),
        # That much less is proven impossible now: time is not what is short.
        ({"status": "limit", "objective": 1_100_000, "bound": 1_050_000}, ["worse", "proof"]),
        ({"ram_bytes": 4097}, ["budget"]),
        ({"scope": {"order": "problem", "repetition": "staged"}}, ["changed"]),
    ],
)
def test_rules(changes: dict[str, Any], expected: list[str]) -> None:
    assert rules(changed(**changes)) == expected


def test_a_gap_that_was_there_when_it_was_locked_is_no_loss() -> None:
    locked = changed(status="limit", bound=900_000)
    assert rules(locked, locked) == []
    assert rules(changed(status="feasible", bound=890_000), locked) == ["proof"]


def test_importance_is_the_goal_where_updates_are_chosen() -> None:
    locked = changed(importance=10.0, importance_bound=10.0)
    assert rules(locked, locked) == []
    assert rules(changed(importance=9.0, importance_bound=9.0, objective=900_000), locked) == ["worse"]
    assert rules(changed(importance=11.0, importance_bound=11.0, objective=1_100_000), locked) == ["better", "proof"]
    assert rules(changed(importance=10.0, importance_bound=12.0), locked) == ["proof"]
    least = msgspec.structs.replace(locked, options=Options(model="a", device="host", importance_at_least="80%"))
    assert rules(changed(importance=9.0, importance_bound=12.0), least) == []


@pytest.mark.parametrize("what", ["model", "profile", "importance", "options", "code", "highspy"])
def test_what_the_time_limit_stopped_fails_where_something_changed(what: str) -> None:
    now = changed(status="limit", objective=1_100_000, bound=999_000)
    if what in ("code", "highspy"):
        now = msgspec.structs.replace(now, versions={"poetc": "0", what: "other"})
    else:
        now = msgspec.structs.replace(now, hashes=msgspec.structs.replace(ENTRY.hashes, **{what: "other"}))
    assert [f.rule for f in findings_of(ENTRY, now) if f.fails] == ["worse", "proof"]
    assert "the time limit stopped it" in findings_of(ENTRY, now)[0].message


def test_an_entry_that_was_edited_is_no_work_of_a_busy_machine() -> None:
    """A lower energy that somebody wrote into the file: the solver never found it, with whatever time."""
    own = msgspec.structs.replace(ENTRY, hashes=msgspec.structs.replace(ENTRY.hashes, entry=hash_of_entry(ENTRY)))
    now = msgspec.structs.replace(own, result=msgspec.structs.replace(RESULT, status="limit", bound=900_000))
    locked = msgspec.structs.replace(now, hashes=msgspec.structs.replace(own.hashes, entry=hash_of_entry(now)))
    assert rules(now, locked) == []
    edited = msgspec.structs.replace(locked, result=msgspec.structs.replace(now.result, objective=950_000))
    assert [(f.rule, f.fails) for f in findings_of(edited, now)] == [
        *[("worse", True), ("proof", True)],
        ("changed", False),
    ]
    assert findings_of(edited, now)[-1].message == "changed since it was locked: the entry itself"
    other = msgspec.structs.replace(edited, versions={"poetc": "1"})  # whose entries may have other fields
    assert all("the entry itself" not in f.message for f in findings_of(other, now))


@pytest.mark.parametrize(
    ("patience", "cured_by", "expected"),
    [(4.0, 4.0, ([1.0, 4.0], True)), (4.0, 9.0, ([1.0, 4.0], False)), (1.0, 4.0, ([1.0], False))],
)
def test_before_an_entry_fails_it_gets_more_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    patience: float,
    cured_by: float,
    expected: tuple[list[float], bool],
) -> None:
    path, given = tmp_path / "poetc.lock", []
    write(path, LockFile(version=1).with_entry(ENTRY))

    def solve(*_: object, patience: float) -> tuple[Entry, None]:
        given.append(patience)
        return (ENTRY if patience >= cured_by else changed(status="feasible", objective=1_100_000)), None

    monkeypatch.setattr("poetc.commands.locking._check.solve_entry", solve)
    report = check(path, patience=patience)
    assert (given, report.passed) == expected


@pytest.mark.parametrize("now", [None, changed(objective=1_100_000, bound=1_050_000)])
def test_what_is_proven_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: Entry | None) -> None:
    path, given = tmp_path / "poetc.lock", []
    write(path, LockFile(version=1).with_entry(ENTRY))

    def solve(*_: object, patience: float) -> tuple[Entry, None]:
        given.append(patience)
        if now is None:
            raise InfeasibleError("nothing fits")
        return now, None

    monkeypatch.setattr("poetc.commands.locking._check.solve_entry", solve)
    assert not check(path).passed
    assert given == [1.0]


@pytest.mark.parametrize(
    ("before", "after", "given"),
    [
        ({"order": "own"}, {"order": "problem"}, [1.0, 4.0]),
        ({"order": "own"}, {"order": "own"}, [1.0, 4.0]),
        ({"order": "problem"}, {"order": "problem"}, [1.0]),
        ({"order": "own"}, {"order": "any"}, [1.0]),
        (None, {"order": "problem"}, [1.0, 4.0]),
    ],
)
def test_a_bound_under_another_order_proves_nothing_about_what_was_locked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: dict[str, str] | None,
    after: dict[str, str],
    given: list[float],
) -> None:
    """On a busy machine the search for an order ends sooner, with another order and its bound: more time cures it."""
    locked = changed(scope=before and {**before, "repetition": "any"})
    worse = changed(scope={**after, "repetition": "any"}, objective=1_100_000, bound=1_050_000)
    path, patiences = tmp_path / "poetc.lock", []
    write(path, LockFile(version=1).with_entry(locked))

    def solve(*_: object, patience: float) -> tuple[Entry, None]:
        patiences.append(patience)
        return (worse if patience == 1.0 else locked), None

    monkeypatch.setattr("poetc.commands.locking._check.solve_entry", solve)
    assert check(path).passed == (4.0 in given)
    assert patiences == given


def versioned(**versions: str) -> Entry:
    return msgspec.structs.replace(ENTRY, versions={**ENTRY.versions, **versions})


def test_a_changed_problem_names_the_version_that_changed_it() -> None:
    hashes = msgspec.structs.replace(ENTRY.hashes, problem="other")
    for now, what in (
        (versioned(poetc="1"), "poetc 0 → 1"),
        (versioned(code="b"), "poetc's code"),
        (versioned(poetc="1", code="b", highspy="1.15"), "highspy ? → 1.15, poetc 0 → 1"),
    ):
        (finding,) = findings_of(ENTRY, msgspec.structs.replace(now, hashes=hashes))
        assert finding.message == f"{what}: the same model, profile and options make another problem"
        assert not finding.fails
        model = msgspec.structs.replace(hashes, model="other")
        (finding,) = findings_of(ENTRY, msgspec.structs.replace(now, hashes=model))
        assert finding.message == f"changed since it was locked: model, {what}"


def test_a_schedule_that_got_worse_for_the_same_problem_names_what_changed() -> None:
    worse = msgspec.structs.replace(versioned(code="b"), result=changed(objective=2_000_000, bound=2_000_000).result)
    failing, said = findings_of(ENTRY, worse)
    assert failing.fails
    assert said.message == "the problem is the same; changed since: poetc's code"
    assert findings_of(ENTRY, versioned(code="b")) == ()


def test_options_that_came_later_are_no_change() -> None:
    """A lock file from before --state, --dma and others was hashed without them."""

    def with_options(options: Options, hashed: str) -> Entry:
        return msgspec.structs.replace(
            ENTRY, options=options, hashes=msgspec.structs.replace(ENTRY.hashes, options=hashed)
        )

    for given in (ENTRY.options, msgspec.structs.replace(ENTRY.options, fixed_order=True)):
        now = with_options(given, hash_of(given))
        old = msgspec.to_builtins(given)
        for later in ("group", "processors", "max_energy", "importance_at_least", "importance", "state", "dma"):
            del old[later]
            assert findings_of(with_options(given, hash_of(old)), now) == ()
        edited = with_options(given, hash_of({**old, "seed": 3}))
        assert [f.message for f in findings_of(edited, now)] == ["changed since it was locked: options"]
    stored = msgspec.structs.replace(ENTRY.options, state="store")  # not what a file without `state` asked for
    (finding,) = findings_of(with_options(stored, hash_of(old)), with_options(stored, hash_of(stored)))
    assert finding.message == "changed since it was locked: options"


def test_counts_under_their_name_of_version_0_1_are_read(tmp_path: Path) -> None:
    path = tmp_path / "poetc.lock"
    text = dumps(LockFile(version=1, entries=(changed(low_workspace_kernels=2),)))
    path.write_text(text.replace("low_workspace_kernels", "leaner_kernels"))
    assert read(path).entries[0].result.low_workspace_kernels == 2


def test_what_changed_is_named_once() -> None:
    hashes = msgspec.structs.replace(ENTRY.hashes, profile="other", problem="other")
    (finding,) = findings_of(ENTRY, msgspec.structs.replace(ENTRY, hashes=hashes))
    assert finding.message == "changed since it was locked: profile"
    assert not finding.fails
    # The same code, given other time, may place state otherwise: that is another problem, and no change.
    hashes = msgspec.structs.replace(ENTRY.hashes, problem="other")
    assert findings_of(ENTRY, msgspec.structs.replace(ENTRY, hashes=hashes)) == ()
    (finding,) = findings_of(ENTRY, msgspec.structs.replace(ENTRY, hashes=hashes, versions={"poetc": "1"}))
    assert "make another problem" in finding.message


def test_the_file_is_canonical_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "poetc.lock"
    other = msgspec.structs.replace(ENTRY, name="another")
    one = LockFile(version=1).with_entry(ENTRY).with_entry(other)
    two = LockFile(version=1).with_entry(other).with_entry(ENTRY).with_entry(other)
    assert dumps(one) == dumps(two)
    write(path, one)
    path.chmod(0o640)
    write(path, two)
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]
    assert read(path) == one
    keys = list(json.loads(path.read_text())["entries"][0])
    assert keys == sorted(keys)
    assert (
        path.read_text().splitlines()[line_of(path.read_text(), "a model, 50%") - 1].strip().startswith('"name": "a m')
    )


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "poetc.lock"
    write(path, LockFile(version=1))
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr("poetc.files.os.replace", fail)
    with pytest.raises(OSError, match=r"no space left.*poetc\.lock"):
        write(path, LockFile(version=1).with_entry(ENTRY))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", "not a lock file"),
        ('{"version": 2, "entries": []}', "version 2"),
        ('{"version": 1, "entriez": []}', "entriez"),
    ],
)
def test_bad_files(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "poetc.lock"
    path.write_text(content)
    with pytest.raises(UsageError, match=complaint):
        read(path)
    with pytest.raises(UsageError, match="poetc lock writes it"):
        read(tmp_path / "none.lock")


@pytest.mark.parametrize("text", ["0.1", "x%", "-1%", "100%", ""])
def test_bad_tolerances(text: str) -> None:
    with pytest.raises(UsageError, match="percentage"):
        parse_tolerance(text)
    assert parse_tolerance("0.5%") == 0.005


def report_of(*entries: Entry) -> Report:
    comparisons = tuple(Comparison(ENTRY, e, findings_of(ENTRY, e), line=12) for e in entries)
    return Report("dir/poetc.lock", 0.001, comparisons)


def test_formats() -> None:
    late = report_of(changed(status="limit", bound=900_000))
    assert late.passed
    assert github(late).startswith("::warning ")
    report = report_of(ENTRY, changed(objective=2_000_000, bound=2_000_000), changed(objective=500_000, bound=500_000))
    assert not report.passed
    lines = text(report).splitlines()
    assert [line[:4] for line in lines if not line.startswith(" ")] == ["ok  ", "FAIL", "ok  ", "3 en"]
    suite = ElementTree.fromstring(junit(report))[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "0")
    assert [len(case.findall("failure")) for case in suite] == [0, 1, 0]
    first, second = github(report).splitlines()
    assert first.startswith(
        "::error file=dir/poetc.lock,line=12,title=a model%2C 50%25%3A worse::energy is 100.00%25 more"
    )
    assert second.startswith("::notice ")
    with pytest.raises(CheckFailed, match=r"100\.00% more.*1 of 3 entries fail") as error:
        report.require()
    assert json.loads(json.dumps(error.value.details))["passed"] is False
    report_of(ENTRY).require()


def test_a_lock_of_what_the_time_limit_stopped_says_so() -> None:
    assert "time limit" not in entry_text(ENTRY, Path("poetc.lock"))
    assert "--gap 0.11 would end by itself" in entry_text(changed(status="limit", bound=899_000), Path("poetc.lock"))
