"""The worth of each stage of poetc's engine: twenty problems, solved again without each stage in equal processor time.

A stage is left out by another function in place of the one that it is entered by, in the process of the solve alone.
The first solve of a problem has all stages and counts their calls, the last shows the noise; a stage that was not
entered is not left out. A problem is solved as `poetc solve` does it on one core, packing included, in processes that
are forked from the one that has read the model. Rows are appended to a CSV file as they come, and a run goes on where
the last one ended.
"""

from __future__ import annotations

import functools
import importlib
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench._command import Table, main
from bench.solver import TIMES_SMALLEST, commit, model_file

ALL, AGAIN = "nothing", "nothing, again"
CASES = (  # network, batch, device, budget, seconds of processor time; the first eight differ most in what they need
    ("nanogpt_tiny", 8, "stm32h743", "40%", 4),
    ("lenet5", 8, "stm32h743", "min", 4),
    ("ds_cnn_kws", 8, "stm32f746", "min", 4),
    ("nanogpt_tiny", 8, "stm32h743", "min", 4),
    ("lstm_har", 8, "stm32h743", "25%", 16),
    ("tcn_har", 8, "stm32f746", "1.2min", 4),
    ("lstm_har", 8, "rpi4", "min", 16),
    ("vit_tiny_cifar", 32, "rpi4", "1.2min", 8),
    ("resnet18_cifar_slim", 8, "stm32h743", "min", 6),
    ("unet_bilinear_64", 16, "stm32h743", "25%", 8),
    ("patchtst", 8, "rpi4", "1.2min", 8),
    ("resnet18_cifar", 64, "rpi4", "40%", 6),
    ("vgg16_cifar", 64, "stm32h743", "60%", 6),
    ("lstm_har", 8, "stm32h743", "60%", 12),
    ("mobilenetv2_cifar", 8, "stm32f746", "1.2min", 8),
    ("yolo", 2, "stm32h743", "min", 6),
    ("mobilenetv2_224", 32, "stm32h743", "40%", 10),
    ("bert_base", 4, "rpi4", "60%", 10),
    ("densenet121_224", 16, "rpi4", "60%", 12),
    ("resnet50_224", 16, "rpi4", "40%", 10),
)


def _is(value: object) -> Callable[..., object]:
    return lambda *_, **__: value


def _own_order(model: Any, *_: object, **__: object) -> tuple[int, ...]:
    return tuple(range(model.n_ops))


def _middle(relaxing: Any, k: int, *_: object) -> int:
    from poetc.solvers.poetc.bounds.ladder import single_cut_positions

    return single_cut_positions(relaxing.model)[k]


# Of each stage the functions that it is entered by, below `poetc.solvers`, and those that take their place.
STAGES: Mapping[str, Mapping[str, Callable[..., object]]] = {
    "published heuristics": {"poetc.engine:offer_published": _is(None), "poetc.candidates:offer_published": _is(None)},
    "fewer writes": {"poetc.search.race:unwritten": lambda _model, codes, *_: codes},
    "nested checkpoints": {"poetc.engine:nest": _is(0.0), "poetc.placement.search:nest": _is(0.0)},
    "keep-all flattened": {"poetc.candidates:flatten_keep_all": _is(None)},
    "evictions from plans": {"poetc.candidates:repair": _is(None)},
    "windows": {"poetc.search.neighbourhoods:Windows.run": _is(0.0)},
    "exhaustive search": {"poetc.candidates:exhaust": _is(None)},
    "race guided by plans": {"poetc.solving:Solving.guide": _is(None)},
    "annealed orders": {
        "poetc.orders.best_order:anneal": lambda model, *_, **__: (float("inf"), _own_order(model)),
    },
    "tidied orders": {"poetc.orders.best_order:tidied": lambda _model, _overflow, order: order},
    "low-traffic order": {"poetc.orders.best_order:low_traffic_order": _own_order},
    "single cuts": {"poetc.relaxing:Relaxing.single_cutting": _is(lambda stop=None: [])},
    "best operator of a cut": {"poetc.relaxing:Relaxing.best_cut": _middle},
    "spread cuts": {"poetc.relaxing:best_spread": _is(None), "poetc.placement.search:best_spread": _is(None)},
    "rows between cuts": {"poetc.bounds.cuts:Between.rows": _is(None)},
    "ties": {"poetc.solving:has_many_alike": _is(False)},
    "phases": {":phased_bound": _is(0)},
    "kernel of the fullest": {":kernel_of_fullest": _is((0, 0))},
    "bound of any placement": {":bound_of_any_placement": _is(0)},
}
Case = tuple[str, int, str, str, float]
KEYS = ("network", "batch", "device", "budget", "left_out")
FIELDS = (
    *KEYS,
    "budget_bytes",
    "energy_pj",
    "bound_pj",
    "gap",
    "first_schedule_s",
    "seconds",
    "error",
    "commit",
    "calls",
)
WAYS = ("worse, better", "worst", "best")
LEAST = 0.0005  # a smaller change of energy or bound counts as none


def without(stage: str) -> None:
    """Leave a stage out of this process."""
    for name, instead in STAGES[stage].items():
        owner, attribute, _ = _entry(name)
        setattr(owner, attribute, instead)


def counted() -> Mapping[str, Sequence[float]]:
    """Count calls of all stages and their processor seconds, those of stages within them included."""
    counts: dict[str, list[float]] = {stage: [0, 0.0] for stage in STAGES}
    for stage, entries in STAGES.items():
        for name in entries:
            owner, attribute, entry = _entry(name)
            setattr(owner, attribute, _counting(entry, counts[stage]))
    return counts


def _counting(entry: Callable[..., object], count: list[float]) -> Callable[..., object]:
    @functools.wraps(entry)
    def counting(*arguments: object, **named: object) -> object:
        started = time.thread_time()
        try:
            return entry(*arguments, **named)
        finally:
            count[0] += 1
            count[1] += time.thread_time() - started

    return counting


def _entry(name: str) -> tuple[Any, str, Callable[..., object]]:
    """The module or class that has an entry, its attribute, and the function there."""
    module, _, path = name.partition(":")
    owner: Any = importlib.import_module(f"poetc.solvers.{module}".rstrip("."))
    *within, attribute = path.split(".")
    for part in within:
        owner = getattr(owner, part)
    return owner, attribute, getattr(owner, attribute)


def problem_of(case: Case, models: Path) -> Any:
    """The problem of a case, with no limit on its RAM."""
    from poetc.commands.requests import ModelRequest, training_graph
    from poetc.devices import build_problem, load_profile
    from poetc.training import TrainingOptions

    network, batch, device, *_ = case
    training = TrainingOptions(random_weights=0)
    request = ModelRequest(source=model_file(models, network), batch=batch, device=device, training=training)
    return build_problem(training_graph(request)[1], load_profile(device), budget_bytes=1 << 62)


def budget_bytes(problem: Any, budget: str) -> int:
    """In per cent of the keep-all peak, or in times the smallest that is found with all state on the store."""
    from poetc.planning.state import everything_on_store
    from poetc.scheduling import keep_all_peak_bytes
    from poetc.solvers import min_budget

    if budget in TIMES_SMALLEST:
        smallest_bytes = min_budget(everything_on_store(problem), time_limit_s=10.0).smallest_bytes
        assert smallest_bytes is not None
        return int(smallest_bytes * TIMES_SMALLEST[budget])
    return int(keep_all_peak_bytes(problem) * float(budget.rstrip("%")) / 100)


def solved(problem: Any, limit_s: float, left_out: str) -> dict[str, Any]:
    """The answer of a solve in a process of its own."""
    from poetc.errors import PoetcError
    from poetc.planning.chain import reductions
    from poetc.planning.planner import Planner
    from poetc.planning.progress import BestSoFar
    from poetc.planning.search_log import SearchLog
    from poetc.scheduling.schedule import SolveOptions

    counts: Mapping[str, Sequence[float]] = {}
    if left_out in STAGES:
        without(left_out)
    elif left_out == ALL:
        counts = counted()
    time.monotonic = time.process_time  # other work on the machine changes nothing
    best = BestSoFar(log=SearchLog(clock=time.process_time))
    planner = Planner(options=SolveOptions(time_limit_s=limit_s), reductions=reductions("auto"), best=best)
    row: dict[str, Any] = {}
    try:
        proof = planner.solve(problem).proof
        row |= {"energy_pj": proof.objective, "bound_pj": proof.bound, "gap": round(proof.gap(), 5)}
    except PoetcError as error:
        row["error"] = str(error)
    firsts = [e.seconds for e in best.log.rows if (e.best, e.unpacked) != (None, None)]
    row |= {"first_schedule_s": firsts[0] if firsts else None, "seconds": round(time.process_time(), 2)}
    return row | {"calls": json.dumps(counts)}


def _beside(function: Callable[..., Any], *arguments: object) -> Any:
    """The answer of a function in a forked process, which ends with it."""
    here, there = multiprocessing.Pipe(duplex=False)

    def answer(to: Connection) -> None:
        to.send(function(*arguments))

    process = multiprocessing.get_context("fork").Process(target=answer, args=(there,))
    process.start()
    there.close()
    try:
        return here.recv()
    finally:
        process.join()


def run(
    *,
    models: Path = Path("../shared/models"),
    csv: Path = Path("build/bench-ablation.csv"),
    first: int = 0,
    rows: int = len(CASES),
    stages: str = ",".join(STAGES),
) -> Iterator[Sequence[object]]:
    done = Table(csv, FIELDS, KEYS)
    for case in CASES[first : first + rows]:
        key, problem = tuple(map(str, case[:4])), None
        for left_out in (ALL, *stages.split(","), AGAIN):
            known = done.rows.get((*key, ALL))
            if (*key, left_out) in done.rows:
                continue
            if left_out in STAGES and known is not None and not json.loads(known["calls"])[left_out][0]:
                continue
            if problem is None:
                whole = problem_of(case, models)
                limit = int(known["budget_bytes"]) if known else _beside(budget_bytes, whole, case[3])
                problem = replace(whole, budget_bytes=limit)
            row = dict(zip(KEYS, (*key, left_out), strict=True)) | {"budget_bytes": limit, "commit": commit()}
            done.add(row | _beside(solved, problem, case[4], left_out))
    yield from summary(list(done.rows.values()))


def summary(rows: Sequence[Mapping[str, str]]) -> Iterator[Sequence[object]]:
    """A line a stage: of how many rows it was entered in, those that it made better or worse by more than the noise.

    The noise of a row is twice the difference of its two solves with all stages, and at least `LEAST`.
    """
    by_key = {(row["left_out"], *(row[field] for field in KEYS[:4])): row for row in rows}
    yield ("left out", "rows", *(f"{of}{x}" for of in ("energy ", "bound ") for x in WAYS), "seconds")
    for left_out in dict.fromkeys(row["left_out"] for row in rows if row["left_out"] != ALL):
        count, energies, bounds, seconds = 0, list[float](), list[float](), list[float]()
        for row in (row for row in rows if row["left_out"] == left_out):
            known, again = (by_key.get((name, *(row[f] for f in KEYS[:4]))) for name in (ALL, AGAIN))
            if known is None or again is None:
                continue
            count += 1
            least = (LEAST, LEAST) if left_out == AGAIN else tuple(2 * abs(x) for x in _changes(again, known))
            for changes, change, noise in zip((energies, bounds), _changes(row, known), least, strict=True):
                if abs(change) > max(noise, LEAST):
                    changes.append(change)
            if left_out in STAGES and known["calls"]:
                seconds.append(json.loads(known["calls"])[left_out][1])
        parts: list[str] = []
        for changes, sign in ((energies, 1), (bounds, -1)):
            worse = [x for x in changes if sign * x > 0]
            better = [x for x in changes if sign * x < 0]
            parts += [f"{len(worse)}, {len(better)}"]
            parts += [f"{100 * max(some, key=abs):+.2f} %" if some else "" for some in (worse, better)]
        yield (left_out, count, *parts, f"{max(seconds):.2f}" if seconds else "")


def _changes(row: Mapping[str, str], known: Mapping[str, str]) -> tuple[float, float]:
    """Of energy and of the proven bound, relative to those known; infinite where nothing was reached."""
    if not row["gap"] or not known["gap"]:
        energy = 0.0 if bool(row["gap"]) == bool(known["gap"]) else float("inf") if known["gap"] else -float("inf")
        return energy, 0.0
    energy, bound = (float(row[field]) / float(known[field]) - 1 for field in ("energy_pj", "bound_pj"))
    return energy, bound


if __name__ == "__main__":
    main(run)
