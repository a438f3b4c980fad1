"""`make bench-solver`: proven gaps and times of `poetc solve` on real networks, one fresh process a problem.

Every row is what the command line says: the model is read, differentiated, costed, solved, packed and verified. Budgets
are in per cent of what keep-all needs, whether or not a board has that much RAM: a profile is what computing and paging
cost. Rows are appended to a CSV file as they come, and a run goes on where the last one ended; of a row that was run
again the last one counts. Tables are made of the file.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from bench._command import Table, main, markdown

NETWORKS = (  # file, batch
    ("mobilenetv2_224", 32),
    ("resnet50_224", 16),
    ("densenet121_224", 16),
    ("resnet18_cifar", 64),
    ("vgg16_cifar", 64),
    ("unet_bilinear_64", 16),
    ("vit_tiny_cifar", 32),
    ("bert_base", 4),
    ("nanogpt_tiny", 8),
    ("lstm_har", 8),
)
FAMILIES = (  # random weights in the shapes of public configurations
    ("deit", 2),
    ("effnetb0", 2),
    ("mobilevit", 2),
    ("wav2vec2", 2),
    ("unet", 2),
    ("tcn", 2),
    ("patchtst", 8),
    ("yolo", 2),
)
SETTINGS = (
    "rpi4",
    "rpi5",
    "stm32h743",
    "rpi4:1.5x",
    "rpi4:1.2x",
    "stm32h743:1.5x",
    "stm32h743:1.2x",
)  # device, deadline
TIMES_SMALLEST = {"1.2min": 1.2, "min": 1.05}  # budgets in times the smallest one known to work
TARGETS = {"80%": 0.001, "60%": 0.001, "40%": 0.005, "25%": 0.005, "1.2min": 0.01, "min": 0.02}
BUDGETS = tuple(TARGETS)
SOON_S = 5.0  # when the best schedule should be nearly as good as in the end
# The clock of a run is the processor time of its threads, so that other work on the machine changes nothing.
BY_PROCESSOR_TIME = "import time; time.monotonic = time.process_time; from poetc.cli import main; main()"
FIELDS = (
    "network",
    "batch",
    "device",
    "deadline",
    "budget",
    "operators",
    "budget_bytes",
    "status",
    "gap",
    "way_gap",  # to the bound for the way of using cores that the schedule has
    "overhead_gap",
    "energy_pj",
    "compute_once_pj",
    "model_s",
    "first_schedule_s",
    "solved_s",
    "total_s",
    "min_budget_bytes",
    "min_budget_bound_bytes",
    "min_budget_s",  # all of `poetc analyze`, which finds it
    "keep_all_peak_bytes",
    "stop_gap",  # --gap: a row may end as soon as so much is proven
    "soon",  # the best schedule after `SOON_S`, in times the answer
    "bound_falls",  # events of the log with a lower bound than the one before
    "clock",
    "commit",
)


@dataclass(frozen=True)
class Case:
    network: str
    batch: int
    device: str
    deadline: str
    budget: str

    @property
    def key(self) -> tuple[str, ...]:
        return (self.network, str(self.batch), self.device, self.deadline, self.budget)


def poetc(*arguments: str, start: Sequence[str] = ("-m", "poetc")) -> tuple[dict[str, object], dict[str, float]]:
    """The command's JSON answer; seconds from the start until the model was built, and until the schedule is there."""
    command = [sys.executable, *start, *arguments, "--json", "--verbose"]
    seconds: dict[str, float] = {}
    with tempfile.TemporaryFile("w+") as out:
        started = time.monotonic()
        with subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            last = ""
            for line in process.stderr:  # the stages, as they come
                now = time.monotonic() - started
                if "solving" in line:
                    seconds.setdefault("model_s", round(now, 2))
                if "smallest budget" in line:
                    seconds.setdefault("solved_s", round(now, 2))
                last = line
        seconds["total_s"] = round(time.monotonic() - started, 2)
        out.seek(0)
        try:
            return json.load(out), seconds
        except json.JSONDecodeError:
            return {"status": f"crashed: {last.strip()}"}, seconds


def of_log(path: Path) -> dict[str, float]:
    """Seconds until the first schedule, the best one soon after in times the last, and how often the bound fell."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    found = [
        (row["seconds"], min(c for c in (row["best"], row["unpacked"]) if c is not None))
        for row in rows
        if (row["best"], row["unpacked"]) != (None, None)
    ]
    falls = sum(later["bound"] < row["bound"] for row, later in itertools.pairwise(rows))
    if not found:
        return {"bound_falls": falls}
    first_s, last = found[0][0], rows[-1]["best"] or found[-1][1]
    soon = min((cost for at, cost in found if at <= SOON_S), default=math.inf)
    return {"first_schedule_s": first_s, "soon": round(soon / last, 5), "bound_falls": falls}


def model_file(folder: Path, network: str) -> Path:
    for suffix in (".train.graph.onnx", ".train.onnx", ".dynamo.graph.onnx"):
        for within in (folder / "zoo", folder / "families"):
            if (found := within / f"{network}{suffix}").exists():
                return found
    raise SystemExit(f"bench-solver: no {network} in {folder}")


def row_of(
    case: Case, folder: Path, time_limit_s: float, stop_share: float, smallest: Mapping[str, str] | None, clock: str
) -> dict[str, object]:
    """`smallest`: a row of the same network and setting, whose smallest budget is taken."""
    device = [str(model_file(folder, case.network)), "--batch", str(case.batch), "--device", case.device]
    device += ["--random-weights", "0"]  # the zoo's files of large networks are graphs without weights
    limits = ["--time-limit", str(time_limit_s)] + (["--deadline", case.deadline] if case.deadline else [])
    start = ("-c", BY_PROCESSOR_TIME) if clock == "processor" else ("-m", "poetc")
    row: dict[str, object] = dict(zip(FIELDS, case.key, strict=False))
    row |= {"commit": commit(), "stop_gap": stop_share * TARGETS[case.budget], "clock": clock}
    limits += ["--gap", str(row["stop_gap"])]
    with tempfile.TemporaryDirectory() as out:
        budget = case.budget
        if budget in TIMES_SMALLEST:
            known = ("min_budget_bytes", "min_budget_bound_bytes", "min_budget_s")
            if smallest is not None:
                row |= {field: smallest[field] for field in known}
            else:
                if case.deadline:  # a budget that is too small is refused, with the smallest that works
                    answer, seconds = poetc(
                        "solve", *device, *limits, "-o", f"{out}/refused", "--budget", "1%", start=start
                    )
                else:
                    answer, seconds = poetc("analyze", *device)
                if not isinstance(answer.get("min_budget_bytes"), int):
                    return {**row, "status": f"no smallest budget: {answer.get('status')}"}
                row |= {field: answer.get(field) for field in known[:2]} | {"min_budget_s": seconds.get("total_s")}
            budget = str(int(int(str(row["min_budget_bytes"])) * TIMES_SMALLEST[budget]))
        log = Path(out, "log.jsonl")
        answer, seconds = poetc(
            "solve", *device, *limits, "-o", f"{out}/solved", "--budget", budget, "--log", str(log), start=start
        )
        seconds |= of_log(log)
    for field in ("status", "operators", "budget_bytes", "gap", "overhead_gap", "energy_pj", "compute_once_pj"):
        row[field] = answer.get(field)
    row["way_gap"] = way_gap(answer)
    if "error" in answer and not answer.get("status"):
        row["status"] = f"error: {answer['error']}"
    row["keep_all_peak_bytes"] = answer.get("keep_all_peak_bytes")
    row.setdefault("min_budget_bytes", answer.get("min_budget_bytes"))
    return {**row, **seconds}


def way_gap(answer: Mapping[str, object]) -> object:
    """The gap among schedules that use cores as the answer does, out of its notes; else the gap."""
    notes = answer.get("notes")
    for note in notes if isinstance(notes, list) else ():
        if found := re.search(r"gap ([\d.]+) % for this way", note):
            return float(found[1]) / 100
    return answer.get("gap")


def commit() -> str:
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def missed(row: Mapping[str, str]) -> bool:
    return not row["gap"] or float(row["gap"]) > TARGETS[row["budget"]]


def tables(rows: list[Mapping[str, str]]) -> str:
    """Markdown: for every device and deadline a table with a line a network and a column a budget (see `cell`); then
    what was measured beside it."""
    settings = {setting_of(row): None for row in rows}
    parts = shares(rows)
    for setting in sorted(settings, key=SETTINGS.index):
        chosen = {(row["network"], row["budget"]): row for row in rows if setting_of(row) == setting}
        rows_of = [["network (batch)", *BUDGETS]]
        names = [case for case in NETWORKS + FAMILIES if any(network == case[0] for network, _ in chosen)]
        for network, batch in names:
            rows_of.append([f"{network} ({batch})", *(cell(chosen.get((network, budget))) for budget in BUDGETS)])
        about_ = [["network", "operators", "model, s", "first schedule, s", "RAM: smallest, none below, keep-all", "s"]]
        about_ += [about(network, [r for (n, _), r in chosen.items() if n == network]) for network, _ in names]
        parts += [f"{setting}\n", *markdown(rows_of), "", *markdown(about_), ""]
    return "\n".join(parts)


def shares(rows: list[Mapping[str, str]]) -> list[str]:
    """How many rows of a column are within its aim, and how soon they had a schedule and a good one."""
    head = [
        "budget",
        "rows",
        "within the aim",
        "among schedules of its own way",
        "first schedule within 2 s",
        "within 1 % of the answer at 5 s",
    ]
    lines = [head]
    for setting, budget in itertools.product(dict.fromkeys(map(setting_of, rows)), BUDGETS):
        column = [row for row in rows if row["budget"] == budget and row["gap"] and setting_of(row) == setting]
        if column:
            early = sum(float(row["first_schedule_s"] or math.inf) <= 2 for row in column)
            good = sum(float(row["soon"] or math.inf) <= 1.01 for row in column)
            within = sum(not missed(row) for row in column)
            own = sum(float(row["way_gap"] or row["gap"]) <= TARGETS[budget] for row in column)
            lines.append([f"{setting} {budget}", *map(str, (len(column), within, own, early, good))])
    return [*markdown(lines), ""]


def setting_of(row: Mapping[str, str]) -> str:
    return row["device"] + (f":{row['deadline']}" if row["deadline"] else "")


def cell(row: Mapping[str, str] | None) -> str:
    """Gaps in per cent, of all ways and of its own where they differ (seconds); * above the target."""
    if row is None:
        return ""
    if not row["gap"]:
        return f"{row['status']} ({float(row['total_s'] or 0):.0f} s)"
    mark = "\\*" if missed(row) else ""
    gap, own = (f"{100 * float(row[field] or row['gap']):.2g}" for field in ("gap", "way_gap"))
    gaps = "optimal" if row["status"] == "optimal" else f"{gap}{mark}" if gap == own else f"{gap}{mark}; {own}"
    return f"{gaps} ({float(row['solved_s'] or row['total_s']):.0f} s)"


def about(network: str, rows: list[Mapping[str, str]]) -> list[str]:
    """What rows of one network have in common, the slowest of them where they differ."""

    def slowest(field: str) -> str:
        seconds = [float(r[field]) for r in rows if r[field]]
        return f"{max(seconds):.1f}" if seconds else ""

    searched = next((r for r in rows if r["min_budget_s"]), None)
    peak = next((r["keep_all_peak_bytes"] for r in rows if r["keep_all_peak_bytes"]), "")
    ram = "" if searched is None else f"{searched['min_budget_bytes']}, {searched['min_budget_bound_bytes']}, {peak}"
    operators = next((r["operators"] for r in rows if r["operators"]), "")
    seconds = slowest("model_s"), slowest("first_schedule_s")
    return [network, operators, *seconds, ram, slowest("min_budget_s")]


def run(
    *,
    models: Path = Path("../shared/models"),
    csv: Path = Path("build/bench-solver.csv"),
    time_limit: float = 60.0,
    stop_share: Annotated[float, "of the gap aimed at, at which to stop"] = 0.0,
    settings: Annotated[str, "devices, with a deadline after a colon"] = ",".join(SETTINGS),
    networks: str = ",".join(dict(NETWORKS)),
    budgets: str = ",".join(BUDGETS),
    again: Annotated[bool, "rows that missed, of another commit, are run again"] = False,
    rows: Annotated[int | None, "stop after so many rows"] = None,
    clock: Annotated[Literal["wall", "processor"], "what the time limit counts"] = "wall",
) -> None:
    done, count = Table(csv, FIELDS, FIELDS[:5]), 0
    for setting, budget, (network, batch) in itertools.product(
        settings.split(","), budgets.split(","), NETWORKS + FAMILIES
    ):
        if network not in networks.split(","):
            continue
        device, _, deadline = setting.partition(":")
        case = Case(network, batch, device, deadline, budget)
        last = done.rows.get(case.key)
        if last is not None and not (again and missed(last) and last["commit"] != commit()):
            continue
        if count == rows:
            return
        same = [row for key, row in done.rows.items() if key[:4] == case.key[:4] and row["min_budget_s"]]
        row = done.add(row_of(case, models, time_limit, stop_share, same[0] if same else None, clock))
        count += 1
        print(" ".join(row.values()), flush=True)
    print(tables(list(done.rows.values())))


if __name__ == "__main__":
    main(run)
