"""`make random-networks`: random PyTorch networks through an exporter, trained by poetc and by PyTorch, compared.

    python -m tests.random_networks [--cases N] [--seed FIRST] [--newer SHARE] [--c SHARE] [--record FILE] [--verbose]

needs PyTorch (`pip install .[torch]`). Each network is exported, trained for four steps in PyTorch (float32 and
float64) and by poetc: the graph in double precision, and for a share of them as scheduled C. A case "agrees", was
"refused" by poetc or by the exporter, is as "the file" says, not the model (a note of poetc names the reason), or
"differs", or "fails" with an exception. Exit code 1 if one differs or fails.

`--record` writes a line a case to a file: a run with the same file leaves out what is in it, apart from cases that
differed or failed, and the summary is that of the whole file. `--archive` keeps the first 200 that are trained, for
tests/conformance.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.random_networks.records import DEFECTS, Record, append, done, kind_of, read, summary

ARCHIVED = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="the first case")
    parser.add_argument("--newer", type=float, default=1.0, help="share of the newer exporter's cases that keep it")
    parser.add_argument("--c", type=float, default=0.1, help="share of the cases that also run as C")
    parser.add_argument("--record", type=Path, help="what became of each case; goes on where it ended")
    parser.add_argument("--save", type=Path, help="keep the ONNX files there")
    parser.add_argument("--archive", type=Path, help="keep networks and PyTorch's results there")
    parser.add_argument("--verbose", action="store_true", help="every case, with its notes")
    options = parser.parse_args()
    try:
        from tests.random_networks.archive import Kept, write
        from tests.random_networks.comparing import judge, sample
    except ImportError as error:
        raise SystemExit(f"random_networks: {error}; pip install '.[torch]'") from None
    found = read(options.record) if options.record else {}
    left_out = done(found)
    kept: list[Kept] = []
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.save or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for seed in range(options.seed, options.seed + options.cases):
            if seed in left_out:
                continue
            as_c = options.c > 0 and seed % max(round(1 / options.c), 1) == 0
            network = sample(seed, options.newer)
            case = judge(network, folder, as_c=as_c)
            why = case.warned or kind_of(case.reason or (str(case.found[0]) if case.found else ""))
            found[seed] = Record(seed, case.end, why, case.recipe.exporter, as_c)
            if options.record:
                append(options.record, found[seed])
            if not options.save:
                (folder / f"{seed}.onnx").unlink(missing_ok=True)
                shutil.rmtree(folder / f"{seed}.c", ignore_errors=True)
            if case.expected is not None and case.noise is not None and case.end in ("agrees", "as the file"):
                kept.append(Kept(case.recipe, network.model, case.expected, case.noise, case.start, case.warned))
                if options.archive and (len(kept) % 20 == 0 or seed + 1 == options.seed + options.cases):
                    write(options.archive, kept[:ARCHIVED])
                elif not options.archive:
                    kept.clear()
            if options.verbose or case.end in DEFECTS:
                print(case.text(options.verbose), flush=True)
    print(summary(found.values()))
    print(f"{time.monotonic() - started:.0f} s for this run")
    sys.exit(1 if any(record.end in DEFECTS for record in found.values()) else 0)


if __name__ == "__main__":
    main()
