"""Whole training steps of poetc beside PyTorch and onnxruntime-training: `make bench-kernels`.

Each engine is a process of its own, on one thread of one processor. They take turns, a few steps each, so that a change
of the machine's speed hits all of them; ratios of medians are what counts. Memory is what training takes beyond the
import of the library; poetc's is its arena, state included.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from poetc import codegen, frontend, passes, solvers, training
from poetc.devices import build_problem, load_profile
from poetc.scheduling import keep_all, keep_all_peak_bytes, pack
from poetc.scheduling.schedule import SolveOptions
from poetc.training import TrainingOptions

HERE = Path(__file__).resolve().parent
CLASSES = {"lenet": 10, "mobilenetv2": 10, "resnet18": 10, "bert": 4}
CFLAGS = "-O3 -march=native"  # portable numerics: the Makefile that is emitted adds -ffp-contract=off
TURN_S = 0.3


class Worker:
    """An engine in a process of its own."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name, self.times, self.memory_bytes = name, list[float](), 0
        # The first of the processors that this process may use; one thread everywhere.
        cpu = str(min(os.sched_getaffinity(0)))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            ["taskset", "-c", cpu, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
            env=environment,
        )
        self._log = log
        while True:
            line = self._read()
            if line == "ready":
                break
        self.turn(1)  # not counted: first touches
        first = self.turn(1)
        self.steps = max(1, round(1e3 * TURN_S / first))
        self.times.clear()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            tail = self._log.read_text().strip().splitlines()[-1:]
            raise SystemExit(f"{self.name} failed: {' '.join(tail)}")
        return line.strip()

    def turn(self, steps: int) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        elapsed, memory = self._read().split()
        self.times.append(float(elapsed))
        self.memory_bytes = int(memory)
        return float(elapsed)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def run_poetc(source: Path, budget_percent: int, contract: bool) -> None:
    """The worker of poetc."""
    step = passes.run_standard(training.build(frontend.load(source), TrainingOptions(learning_rate=1e-4)))
    problem = build_problem(step, load_profile("host"), budget_bytes=1 << 40)
    schedule = keep_all(problem)
    if budget_percent < 100:
        budget = keep_all_peak_bytes(problem) * budget_percent // 100
        problem = build_problem(step, load_profile("host"), budget_bytes=budget)
        schedule = solvers.solve(problem, "poetc", SolveOptions(time_limit_s=30))
    program = codegen.lower(step, problem, schedule, pack(problem, schedule))
    flags = f"{CFLAGS} -ffp-contract=fast" if contract else CFLAGS
    with codegen.build_host([program], step.values, cflags=flags) as model:
        inputs = codegen.sample_inputs(program, 0)
        model.run(inputs)
        places = [(model._view(b.operand), inputs[b.name]) for b in codegen.all_inputs(program)]
        runtime = ctypes.byref(model._runtime)  # the loop must not pay for HostModel's checks
        print("ready", flush=True)
        for line in sys.stdin:
            start = time.process_time()
            for _ in range(int(line)):
                for place, value in places:
                    place[...] = value
                if model._dll.poetc_run(runtime):
                    raise SystemExit("poetc_run failed")
            print(1e3 * (time.process_time() - start) / int(line), model.arena.size, flush=True)


def compare(name: str, batch: int, rounds: int, torch: str, ort: str, budgets: list[int], contract: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="poetc-bench-") as scratch:
        folder = Path(scratch)
        source = folder / "model.onnx"
        peer = [torch, str(HERE / "peer_torch.py")]
        subprocess.run([*peer, "export", name, str(batch), str(source)], check=True, capture_output=True)
        (folder / "ort").mkdir()
        fast = ["--contract"] if contract else []
        commands = {
            f"poetc {percent} %": [sys.executable, __file__, "--worker", str(source), str(percent), *fast]
            for percent in budgets
        }
        commands["torch"] = [*peer, "run", name, str(batch)]
        ort_peer = [ort, str(HERE / "peer_ort.py")]
        subprocess.run([*ort_peer, "prepare", str(source), str(folder / "ort")], check=True, capture_output=True)
        commands["onnxruntime"] = [*ort_peer, "run", str(source), str(folder / "ort"), str(batch), str(CLASSES[name])]
        workers = [Worker(n, c, folder / f"{i}.log") for i, (n, c) in enumerate(commands.items())]
        for _ in range(rounds):
            for worker in workers:
                worker.turn(worker.steps)
        medians = {w.name: statistics.median(w.times) for w in workers}
        best = min(medians["torch"], medians["onnxruntime"])
        for w in workers:
            ours = w.name.startswith("poetc")
            ratio = f"{best / medians[w.name]:6.2f} x the faster peer" if ours else ""
            print(f"{name:12} b{batch:<3} {w.name:12} {medians[w.name]:9.3f} ms {w.memory_bytes / 1e6:8.1f} MB {ratio}")
            w.close()
        sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", help="a Python that has torch and onnx")
    parser.add_argument("--ort", help="a Python that has onnxruntime-training")
    parser.add_argument("--models", nargs="*", default=sorted(CLASSES))
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 8])
    parser.add_argument("--budgets", nargs="*", type=int, default=[100, 50], help="percent of the keep-all peak")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--contract", action="store_true", help="with fused multiply-adds")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        run_poetc(Path(options.worker[0]), int(options.worker[1]), options.contract)
        return
    for name in options.models:
        for batch in options.batches:
            compare(name, batch, options.rounds, options.torch, options.ort, options.budgets, options.contract)


if __name__ == "__main__":
    main()
