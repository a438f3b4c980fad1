"""Which model files train: each is imported and given a training step; a refused one shows its line.

    python -m bench.reach FOLDER... [--csv FILE] [--length N]

Dimensions that are open get 2 at the front and --length (16) elsewhere, absent weights get seeded numbers. Nothing is
solved. The table goes to stdout, or to a CSV file that an interrupted run goes on with. Exit code 1 if a file fails in
another way than by a refusal.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from pathlib import Path
from typing import Any

COLUMNS = ("file", "operators", "step_operators", "trained_parameters", "cpu_s", "refusal")


def row(path: Path, length: int) -> dict[str, Any]:
    """One file. `refusal` is empty where it trains. Raises what is no refusal."""
    import onnx

    from poetc import training
    from poetc.errors import PoetcError
    from poetc.frontend import load
    from poetc.training import TrainingOptions

    graph = onnx.load(path, load_external_data=False).graph
    weights, batch, dims = {tensor.name for tensor in graph.initializer}, None, dict[str, int]()
    for info in graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim if info.name not in weights else ()):
            if not dim.HasField("dim_value") and axis == 0:
                batch = 2
            elif dim.dim_param:
                dims[dim.dim_param] = length
    started, result = time.process_time(), dict[str, Any](file=path.name, refusal="")
    try:
        model = load(path, batch=batch, dims=dims, random_weights=0)
        step = training.build(model, TrainingOptions())
        result |= {"operators": len(model.operators), "step_operators": len(step.operators)}
        result["trained_parameters"] = sum(step.tensors[name].type.elements for name in step.gradients)
    except PoetcError as error:
        result["refusal"] = " ".join(str(error).removeprefix(f"{path}: ").split())
    return result | {"cpu_s": round(time.process_time() - started, 2)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.reach", description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--length", type=int, default=16)
    given = parser.parse_args()
    done = set[str]()
    if given.csv and given.csv.exists():
        with given.csv.open(newline="") as file:
            done = {line["file"] for line in csv.DictReader(file)}
    out = given.csv.open("a", newline="") if given.csv else sys.stdout
    writer, failed = csv.DictWriter(out, COLUMNS, lineterminator="\n"), 0
    if not done:
        writer.writeheader()
    for path in sorted(p for folder in given.folders for p in folder.rglob("*.onnx")):
        if path.name in done:
            continue
        try:
            writer.writerow(row(path, given.length))
        except Exception as error:  # a defect: the table names it, and goes on
            failed += 1
            writer.writerow({"file": path.name, "refusal": f"FAILED: {type(error).__name__} {error}"})
        out.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
