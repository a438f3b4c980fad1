"""`make papers`: what the papers behind this project publish, beside the same quantities from poetc.

    python -m bench.papers run MODELS [--only NAME] [--network NAME] [--key TEXT] [--clock processor]
    python -m bench.papers page

The first appends to build/papers.jsonl, and goes on there. The second makes rows of docs/results/papers.md of it.

MODELS is a folder of graphs, each NAME.EXPORTER.graph.onnx; `bench.networks` writes those that it lacks. Every answer
is that of a command of poetc, which stands in the file beside it. Published figures stand in `bench/paper_tables`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from bench import networks
from bench._command import main, with_tables
from bench.paper_tables import emdl, mandheling, melon, poet, sage
from bench.paper_tables._runs import Known, Rows, Run

ROOT = Path(__file__).resolve().parents[1]
OUT, PAGE = ROOT / "build" / "papers.jsonl", ROOT / "docs" / "results" / "papers.md"
OWN_GRAPHS = ROOT / "build" / "graphs"
TABLES: dict[str, tuple[Callable[[float], Iterator[Run]], Callable[[Known], Rows]]] = {
    "poet-energy": (poet.energy_runs, poet.energy),
    "poet-least": (poet.least_runs, poet.least),
    "sage": (sage.runs, sage.table),
    "sage-switch": (sage.switch_runs, sage.switches),
    "melon": (melon.runs, melon.table),
    "melon-throughput": (melon.throughput_runs, melon.throughput),
    "mandheling": (mandheling.runs, mandheling.table),
    "mandheling-hours": (lambda _: iter(()), mandheling.hours),
    "emdl": (emdl.runs, emdl.table),
}
KEYS = {  # how many of the first columns name a row of the page
    "poet-energy": 4,
    "poet-least": 2,
    "sage": 1,
    "sage-switch": 3,
    "melon": 2,
    "melon-throughput": 2,
    "mandheling": 1,
    "mandheling-hours": 1,
    "emdl": 1,
}
WRITES = ("solve", "compare")  # commands that leave a directory
# A module whose limits of time count processor time of the process. HiGHS alone keeps a clock of its own.
BY_PROCESSOR_TIME = """import runpy, sys, time
time.monotonic, sys.argv = time.process_time, sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)"""


def graph_of(models: Path, network: str, words: Sequence[str]) -> Path | None:
    """The graph with its batch norms where floats train it, else the one in which they are folded."""
    exporters = ("legacy", "train") if "niti" in words else ("train", "legacy")
    if network in networks.NETWORKS and not any((models / f"{network}.{e}.graph.onnx").exists() for e in exporters):
        OWN_GRAPHS.mkdir(parents=True, exist_ok=True)
        networks.write(network, OWN_GRAPHS)
        models = OWN_GRAPHS
    found = [models / f"{network}.{exporter}.graph.onnx" for exporter in exporters]
    return next((path for path in found if path.exists()), None)


def answers() -> dict[tuple[str, str], dict[str, Any]]:
    lines = OUT.read_text(encoding="utf-8").splitlines() if OUT.exists() else []
    return {(row["table"], row["key"]): row for row in map(json.loads, lines)}


def run(
    models: Path,
    *,
    only: Annotated[str | None, f"of {', '.join(TABLES)}"] = None,
    network: str | None = None,
    key: Annotated[str | None, "text in the key of a run, such as 'mkr1000 1 32KiB'"] = None,
    time_limit: float = 20.0,
    clock: Annotated[Literal["wall", "processor"], "of limits; `processor` where the machine is shared"] = "wall",
) -> None:
    known = answers()
    OUT.parent.mkdir(exist_ok=True)
    for item in (item for runs, _ in TABLES.values() for item in runs(time_limit)):
        if (item.table, item.key) in known or only not in (None, item.table) or network not in (None, item.network):
            continue
        if key is not None and key not in item.key:
            continue
        graph = graph_of(models, item.network, item.words)
        if graph is None:
            print(f"{item.network}: no graph in {models}", file=sys.stderr)
            continue
        command, *words = item.words
        if command.startswith("bench."):
            line, shown = [command, str(graph), *words], f"python -m {command} {graph.name} {' '.join(words)}"
        else:
            leaves = command in WRITES and "--switch" not in item.words
            output = ("-o", str(ROOT / "build" / "papers"), "--force") if leaves else ()
            line = ["poetc", command, str(graph), "--random-weights", "0", *words, *output, "--json"]
            shown = f"poetc {command} {graph.name} {' '.join(words)}"
        start = ("-c", BY_PROCESSOR_TIME) if clock == "processor" else ("-m",)
        done = subprocess.run([sys.executable, *start, *line], capture_output=True, text=True, check=False)
        try:
            answer = json.loads(done.stdout)
        except json.JSONDecodeError:
            answer = {"error": (done.stderr.strip().splitlines() or ["no answer"])[-1]}
        row = {"table": item.table, "key": item.key, "command": shown, "date": str(date.today()), "answer": answer}
        with OUT.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(item.table, item.key, answer.get("error", "done"), flush=True)


def page() -> None:
    """The page with its tables made anew. Tables and rows whose runs are missing stay."""
    known, tables = answers(), {}
    for name, (_, table) in TABLES.items():
        with contextlib.suppress(KeyError):
            tables[name] = list(table(known))
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), tables, KEYS), encoding="utf-8")


if __name__ == "__main__":
    main(run, page)
