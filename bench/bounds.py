"""`make fuzz-bounds`: lower bounds of relaxations beside the optima of random small problems, found exhaustively.

    python -m bench.bounds [--cases N] [--first SEED] [--jobs N]

Exit code 1 where a relaxation claims more than an optimum.
"""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor

from bench._command import main

REPORTED = 200  # cases, between two lines


def check(seed: int) -> list[str] | None:
    from tests.solvers.cases import invalid_bounds

    return invalid_bounds(seed)


def run(*, cases: int = 2000, first: int = 0, jobs: int = 2) -> int:
    started, problems, wrong = time.monotonic(), 0, 0
    with ProcessPoolExecutor(jobs) as pool:
        for done, found in enumerate(pool.map(check, range(first, first + cases), chunksize=8), 1):
            problems += found is not None
            for text in found or ():
                wrong += 1
                print(text, flush=True)
            if done % REPORTED == 0 or done == cases:
                seconds = time.monotonic() - started
                print(f"{done} seeds, {problems} problems, {wrong} wrong, {seconds:.0f} s", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    main(run)
