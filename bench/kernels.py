"""Whole training steps of poetc beside PyTorch, onnxruntime-training and MNN: `make bench-kernels`.

Each engine is a process of its own, on one thread of one processor. With `--threads` it has more, and times are those
of the clock. Engines take turns, a few steps each, so that a change of the machine's speed hits all of them; ratios of
medians are what counts. Memory is what training takes beyond the import of the library; poetc's is its arena, state
included. The peers use fused multiply-adds; poetc is timed without them (`--numerics separate`) and with them
(`--numerics fused`, the default of the profile `host`), on several threads with them only.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from poetc import frontend, measure, passes, solvers, training
from poetc.commands.requests import adapted
from poetc.devices import build_problem, load_profile
from poetc.graph import TrainingGraph
from poetc.ops import bind, spec
from poetc.planning.smallest_ram import LONGEST_SEARCH_S, find_smallest_ram
from poetc.program import Call, Program, all_inputs, sample_inputs
from poetc.program import lower as lower_program
from poetc.scheduling import keep_all, keep_all_peak_bytes, pack
from poetc.scheduling.schedule import SolveOptions
from poetc.training import TrainingOptions

HERE = Path(__file__).resolve().parent
CLASSES = {"lenet": 10, "mobilenetv2": 10, "resnet18": 10, "bert": 4, "mobilevit": 10, "decoder": 49152}
NO_MNN = ("bert", "mobilevit", "decoder")  # the layer norm of the first has no gradient there
ONE_SAMPLE = ("decoder",)
LORA = "decoder"  # trained by adapters; peers have them in their graphs
CFLAGS = "-O3 -march=native"
TURN_S = 0.3


class Worker:
    """An engine in a process of its own."""

    def __init__(self, name: str, command: list[str], log: Path, threads: int = 1) -> None:
        self.name, self.times, self.memory_bytes = name, list[float](), 0
        # The first of the processors that this process may use.
        processors = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
        count = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POETC_THREADS"), str(threads))
        environment = {**os.environ, **count}
        self._process = subprocess.Popen(
            ["taskset", "-c", processors, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
            env=environment,
        )
        self._log = log
        while True:
            if self._read() == "ready":
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


def cflags(fused: bool) -> str:
    return f"{CFLAGS} -DPOETC_FUSED" if fused else CFLAGS


def lower(source: Path, budget: str, optimizer: str = "sgd") -> tuple[TrainingGraph, Program]:
    """`budget`: percent of the keep-all peak, or how many times keep-all's predicted time a step may take ("1.04x")."""
    lora = ("8",) if source.name.startswith(LORA) else ()
    options = TrainingOptions(optimizer=optimizer, learning_rate=1e-4, lora=lora)
    graph = adapted(frontend.load(source, random_weights=0), options.train, options.lora)
    step = passes.run_standard(training.build(graph, options))
    problem = build_problem(step, load_profile("host"), budget_bytes=1 << 40)
    schedule = keep_all(problem)
    if budget.endswith("x"):
        deadline_ns = round(float(budget[:-1]) * problem.compute_once_ns)
        found = find_smallest_ram(replace(problem, deadline_ns=deadline_ns), LONGEST_SEARCH_S)
        assert found.schedule is not None and found.plan is not None, "keep-all takes no longer than itself"
        return step, lower_program(step, problem, found.schedule, found.plan)
    if int(budget) < 100:
        budget_bytes = keep_all_peak_bytes(problem) * int(budget) // 100
        problem = build_problem(step, load_profile("host"), budget_bytes=budget_bytes)
        try:
            schedule = solvers.solve(problem, "poetc", SolveOptions(time_limit_s=20))
        except solvers.BudgetError as error:  # parameters alone may need more: the least that works
            print(f"  {budget} % of the keep-all peak: {str(error).partition(';')[0]}")
            assert error.smallest_bytes is not None
            problem = build_problem(step, load_profile("host"), budget_bytes=error.smallest_bytes)
            schedule = solvers.solve(problem, "poetc", SolveOptions(time_limit_s=20))
    return step, lower_program(step, problem, schedule, pack(problem, schedule))


def run_poetc(lowered: Path, fused: bool) -> None:
    """The worker of poetc."""
    step, program = pickle.loads(lowered.read_bytes())
    threads = int(os.environ["POETC_THREADS"])
    clock = time.process_time if threads == 1 else time.perf_counter
    most, built = 0 if threads == 1 else threads, lowered.with_suffix(f".{'fused' if fused else 'separate'}-{threads}")
    if not (kept := built / "library").exists():
        library = measure.compile_library([program], step.values, built, threads=most, cflags=cflags(fused))
        kept.write_text(str(library))
    with measure.HostModel(Path(kept.read_text()), [program], step.values) as model:
        inputs = sample_inputs(program, 0)
        model.run(inputs)
        places = [(model._view(b.operand), inputs[b.name]) for b in all_inputs(program)]
        runtime = ctypes.byref(model._runtime)  # the loop must not pay for HostModel's checks
        print("ready", flush=True)
        for line in sys.stdin:
            start = clock()
            for _ in range(int(line)):
                for place, value in places:
                    place[...] = value
                if model._dll.poetc_run(runtime):
                    raise SystemExit("poetc_run failed")
            print(1e3 * (clock() - start) / int(line), model.arena.size, flush=True)


PEAK = r"""
#include <stdint.h>
#include <stdio.h>
#include <time.h>
typedef float vector __attribute__((vector_size(LANES * 4)));
int main(void)
{
    vector sum[12], factor = (vector){0} + 0.999f, term = (vector){0} + 1e-3f;
    double best = 0;
    _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++)
        sum[i] = (vector){0} + (float)i;
    for (int round = 0; round < 9; round++) {
        struct timespec a, b;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
        for (int k = 0; k < 4000000; k++) {
            _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++)
            {
                sum[i] = sum[i] * factor + term;
                __asm__ volatile("" : "+v"(sum[i]));
            }
        }
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
        double s = (b.tv_sec - a.tv_sec) + 1e-9 * (b.tv_nsec - a.tv_nsec), rate = 4e6 * 12 * LANES / s;
        best = rate > best ? rate : best;
    }
    printf("%.0f", best);
    return 0;
}
"""


def export(torch: str, name: str, batch: int, folder: Path) -> Path:
    """The model as ONNX, by a Python that has torch."""
    source = folder / f"{name}-{batch}.onnx"
    command = [torch, str(HERE / "peer_torch.py"), "export", name, str(batch), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{torch} exports no {name}: {' '.join(done.stderr.strip().splitlines()[-1:])}")
    return source


def build_peak(folder: Path) -> Path:
    """A program that prints how many fused multiply-adds a second one core does in registers."""
    source, program = folder / "peak.c", folder / "peak"
    source.write_text(PEAK)
    defines = subprocess.run(["cc", "-march=native", "-dM", "-E", "-xc", "/dev/null"], capture_output=True, text=True)
    lanes = 16 if "__AVX512F__" in defines.stdout else 8 if "__AVX__" in defines.stdout else 4
    subprocess.run(["cc", *CFLAGS.split(), f"-DLANES={lanes}", "-o", program, source], check=True)
    return program


def peak_macs(program: Path) -> float:
    """Fused multiply-adds a second at this moment."""
    return float(subprocess.run([program], check=True, capture_output=True, text=True).stdout)


def operators(name: str, batch: int, rounds: int, torch: str, fused: bool) -> None:
    """Every operator of a step: time, and multiply-accumulates a second beside the core's peak."""
    with tempfile.TemporaryDirectory(prefix="poetc-bench-") as scratch:
        folder = Path(scratch)
        source = export(torch, name, batch, folder)
        peak = peak_macs(build_peak(folder))
        step, program = lower(source, "100")
        times = measure.time_program(program, step.values, repeats=10 * rounds, cflags=cflags(fused))
    kinds = {op.name: op for op in step.operators}
    rows: dict[tuple[str, str], list[int]] = {}
    for instruction, time_ns in zip(program.instructions, times.instruction_ns, strict=True):
        if isinstance(instruction, Call):
            op = kinds[instruction.operator]
            bound = bind(op, step.tensors)
            shapes = " ".join("x".join(map(str, t.shape)) for t in (*bound.inputs, *bound.outputs))
            row = rows.setdefault((instruction.symbol.removeprefix("poetc_op_"), shapes), [0, 0, 0])
            row[0], row[1], row[2] = row[0] + 1, row[1] + time_ns, row[2] + spec(op.kind).work(bound).macs
    total, macs = sum(row[1] for row in rows.values()), sum(row[2] for row in rows.values())
    print(f"{name} b{batch}{' --fused' if fused else ''}: peak {peak / 1e9:.1f} G MAC/s of one core")
    for (symbol, shapes), (count, time_ns, work) in sorted(rows.items(), key=lambda r: -r[1][1]):
        share = f"{100e9 * work / max(1, time_ns) / peak:5.1f} %" if work else "       "
        print(f"  {time_ns / 1e3:9.1f} us {100 * time_ns / total:5.1f} % {count:4} x  peak {share} {symbol}: {shapes}")
    share = 100e9 * macs / total / peak
    print(f"  {total / 1e6:9.3f} ms in all, {macs / 1e6:.1f} M MAC, {share:.1f} % of the peak", flush=True)


def prepare(
    name: str, batch: int, torch: str, ort: str, mnn: str, budgets: list[str], threads: int, folder: Path
) -> dict[str, list[str]]:
    """The commands of all engines. What an earlier call left in the folder stays."""
    source, tuned = folder / f"{name}-{batch}.onnx", f"{name}+lora" if name == LORA else name
    peer_source, ort_folder = folder / f"{tuned}-{batch}.onnx", folder / f"{name}-{batch}.ort"
    if not ort_folder.exists():
        export(torch, name, batch, folder)
        export(torch, tuned, batch, folder)
        words = [ort, str(HERE / "peer_ort.py"), "prepare", str(peer_source), str(ort_folder)]
        ort_folder.mkdir()
        subprocess.run(words, check=True, capture_output=True)
    commands = {}
    for budget in budgets:
        lowered = folder / f"{name}-{batch}-{budget}.pickle"
        if not lowered.exists():
            # In a process of its own: a child's peak of memory begins with its parent's.
            subprocess.run([sys.executable, __file__, "--lower", str(source), budget, str(lowered)], check=True)
        worker = [sys.executable, __file__, "--worker", str(lowered)]
        label = budget if budget.endswith("x") else f"{budget} %"
        if threads == 1:
            commands[f"separate {label}"] = worker
        commands[f"fused {label}"] = [*worker, "--fused"]
    commands["torch"] = [torch, str(HERE / "peer_torch.py"), "run", tuned, str(batch)]
    commands["onnxruntime"] = [ort, str(HERE / "peer_ort.py"), "run", str(ort_folder), str(batch), str(CLASSES[name])]
    if mnn and threads == 1 and name not in NO_MNN:
        commands["MNN"] = [mnn, str(HERE / "peer_mnn.py"), "run", name, str(batch)]
    return commands


def compare(name: str, batch: int, rounds: int, commands: dict[str, list[str]], threads: int, folder: Path) -> None:
    workers = [Worker(n, c, folder / f"{i}.log", threads) for i, (n, c) in enumerate(commands.items())]
    for _ in range(rounds):
        for worker in workers:
            worker.turn(worker.steps)
    medians = {w.name: statistics.median(w.times) for w in workers}
    best = min(medians["torch"], medians["onnxruntime"])
    for w in workers:
        ours = w.name.startswith(("separate", "fused"))
        ratio = f"{best / medians[w.name]:6.2f} x the faster peer" if ours else ""
        print(f"{name:12} b{batch:<3} {w.name:12} {medians[w.name]:9.3f} ms {w.memory_bytes / 1e6:8.1f} MB {ratio}")
        w.close()
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", help="a Python that has torch and onnx")
    parser.add_argument("--ort", help="a Python that has onnxruntime-training")
    parser.add_argument("--mnn", help="a Python that has MNN, or none")
    parser.add_argument("--models", nargs="*", default=sorted(CLASSES))
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 8])
    parser.add_argument(
        "--budgets",
        nargs="*",
        default=["100", "1.04x", "50"],
        help="percent of the keep-all peak, or the least for a step of so many times keep-all's predicted time",
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", help="keeps what is prepared there; a second run with it only measures")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--operators", action="store_true", help="time every operator of poetc's step, no peers")
    parser.add_argument("--fused", action="store_true", help="--operators with fused multiply-adds")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--lower", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        run_poetc(Path(options.worker), options.fused)
        return
    if options.lower:
        source, budget, lowered = options.lower
        Path(lowered).write_bytes(pickle.dumps(lower(Path(source), budget)))
        return
    for name in options.models:
        for batch in [1] if name in ONE_SAMPLE else options.batches:
            if options.operators:
                operators(name, batch, options.rounds, options.torch, options.fused)
                continue
            with tempfile.TemporaryDirectory(prefix="poetc-bench-") as scratch:
                folder = Path(options.folder or scratch)
                folder.mkdir(parents=True, exist_ok=True)
                peers = (options.torch, options.ort, options.mnn)
                commands = prepare(name, batch, *peers, options.budgets, options.threads, folder)
                compare(name, batch, options.rounds, commands, options.threads, folder)


if __name__ == "__main__":
    main()
