"""`make fuzz-models`: feed the importer damaged and distorted models.

A case may be refused or read; it may not end in a traceback, take over 10 s or 2 GB, or be read as another function
than ONNX says.

    python -m bench.fuzz [--cases N] [--first NUMBER] [--jobs N]

Cases run in processes of their own, a block each: one that dies takes no other with it. `--case N --save FILE` writes
the model of one case, to look at it.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

from bench._command import main

BLOCK = 50_000  # seeds take some seconds in each process
LIMIT_S = 10
LIMIT_BYTES = 2 * 10**9
ADDRESS_SPACE_BYTES = 8 * 2**30


class Hang(BaseException):
    """A case took too long. Not an Exception: nothing in between may catch it."""


def _alarm(signum: int, frame: FrameType | None) -> None:
    del signum, frame
    raise Hang(f"over {LIMIT_S} s")


def _in_reference(error: Hang) -> bool:
    """Whether it was onnx's evaluator, which gave the numbers to compare with, and not poetc."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(f.name == "_compared" for f in frames) and any("reference" in Path(f.filename).parts for f in frames)


def work(first: int, count: int) -> None:
    """Cases first … first + count - 1. Prints one JSON object a line: before a case, for a defect, at the end."""
    from tests.support import fuzzing

    fuzzing.seeds()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    signal.signal(signal.SIGPROF, _alarm)
    ends: Counter[str] = Counter()
    slowest = 0.0
    memory = Path("/dev/shm")  # files are a third of the work on a slow disk
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        for number in range(first, first + count):
            data = fuzzing.make_case(number)
            print(json.dumps({"at": number}), flush=True)
            # Processor time: other work on the machine must not make a case look slow.
            started = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
            try:
                ends[fuzzing.examine(data, Path(folder))] += 1
            except BaseException as error:  # whatever it is, it is what this program looks for
                trace = traceback.format_exc()[-1500:]
                if isinstance(error, Hang) and _in_reference(error):
                    ends["read"] += 1
                    continue
                print(json.dumps({"case": number, "defect": f"{type(error).__name__}: {error}"[:300], "trace": trace}))
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            slowest = max(slowest, time.process_time() - started)
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > LIMIT_BYTES:
                print(json.dumps({"case": number, "defect": "over 2 GB", "trace": ""}))
                break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"ends": ends, "slowest_s": slowest, "peak_bytes": peak}), flush=True)


def block(first: int, count: int) -> Iterator[dict[str, object]]:
    """Run a block in a process; one that dies is a defect of the case it was at, and the block goes on behind it."""
    while count > 0:
        command = [sys.executable, "-m", "bench.fuzz", "--worker", str(first), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        yield from (line for line in lines if "at" not in line)
        if not lines:
            raise SystemExit(f"fuzz: the worker does not start\n{done.stderr}")
        last = max((int(line["at"]) for line in lines if "at" in line), default=first)
        if done.returncode:
            yield {"case": last, "defect": f"the process ended with {done.returncode}", "trace": done.stderr[-1500:]}
        count -= last + 1 - first
        first = last + 1


def run(
    *, cases: int = 100_000, first: int = 0, jobs: int = 1, case: int | None = None, save: Path | None = None
) -> int:
    if case is not None:
        from tests.support.fuzzing import make_case

        (save or Path(f"case-{case}.onnx")).write_bytes(make_case(case))
        return 0
    started, ends, defects = time.monotonic(), Counter[str](), 0
    slowest, peak = 0.0, 0
    end = first + cases
    starts = range(first, end, BLOCK)
    with ThreadPoolExecutor(jobs) as pool:
        for done, lines in enumerate(pool.map(lambda s: list(block(s, min(BLOCK, end - s))), starts), start=1):
            for line in lines:
                if "defect" in line:
                    defects += 1
                    print(f"case {line['case']}: {line['defect']}\n{line['trace']}", flush=True)
                else:
                    ends.update(line["ends"])  # type: ignore[arg-type]
                    slowest = max(slowest, float(str(line["slowest_s"])))
                    peak = max(peak, int(str(line["peak_bytes"])))
            seconds = time.monotonic() - started
            print(f"{min(done * BLOCK, cases)} cases, {defects} defects, {seconds:.0f} s", flush=True)
    shares = ", ".join(f"{count} {what}" for what, count in sorted(ends.items()))
    print(f"{cases} cases: {shares}; {defects} defects; slowest {slowest:.2f} s, peak {peak / 1e6:.0f} MB")
    return 1 if defects else 0


if __name__ == "__main__":
    main(run, worker=work)
