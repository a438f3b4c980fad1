"""Attention as one operator, beside its operators apart and PyTorch's: `python -m bench.attention --torch PYTHON`.

A step has an attention of HEADS heads of SIZE numbers, forward and backward, a mean squared error, and a step of
gradient descent on queries, keys and values. Each engine is a process on one thread (bench/kernels.py). They take
turns, so that a change of the machine's speed hits all. The ratios of their medians count.
"""

from __future__ import annotations

import pickle
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np

from bench._command import Rows, main
from bench.kernels import HERE, Worker
from poetc import passes, training
from poetc.devices import build_problem, load_profile
from poetc.graph import Graph, Role, TensorType
from poetc.ops import Builder
from poetc.program import lower
from poetc.scheduling import keep_all, keep_all_peak_bytes, pack
from poetc.training import TrainingOptions, _attention

HEADS, SIZE = 8, 64


def model(length: int, causal: bool) -> Graph:
    """Queries, keys and values are parameters of shape [1, length, heads, size]."""
    draw, b = np.random.default_rng(0), Builder()
    shape = (1, length, HEADS, SIZE)
    q, k, v = (
        b.add_tensor(n, TensorType(shape), Role.PARAMETER, draw.standard_normal(shape).astype(np.float32))
        for n in "qkv"
    )
    x = b.add_tensor("x", TensorType(shape), Role.INPUT)
    q, k, v = (b.emit1("Transpose", [t], {"perm": (0, 2, 1, 3)}) for t in (b.emit1("Add", [q, x]), k, v))
    scores = b.emit1("MatMul", [q, k], {"trans_b": True, "alpha": SIZE**-0.5})
    if causal:
        hidden = np.where(np.tri(length, dtype=bool), np.float32(0), np.float32(-np.inf))
        mask = b.add_tensor("mask", TensorType((length, length)), Role.CONSTANT, hidden)
        scores = b.emit1("Add", [scores, mask])
    y = b.emit1("MatMul", [b.emit1("Softmax", [scores], {"axis": 3}), v])
    y = b.emit1("Transpose", [y], {"perm": (0, 2, 1, 3)})
    return Graph("attention", b.tensors, tuple(b.operators), ("x",), (y,), b.values)


def write(length: int, causal: bool, joined: bool, path: Path) -> int:
    """The program of a step for `bench.kernels --worker`; returns the bytes that it needs with everything kept."""
    _attention.LEAST_BYTES, _attention.MOST_WORK = 0 if joined else 1 << 60, 2.0  # join whatever it takes
    step = passes.run_standard(training.build(model(length, causal), TrainingOptions(loss="mse", learning_rate=1e-4)))
    problem = build_problem(step, load_profile("host"), budget_bytes=1 << 40)
    schedule = keep_all(problem)
    path.write_bytes(pickle.dumps((step, lower(step, problem, schedule, pack(problem, schedule)))))
    return keep_all_peak_bytes(problem)


def compare(length: int, causal: bool, torch: str, rounds: int) -> tuple[str, ...]:
    """A row."""
    with tempfile.TemporaryDirectory(prefix="poetc-bench-") as scratch:
        folder, sizes, workers = Path(scratch), {}, {}
        for name, joined in (("apart", False), ("one", True)):
            sizes[name] = write(length, causal, joined, folder / name)
            command = [sys.executable, str(HERE / "kernels.py"), "--worker", str(folder / name), "--fused"]
            workers[name] = Worker(name, command, folder / f"{name}.log")
        peer = [torch, str(HERE / "peer_attention.py"), str(length), str(HEADS), str(SIZE), str(int(causal))]
        workers["torch"] = Worker("torch", peer, folder / "torch.log")
        for _ in range(rounds):
            for worker in workers.values():
                worker.turn(worker.steps)
        ms = {name: statistics.median(w.times) for name, w in workers.items()}
        for worker in workers.values():
            worker.close()
    numbers = (sizes["apart"] / 1e6, sizes["one"] / 1e6, ms["apart"], ms["one"], ms["torch"])
    ratios = (ms["apart"] / ms["one"], ms["torch"] / ms["one"])
    return f"{length:,}", "causal" if causal else "all keys", *(f"{n:.2f}" for n in (*numbers, *ratios))


def table(
    *, torch: Annotated[str, "a Python that has torch"], lengths: tuple[int, ...] = (128, 512, 1024), rounds: int = 7
) -> Rows:
    subprocess.run([torch, "-c", "import torch"], check=True)
    heads = ("apart, MB", "one, MB", "apart, ms", "one, ms", "PyTorch, ms", "apart / one", "PyTorch / one")
    yield "tokens", "mask", *heads
    for length in lengths:
        for causal in (True, False):
            yield compare(length, causal, torch, rounds)


if __name__ == "__main__":
    main(table)
