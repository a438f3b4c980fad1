"""`poetc report`: the text and the page of a solved directory, with a curve of other budgets where one is asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from poetc import artifact, reporting
from poetc.artifact import Artifact
from poetc.devices import build_problem
from poetc.errors import UsageError
from poetc.events import Progress, silent
from poetc.files import write_bytes, write_text
from poetc.output_directory import replace_file
from poetc.planning import Planner, Solution, reductions, solve_curve
from poetc.reporting import budget_curve
from poetc.scheduling import DEFAULT_GAP, Paging, Problem, ScheduleError, SolveOptions, all_in_ram


def _asked(solved: Artifact, planner: Planner) -> tuple[Problem, Solution]:
    """The problem with its choices open, and the solution in its words.

    Where an earlier version of poetc solved it, whose costs were others, the kernels are those that were chosen.
    """
    problem = asked = solved.problem
    if solved.graph is not None and solved.profile is not None:
        paging = problem.paging if problem.paging is Paging.DMA else None
        built = build_problem(solved.graph, solved.profile, budget_bytes=problem.budget_bytes, paging=paging)
        asked = replace(
            built,
            deadline_ns=problem.deadline_ns,
            objective=problem.objective,
            paging=problem.paging,
            write_limit_bytes=problem.write_limit_bytes,
        )
    known = Solution(problem=problem, schedule=solved.schedule, plan=solved.plan)
    try:
        return asked, planner.recall(asked, known)
    except (ScheduleError, ValueError):
        asked = all_in_ram(problem)
        return asked, planner.recall(asked, known)


def report(
    directory: Path,
    html: Path | None = None,
    timeline: Path | None = None,
    curve_s: float | None = None,
    progress: Progress = silent,
    *,
    trace: Path | None = None,
    memory_viz: Path | None = None,
    graph: Path | None = None,
) -> tuple[dict[str, Any], str]:
    """Totals and text. The page also goes to `html`, and the memory timeline to `timeline`, where they are given.

    `trace`: for Perfetto; `memory_viz`: for pytorch.org/memory_viz; `graph`: GraphML or GEXF, by its suffix.

    `curve_s`: with a curve of other budgets in the page. Each of them would be solved for so long if it were alone.
    """
    solved = artifact.read(directory)
    reports = reporting.reports(solved)
    if graph is not None and graph.suffix not in (".graphml", ".gexf"):
        raise UsageError(f"--graph {graph}: of no kind that is known by its name; give FILE.graphml or FILE.gexf")
    subject = reporting.Solved.from_artifact(solved)
    if timeline is not None:
        write_text(timeline, reporting.memory_timeline(subject))
    if trace is not None:
        write_text(trace, reporting.chrome_trace(subject))
    if memory_viz is not None:
        write_bytes(memory_viz, reporting.memory_viz(subject))
    if graph is not None:
        write_text(graph, reporting.network_text(subject, graph.suffix))
    if curve_s is not None:
        options = SolveOptions(time_limit_s=curve_s, gap=DEFAULT_GAP)
        chain = reductions(str(solved.summary.get("state", "ram")))
        planner = Planner(options=options, reductions=chain, progress=progress)
        problem, known = _asked(solved, planner)
        points = solve_curve(problem, budget_curve.budgets(problem), planner, known)
        section = budget_curve.section(problem, points)
        reports["report.html"] = reporting.html(reporting.Solved.from_artifact(solved), section)
        html = html or directory / "report.html"
    page = directory / "report.html"
    if html is not None and html.resolve() != page.resolve():
        write_text(html, reports["report.html"])
        page = html
    elif html is not None or not page.exists():
        replace_file(directory, artifact.KIND, page.name, reports[page.name])
    document = {**json.loads(json.dumps(solved.summary)), "report": str(page)}
    return document, f"{reports['report.txt']}\nPage: {page}\n"
