"""Recompute a lock file and judge each entry.

An entry for which nothing changed passes without being solved. The model, profile, options, poetc's code, libraries and
kind of machine count. The solver is deterministic, so that it would find the same unless the time limit stopped it.

An entry fails when its schedule got worse than the tolerance, when its budget no longer fits, or when a proof is lost.
It never fails because of a tie: which of several schedules of one cost came out is not compared at all. Nor does it
fail because the machine was slow: an entry that more time may cure is solved again with several times its time limit.
Where nothing changed since it was locked, not even poetc's code, a result that the time limit stopped proves nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from poetc.commands.locking._file import Entry, Result, hash_of_entry, is_hash_of, line_of, read
from poetc.commands.locking._lock import is_unchanged, solve_entry
from poetc.devices import format_bytes, format_cost, format_enough, format_gap
from poetc.errors import CheckFailed, InfeasibleError, LimitError, UnsupportedModelError, UsageError
from poetc.events import Progress, silent
from poetc.files import read_file
from poetc.processes import KilledError, in_processes
from poetc.scheduling import Objective

TOLERANCE = 0.001  # of the objective, and of the gap
PATIENCE = 4.0  # times an entry's time limit, before it fails


@dataclass(frozen=True, slots=True)
class Finding:
    """`rule`: worse | budget | proof | error fail the entry; time | better | changed are only said.
    `time_may_cure`: with more of it something better may be found. `is_usage`: a file or an option is wrong, so that
    nothing was compared.
    """

    rule: Literal["worse", "budget", "proof", "error", "time", "better", "changed"]
    message: str
    time_may_cure: bool = False
    is_usage: bool = False

    @property
    def fails(self) -> bool:
        return self.rule in ("worse", "budget", "proof", "error")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One entry: as it was locked, as it is now (None: nothing was found), and the verdict.

    `solved`: again, or everything that the answer depends on is unchanged, and `now` is `locked`.
    """

    locked: Entry
    now: Entry | None
    findings: tuple[Finding, ...]
    line: int = 1  # of the entry in the lock file
    solved: bool = True

    @property
    def passed(self) -> bool:
        return not any(finding.fails for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Report:
    path: str
    tolerance: float
    comparisons: tuple[Comparison, ...] = field(default=())

    @property
    def passed(self) -> bool:
        return all(comparison.passed for comparison in self.comparisons)

    @property
    def is_one_error(self) -> bool:
        """Whether there is one entry, for which nothing could be solved: a file or an option is wrong."""
        return len(self.comparisons) == 1 and [f.rule for f in self.comparisons[0].findings] == ["error"]

    def to_json(self) -> dict[str, Any]:
        """The answer of `poetc check --json`."""
        import msgspec

        return {
            "lock": self.path,
            "passed": self.passed,
            "tolerance": self.tolerance,
            "entries": [
                {
                    "name": c.locked.name,
                    "passed": c.passed,
                    "solved": c.solved,
                    "findings": [{"rule": f.rule, "message": f.message, "fails": f.fails} for f in c.findings],
                    "locked": msgspec.to_builtins(c.locked.result),
                    "now": None if c.now is None else msgspec.to_builtins(c.now.result),
                }
                for c in self.comparisons
            ],
        }

    def require(self) -> None:
        """Raise CheckFailed if an entry failed; UsageError where for each of them a file or an option is wrong."""
        failed = [c for c in self.comparisons if not c.passed]
        if failed:
            first = next(f for c in failed for f in c.findings if f.fails)
            more = f"; {len(failed)} of {len(self.comparisons)} entries fail" if len(self.comparisons) > 1 else ""
            is_usage = all(f.is_usage for c in failed for f in c.findings if f.fails)
            error = UsageError if is_usage else CheckFailed
            raise error(f"{failed[0].locked.name}: {first.message}{more}", details=self.to_json())


def parse_tolerance(text: str) -> float:
    """A fraction from `0.1%`. Raises UsageError."""
    try:
        value = float(text.removesuffix("%")) / 100
    except ValueError:
        value = -1.0
    if not (text.endswith("%") and 0 <= value < 1):
        raise UsageError(f"--tolerance {text!r}: give a percentage, for example 0.1%")
    return value


def check(
    path: Path,
    *,
    tolerance: float = TOLERANCE,
    patience: float = PATIENCE,
    names: Sequence[str] = (),
    solve: bool = False,
    jobs: int = 1,
    progress: Progress = silent,
) -> Report:
    """Compare every entry (or those called `names`) with today's result.

    An entry for which everything is unchanged is not solved again, unless `solve`. `jobs` of the others are solved at
    once, in processes of their own. Raises UsageError for a bad file or name.
    """
    lock = read(path)
    text = read_file(path).decode()
    unknown = sorted(set(names) - {entry.name for entry in lock.entries})
    if unknown:
        raise UsageError(f"{path}: no entry {unknown[0]!r}; there are: {'; '.join(e.name for e in lock.entries)}")
    if not lock.entries:
        raise UsageError(f"{path}: no entries; poetc lock adds them")
    entries = [entry for entry in lock.entries if not names or entry.name in names]
    comparisons: dict[str, Comparison] = {}
    tasks = []
    for entry in entries:
        line = line_of(text, entry.name)
        if not solve and is_unchanged(entry, path.parent):
            comparisons[entry.name] = Comparison(entry, entry, (), line, solved=False)
        else:
            tasks.append(_Task(entry, path.parent, tolerance, patience, line))
    if jobs > 1 and len(tasks) > 1:
        progress(f"solving {len(tasks)} entries, {min(jobs, len(tasks))} at once")
        for index, answer in in_processes(_compared, tasks, jobs):
            task = tasks[index]
            if isinstance(answer, KilledError):
                answer = Comparison(task.entry, None, (Finding("error", str(answer)),), task.line)
            comparisons[task.entry.name] = answer
            progress(f"{len(comparisons)} of {len(entries)}: {task.entry.name}")
    else:
        comparisons |= {task.entry.name: _compared(task, progress) for task in tasks}
    return Report(str(path), tolerance, tuple(comparisons[entry.name] for entry in entries))


@dataclass(frozen=True, slots=True)
class _Task:
    """An entry that is to be solved again."""

    entry: Entry
    folder: Path
    tolerance: float
    patience: float
    line: int


def _compared(task: _Task, progress: Progress = silent) -> Comparison:
    """The verdict on an entry. It is solved again with more time where that may mend it."""
    entry = task.entry
    progress(entry.name)
    now, findings = _again(entry, task.folder, task.tolerance, 1.0, progress)
    if task.patience > 1 and any(finding.time_may_cure for finding in findings):
        progress(f"{entry.name}: again, with {task.patience:g} times its time limit")
        now, findings = _again(entry, task.folder, task.tolerance, task.patience, progress)
    return Comparison(entry, now, findings, task.line)


def _again(
    entry: Entry, folder: Path, tolerance: float, patience: float, progress: Progress
) -> tuple[Entry | None, tuple[Finding, ...]]:
    try:
        now, _ = solve_entry(entry.name, entry.options, folder, progress, patience=patience)
    except InfeasibleError as error:
        return None, (Finding("budget", f"the budget no longer fits: {error}"),)
    except LimitError as error:
        return None, (Finding("budget", f"no schedule was found any more: {error}", time_may_cure=True),)
    except (UsageError, UnsupportedModelError, OSError) as error:
        return None, (Finding("error", str(error), is_usage=not isinstance(error, UnsupportedModelError)),)
    return now, findings_of(entry, now, tolerance)


def findings_of(locked: Entry, now: Entry, tolerance: float = TOLERANCE) -> tuple[Finding, ...]:
    """The verdict on an entry. Costs are compared, schedules are not: ties cannot fail."""
    before, after = locked.result, now.result
    show = functools.partial(format_cost, Objective(locked.options.objective or Objective.ENERGY))
    findings: list[Finding] = []
    if after.ram_bytes > after.budget_bytes:
        findings.append(
            Finding(
                "budget",
                f"the budget no longer fits: {format_enough(after.ram_bytes)} are needed, "
                f"{format_bytes(after.budget_bytes)} allowed",
            )
        )
    hashes = locked.hashes
    files = ("model", "profile", "importance")
    changed = [what for what in files if getattr(hashes, what) != getattr(now.hashes, what)]
    if hashes.options != now.hashes.options and not is_hash_of(hashes.options, now.options):
        changed.append("options")
    # Another version of poetc may write entries with other fields.
    if hashes.entry and locked.versions == now.versions and hashes.entry != hash_of_entry(locked):
        changed.append("the entry itself")
    versions = _version_words(locked.versions, now.versions)
    stopped = after.status == "limit"
    # The solver is deterministic: of the same problem, the same code would find the same again.
    unchanged = not changed and locked.versions == now.versions
    # Unless the new bound proves the locked result impossible: a bound under another order of operators does not.
    reachable = after.bound <= before.objective * (1 + tolerance) or not _bounds(after, before)
    only_time = stopped and unchanged and reachable
    limit = "; the time limit stopped it" if stopped else ""

    def failing(rule: Literal["worse", "proof"], message: str) -> Finding:
        if only_time:
            return Finding("time", f"{message}{limit}, and nothing changed since it was locked", time_may_cure=True)
        return Finding(rule, message + limit, time_may_cure=reachable)

    gain = 0.0  # of importance, where it is the goal: then costs are those of other updates
    if before.importance and after.importance is not None and locked.options.importance_at_least is None:
        gain = after.importance / before.importance - 1
        if after.importance_gap > before.importance_gap + tolerance:
            gaps = f"gap {format_gap(before.importance_gap)} before, {format_gap(after.importance_gap)} now"
            findings.append(failing("proof", f"the set of updates is proven less tightly: {gaps}"))
    if gain < -tolerance:
        findings.append(failing("worse", f"the importance of the updates is {-gain:.2%} less"))
    elif gain > tolerance:
        findings.append(Finding("better", f"the importance of the updates is {gain:.2%} more; lock it again"))

    ratio = after.objective / before.objective - 1 if before.objective else float(after.objective > 0)
    ratio = ratio if abs(gain) <= tolerance else 0.0
    costs = f"{show(before.objective)} before, {show(after.objective)} now"
    if ratio > tolerance:
        findings.append(failing("worse", f"{locked.options.objective} is {ratio:.2%} more: {costs}"))
    elif ratio < -tolerance:
        findings.append(Finding("better", f"{locked.options.objective} is {-ratio:.2%} less: {costs}; lock it again"))
    if after.gap > before.gap + tolerance:
        lost = "is no longer proven optimal" if before.status == "optimal" else "is proven less tightly"
        findings.append(
            failing("proof", f"the schedule {lost}: gap {format_gap(before.gap)} before, {format_gap(after.gap)} now")
        )
    elif before.scope is not None and after.scope != before.scope:
        findings.append(
            Finding("changed", f"the bound now holds for “{after.schedule_class}”, not “{before.schedule_class}”")
        )
    if changed:
        findings.append(Finding("changed", f"changed since it was locked: {', '.join([*changed, *versions])}"))
    elif hashes.problem != now.hashes.problem and not unchanged:
        what = ", ".join(versions) or "another version of poetc"
        findings.append(Finding("changed", f"{what}: the same model, profile and options make another problem"))
    elif versions and any(finding.fails for finding in findings):
        findings.append(Finding("changed", f"the problem is the same; changed since: {', '.join(versions)}"))
    return tuple(findings)


def _bounds(after: Result, before: Result) -> bool:
    """Whether the bound of `after` is about the schedule of `before` too.

    Two schedules' own orders may differ, and the other one may be among the schedules that a formulation leaves out.
    """
    scope = after.scope or {"order": "own"}
    if "own" in scope.values() or scope.get("repetition") != "any":
        return False
    return scope["order"] == "any" or scope == before.scope


def _version_words(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Which of poetc, its code and the libraries have changed."""
    changes = [
        f"{name} {x} → {y}" for name, y in sorted(after.items()) if name != "code" and (x := before.get(name, "?")) != y
    ]
    if before.get("code") != after.get("code") and before.get("poetc") == after.get("poetc"):
        changes.append("poetc's code")
    return changes
