"""Memory of whole processes that train: `make bench-memory`.

Each engine is a process of its own, that trains some steps of SGD on the same batches and prints its peak of resident
memory, Python and all libraries included. poetc trains in three ways: the command `poetc train`, a session in Python
(`solution.trainer()`), and the package of `poetc emit --package`, which needs numpy alone. The compiler is a process
beside the first two, and has a row of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NETWORKS = {"lenet": 10, "resnet8": 10, "mobilenetv2": 10, "bert": 4}  # and the classes
BATCH, STEPS = 8, 20
BUDGET = "50%"


def peak_bytes() -> int:
    """The peak of resident memory of this process since it was started."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) << 10


def compiler_bytes() -> int:
    """The peak of the largest process that this one started."""
    import resource

    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10


def command(arguments: list[str]) -> None:
    """`poetc ARGUMENTS`, then both peaks."""
    from poetc.__main__ import main

    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    print(peak_bytes(), compiler_bytes(), flush=True)


def session(solved: str, data: str) -> None:
    """A solved directory, trained through Python."""
    import poetc

    with poetc.open_solution(solved).trainer() as trainer:
        steps(trainer, data)
    print(peak_bytes(), compiler_bytes(), flush=True)


def package(folder: str, data: str) -> None:
    """The same, in a process that has numpy and the package alone."""
    import importlib

    sys.path.insert(0, str(Path(folder).parent))
    with importlib.import_module(Path(folder).name).trainer() as trainer:
        steps(trainer, data)
    print(peak_bytes(), 0, flush=True)


def steps(trainer, data: str) -> None:  # type: ignore[no-untyped-def]
    import numpy as np

    arrays = np.load(data)
    x, target = arrays["x"], arrays["target"]
    for first in range(0, len(x), BATCH):
        trainer.step(x[first : first + BATCH], target[first : first + BATCH])


def write_data(name: str, shape: list[int], path: Path) -> None:
    import numpy as np

    random = np.random.default_rng(0)
    x = random.standard_normal((STEPS * BATCH, *shape)).astype(np.float32)
    np.savez(path, x=x, target=random.integers(0, NETWORKS[name], len(x)).astype(np.int32))


def run(*words: object, python: str = sys.executable) -> list[int]:
    """The numbers in the last line that a process prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run([python, *map(str, words)], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr.strip().splitlines()[-1:]}")
    return [int(word) for word in done.stdout.split("\n")[-2].split()]


def compare(name: str, torch: str, ort: str, folder: Path) -> None:
    model, data = folder / f"{name}.onnx", folder / f"{name}.npz"
    shape = run(HERE / "peer_training.py", "shape", name, python=torch)
    words = [torch, HERE / "peer_training.py", "export", name, model, str(BATCH)]
    subprocess.run(words, check=True, capture_output=True)
    subprocess.run([sys.executable, __file__, "data", name, *map(str, shape), data], check=True)
    rows: list[tuple[str, int]] = []

    def row(engine: str, peak: int) -> None:
        rows.append((engine, peak))
        print(f"{name:12} {engine:28} {peak / 1e6:8.1f} MB", flush=True)

    prepared = folder / f"{name}.ort"
    prepared.mkdir(exist_ok=True)
    subprocess.run([ort, HERE / "peer_ort.py", "prepare", model, prepared], check=True, capture_output=True)
    peak, imported = run(HERE / "peer_training.py", "memory", name, data, BATCH, python=torch)
    row("PyTorch", peak)
    row("after its imports", imported)
    peak, imported = run(HERE / "peer_ort.py", "memory", prepared, data, BATCH, python=ort)
    row("onnxruntime-training", peak)
    row("after its imports", imported)
    limits = ["--batch", BATCH, "--time-limit", 5, "--gap", 0.05, "--force", "--quiet"]
    for budget in ("100%", BUDGET):
        solved, built = folder / f"{name}.solved", folder / f"{name}_package"
        out = ["--data", data, "--epochs", 1, "-o", folder / f"{name}.trained.onnx"]
        trained = run(__file__, "command", "train", model, *limits, "--budget", budget, *out)
        row(f"poetc train, {budget}", trained[0])
        row(f"its compiler, {budget}", trained[1])
        run(__file__, "command", "solve", model, *limits, "--budget", budget, "-o", solved)
        row(f"session, {budget}", run(__file__, "session", solved, data)[0])
        emit = ["emit", solved, "--target", "host", "--package", "--force", "--quiet", "-o", built]
        run(__file__, "command", *emit)
        row(f"package, {budget}", run(__file__, "package", built, data)[0])


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in ("command", "session", "package", "data"):
        kind, *words = sys.argv[1:]
        if kind == "command":
            command(words)
        elif kind == "data":
            write_data(words[0], [int(n) for n in words[1:-1]], Path(words[-1]))
        else:
            {"session": session, "package": package}[kind](*words)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", required=True, help="a Python that has PyTorch")
    parser.add_argument("--ort", required=True, help="a Python that has onnxruntime-training")
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--folder", type=Path, default=Path("build/bench-memory"))
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.networks:
        compare(name, arguments.torch, arguments.ort, folder)


if __name__ == "__main__":
    main()
