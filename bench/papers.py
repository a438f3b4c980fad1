"""`make papers`: what the papers behind this project publish, beside the same quantities from poetc.

    python -m bench.papers run MODELS [--only NAME] [--time-limit S]    appends to build/papers.jsonl, and goes on there
    python -m bench.papers page                                         makes the tables of docs/results/papers.md anew

MODELS is a folder of graphs, each NAME.EXPORTER.graph.onnx. Every answer is that of a command of poetc, which stands in
the file beside it. Published figures stand in this file with their source.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUT, PAGE = ROOT / "build" / "papers.jsonl", ROOT / "docs" / "results" / "papers.md"
POET_NETWORKS = ("vgg16_cifar", "resnet18_cifar", "bert_small")
POET_DEVICES = ("mkr1000", "nrf52840", "rpi4", "jetson-tx2")
# MNN's and Melon's batch at the two budgets, and the largest that Melon's figure shows (MobileNetV2, 224 x 224).
MELON_NETWORKS = {"mobilenetv2_224": (32, "112 to 176", 208), "squeezenet11_224": None, "resnet50_224": None}
MELON_BUDGETS = ("5500MB", "3800MB")
# Accuracy in floats and in integers, and hours to convergence: floats, MNN in integers, Mandheling.
MANDHELING = {"vgg16_cifar": None, "resnet18_cifar": (92.49, 90.62, 223.55, 135.71, 35.68)}
EMDL = {1: (6698, 10468, 48274), 2: (10651, 14157, 79097), 4: (None, 27574, None)}  # ms: MNN, TensorFlow, PyTorch


@dataclass(frozen=True, slots=True)
class Run:
    table: str
    key: str
    words: tuple[str, ...]  # of the command, NAME.onnx in place of the graph
    network: str


def runs(time_limit_s: float) -> Iterator[Run]:
    limit = f"{time_limit_s:g}"
    for network in POET_NETWORKS:
        for device in POET_DEVICES:
            yield Run("poet-least", f"{network} {device}", ("analyze", "--device", device, "--batch", "1"), network)
    for network in MELON_NETWORKS:
        for budget in MELON_BUDGETS:
            words = ("analyze", "--device", "rpi4", "--largest-batch", "--budget", budget)
            yield Run("melon", f"{network} {budget}", words, network)
    for network in MANDHELING:
        words = ("solve", "--device", "phone-dsp", "--batch", "64", "--budget", "100%", "--time-limit", limit)
        yield Run("mandheling", f"{network} f32", words, network)
        yield Run("mandheling", f"{network} niti", (*words, "--precision", "niti"), network)
    for batch in EMDL:
        words = ("solve", "--device", "rpi3bplus", "--batch", str(batch), "--budget", "100%", "--time-limit", limit)
        yield Run("emdl", str(batch), (*words, "--objective", "time"), "mobilenetv2_224")


def graph_of(models: Path, network: str, words: Sequence[str]) -> Path | None:
    """The graph with its batch norms where floats train it, else the one in which they are folded."""
    exporters = ("legacy", "train") if "niti" in words else ("train", "legacy")
    found = [models / f"{network}.{exporter}.graph.onnx" for exporter in exporters]
    return next((path for path in found if path.exists()), None)


def answers() -> dict[tuple[str, str], dict[str, Any]]:
    lines = OUT.read_text(encoding="utf-8").splitlines() if OUT.exists() else []
    return {(row["table"], row["key"]): row for row in map(json.loads, lines)}


def run(models: Path, only: str | None, time_limit_s: float) -> None:
    known = answers()
    OUT.parent.mkdir(exist_ok=True)
    for item in runs(time_limit_s):
        if (item.table, item.key) in known or only not in (None, item.table):
            continue
        graph = graph_of(models, item.network, item.words)
        if graph is None:
            print(f"{item.network}: no graph in {models}", file=sys.stderr)
            continue
        command, *words = item.words
        output = ("-o", str(ROOT / "build" / "papers"), "--force") if command == "solve" else ()
        line = [sys.executable, "-m", "poetc", command, str(graph), "--random-weights", "0", *words, *output, "--json"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        try:
            answer = json.loads(done.stdout)
        except json.JSONDecodeError:
            answer = {"error": (done.stderr.strip().splitlines() or ["no answer"])[-1]}
        shown = f"poetc {command} {graph.name} {' '.join(words)}"
        row = {"table": item.table, "key": item.key, "command": shown, "date": str(date.today()), "answer": answer}
        with OUT.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(item.table, item.key, answer.get("error", "done"), flush=True)


def page(known: dict[tuple[str, str], dict[str, Any]], text: str) -> str:
    """The page with its tables made anew, each behind a line `<!-- NAME -->`. Those whose runs are missing stay."""
    for name, table in TABLES.items():
        with contextlib.suppress(KeyError):
            rows = _table(table(known))
            text = re.sub(rf"(<!-- {name} -->\n)(?:\|.*\n)*", lambda found, rows=rows: f"{found[1]}{rows}\n", text)
    return text


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _mb(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:,.2f}"


def _least(known: dict[tuple[str, str], dict[str, Any]]) -> list[list[str]]:
    rows = [["network", "device", "keep-all, MB", "least, MB"]]
    for network in POET_NETWORKS:
        for device in POET_DEVICES:
            a = known["poet-least", f"{network} {device}"]["answer"]
            sizes = (a["keep_all_peak_bytes"], a["min_budget_bytes"])
            rows.append([network, device, *map(_mb, sizes)])
    return rows


def _melon(known: dict[tuple[str, str], dict[str, Any]]) -> list[list[str]]:
    rows = [
        ["network", "budget", "keep-all", "largest found", "proven too large", "MNN", "Melon", "largest shown there"]
    ]
    for network, published in MELON_NETWORKS.items():
        for budget in MELON_BUDGETS:
            a = known["melon", f"{network} {budget}"]["answer"]
            theirs = [str(n) for n in published] if published and budget == MELON_BUDGETS[0] else ["-"] * 3
            found = [str(a[k]) for k in ("keep_all_batch", "largest_batch")]
            rows.append([network, budget, *found, str(a["largest_batch_bound"] + 1), *theirs])
    return rows


def _mandheling(known: dict[tuple[str, str], dict[str, Any]]) -> list[list[str]]:
    rows = [
        ["network, batch 64", "floats, s a step", "integers, s a step", "ratio", "energy ratio", "published: hours"]
    ]
    for network, published in MANDHELING.items():
        floats, integers = (known["mandheling", f"{network} {p}"]["answer"] for p in ("f32", "niti"))
        if "error" in integers or "error" in floats:
            rows.append([network, "-", integers.get("error", "-"), "-", "-", "-"])
            continue
        times, energies = ([a[k] for a in (floats, integers)] for k in ("time_ns", "energy_pj"))
        hours = (
            "-" if published is None else f"{published[2]} floats, {published[3]} MNN int8, {published[4]} Mandheling"
        )
        shown = [f"{t / 1e9:.2f}" for t in times]
        rows.append([network, *shown, f"{times[0] / times[1]:.2f}", f"{energies[0] / energies[1]:.2f}", hours])
    return rows


def _emdl(known: dict[tuple[str, str], dict[str, Any]]) -> list[list[str]]:
    rows = [["batch", "poetc, modelled", "MNN", "TensorFlow", "PyTorch"]]
    for batch, published in EMDL.items():
        theirs = ["out of memory" if ms is None else f"{ms:,}" for ms in published]
        ours = known["emdl", str(batch)]["answer"]["time_ns"] / 1e6
        rows.append([str(batch), f"{ours:,.0f}", *theirs])
    return rows


TABLES = {
    "poet-least": _least,
    "melon": _melon,
    "mandheling": _mandheling,
    "emdl": _emdl,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    ran = commands.add_parser("run")
    ran.add_argument("models", type=Path)
    ran.add_argument("--only")
    ran.add_argument("--time-limit", type=float, default=20.0)
    commands.add_parser("page")
    given = parser.parse_args()
    if given.command == "run":
        run(given.models, given.only, given.time_limit)
    else:
        PAGE.write_text(page(answers(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
