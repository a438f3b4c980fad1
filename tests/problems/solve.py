"""Solves the problem library and keeps best_known.json.

`python -m tests.problems.solve [random|real] [SECONDS] [DEFECTS]`.

Every solver is asked; a better schedule or a higher bound than what is known is written down. A solver that is
cheaper than poetc is reported: that is a defect of poetc's. With DEFECTS (a folder) the problem and both schedules
are written there.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from poetc import solvers
from poetc.errors import PoetcError
from poetc.reporting import scope_sentence
from poetc.scheduling import Problem, Schedule, SolveOptions, problem_to_json, schedule_to_json
from tests.problems import BEST_KNOWN, BestKnown, best_known, problems

LARGE_PROGRAMS = {"poet": 20, "checkmate": 40, "moccasin": 60}  # operators; larger ones only cost time here


def solve_all(problem: Problem, seconds: float) -> dict[str, Schedule]:
    """The schedules of all solvers that find one."""
    found: dict[str, Schedule] = {}
    for name in sorted(solvers.available(), key=lambda n: n != "poetc"):
        if len(problem.operators) > LARGE_PROGRAMS.get(name, 10**6):
            continue
        try:
            found[name] = solvers.solve(problem, name, SolveOptions(time_limit_s=seconds))
        except PoetcError as error:
            if name == "poetc":
                print(f"{problem.name}: poetc: {error}")
        if name == "poetc" and name in found and found[name].proof.objective == found[name].proof.bound:
            break  # nothing is cheaper
    return found


def merged(known: BestKnown | None, found: dict[str, Schedule]) -> BestKnown | None:
    """The better of what is known and what was found."""
    ours = found.get("poetc")
    if not found:
        return known
    best = min(found, key=lambda n: (found[n].proof.objective, n != "poetc", n))
    objective, bound = found[best].proof.objective, 0 if ours is None else ours.proof.bound
    solver, of = best, "" if ours is None else scope_sentence(ours.proof.scope)
    if known is not None:
        if known.objective is not None and known.objective <= objective:
            objective, solver = known.objective, known.solver
        if known.bound >= bound:
            bound, of = known.bound, known.schedule_class
    return BestKnown(objective, bound, solver, of)


def save(table: dict[str, BestKnown]) -> None:
    entries = ",\n".join(f"{json.dumps(n)}: {json.dumps(asdict(table[n]), sort_keys=True)}" for n in sorted(table))
    BEST_KNOWN.write_text('{"format": "poetc-best-known-1", "problems": {\n' + entries + "\n}}\n")


def main() -> None:
    groups = [sys.argv[1]] if len(sys.argv) > 1 else ["random", "real"]
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 30.0
    defects = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    table = best_known() if BEST_KNOWN.exists() else {}
    for group in groups:
        for problem in problems(group):
            found = solve_all(problem, seconds)
            entry = merged(table.get(problem.name), found)
            if entry is not None:
                table[problem.name] = entry
                save(table)
            ours = found.get("poetc")
            for name, schedule in found.items():
                if ours is None or schedule.proof.objective < ours.proof.objective:
                    mine = None if ours is None else ours.proof.objective
                    print(f"{problem.name}: {name} {schedule.proof.objective}, poetc {mine}", flush=True)
                    if defects is not None:
                        write_defect(
                            defects / problem.name, problem, {name: schedule} | ({"poetc": ours} if ours else {})
                        )


def write_defect(folder: Path, problem: Problem, schedules: dict[str, Schedule]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "problem.json").write_bytes(problem_to_json(problem))
    for name, schedule in schedules.items():
        (folder / f"{name}.schedule.json").write_bytes(schedule_to_json(schedule))


if __name__ == "__main__":
    main()
