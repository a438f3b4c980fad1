"""`make bench-zoo`: every outside model file, one after the other, as `poetc analyze` and `poetc solve` take it.

    python -m bench.zoo [--models FOLDER] [--csv FILE] [--time-limit SECONDS] [--device NAME]
                        [--markdown FILE] [NAME ...]

Each file is solved at 60 % of its keep-all peak or, where not even that much can be packed, at 1.1 x the smallest
budget known. What comes out is replayed by the checker. The table grows in a CSV file and an interrupted run goes on
where it stopped; files are in order of their names, each in a process of its own, on one core. NAME: only files whose
name contains it. Exit code 1 if a file fails.
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

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
        smallest = min(smallest, known)
        if smallest <= problem.budget_bytes:
            raise
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


def row_of(path: Path, name: str, device: str, time_limit_s: float) -> dict[str, Any]:
    """One row by a process of its own; whatever goes wrong there is the row's error."""
    command = [sys.executable, "-m", "bench.zoo", "--worker", str(path), "--device", device]
    done = subprocess.run(
        [*command, "--time-limit", str(time_limit_s)], capture_output=True, text=True, check=False, timeout=3600
    )
    row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
    if done.returncode == 0:
        row |= json.loads(done.stdout.splitlines()[-1])
    else:
        row["error"] = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
    return {**row, "file": name}


def shown(row: Mapping[str, Any]) -> str:
    if row["error"]:
        return f"{row['file']:48} FAILED: {row['error']}"
    peak, budget = int(row["keep_all_peak_bytes"]) / 1e6, int(row["budget_bytes"]) / 1e6
    gap = f"{100 * float(row['gap']):.2f}%" if row["gap"] != "" else "?"
    return (
        f"{row['file']:48} {row['operators']:>5} operators, load {float(row['load_s']):5.2f} s, "
        f"keep-all {peak:9.3f} MB, budget {budget:9.3f} MB ({float(row['percent']):5.1f} %), "
        f"{row['status']:8} gap {gap:>7}, "
        f"energy +{100 * float(row['over_compute_once']):.2f}%, {float(row['solve_s']):6.1f} s"
    )


def page(rows: Iterable[Mapping[str, Any]]) -> str:
    """The table as Markdown."""
    lines = ["| file | operators | keep-all MB | budget MB | of keep-all | status | gap | energy over keep-all | s |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        if row["error"]:
            lines.append(f"| {row['file']} | {row['error']} |")
            continue
        peak, budget = int(row["keep_all_peak_bytes"]) / 1e6, int(row["budget_bytes"]) / 1e6
        gap = f"{100 * float(row['gap']):.1f} %" if row["gap"] != "" else "none"
        more = f"{100 * float(row['over_compute_once']):.1f} %"
        lines.append(
            f"| {row['file'].removesuffix('.onnx')} | {row['operators']} | {peak:.3f} | {budget:.3f} "
            f"| {float(row['percent']):.0f} % | {row['status']} | {gap} | {more} | {float(row['solve_s']):.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--models", type=Path, default=Path("../shared/models"))
    parser.add_argument("--csv", type=Path, default=Path("build/zoo.csv"))
    parser.add_argument("--markdown", type=Path, help="write the table of all rows to this file")
    parser.add_argument("--device", default="host")
    parser.add_argument("--time-limit", type=float, default=5.0)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(run(options.worker, options.device, options.time_limit)))
        return
    paths = {f"{f}/{p.name}": p for f in FOLDERS for p in sorted((options.models / f).glob("*.onnx"))}
    if not paths:
        sys.exit(f"zoo: no models in {options.models} (--models FOLDER)")
    done: dict[str, dict[str, Any]] = {}
    if options.csv.exists():
        with options.csv.open(newline="") as file:
            done = {row["file"]: row for row in csv.DictReader(file) if not row["error"]}
    options.csv.parent.mkdir(parents=True, exist_ok=True)
    failed = 0
    with options.csv.open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        table.writerows(done.values())  # first, so that an interruption loses none
        for name, path in paths.items():
            if options.names and not any(part in name for part in options.names):
                continue
            row = done.get(name)
            if row is None:
                row = row_of(path, name, options.device, options.time_limit)
                table.writerow(row)
                file.flush()
                done[name] = row
            failed += bool(row["error"])
            print(shown(row), flush=True)
    if options.markdown:
        options.markdown.write_text(page(done[name] for name in paths if name in done), encoding="utf-8")
    print(f"{failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
