"""`make fuzz-bounds`: lower bounds of relaxations beside the optima of random small problems, found exhaustively.

    python -m bench.bounds [--cases N] [--first SEED] [--jobs N]

Exit code 1 where a relaxation claims more than an optimum.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor

REPORTED = 200  # cases, between two lines


def check(seed: int) -> list[str] | None:
    from tests.solvers.cases import invalid_bounds

    return invalid_bounds(seed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.bounds", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    started, problems, wrong = time.monotonic(), 0, 0
    with ProcessPoolExecutor(options.jobs) as pool:
        seeds = range(options.first, options.first + options.cases)
        for done, found in enumerate(pool.map(check, seeds, chunksize=8), 1):
            problems += found is not None
            for text in found or ():
                wrong += 1
                print(text, flush=True)
            if done % REPORTED == 0 or done == options.cases:
                print(
                    f"{done} seeds, {problems} problems, {wrong} wrong, {time.monotonic() - started:.0f} s", flush=True
                )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
