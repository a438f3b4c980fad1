"""One training step as a snapshot of memory that pytorch.org/memory_viz shows: the format of PyTorch's allocator.

Each bank of RAM, or the arena, is a segment. A place in it that a tensor or a workspace takes for some instructions is
an allocation. Its frames name the tensor, and the operator that makes it.
"""

from __future__ import annotations

import pickle
from typing import Any

from poetc.reporting._solved import Solved
from poetc.reporting.chrome_trace import begins_ns
from poetc.scheduling import Allocation, Compute, PageIn, allocation_banks

SEGMENT_BYTES = 1 << 40  # between the first addresses of two segments


def memory_viz(solved: Solved) -> bytes:
    """The pickle of the snapshot. Times are modelled, in microseconds."""
    plan, problem = solved.plan, solved.problem
    times = [*begins_ns(solved), solved.trace.time_ns]
    banks = allocation_banks(problem, solved.schedule, plan) if problem.banks else (0,) * len(plan.allocations)
    sizes = [use.arena_bytes for use in plan.banks] or [plan.arena_bytes]
    events: list[tuple[int, int, dict[str, Any]]] = []
    for allocation, bank in zip(plan.allocations, banks, strict=True):
        place = {"addr": _address(bank) + allocation.offset_bytes, "size": allocation.size_bytes, "stream": bank}
        frames = _frames(solved, allocation)
        for kind, order, at in (("alloc", 1, allocation.start), ("free_requested", 0, allocation.end)):
            time_us = times[min(at, len(times) - 1)] // 1000
            events.append((at, order, {"action": kind, **place, "time_us": time_us, "frames": frames}))
            if kind == "free_requested":
                done = {"action": "free_completed", **place, "time_us": time_us, "frames": frames}
                events.append((at, order, done))
    events.sort(key=lambda event: event[:2])
    segments = [
        {
            "device": 0,
            "address": _address(bank),
            "total_size": size,
            "allocated_size": 0,
            "active_size": 0,
            "requested_size": 0,
            "stream": bank,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": [
                {"address": _address(bank), "size": size, "requested_size": 0, "state": "inactive", "frames": []}
            ],
        }
        for bank, size in enumerate(sizes)
    ]
    snapshot = {
        "segments": segments,
        "device_traces": [[event for _, _, event in events]],
        "allocator_settings": {},
    }
    return pickle.dumps(snapshot, protocol=4)


def _address(bank: int) -> int:
    return (bank + 1) * SEGMENT_BYTES


def _frames(solved: Solved, allocation: Allocation) -> list[dict[str, Any]]:
    """The tensors that live there, the first one outermost; then the instruction that brings it."""
    problem = solved.problem
    if not allocation.tensors:
        if allocation.operator is None:
            return [_frame("page buffer", "runtime", allocation.start)]
        op = problem.operators[allocation.operator]
        return [_frame(f"workspace of {op.name}", op.phase, allocation.start)]
    names = [_frame(problem.tensors[t].name, "tensor", first) for t, first in allocation.tensors]
    action = solved.schedule.actions[allocation.start] if allocation.start < len(solved.schedule.actions) else None
    first = allocation.tensors[0][0]
    match action:
        case Compute(index) if first in problem.operators[index].outputs:
            op = problem.operators[index]
            names.append(_frame(op.name, op.phase, allocation.start))
        case PageIn(t) if t == first:
            names.append(_frame("page in", "store", allocation.start))
        case _:
            names.append(_frame("there from the start", "state or input", 0))
    return names


def _frame(name: str, where: str, line: int) -> dict[str, Any]:
    return {"name": name, "filename": where, "line": line}
