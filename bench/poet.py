"""`make bench-poet`: POET's own problems, its formulation beside poetc, same semantics, same HiGHS, one run.

Each pair runs one after the other, one thread, each in a fresh process, what is quick several times. A line says how
long either took, building of the formulation included, the energy of its schedule (replayed by the checker), and the
bound it proved.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

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


def solve(path: str, budget: float | int, name: str, time_limit_s: float) -> dict[str, object]:
    """One solver on one problem: seconds, energy in joules, bound, status."""
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
    command = [sys.executable, "-m", "bench.poet", "--one", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def line(problem: str, budget: float, ours: dict[str, object], theirs: dict[str, object]) -> str:
    cells = [problem, f"{budget:.0%}" if isinstance(budget, float) else f"{budget} B"]
    for answer in (ours, theirs):
        cells.append(f"{answer['seconds']:.3g} s, {answer['status']}")
        cells.append("-" if "energy_j" not in answer else f"{answer['energy_j']:.8g} ({answer['bound_j']:.8g})")
    ratio = float(str(theirs["seconds"])) / float(str(ours["seconds"]))
    return "| " + " | ".join([*cells, f"{ratio:.0f} x"]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=Path, default=Path("../shared/poet"), help="folder of POET's problems")
    parser.add_argument("--time-limit", type=float, default=315.0)
    parser.add_argument("--only", help="problems whose name holds this")
    parser.add_argument("--one", nargs=4, metavar=("FILE", "BUDGET", "SOLVER", "SECONDS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        path, budget, name, seconds = options.one
        print(json.dumps(solve(path, float(budget) if "." in budget else int(budget), name, float(seconds))))
        return
    print("| problem | budget | poetc | energy (bound) J | POET's formulation | energy (bound) J | ratio |")
    print("|---|---|---|---|---|---|---|")
    for problem, budget in CASES:
        if options.only and options.only not in problem:
            continue
        path = options.problems / f"{problem}.json"
        if not path.exists():
            raise SystemExit(f"bench-poet: no {path}")
        answers = [in_a_process(str(path), str(budget), name, str(options.time_limit)) for name in SOLVERS]
        print(line(problem, budget, *answers), flush=True)


if __name__ == "__main__":
    main()
