"""`make fuzz`: each parser for some minutes, from its corpus, under a coverage-guided fuzzer.

    python -m tests.fuzz [TARGET ...] [--seconds 600] [--jobs 2] [--keep]

Python targets run under Atheris (`pip install '.[fuzz]'`), those in C under libFuzzer with AddressSanitizer and
UndefinedBehaviorSanitizer (clang). Work lies in build/fuzz: the corpus that grew, logs, and inputs that break a target.
`--keep` merges the corpus that grew: of the inputs that reach code that the good ones do not, the smallest go to
tests/fuzz/corpus, at most 10 kB of a target.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import harness
from tests.fuzz.targets import TARGETS

WORK = Path("build/fuzz").resolve()
CORPUS = Path(__file__).with_name("corpus")
CLANG = ("clang", "-fsanitize=fuzzer")
LARGEST_BYTES = 1 << 14  # of an input
MOST_KEPT_BYTES = 10_000  # of a target in the repository
SLOWEST_S = 25
LARGEST_RSS_MB = 3000


@dataclass(frozen=True, slots=True)
class Outcome:
    target: str
    cases: int
    edges: int
    broken: tuple[Path, ...]


def _command(target: str) -> list[str]:
    if target in TARGETS:
        return [sys.executable, "-m", "tests.fuzz.run", target]
    return [str(harness.compile_target(target, WORK / "programs", CLANG))]


def _seeds(target: str) -> Iterator[tuple[str, bytes]]:
    return TARGETS[target].seeds() if target in TARGETS else harness.seeds(target)


def _folder(*parts: str) -> Path:
    path = WORK.joinpath(*parts)
    path.mkdir(parents=True, exist_ok=True)
    return path


def _fuzz(target: str, seconds: int, keep: bool) -> Outcome:
    grown, begin, broken = _folder("corpus", target), _folder("seeds", target), _folder("broken", target)
    for name, data in _seeds(target):
        (begin / name).write_bytes(data)
    for path in (CORPUS / target).glob("*"):
        shutil.copy(path, begin)
    log = _folder("logs") / f"{target}.log"
    command = _command(target)
    limits = [f"-timeout={SLOWEST_S}", f"-rss_limit_mb={LARGEST_RSS_MB}", f"-max_len={LARGEST_BYTES}"]
    words = [*command, str(grown), str(begin), f"-max_total_time={seconds}", *limits, f"-artifact_prefix={broken}/"]
    words += ["-print_final_stats=1", "-verbosity=1"]
    with log.open("wb") as file:
        subprocess.run(words, stdout=file, stderr=file, check=False)
    text = log.read_text(errors="replace")
    cases = [int(n) for n in re.findall(r"stat::number_of_executed_units:\s*(\d+)", text)]
    edges = [int(n) for n in re.findall(r"cov: (\d+)", text)]
    if keep:
        _keep(target, command, begin, grown)
    return Outcome(target, sum(cases), max(edges, default=0), tuple(sorted(broken.iterdir())))


def _keep(target: str, command: list[str], begin: Path, grown: Path) -> None:
    """Of the inputs that reach other code than the good ones and each other, the smallest go to the repository."""
    merged, kept = _folder("merged", target), CORPUS / target
    shutil.rmtree(merged)
    shutil.copytree(begin, merged)
    words = [*command, "-merge=1", str(merged), str(grown), f"-timeout={SLOWEST_S}", f"-max_len={LARGEST_BYTES}"]
    with (_folder("logs") / f"{target}.merge.log").open("wb") as file:
        subprocess.run(words, stdout=file, stderr=file, check=False)
    found = [path for path in merged.iterdir() if not (begin / path.name).exists()]
    room = MOST_KEPT_BYTES - sum(path.stat().st_size for path in kept.glob("*"))
    for path in sorted(found, key=lambda p: (p.stat().st_size, p.name)):
        room -= path.stat().st_size
        if room < 0:
            break
        kept.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, kept / path.name[:12])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the parsers.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join((*TARGETS, *harness.NAMES)))
    parser.add_argument("--seconds", type=int, default=600, help="for each target")
    parser.add_argument("--jobs", type=int, default=2, help="targets at once")
    parser.add_argument("--keep", action="store_true", help="add inputs that reach new code to the repository")
    asked = parser.parse_args()
    if unknown := sorted(set(asked.targets) - set(TARGETS) - set(harness.NAMES)):
        parser.error(f"no target {unknown[0]}")
    if shutil.which(CLANG[0]) is None:
        parser.error("the targets in C need clang (apt install clang)")
    targets = asked.targets or [*TARGETS, *harness.NAMES]
    is_broken = False
    print("| target | cases | code edges | inputs that break it |\n|---|---|---|---|")
    with ThreadPoolExecutor(asked.jobs) as pool:
        for done in pool.map(lambda target: _fuzz(target, asked.seconds, asked.keep), targets):
            print(f"| {done.target} | {done.cases:,} | {done.edges:,} | {len(done.broken)} |", flush=True)
            is_broken |= bool(done.broken) or done.cases == 0
            for path in done.broken:
                print(f"  {path.relative_to(Path.cwd())}", file=sys.stderr)
    return 1 if is_broken else 0


if __name__ == "__main__":
    sys.exit(main())
