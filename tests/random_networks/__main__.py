"""`make random-networks`: random PyTorch networks through an exporter, trained by poetc and by PyTorch, compared.

    python -m tests.random_networks [--cases N] [--seed FIRST] [--c SHARE] [--save FOLDER] [--archive FILE] [--verbose]

needs PyTorch (`pip install .[torch]`). Each network is exported, trained for four steps in PyTorch (float32 and
float64) and by poetc: the graph in double precision, and for a share of them as scheduled C. A case "agrees", was
"refused" by poetc or by the exporter, is as "the file" says, not the model (a note of poetc names the reason), or
"differs". Exit code 1 if one differs. `--archive` keeps the first 200 that are trained, for tests/conformance.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ARCHIVED = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="the first case")
    parser.add_argument("--c", type=float, default=0.1, help="share of the cases that also run as C")
    parser.add_argument("--save", type=Path, help="keep the ONNX files there")
    parser.add_argument("--archive", type=Path, help="keep networks and PyTorch's results there")
    parser.add_argument("--verbose", action="store_true", help="every case, with its notes")
    options = parser.parse_args()
    try:
        from tests.random_networks.archive import Kept, write
        from tests.random_networks.comparing import judge, sample
    except ImportError as error:
        raise SystemExit(f"random_networks: {error}; pip install '.[torch]'") from None
    ends: Counter[str] = Counter()
    kept: list[Kept] = []
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.save or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for seed in range(options.seed, options.seed + options.cases):
            as_c = options.c > 0 and seed % max(round(1 / options.c), 1) == 0
            network = sample(seed)
            case = judge(network, folder, as_c=as_c)
            ends[case.end] += 1
            if case.expected is not None and case.noise is not None and case.end in ("agrees", "as the file"):
                kept.append(Kept(case.recipe, network.model, case.expected, case.noise, case.start, case.warned))
                if options.archive and (len(kept) % 20 == 0 or seed + 1 == options.seed + options.cases):
                    write(options.archive, kept[:ARCHIVED])
            if options.verbose or case.end == "differs":
                print(case.text(options.verbose), flush=True)
    shares = ", ".join(f"{count} {what}" for what, count in sorted(ends.items()))
    print(f"{options.cases} networks in {time.monotonic() - started:.0f} s: {shares}")
    sys.exit(1 if ends["differs"] else 0)


if __name__ == "__main__":
    main()
