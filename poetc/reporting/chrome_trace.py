"""One training step as a trace in the JSON format of Chrome, which Perfetto and chrome://tracing open.

Processors and the ways of the store are threads. RAM by category, RAM in use, banks and energy are counters. Each stay
of a tensor in RAM is an asynchronous slice. An operator that runs again is called "recompute: NAME".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from poetc.reporting._facts import Category, gather
from poetc.reporting._solved import Solved
from poetc.scheduling import FROM_STORE, TO_STORE, Compute, Move, PageIn, PageOut

STEP, TENSORS = 1, 2  # numbers of the processes
_STORE = {TO_STORE: (101, "store, out"), FROM_STORE: (102, "store, in")}
Event = dict[str, Any]


def chrome_trace(solved: Solved) -> str:
    """The trace as JSON. Times are modelled; `ts` and `dur` are in microseconds, as the format says."""
    events = [*_names(solved), *_instructions(solved), *_counters(solved), *_lives(solved)]
    problem, trace = solved.problem, solved.trace
    document = {
        "displayTimeUnit": "ns",
        "otherData": {
            "model": problem.name,
            "device": problem.device,
            "solver": solved.schedule.solver,
            "peak_bytes": trace.peak_bytes,
            "budget_bytes": problem.budget_bytes,
            "energy_pj": trace.energy_pj,
            "time_ns": trace.time_ns,
        },
        "traceEvents": events,
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def _names(solved: Solved) -> Iterator[Event]:
    problem = solved.problem
    device = f" on {problem.device}" if problem.device else ""
    yield _meta("process_name", STEP, 0, f"training step of {problem.name}{device}")
    yield _meta("process_name", TENSORS, 0, "tensors in RAM")
    names = [p.name for p in problem.processors] or ["processor"]
    for lane, name in enumerate(names):
        yield _meta("thread_name", STEP, lane + 1, name)
    for lane in {span.lane for span in solved.trace.spans} & _STORE.keys():
        yield _meta("thread_name", STEP, *_STORE[lane])


def _meta(kind: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _instructions(solved: Solved) -> Iterator[Event]:
    """Each instruction of the schedule that takes a processor or the store."""
    problem, tensors, seen = solved.problem, solved.problem.tensors, set[int]()
    for span in solved.trace.spans:
        action = solved.schedule.actions[span.position]
        arguments: dict[str, Any] = {"instruction": span.position}
        match action:
            case Compute(index, in_place, processor):
                op = problem.operators[index]
                is_again = index in seen
                seen.add(index)
                name, category = f"recompute: {op.name}" if is_again else op.name, op.phase
                cost = op.cost_on(processor)
                arguments |= {
                    "kind": op.kind,
                    "kernel": op.kernel,
                    "recomputed": is_again,
                    "reads": [tensors[t].name for t in op.inputs],
                    "writes": [tensors[t].name for t in op.outputs],
                    "in_place": [tensors[t].name for t, _ in in_place],
                    "workspace_bytes": op.workspace_bytes,
                    "energy_pj": 0 if cost is None else cost[1],
                }
            case PageOut(t) | PageIn(t):
                out = isinstance(action, PageOut)
                name, category = f"{'page out' if out else 'page in'}: {tensors[t].name}", "transfer"
                energy_pj = tensors[t].page_out_pj if out else tensors[t].page_in_pj
                arguments |= {"bytes": tensors[t].size_bytes, "energy_pj": energy_pj}
            case Move(t):
                name, category = f"move: {tensors[t].name}", "move"
                arguments |= {"bytes": tensors[t].size_bytes, "energy_pj": tensors[t].move_pj}
            case _:
                continue
        thread = _STORE[span.lane][0] if span.lane in _STORE else span.lane + 1
        event = {"ph": "X", "name": name, "cat": category, "pid": STEP, "tid": thread, "ts": span.begin_ns / 1e3}
        event |= {"dur": (span.end_ns - span.begin_ns) / 1e3, "args": arguments}
        if arguments.get("recomputed"):
            event["cname"] = "bad"
        yield event


def _counters(solved: Solved) -> Iterator[Event]:
    problem, trace, facts = solved.problem, solved.trace, gather(solved)
    begins = begins_ns(solved)
    spent_pj, spent_at = 0, {span.position: span for span in trace.spans}
    yield _counter("energy, pJ", 0, {"energy": 0})
    for position, (now, memory) in enumerate(zip(begins, facts.memory, strict=True)):
        parts = {str(c.value): n for c, n in zip(Category, memory, strict=True)}
        yield _counter("RAM by category, bytes", now, parts)
        yield _counter("RAM in use, bytes", now, {"in use": trace.ram_bytes[position]})
        for b, bank in enumerate(problem.banks):
            yield _counter(f"bank {bank.name}, bytes", now, {"in use": trace.bank_ram_bytes[position][b]})
        span = spent_at.get(position)
        if span is not None:
            spent_pj += _energy_pj(solved, position)
            yield _counter("energy, pJ", span.end_ns, {"energy": spent_pj})
    yield _counter("energy, pJ", trace.time_ns, {"energy": trace.energy_pj})  # with that of waiting and of banks


def _counter(name: str, now_ns: int, values: dict[str, int]) -> Event:
    return {"ph": "C", "name": name, "pid": STEP, "ts": now_ns / 1e3, "args": values}


def _energy_pj(solved: Solved, position: int) -> int:
    action, tensors = solved.schedule.actions[position], solved.problem.tensors
    match action:
        case Compute(index, _, processor):
            cost = solved.problem.operators[index].cost_on(processor)
            return 0 if cost is None else cost[1]
        case PageOut(t):
            return tensors[t].page_out_pj
        case PageIn(t):
            return tensors[t].page_in_pj
        case Move(t):
            return tensors[t].move_pj
    return 0


def begins_ns(solved: Solved) -> list[int]:
    """When each instruction begins, in nanoseconds; one that takes no time, when those before it are issued."""
    at = {span.position: span.begin_ns for span in solved.trace.spans}
    ends = {span.position: span.end_ns for span in solved.trace.spans}
    begins, now = [], 0
    for position in range(len(solved.schedule.actions)):
        now = max(now, at.get(position, now))
        begins.append(now)
        if position in ends and not (solved.problem.processors or solved.problem.paging == "dma"):
            now = ends[position]
    return begins


def _lives(solved: Solved) -> Iterator[Event]:
    """Each stay of a tensor in RAM, with the way in which it came there."""
    facts, begins = gather(solved), begins_ns(solved)
    ends = [*begins, solved.trace.time_ns]
    for number, stay in enumerate(facts.stays):
        tensor = solved.problem.tensors[stay.tensor]
        common = {
            "cat": facts.categories[stay.tensor].value,
            "id": number,
            "name": tensor.name,
            "pid": TENSORS,
            "tid": 0,
        }
        arguments = {"bytes": tensor.size_bytes, "origin": stay.origin.value, "instructions": [stay.start, stay.end]}
        yield {"ph": "b", **common, "ts": ends[stay.start] / 1e3, "args": arguments}
        yield {"ph": "e", **common, "ts": ends[min(stay.end, len(begins))] / 1e3}
