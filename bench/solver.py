"""`make bench-solver`: proven gaps and times of `poetc solve` on real networks, one fresh process a problem.

Every row is what the command line says: the model is read, differentiated, costed, solved, packed and verified. Rows
are appended to a CSV file as they come, and a run goes on where the last one ended. A table is made of the file.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

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
SETTINGS = (("rpi4", ""), ("rpi4", "1.5x"), ("rpi4", "1.2x"), ("stm32h743", ""))
BUDGETS = ("80%", "60%", "40%", "25%", "min")  # min: 1.05 x the smallest budget known to work
TARGETS = {"80%": 0.001, "60%": 0.001, "40%": 0.005, "25%": 0.01, "min": 0.02}
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
    "overhead_gap",
    "energy_pj",
    "compute_once_pj",
    "model_s",
    "first_schedule_s",
    "solved_s",
    "total_s",
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


def poetc(*arguments: str) -> tuple[dict[str, object], dict[str, float]]:
    """The command's JSON answer; seconds from the start until the model was built, the first schedule, the end."""
    command = [sys.executable, "-m", "poetc", *arguments, "--json", "--verbose"]
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
                if ": best " in line:
                    seconds.setdefault("first_schedule_s", round(now, 2))
                if "smallest budget" in line:
                    seconds.setdefault("solved_s", round(now, 2))
                last = line
        seconds["total_s"] = round(time.monotonic() - started, 2)
        out.seek(0)
        try:
            return json.load(out), seconds
        except json.JSONDecodeError:
            return {"status": f"crashed: {last.strip()}"}, seconds


def model_file(folder: Path, network: str) -> Path:
    for suffix in (".train.graph.onnx", ".train.onnx"):
        if (found := folder / f"{network}{suffix}").exists():
            return found
    raise SystemExit(f"bench-solver: no {network}.train*.onnx in {folder}")


def run(case: Case, folder: Path, time_limit_s: float) -> dict[str, object]:
    common = [str(model_file(folder, case.network)), "--batch", str(case.batch), "--device", case.device]
    if case.deadline:
        common += ["--deadline", case.deadline]
    with tempfile.TemporaryDirectory() as out:
        common += ["-o", f"{out}/solved", "--time-limit", str(time_limit_s)]
        budget = case.budget
        row: dict[str, object] = dict(zip(FIELDS, case.key, strict=False))
        if budget == "min":
            answer, _ = poetc("solve", *common, "--budget", "1%")  # refused, with the smallest budget that works
            smallest = answer.get("min_budget_bytes")
            if not isinstance(smallest, int):
                return {**row, "status": f"no smallest budget: {answer.get('status')}"}
            budget = str(int(smallest * 1.05))
        answer, seconds = poetc("solve", *common, "--budget", budget)
    for field in ("status", "operators", "budget_bytes", "gap", "overhead_gap", "energy_pj", "compute_once_pj"):
        row[field] = answer.get(field)
    return {**row, **seconds}


def table(rows: list[dict[str, str]]) -> str:
    """Markdown: a line a network and setting, a column a budget: gap of the total (seconds), * if above the target."""
    lines = ["| network (batch) | device, deadline | " + " | ".join(BUDGETS) + " |", "|---" * (len(BUDGETS) + 2) + "|"]
    groups: dict[tuple[str, ...], dict[str, dict[str, str]]] = {}
    for row in rows:
        key = (f"{row['network']} ({row['batch']})", f"{row['device']} {row['deadline']}".strip())
        groups.setdefault(key, {})[row["budget"]] = row
    for key, cells in groups.items():
        lines.append("| " + " | ".join([*key, *(cell(cells.get(budget)) for budget in BUDGETS)]) + " |")
    return "\n".join(lines) + "\n"


def cell(row: dict[str, str] | None) -> str:
    if row is None:
        return ""
    if not row["gap"]:
        return row["status"]
    gap = float(row["gap"])
    mark = "" if gap <= TARGETS[row["budget"]] else "*"
    return f"{gap:.3%}{mark} ({float(row['solved_s'] or row['total_s']):.0f} s)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path("../shared/models/zoo"))
    parser.add_argument("--csv", type=Path, default=Path("build/bench-solver.csv"))
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--settings", type=int, default=len(SETTINGS), help="only the first so many devices/deadlines")
    parser.add_argument("--only", help="one network")
    parser.add_argument("--budgets", default=",".join(BUDGETS))
    options = parser.parse_args()
    options.csv.parent.mkdir(parents=True, exist_ok=True)
    rows = list(csv.DictReader(options.csv.open())) if options.csv.exists() else []
    known = {tuple(row[field] for field in FIELDS[:5]) for row in rows}
    for device, deadline in SETTINGS[: options.settings]:
        for budget in options.budgets.split(","):
            for network, batch in NETWORKS:
                case = Case(network, batch, device, deadline, budget)
                if case.key in known or options.only not in (None, network):
                    continue
                row = run(case, options.models, options.time_limit)
                with options.csv.open("a", newline="") as file:
                    writer = csv.DictWriter(file, FIELDS)
                    if file.tell() == 0:
                        writer.writeheader()
                    writer.writerow(row)
                print(" ".join(str(row.get(field, "")) for field in FIELDS), flush=True)
    print(table(list(csv.DictReader(options.csv.open()))))


if __name__ == "__main__":
    main()
