"""`make bench-zoo`: every outside model file, one after the other, as `poetc analyze` and `poetc solve` take it.

    python -m bench.zoo [--models FOLDER] [--csv FILE] [--time-limit SECONDS] [--device NAME] [NAME ...]

Each file is solved at 60 % of its keep-all peak or, where not even that much can be packed, at 1.1 x the smallest
budget known. What comes out is replayed by the checker. The rows grow in a CSV file, and an interrupted run goes on
where it stopped; files are in order of their names, each in a process of its own, on one core. NAME: only files whose
name contains it. Exit code 1 if a file fails.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench._command import Rows, Table, main

FOLDERS = ("light", "zoo", "thirdparty")
COLUMNS = (
    "file", "batch", "operators", "load_s", "saved_bytes", "keep_all_peak_bytes", "min_budget_bytes", "budget_bytes",
    "percent", "ram_bytes", "status", "gap", "over_compute_once", "solve_s", "host_peak_bytes", "error",
)  # fmt: skip
SHARE = 0.6
OVER_SMALLEST = 1.1
ANALYSIS_S = 10.0  # as the command line does


def open_batch(path: Path) -> int | None:
    """Two rows where a file leaves the batch open, None where its batch is fixed."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    shapes = [info.type.tensor_type.shape for info in graph.input if info.name not in weights]
    is_open = any(shape.dim and not shape.dim[0].HasField("dim_value") for shape in shapes)
    return 2 if is_open else None


def run(path: Path, device: str, time_limit_s: float) -> dict[str, Any]:
    """One row. Raises what poetc raises."""
    from poetc.commands.analyze import analyze
    from poetc.commands.requests import ModelRequest, training_graph
    from poetc.devices import build_problem, load_profile
    from poetc.errors import InfeasibleError, LimitError
    from poetc.planning import Planner, ram_bytes
    from poetc.scheduling import keep_all_peak_bytes, verify
    from poetc.scheduling.schedule import SolveOptions
    from poetc.training import TrainingOptions

    request = ModelRequest(
        source=path,
        batch=open_batch(path),
        device=device,
        training=TrainingOptions(random_weights=0),
    )

    started = time.process_time()
    _, step = training_graph(request)
    keep_all = build_problem(step, load_profile(device), budget_bytes=0)
    load_s = time.process_time() - started
    analysis = analyze(request, search_s=ANALYSIS_S)
    assert analysis["keep_all_peak_bytes"] == keep_all_peak_bytes(keep_all)

    limits = SolveOptions(time_limit_s=time_limit_s)
    started = time.monotonic()
    smallest = analysis["min_budget_bytes"]
    budget_bytes = int(analysis["keep_all_peak_bytes"] * SHARE)
    if analysis["min_budget_bound_bytes"] > budget_bytes:
        budget_bytes = int(smallest * OVER_SMALLEST)
    problem = replace(keep_all, budget_bytes=budget_bytes)
    try:
        solution = Planner(options=limits).solve(problem)
        schedule, plan = solution.schedule, solution.plan
    except (InfeasibleError, LimitError) as refusal:
        known = refusal.details["min_budget_bytes"]
        assert isinstance(known, int)
        smallest = known  # that of the analysis may need streamed operands
        if smallest >= analysis["keep_all_peak_bytes"] and analysis["min_budget_bound_bytes"] <= budget_bytes:
            raise SystemExit("nothing was found below keep-all, and nothing proves that there is nothing") from None
        problem = replace(keep_all, budget_bytes=int(smallest * OVER_SMALLEST))
        solution = Planner(options=limits).solve(problem)
        schedule, plan = solution.schedule, solution.plan
    solve_s = time.monotonic() - started
    trace = verify(problem, schedule)
    needed_bytes = ram_bytes(problem, plan)
    assert trace.peak_bytes <= needed_bytes <= problem.budget_bytes
    assert schedule.proof.bound <= trace.energy_pj
    return {
        "batch": request.batch or "file",
        "operators": len(problem.operators),
        "load_s": round(load_s, 2),
        "saved_bytes": analysis["saved_bytes"],
        "keep_all_peak_bytes": analysis["keep_all_peak_bytes"],
        "min_budget_bytes": smallest,
        "budget_bytes": problem.budget_bytes,
        "percent": round(100 * problem.budget_bytes / analysis["keep_all_peak_bytes"], 1),
        "ram_bytes": needed_bytes,
        "status": schedule.proof.status.value,
        "gap": "" if (gap := schedule.proof.gap()) is None else round(gap, 5),
        "over_compute_once": round(trace.energy_pj / problem.compute_once_pj - 1, 5),
        "solve_s": round(solve_s, 1),
        "host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "error": "",
    }


def work(path: Path, device: str, time_limit_s: float) -> None:
    print(json.dumps(run(path, device, time_limit_s)))


def row_of(path: Path, device: str, time_limit_s: float) -> dict[str, Any]:
    """One row by a process of its own; whatever goes wrong there is the row's error."""
    command = [sys.executable, "-m", "bench.zoo", "--worker", str(path), device, str(time_limit_s)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def cells(row: Mapping[str, str]) -> list[str]:
    if row["error"]:
        return [row["file"], row["error"], *[""] * 7]
    peak, budget = int(row["keep_all_peak_bytes"]) / 1e6, int(row["budget_bytes"]) / 1e6
    return [
        row["file"].removesuffix(".onnx"), row["operators"], f"{peak:.3f}", f"{budget:.3f}",
        f"{float(row['percent']):.0f} %", row["status"], f"{100 * float(row['gap']):.1f} %" if row["gap"] else "none",
        f"{100 * float(row['over_compute_once']):.1f} %", f"{float(row['solve_s']):.0f}",
    ]  # fmt: skip


def table(
    names: tuple[str, ...] = (),
    *,
    models: Path = Path("../shared/models"),
    csv: Path = Path("build/zoo.csv"),
    device: str = "host",
    time_limit: float = 5.0,
) -> Rows:
    paths = {f"{f}/{p.name}": p for f in FOLDERS for p in sorted((models / f).glob("*.onnx"))}
    if not paths:
        sys.exit(f"zoo: no models in {models} (--models FOLDER)")
    done, failed = Table(csv, COLUMNS, ("file",)), 0
    yield "file", "operators", "keep-all MB", "budget MB", "of keep-all", "status", "gap", "energy over keep-all", "s"
    for name, path in paths.items():
        if names and not any(part in name for part in names):
            continue
        row = done.rows.get((name,))
        if row is None or row["error"]:
            row = done.add({"file": name, **row_of(path, device, time_limit)})
        failed += bool(row["error"])
        yield cells(row)
    yield f"{failed} failed"
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main(table, worker=work)
