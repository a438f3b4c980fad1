"""`make bench-poet`: POET's own problems, its formulation beside poetc, same semantics, same HiGHS, one run.

Each pair runs one after the other, one thread, each in a fresh process, what is quick several times. A line says how
long either took, building of the formulation included, the energy of its schedule (replayed by the checker), and the
bound it proved.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

from bench._command import Rows, main

CASES = (  # problem, budget: a fraction of the peak that keeps every tensor until its last use, or bytes
    ("linear_a72", 0.9),
    ("linear_a72", 0.7),
    ("linear_a72", 0.5),
    ("vgg16_cifar_a72", 0.9),
    ("vgg16_cifar_a72", 0.7),
    ("vgg16_cifar_a72", 0.5),
    ("vgg16_cifar_m4", 0.7),
    ("resnet18_cifar_a72", 0.7),
    ("resnet18_cifar_m4", 737719),
)
SOLVERS = ("poetc", "poet")
QUICK_S, REPEATS = 1.0, 5  # what takes less is solved so often, and the least time counts: imports are not solving
GAP = 1e-4  # where HiGHS calls a MILP optimal by default


def solve(path: str, budget: str, name: str, time_limit_s: float) -> None:
    """One solver on one problem: seconds, energy in joules, bound, status."""
    print(json.dumps(_solved(path, float(budget) if "." in budget else int(budget), name, time_limit_s)))


def _solved(path: str, budget: float | int, name: str, time_limit_s: float) -> dict[str, object]:
    from poetc.errors import PoetcError
    from poetc.scheduling import SolveOptions, verify
    from poetc.solvers import solve as run
    from tests.support.poet_instances import load_poet_instance

    problem = load_poet_instance(path, budget=budget)
    options = SolveOptions(time_limit_s=time_limit_s, gap=GAP, fixed_order=True)
    seconds: list[float] = []
    while len(seconds) < (REPEATS if seconds and min(seconds) < QUICK_S else 1):
        started = time.monotonic()
        try:
            schedule = run(problem, name, options)
        except PoetcError as error:
            return {"seconds": time.monotonic() - started, "status": type(error).__name__}
        seconds.append(time.monotonic() - started)
    verify(problem, schedule)
    proof = schedule.proof
    return {
        "seconds": min(seconds),
        "status": str(proof.status),
        "energy_j": proof.objective / 1e12,
        "bound_j": proof.bound / 1e12,
    }


def in_a_process(*arguments: str) -> dict[str, object]:
    command = [sys.executable, "-m", "bench.poet", "--worker", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def cells_of(problem: str, budget: float, ours: dict[str, object], theirs: dict[str, object]) -> list[str]:
    cells = [problem, f"{budget:.0%}" if isinstance(budget, float) else f"{budget} B"]
    for answer in (ours, theirs):
        cells.append(f"{answer['seconds']:.3g} s, {answer['status']}")
        cells.append("-" if "energy_j" not in answer else f"{answer['energy_j']:.8g} ({answer['bound_j']:.8g})")
    ratio = float(str(theirs["seconds"])) / float(str(ours["seconds"]))
    return [*cells, f"{ratio:.0f} x"]


def table(
    *,
    problems: Annotated[Path, "folder of POET's problems"] = Path("../shared/poet"),
    time_limit: float = 315.0,
    only: Annotated[str, "problems whose name holds this"] = "",
) -> Rows:
    yield "problem", "budget", "poetc", "energy (bound) J", "POET's formulation", "energy (bound) J", "ratio"
    for problem, budget in CASES:
        path = problems / f"{problem}.json"
        if only not in problem:
            continue
        if not path.exists():
            raise SystemExit(f"bench-poet: no {path}")
        answers = [in_a_process(str(path), str(budget), name, str(time_limit)) for name in SOLVERS]
        yield cells_of(problem, budget, *answers)


if __name__ == "__main__":
    main(table, worker=solve)
