"""Predicted against measured training steps of outside models: `make bench-truth`.

    python -m bench.truth --on qemu:BOARD|host [--device NAME|FILE] [--models FOLDER] [--csv FILE] [--markdown FILE]
                          [--settings SETTING ...] [--time-limit SECONDS] [--variant SUFFIX] [NAME ...]

Every model that fits is solved as keep-all and at 50 % of the keep-all peak (with paging; where not even that much
suffices, at 1.05 x the smallest budget known), lowered, compiled and run:
on an emulated board instructions are counted, on the host processor time is taken (run it alone on a quiet core; of
two builds' medians the least counts). Rows grow in a CSV file and a run goes on where it stopped; each is a
process of its own.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.zoo import open_batch

COLUMNS = (
    "on", "model", "setting", "percent", "operators", "pages", "predicted", "measured", "error", "worst", "note",
)  # fmt: skip
SETTINGS = ("keep-all", "50 %")
OVER_SMALLEST = 1.05
BUILDS = 2  # on the host
REPEATS = 9
MOST_INSTRUCTIONS = 4_000_000_000  # an emulated step of more takes minutes
CODE_BYTES = 128 << 10


def plan(path: Path, setting: str, device: str, time_limit_s: float) -> tuple[Any, Any, Any, int]:
    """Problem, program, training graph and the peak of keep-all. Raises what poetc raises."""
    from poetc.commands.requests import ModelRequest, training_graph
    from poetc.devices import build_problem, load_profile
    from poetc.errors import InfeasibleError, LimitError
    from poetc.planning import Planner
    from poetc.program import lower
    from poetc.scheduling import keep_all, keep_all_peak_bytes, pack
    from poetc.scheduling.schedule import SolveOptions
    from poetc.training import TrainingOptions

    request = ModelRequest(
        source=path,
        batch=open_batch(path),
        device=device,
        training=TrainingOptions(random_weights=0),
    )
    _, step = training_graph(request)
    profile = load_profile(device)
    problem = build_problem(step, profile, budget_bytes=1 << 62)
    peak_bytes = keep_all_peak_bytes(problem)
    if setting == "keep-all":
        schedule = keep_all(problem)
        packed = pack(problem, schedule)
    else:
        half = peak_bytes // 2
        if half > profile.ram_bytes:
            raise SystemExit(f"does not fit: half of the peak is {half:,} B")
        options = SolveOptions(time_limit_s=time_limit_s)
        try:
            problem = build_problem(step, profile, budget_bytes=half)
            solution = Planner(options=options).solve(problem)
            schedule, packed = solution.schedule, solution.plan
        except (InfeasibleError, LimitError) as refusal:  # the weights fill most of it
            least = refusal.details["min_budget_bytes"]
            assert isinstance(least, int)
            if least > profile.ram_bytes:
                raise SystemExit(f"does not fit: nothing smaller than {least:,} B is known") from None
            problem = build_problem(step, profile, budget_bytes=int(least * OVER_SMALLEST))
            solution = Planner(options=options).solve(problem)
            schedule, packed = solution.schedule, solution.plan
    program = lower(step, problem, schedule, packed)
    image_bytes = program.state_bytes + program.flash_bytes + CODE_BYTES
    too_large = profile.flash_bytes is not None and image_bytes > profile.flash_bytes
    if program.arena_bytes + profile.base_bytes > profile.ram_bytes or too_large:
        raise SystemExit(f"does not fit: {program.arena_bytes:,} B of RAM, {image_bytes:,} B of flash")
    return problem, program, step, peak_bytes


def run(path: Path, setting: str, on: str, device: str, time_limit_s: float) -> dict[str, Any]:
    """One row."""
    from poetc import benchmark, measure
    from poetc.commands.run import predicted_ns
    from poetc.program import Call, Move, PageIn, PageOut, sample_inputs

    problem, program, step, keep_all_bytes = plan(path, setting, device, time_limit_s)
    predicted = predicted_ns(problem, program)
    classes: dict[str, list[int]] = {}
    if on == "host":
        timings = [benchmark.compare_times(problem, program, step, repeats=REPEATS) for _ in range(BUILDS)]
        timing = min(timings, key=lambda t: t.measured_ns)
        measured = timing.measured_ns
        classes = {c.cost_class: [c.predicted_ns, c.measured_ns] for c in timing.classes}
    else:
        if predicted > MOST_INSTRUCTIONS:
            raise SystemExit(f"not run: about {predicted:,} instructions")
        with tempfile.TemporaryDirectory(prefix="poetc-truth-") as scratch:
            firmware = measure.build_firmware(program, step.values, on.partition(":")[2], Path(scratch))
            counted = measure.execute(firmware, [sample_inputs(program, 0)]).step_instructions
        measured = sum(counted)
        costs = {op.name: op for op in problem.operators}
        for instruction, count in zip(program.instructions, counted, strict=True):
            if isinstance(instruction, Call):
                op = costs[instruction.operator]
                kind, expected = op.kind, op.time_ns
            elif isinstance(instruction, Move):
                tensor = next(t for t in problem.tensors if t.name == instruction.operand.tensor)
                kind, expected = "Move", tensor.move_ns or 0
            else:
                page = next(t for t in problem.tensors if t.name == program.pages[instruction.page].tensor)
                kind = type(instruction).__name__
                expected = page.page_out_ns if kind == "PageOut" else page.page_in_ns
            sums = classes.setdefault(kind, [0, 0])
            sums[0] += expected
            sums[1] += count
    worst = sorted(classes, key=lambda name: -abs(classes[name][0] - classes[name][1]))[:3]
    return {
        "operators": sum(isinstance(i, Call) for i in program.instructions),
        "percent": round(100 * program.arena_bytes / keep_all_bytes),
        "pages": sum(isinstance(i, PageIn | PageOut) for i in program.instructions),
        "predicted": predicted,
        "measured": measured,
        "error": round(predicted / measured - 1, 4),
        "worst": " ".join(f"{name} {(classes[name][0] - classes[name][1]) / measured:+.1%}" for name in worst),
        "note": "",
    }


def row_of(path: Path, setting: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One row by processes of their own; whatever goes wrong there is the row's note."""
    command = [sys.executable, "-m", "bench.truth", "--worker", str(path), setting, "--on", arguments.on]
    command += ["--device", arguments.device, "--time-limit", str(arguments.time_limit)]
    row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
    if done.returncode:
        row["note"] = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
    else:
        row |= json.loads(done.stdout.splitlines()[-1])
    return {**row, "on": arguments.on, "model": path.name.split(".")[0], "setting": setting}


def shown(row: Mapping[str, Any]) -> str:
    head = f"{row['on']:16} {row['model']:24} {row['setting']:9}"
    if row["note"]:
        return f"{head} {row['note']}"
    return (
        f"{head} {int(row['predicted']):>14,} {int(row['measured']):>14,} {float(row['error']):+7.1%}  {row['worst']}"
    )


def markdown(rows: list[dict[str, Any]]) -> str:
    """A table of all rows that were measured, then how many are within 5 and 15 %."""
    lines = [
        "| on | model | setting | % of keep-all | operators | pages | predicted, M | measured, M | error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    measured = [row for row in rows if not row["note"]]
    for row in measured:
        cells = [row[name] for name in ("on", "model", "setting", "percent", "operators", "pages")]
        cells += [f"{int(row[name]) / 1e6:,.2f}" for name in ("predicted", "measured")]
        lines.append(f"| {' | '.join(map(str, cells))} | {float(row['error']):+.1%} |")
    for name in sorted({row["on"] for row in measured}):
        errors = [abs(float(row["error"])) for row in measured if row["on"] == name]
        within = [sum(e <= limit for e in errors) for limit in (0.05, 0.15)]
        lines.append(
            f"\n{name}: {within[0]} of {len(errors)} within 5 %, {within[1]} within 15 %; worst {max(errors):.1%}"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only models whose name contains one of these")
    parser.add_argument("--on", default="host", help="host or qemu:BOARD")
    parser.add_argument("--device", help="default: the profile of that name")
    parser.add_argument("--models", type=Path, default=Path("../shared/models/zoo"))
    parser.add_argument("--variant", default=".legacy", help="which export of each model")
    parser.add_argument("--settings", nargs="+", default=SETTINGS, choices=SETTINGS)
    parser.add_argument("--csv", type=Path, default=Path("build/truth.csv"))
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.device = arguments.device or arguments.on.replace(":", "-")
    if arguments.worker:
        path, setting = arguments.worker
        print(json.dumps(run(Path(path), setting, arguments.on, arguments.device, arguments.time_limit)))
        return 0
    rows: list[dict[str, Any]] = []
    if arguments.csv.exists():
        rows = list(csv.DictReader(arguments.csv.read_text().splitlines()))
    done = {(row["on"], row["model"], row["setting"]) for row in rows}
    paths = sorted(p for p in arguments.models.glob("*.onnx") if arguments.variant in p.name)
    paths = [p for p in paths if not arguments.names or any(name in p.name for name in arguments.names)]
    arguments.csv.parent.mkdir(parents=True, exist_ok=True)
    with arguments.csv.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not rows:
            writer.writeheader()
        for path in paths:
            for setting in arguments.settings:
                if (arguments.on, path.name.split(".")[0], setting) in done:
                    continue
                row = row_of(path, setting, arguments)
                rows.append(row)
                writer.writerow(row)
                file.flush()
                print(shown(row), flush=True)
    if arguments.markdown:
        arguments.markdown.write_text(markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
