"""A check's report as text, as JUnit XML, as GitHub annotations."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from poetc.commands.locking._check import Comparison, Report
from poetc.commands.locking._file import Entry
from poetc.devices import format_bytes, format_cost, format_pj
from poetc.reporting import status_words
from poetc.scheduling.objective import Objective


def text(report: Report) -> str:
    """One line an entry, and the findings under it."""
    lines: list[str] = []
    for comparison in report.comparisons:
        said = "" if comparison.solved else "  (unchanged, so not solved again; --solve insists)"
        lines.append(f"{'ok  ' if comparison.passed else 'FAIL'}  {comparison.locked.name}{said}")
        lines += [f"      {finding.rule}: {finding.message}" for finding in comparison.findings]
    failed = sum(not c.passed for c in report.comparisons)
    count = len(report.comparisons)
    lines.append(f"{count} {'entry' if count == 1 else 'entries'}, {failed} failed (tolerance {report.tolerance:.2%})")
    return "\n".join(lines)


def junit(report: Report) -> str:
    """A test suite, one case an entry, as CI systems read it."""
    failures = sum(_kind(c) == "failure" for c in report.comparisons)
    errors = sum(_kind(c) == "error" for c in report.comparisons)
    count = str(len(report.comparisons))
    suite = ElementTree.Element(
        "testsuite", name="poetc check", tests=count, failures=str(failures), errors=str(errors)
    )
    for comparison in report.comparisons:
        case = ElementTree.SubElement(
            suite, "testcase", classname="poetc.lock", name=_printable(comparison.locked.name), file=report.path
        )
        case.set("line", str(comparison.line))
        bad = [f for f in comparison.findings if f.fails]
        if bad:
            message = _printable("; ".join(f.message for f in bad))
            problem = ElementTree.SubElement(case, _kind(comparison), message=message, type=bad[0].rule)
            problem.text = message
        said = [f"{f.rule}: {f.message}" for f in comparison.findings if not f.fails]
        if said:
            ElementTree.SubElement(case, "system-out").text = _printable("\n".join(said))
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _kind(comparison: Comparison) -> str:
    """The kind of a failed entry, failure or error; "" for one that passed."""
    bad = [f for f in comparison.findings if f.fails]
    return "" if not bad else "error" if all(f.rule == "error" for f in bad) else "failure"


def _printable(value: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(c if c in "\n\t" or ord(c) >= 0x20 else "\N{REPLACEMENT CHARACTER}" for c in value)


def github(report: Report) -> str:
    """Workflow commands that GitHub shows beside the entry in the lock file."""
    lines = []
    for comparison in report.comparisons:
        for finding in comparison.findings:
            level = "error" if finding.fails else "warning" if finding.rule == "time" else "notice"
            properties = f"file={_property(report.path)},line={comparison.line}"
            title = _property(f"{comparison.locked.name}: {finding.rule}")
            lines.append(f"::{level} {properties},title={title}::{_data(finding.message)}")
    return "\n".join(lines)


def _data(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")


def proven_words(entry: Entry) -> str:
    """The status of the proof of an entry."""
    result = entry.result
    least = format_cost(Objective(entry.options.objective or Objective.ENERGY), result.bound)
    return status_words(result.status, result.gap, entry.options.gap, least=least, is_everything=result.is_everything)


def entry_text(entry: Entry, path: Path) -> str:
    """The answer of `poetc lock`."""
    result = entry.result
    cost = format_pj(result.energy_pj)
    said = (
        f"{entry.name}: {cost}, {format_bytes(result.ram_bytes)} of {format_bytes(result.budget_bytes)}\n"
        f"status       {proven_words(entry)}\n"
        f"recorded in  {path}"
    )
    if result.status == "limit":
        reached = math.ceil(100 * result.gap + 0.1) / 100
        said += (
            "\nThe time limit stopped it, so that a slower machine may find less: --gap"
            f" {reached:.2g} would end by itself, or give more --time-limit."
        )
    return said
