"""Predicted against measured training steps of outside models: `make bench-truth`.

    python -m bench.truth --on qemu:BOARD|host [--device NAME|FILE] [--models FOLDER] [--csv FILE]
                          [--settings SETTING ...] [--time-limit SECONDS] [--variant SUFFIX] [NAME ...]

Every model that fits is solved as keep-all and at 50 % of the keep-all peak (with paging; where not even that much
suffices, at 1.05 x the smallest budget known), lowered, compiled and run:
on an emulated board instructions are counted, on the host processor time is taken (run it alone on a quiet core; of
two builds' medians the least counts). Rows grow in a CSV file and a run goes on where it stopped; each is a
process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from bench._command import Rows, Table, main
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
    from poetc.devices import load_profile
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
            board, numerics = on.partition(":")[2], load_profile(device).cpu.numerics
            firmware = measure.build_firmware(program, step.values, board, Path(scratch), numerics=numerics)
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


def work(path: Path, setting: str, on: str, device: str, time_limit_s: float) -> None:
    print(json.dumps(run(path, setting, on, device, time_limit_s)))


def row_of(path: Path, setting: str, on: str, device: str, time_limit_s: float) -> dict[str, Any]:
    """One row by a process of its own; whatever goes wrong there is the row's note."""
    words = [str(path), setting, on, device, str(time_limit_s)]
    done = subprocess.run(
        [sys.executable, "-m", "bench.truth", "--worker", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
    )
    if done.returncode:
        return {"note": (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def summaries(rows: list[Mapping[str, str]]) -> Iterator[str]:
    """How many of the rows that were measured are within 5 and 15 %."""
    for name in sorted({row["on"] for row in rows}):
        errors = [abs(float(row["error"])) for row in rows if row["on"] == name]
        within = [sum(e <= limit for e in errors) for limit in (0.05, 0.15)]
        yield (f"\n{name}: {within[0]} of {len(errors)} within 5 %, {within[1]} within 15 %; worst {max(errors):.1%}")


def table(
    names: Annotated[tuple[str, ...], "only models whose name contains one of these"] = (),
    *,
    on: Annotated[str, "host or qemu:BOARD"] = "host",
    device: Annotated[str | None, "default: the profile of that name"] = None,
    models: Path = Path("../shared/models/zoo"),
    variant: Annotated[str, "which export of each model"] = ".legacy",
    settings: Annotated[tuple[str, ...], f"of {SETTINGS[0]}, half"] = SETTINGS,
    csv: Path = Path("build/truth.csv"),
    time_limit: float = 10.0,
) -> Rows:
    done = Table(csv, COLUMNS, ("on", "model", "setting"))
    yield (
        "on",
        "model",
        "setting",
        "% of keep-all",
        "operators",
        "pages",
        "predicted, M",
        "measured, M",
        "error",
        "worst",
    )
    paths = sorted(p for p in models.glob("*.onnx") if variant in p.name)
    for path in paths:
        if names and not any(name in path.name for name in names):
            continue
        for setting in settings:
            key = {"on": on, "model": path.name.split(".")[0], "setting": setting}
            row = done.rows.get(tuple(key.values()))
            if row is None:
                row = done.add(row_of(path, setting, on, device or on.replace(":", "-"), time_limit) | key)
            yield cells(row)
    yield from summaries([row for row in done.rows.values() if not row["note"]])


def cells(row: Mapping[str, str]) -> list[str]:
    if row["note"]:
        return [row["on"], row["model"], row["setting"], row["note"], *[""] * 6]
    plain = [row[name] for name in ("on", "model", "setting", "percent", "operators", "pages")]
    times = [f"{int(row[name]) / 1e6:,.2f}" for name in ("predicted", "measured")]
    return [*plain, *times, f"{float(row['error']):+.1%}", row["worst"]]


if __name__ == "__main__":
    main(table, worker=work)
