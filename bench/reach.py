"""Which model files train: each is imported and given a training step; a refused one shows its line.

    python -m bench.reach FOLDER... [--csv FILE] [--length N]

Dimensions that are open get 2 at the front and --length (16) elsewhere, absent weights get seeded numbers. Nothing is
solved. The rows grow in a CSV file, and an interrupted run goes on where it stopped. Exit code 1 if a file fails in
another way than by a refusal.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from bench._command import Rows, Table, main

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


def table(folders: tuple[Path, ...], *, csv: Path = Path("build/reach.csv"), length: int = 16) -> Rows:
    yield COLUMNS
    done = Table(csv, COLUMNS, ("file",))
    for path in sorted(p for folder in folders for p in folder.rglob("*.onnx")):
        found = done.rows.get((path.name,))
        if found is None:
            try:
                found = done.add(row(path, length))
            except Exception as error:  # a defect: the table names it, and goes on
                found = done.add({"file": path.name, "refusal": f"FAILED: {type(error).__name__} {error}"})
        yield tuple(found.values())
    if any(found["refusal"].startswith("FAILED") for found in done.rows.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main(table)
