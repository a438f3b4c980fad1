"""The MILPs of a solve: to another program, to files, or to HiGHS as usual."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from poetc import solvers
from poetc.commands.requests import SolveRequest
from poetc.errors import UsageError, format_count


@contextmanager
def milps(request: SolveRequest) -> Iterator[list[str]]:
    """The solver's MILPs go where the request says; the notes tell how many there were."""
    notes: list[str] = []
    if request.milp_solver == "highs" and request.write_model is None:
        yield notes
        return
    from poetc.solvers import milp  # PuLP takes long to import

    if not solvers.info(request.solver).milp:
        flag = "--write-model" if request.milp_solver == "highs" else "--milp-solver"
        raise UsageError(f"{flag}: --solver {request.solver} solves no MILP")
    with milp.elsewhere(request.milp_solver, request.write_model) as handled:
        yield notes
    if handled is not None:
        where = "" if request.write_model is None else f", written to {request.write_model}"
        where += f" and {handled.count - 1} more files" if where and handled.count > 1 else ""
        how = f"{format_count(handled.count, 'MILP')} solved by {request.milp_solver}"
        notes.append(f"{how}{where}" if handled.count else "the schedule was proven without a MILP")
