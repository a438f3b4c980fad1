"""Pictures for other tools: traces, snapshots of memory and graphs, read back without poetc's own types.

A parser of the traces' format replays slices and counters as its document says. Perfetto's own trace processor has a
file of its own (test_perfetto.py).
"""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx
import pytest

from poetc.cli import main
from poetc.reporting import chrome_trace, memory_viz, solved_network
from poetc.scheduling import Compute
from tests.support.banks import solved_in_banks

MODEL = Path(__file__).resolve().parents[2] / "demo" / "digits.onnx"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits, in so little RAM that tensors are recomputed and paged."""
    out = tmp_path_factory.mktemp("solved") / "digits.poetc"
    run("solve", MODEL, "--batch", 4, "-d", "stm32f746", "--budget", "30%", "--time-limit", 3, "-o", out, "-q")
    return out


def run(*arguments: object, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert (ended.value.code or 0) == code


def replayed(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Slices by thread, counters by name, and open asynchronous slices, in the order of time."""
    threads: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    counters: dict[str, list[dict[str, int]]] = defaultdict(list)
    names, alive, most_alive = {}, dict[tuple[str, int], int](), 0
    for event in sorted(events, key=lambda e: (e.get("ts", -1.0), e["ph"] != "e")):
        match event["ph"]:
            case "M":
                names[event["name"], event["pid"], event["tid"]] = event["args"]["name"]
            case "X":
                threads[event["pid"], event["tid"]].append(event)
            case "C":
                counters[event["name"]].append(event["args"])
            case "b":
                assert (event["cat"], event["id"]) not in alive
                alive[event["cat"], event["id"]] = event["args"]["bytes"]
                most_alive = max(most_alive, sum(alive.values()))
            case "e":
                del alive[event["cat"], event["id"]]
            case other:
                raise AssertionError(other)
    assert not alive
    return {"threads": threads, "counters": counters, "names": names, "most_alive": most_alive}


def test_the_trace_has_the_peak_the_energy_and_the_order(directory: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    run("report", directory, "--trace", path, "-q")
    document = json.loads(path.read_text())
    summary = json.loads((directory / "summary.json").read_text())
    found = replayed(document["traceEvents"])
    assert max(c["in use"] for c in found["counters"]["RAM in use, bytes"]) == summary["live_bytes"]
    assert max(sum(c.values()) for c in found["counters"]["RAM by category, bytes"]) == summary["live_bytes"]
    energies = [c["energy"] for c in found["counters"]["energy, pJ"]]
    assert energies == sorted(energies) and energies[-1] == energies[-2] == summary["energy_pj"]
    assert found["most_alive"] <= summary["peak_bytes"]
    slices = [s for own in found["threads"].values() for s in own]
    assert sum(s["dur"] for s in slices) == pytest.approx(summary["time_ns"] / 1e3)
    for own in found["threads"].values():
        for before, after in pairwise(own):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
    again = [s for s in slices if s["name"].startswith("recompute: ")]
    assert len(again) == summary["recomputes"] and summary["page_ins"] + summary["recomputes"] > 0
    assert sum(s["name"].startswith("page in: ") for s in slices) == summary["page_ins"]
    assert sum(s["name"].startswith("page out: ") for s in slices) == summary["page_outs"]


def test_the_snapshot_replays_to_the_arena(directory: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.pickle"
    run("report", directory, "--memory-viz", path, "-q")
    snapshot = pickle.loads(path.read_bytes())
    (segment,) = snapshot["segments"]
    (events,) = snapshot["device_traces"]
    plan = json.loads((directory / "plan.json").read_text())
    live: dict[int, int] = {}
    peak, last_us = 0, 0
    for event in events:
        assert event["time_us"] >= last_us
        last_us = event["time_us"]
        begin, size = event["addr"], event["size"]
        if event["action"] == "alloc":
            assert segment["address"] <= begin and begin + size <= segment["address"] + segment["total_size"]
            for other, length in live.items():
                assert other + length <= begin or begin + size <= other, event["frames"]
            live[begin] = size
            peak = max(peak, sum(live.values()))
        elif event["action"] == "free_requested":
            assert live.pop(begin) == size
    assert (peak, segment["total_size"]) == (plan["max_live_bytes"], plan["arena_bytes"])
    assert {"name", "filename", "line"} == set(events[0]["frames"][0])


@pytest.mark.parametrize("suffix", [".graphml", ".gexf"])
def test_the_graph_is_read_back(directory: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"g{suffix}"
    run("report", directory, "--graph", path, "-q")
    graph = (networkx.read_graphml if suffix == ".graphml" else networkx.read_gexf)(path)
    problem = json.loads((directory / "problem.json").read_text())
    summary = json.loads((directory / "summary.json").read_text())
    assert graph.number_of_nodes() == len(problem["operators"]) + len(problem["tensors"])
    for index, op in enumerate(problem["operators"]):
        node = graph.nodes[f"op {index}"]
        assert (node["label"], node["energy_pj"], node["phase"]) == (op["name"], op["energy_pj"], op["phase"])
        assert set(graph.successors(f"op {index}")) == {f"tensor {t}" for t in op["outputs"]}
        assert set(graph.predecessors(f"op {index}")) >= {f"tensor {t}" for t in op["inputs"]}
    executions = sum(data["executions"] for _, data in graph.nodes(data=True) if data["type"] == "operator")
    assert executions == summary["operators"] + summary["recomputes"]
    pages = sum(data["page_ins"] for _, data in graph.nodes(data=True) if data["type"] == "tensor")
    assert pages == summary["page_ins"]
    assert any(data.get("shape") == "4x1x8x8" for _, data in graph.nodes(data=True))
    assert networkx.is_directed_acyclic_graph(graph)


def test_banks_are_counters_and_segments() -> None:
    solved = solved_in_banks()
    problem, schedule = solved.problem, solved.schedule
    found = replayed(json.loads(chrome_trace(solved))["traceEvents"])
    for bank, peak in zip(problem.banks, solved.trace.bank_peaks, strict=True):
        assert max(c["in use"] for c in found["counters"][f"bank {bank.name}, bytes"]) == peak
    assert len(pickle.loads(memory_viz(solved))["segments"]) == len(problem.banks)
    assert found["counters"]["energy, pJ"][-1]["energy"] == solved.trace.energy_pj
    computed = sum(isinstance(action, Compute) for action in schedule.actions)
    assert sum(d.get("executions", 0) for _, d in solved_network(solved).nodes(data=True)) == computed


def test_graphs_of_python(directory: Path) -> None:
    import poetc

    solution = poetc.open_solution(directory)
    step, problem = solution.artifact.graph, solution.problem
    assert step is not None
    graph = step.to_networkx()
    assert {d["kind"] for _, d in graph.nodes(data=True) if d["type"] == "operator"} == {o.kind for o in step.operators}
    assert graph.nodes["tensor image"]["shape"] == "4x1x8x8"
    bare = problem.to_networkx()
    assert bare.number_of_edges() == sum(len({*o.inputs}) + len(o.outputs) for o in problem.operators)
    assert bare.graph["budget_bytes"] == problem.budget_bytes


def test_bad_names_are_one_line(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("report", directory, "--graph", tmp_path / "g.dot", code=2)
    said = capsys.readouterr().err
    assert "give FILE.graphml or FILE.gexf" in said and said.count("\n") == 1
    run("report", directory, "--trace", tmp_path / "none" / "t.json", code=2)
    said = capsys.readouterr().err
    assert "none" in said and said.count("\n") == 1
    assert not list(tmp_path.iterdir())
