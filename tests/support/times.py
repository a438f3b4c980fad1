"""Processor time of every test, with the programs that it ran: a plugin of pytest, and a table of what it wrote.

    python -m pytest -p tests.support.times ...     appends to build/test-times.jsonl
    python -m tests.support.times                   sums by room (a folder) and file, and the longest tests, in Markdown

A busy machine changes these numbers little, unlike seconds of a clock. What a fixture takes counts for the first test
that uses it.
"""

from __future__ import annotations

import json
import resource
import sys
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

OUT = Path(__file__).resolve().parents[2] / "build" / "test-times.jsonl"
LONGEST = 40  # tests that the table names


def _seconds() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    begin = _seconds()
    try:
        return (yield)
    finally:
        OUT.parent.mkdir(exist_ok=True)
        is_long = item.get_closest_marker("long") is not None
        line = json.dumps([item.nodeid, round(_seconds() - begin, 2), is_long])
        with OUT.open("a") as file:  # a line is one write: workers do not mix
            file.write(line + "\n")


def main() -> None:
    tests = {name: (seconds, is_long) for name, seconds, is_long in map(json.loads, OUT.read_text().splitlines())}
    files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    rooms: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for name, (seconds, is_long) in tests.items():
        file = name.partition("::")[0]
        for row in (files[file], rooms[str(Path(file).parent)]):
            row[0] += 1
            row[1 + is_long] += seconds
    for what, rows in (("room", rooms), ("file", files)):
        print(f"| {what} | tests | `make test`, s | long, s |\n|---|---:|---:|---:|")
        for name, (count, quick, slow) in sorted(rows.items(), key=lambda row: -row[1][1]):
            print(f"| {name} | {count:.0f} | {quick:.1f} | {slow:.1f} |")
        total = [sum(row[i] for row in rows.values()) for i in range(3)]
        print(f"| all | {total[0]:.0f} | {total[1]:.1f} | {total[2]:.1f} |\n")
    print("| test | s | long |\n|---|---:|---|")
    for name, (seconds, is_long) in sorted(tests.items(), key=lambda row: -row[1][0])[:LONGEST]:
        print(f"| {name} | {seconds:.1f} | {'yes' if is_long else ''} |")


if __name__ == "__main__":
    sys.exit(main())
