"""The reader of POET's own problems, one JSON each ("format": "poet-instance/1"): graph and costs as POET builds them.

Nodes carry runtime (s), energy (J), output bytes, and page costs (J, s); every node makes one tensor. The Problem that
comes out counts as that MILP does: only outputs occupy RAM and paging takes no time. Every solution of POET's MILP
becomes a schedule of this Problem with the same energy and no more RAM. Its page-in, usable from stage t + 1, happens
at the end of stage t, when only tensors of stage t + 1 are resident. Its page-out happens at the start of its stage.
The converse does not hold: a page-in here may wait until right before its reader. So the optimum here is at most
POET's, and a lower bound here is one for POET's too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from poetc.errors import UsageError
from poetc.scheduling import OperatorSpec, Paging, Problem, TensorSpec

_PICO = 10**12
_NANO = 10**9


def load_poet_instance(path: str | Path, *, budget: float | int, deadline: float | None = 1.5) -> Problem:
    """The problem in a file.

    `budget`: bytes (int), or a fraction of the keep-until-last-use peak (float). `deadline`: in times compute-once.

    Raises UsageError if the file is not such an instance.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as a POET instance: {error}") from error
    if not isinstance(data, dict) or data.get("format") != "poet-instance/1":
        raise UsageError(f"{path}: not a POET instance (no format poet-instance/1)")
    nodes: list[dict[str, Any]] = data["nodes"]
    inputs: list[list[int]] = [[] for _ in nodes]
    for source, target in data["edges"]:
        if source not in inputs[target]:
            inputs[target].append(source)
    tensors = tuple(
        TensorSpec(
            name=node["name"],
            size_bytes=int(node["mem_bytes"]),
            page_in_pj=round(node["page_in_j"] * _PICO),
            page_out_pj=round(node["page_out_j"] * _PICO),
        )
        for node in nodes
    )
    operators = tuple(
        OperatorSpec(
            name=node["name"],
            kind=node["kind"],
            phase="backward" if node["backward"] else "forward",
            inputs=tuple(sorted(inputs[k])),
            outputs=(k,),
            time_ns=round(node["runtime_s"] * _NANO),
            energy_pj=round(node["energy_j"] * _PICO),
        )
        for k, node in enumerate(nodes)
    )
    budget_bytes = budget if isinstance(budget, int) else int(budget * data["totals"]["resident_peak_bytes"])
    once = sum(o.time_ns for o in operators)
    return Problem(
        name=f"{data['model']}_{data['platform']}",
        operators=operators,
        tensors=tensors,
        budget_bytes=budget_bytes,
        deadline_ns=None if deadline is None else int(deadline * once),
        paging=Paging.SYNC,
        alignment_bytes=1,
        device=str(data["platform"]),
    )
