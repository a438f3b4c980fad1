"""Many problems at once: models x devices x budgets, in processes of this machine or on a Dask cluster, resumable.

Budgets of one model on one device are solved together (`poetc.planning.curve`).

Results go to a file of JSON lines as they come in. The same command continues a run that was interrupted. It does not
solve points again that are in the file with the same model, profile and options.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import itertools
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from poetc import solvers
from poetc.commands.locking import Options, model_hash, options_of, request_of
from poetc.commands.locking._file import canonical
from poetc.commands.requests import LEAST, SolveRequest
from poetc.commands.solve import solve, solve_budgets
from poetc.devices import load_profile, names_banks, parse_processors, parse_size, profile_to_dict
from poetc.errors import CheckFailed, InfeasibleError, LimitError, PoetcError, UsageError
from poetc.files import read_file
from poetc.planning import ENGINE
from poetc.processes import KilledError, in_processes
from poetc.training import BEST

OnResult = Callable[[int, int, dict[str, Any]], None]  # done, of, the result
KEPT = (
    *("status", "energy_pj", "energy_bound_pj", "compute_once_pj", "gap", "overhead_gap", "time_ns", "budget_bytes"),
    *("peak_bytes", "arena_bytes", "ram_bytes", "keep_all_peak_bytes", "min_budget_bytes"),
    *("store_written_bytes", "store_life_steps", "recomputes", "page_outs", "page_ins", "moves", "operators"),
    *("schedule_class", "solve_seconds", "updates", "importance", "importance_bound", "importance_total"),
)
LARGEST_RESULTS_BYTES = 1 << 30
KEY = b'{"key": '  # how a line begins


@dataclass(frozen=True, slots=True)
class Point:
    """A model, a device and a budget to solve. `key` is a hash of the model's file, the profile and the options."""

    key: str
    options: Options  # paths absolute


def make_points(
    template: SolveRequest, models: Sequence[Path], devices: Sequence[str], budgets: Sequence[str | None]
) -> list[Point]:
    """The product, models first, in the order given.

    Raises UsageError for a file that is not there, a budget that is none, an unknown solver, and processors that none
    of the devices has.
    """
    solvers.info(template.solver)
    _require_processors(template.processors, devices)
    for budget in budgets:
        if budget not in (None, LEAST) and not names_banks(budget):
            parse_size(budget, of=10**12, or_word=LEAST)
    points: dict[str, Point] = {}
    for model, device, budget in itertools.product(models, devices, budgets):
        request = replace(template, model=replace(template.model, source=model, device=device), budget=budget)
        options = options_of(request, Path("/"))
        options = msgspec.structs.replace(options, model=str(model.resolve()))
        try:
            digest = hashlib.sha256(model_hash(model).encode())
        except OSError as error:
            raise UsageError(f"{model}: {(error.strerror or str(error)).lower()}") from None
        digest.update(canonical(profile_to_dict(load_profile(device))) + canonical(options))
        if request.importance is not None:
            try:
                digest.update(read_file(request.importance))
            except OSError as error:
                raise UsageError(f"{request.importance}: {(error.strerror or str(error)).lower()}") from None
        point = Point(digest.hexdigest()[:16], options)
        points[point.key] = point
    return list(points.values())


def _require_processors(text: str, devices: Sequence[str]) -> None:
    """UsageError of the first device where none of them has these processors; a device that lacks them is a result."""
    faults: list[UsageError] = []
    for profile in map(load_profile, devices):
        try:
            parse_processors(text, profile)
        except UsageError as error:
            faults.append(error)
    if faults and len(faults) == len(devices):
        raise faults[0]


def run_point(point: Point) -> dict[str, Any]:
    """Solve one.

    Failures that a user can mend (infeasible, out of time, unsupported) are results; any other one is raised.
    """
    try:
        return _result(point, solve(request_of(point.options, Path("/"))).summary)
    except PoetcError as error:
        return _result(point, error)


def run_curve(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Solve points that differ in their budget alone, together.

    Schedules of a curve stream no operands. So a budget that has none there is solved by itself, as `poetc solve` does.
    """
    if len(points) == 1:
        return [run_point(points[0])]
    request = request_of(points[0].options, Path("/"))
    try:
        answers = solve_budgets(request, [point.options.budget for point in points])
    except PoetcError:
        return [run_point(point) for point in points]  # Each names its fault.
    alone = (InfeasibleError, LimitError) if request.solver == ENGINE else ()
    return [
        run_point(point) if isinstance(answer, alone) else _result(point, answer)
        for point, answer in zip(points, answers, strict=True)
    ]


def _curves(points: Sequence[Point]) -> list[list[Point]]:
    """Points that differ in their budget alone.

    With the number of micro-batches, the updates or the exactness of saved tensors open, each point is a problem of its
    own. So is the least budget, which may be one of streamed operands.
    """
    groups: dict[object, list[Point]] = {}
    for point in points:
        training = point.options.training
        own = "auto" in (training.get("micro_batches"), training.get("saved")) or training.get("train") == BEST
        own = own or point.options.budget == LEAST
        group = point.key if own else canonical(msgspec.structs.replace(point.options, budget=None))
        groups.setdefault(group, []).append(point)
    return list(groups.values())


def _result(point: Point, answer: Mapping[str, Any] | PoetcError) -> dict[str, Any]:
    options = point.options
    head = {
        "key": point.key,
        "model": Path(options.model).name,
        "device": options.device,
        "budget": options.budget,
        "options": msgspec.to_builtins(options),
    }
    if isinstance(answer, PoetcError):
        status = {InfeasibleError.exit_code: "infeasible", LimitError.exit_code: "limit"}.get(answer.exit_code, "error")
        return head | {"status": status, "error": str(answer), **_plain(answer.details)}
    return head | {key: answer[key] for key in KEPT}


def _plain(details: dict[str, object]) -> dict[str, object]:
    return {key: details[key] for key in ("min_budget_bytes", "min_budget_bound_bytes") if key in details}


def sweep(
    points: Sequence[Point],
    out: Path,
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    on_result: OnResult | None = None,
) -> list[dict[str, Any]]:
    """Solve the points that `out` does not hold yet, and append them there. All results, in the order of `points`."""
    done = read_results(out)
    waiting = [p for p in points if p.key not in done or done[p.key]["status"] == "error"]
    finished = len(points) - len(waiting)
    if waiting:
        out.parent.mkdir(parents=True, exist_ok=True)
        run = _in_processes(waiting, jobs or os.cpu_count() or 1) if scheduler is None else _on_dask(waiting, scheduler)
        with out.open("ab") as file:
            _end_line(file, out)
            for results in run:
                # At once: if half of them were solved on their own when resumed, they would lack the gain from the
                # others.
                try:
                    file.write(b"".join(json.dumps(result, allow_nan=False).encode() + b"\n" for result in results))
                    file.flush()
                    os.fsync(file.fileno())
                except OSError as error:
                    raise OSError(error.errno, error.strerror, str(out)) from error
                for result in results:
                    done[result["key"]] = result
                    finished += 1
                    if on_result is not None:
                        on_result(finished, len(points), result)
    return [done[point.key] for point in points]


def exit_code_of(results: Sequence[Mapping[str, Any]]) -> int:
    """0 where one of the results has a schedule. Else that of `solve` for the weakest verdict among them."""
    statuses = {result["status"] for result in results}
    if any("energy_pj" in result for result in results) or not statuses:
        return 0
    if statuses == {"infeasible"}:
        return InfeasibleError.exit_code
    return LimitError.exit_code if statuses <= {"infeasible", "limit"} else CheckFailed.exit_code


def read_results(out: Path) -> dict[str, dict[str, Any]]:
    """By key; the last line of a key counts. A line that was cut short by an interruption is passed over."""
    if not out.exists():
        return {}
    results: dict[str, dict[str, Any]] = {}
    lines = read_file(out, LARGEST_RESULTS_BYTES).split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            result = json.loads(line)
            results[result["key"]] = result
        except (ValueError, KeyError, TypeError):
            is_cut = line.startswith(KEY) or KEY.startswith(line)
            if number < len(lines) and not is_cut:
                raise UsageError(f"{out}:{number}: not a result of poetc sweep; choose another file with -o") from None
    return results


def _end_line(file: Any, out: Path) -> None:
    """After a line that was cut short, start a new one."""
    data = out.read_bytes()
    if data and not data.endswith(b"\n"):
        file.write(b"\n")


def _in_processes(points: Sequence[Point], jobs: int) -> Iterator[list[dict[str, Any]]]:
    """One process for each curve."""
    curves = _curves(points)
    for index, answer in in_processes(run_curve, curves, jobs):
        yield _killed(curves[index], str(answer)) if isinstance(answer, KilledError) else answer


def _killed(curve: Sequence[Point], why: str) -> list[dict[str, Any]]:
    return [_result(point, PoetcError(why)) for point in curve]


def _on_dask(points: Sequence[Point], scheduler: str) -> Iterator[list[dict[str, Any]]]:
    """Workers need this version of poetc and see the models under the same paths."""
    try:
        import distributed
    except ImportError:
        raise UsageError("--scheduler needs Dask: pip install '.[cluster]' in the clone") from None
    if not re.fullmatch(r"(tcp|tls|ws|wss|ucx)://\S+:\d+|inproc://\S+", scheduler):
        raise UsageError(f"--scheduler {scheduler!r}: give an address such as tcp://10.0.0.5:8786")
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # Tracebacks of errors that say the same in a
    # line.
    try:
        client = distributed.Client(scheduler, timeout="10s", set_as_default=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"no Dask scheduler at {scheduler}: {error}") from None
    with client:
        curves = {
            client.submit(run_curve, curve, key=f"poetc-{curve[0].key}", pure=False): curve for curve in _curves(points)
        }
        try:
            for future in distributed.as_completed(list(curves), loop=client.loop):
                try:
                    yield future.result()
                except distributed.KilledWorker:  # Dask tried it on several
                    yield _killed(curves[future], "the workers that solved it were killed; out of memory?")
        except (asyncio.CancelledError, concurrent.futures.CancelledError):
            lost = f"lost the Dask scheduler at {scheduler}; the same command goes on where this one was"
            raise UsageError(lost) from None
