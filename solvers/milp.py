"""MILPs for other programs: written to files, and solved by any solver that PuLP finds on this machine.

HiGHS solves everything by itself, through `highspy` (`solvers/highs.py`). `elsewhere` hands each MILP of a solve to
another solver, to a file, or to both. LPs stay with HiGHS: their duals are needed.

PuLP passes on how a run ended and its best solution, but no dual bound. A run that ended with a proof gives its
objective, less the gap that was asked for, as a bound. A run that its time limit ended proves nothing.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pulp

from poetc.errors import PoetcError, UsageError
from poetc.files import require_writable
from poetc.solvers.highs import INFINITY, TOLERANCE, Answer, Mip, handed_to

DIRECT = "highs"
# PuLP's names of the solvers that people know under another one, the best interface first.
NAMES = {
    "cbc": ("COIN_CMD", "PULP_CBC_CMD"),
    "copt": ("COPT", "COPT_CMD"),
    "cplex": ("CPLEX_PY", "CPLEX_CMD"),
    "glpk": ("PYGLPK", "GLPK_CMD"),
    "gurobi": ("GUROBI", "GUROBI_CMD"),
    "mosek": ("MOSEK",),
    "scip": ("SCIP_PY", "SCIP_CMD"),
    "xpress": ("XPRESS_PY", "XPRESS"),
}
FORMATS = (".mps", ".lp")


def available() -> list[str]:
    """The names that `--milp-solver` takes on this machine."""
    there = set(pulp.listSolvers(onlyAvailable=True))
    known = {name for name, interfaces in NAMES.items() if there & set(interfaces)}
    return [DIRECT, *sorted(known)]


def _interface(name: str) -> str:
    """PuLP's name of a solver. Raises UsageError where it is not on this machine."""
    there = pulp.listSolvers(onlyAvailable=True)
    interface = next((n for n in (*NAMES.get(name.lower(), ()), name) if n in there), None)
    if interface is None:
        raise UsageError(f"--milp-solver {name}: PuLP finds no such solver here; it finds {', '.join(available())}")
    return interface


@dataclass(slots=True)
class Handler:
    """Writes and solves each MILP. `count` of them have come."""

    interface: str | None  # PuLP's name of the solver; None: HiGHS
    file: Path | None
    count: int = 0

    def __call__(
        self, mip: Mip, time_limit_s: float, gap: float, threads: int, start: dict[int, float]
    ) -> Answer | None:
        self.count += 1
        if self.file is not None:
            write(mip, numbered(self.file, self.count))
        if self.interface is None:
            return None
        return solve_with(mip, self.interface, time_limit_s, gap, threads, start)


@contextlib.contextmanager
def elsewhere(solver: str = DIRECT, file: str | Path | None = None) -> Iterator[Handler | None]:
    """Hand the MILPs that are solved inside to `solver`, and write them to `file`, the second to FILE-2 and so on.

    Raises UsageError for a solver that is not there and for a file that is neither MPS nor LP, OSError where it
    cannot be written.
    """
    path = None if file is None else Path(file)
    if path is not None and path.suffix not in FORMATS:
        raise UsageError(f"--write-model {path}: its name must end in {' or '.join(FORMATS)}")
    require_writable(path)
    handler = Handler(None if solver.lower() == DIRECT else _interface(solver), path)
    if handler.interface is None and path is None:
        yield None
        return
    with handed_to(handler):
        yield handler


def numbered(file: Path, number: int) -> Path:
    return file if number == 1 else file.with_name(f"{file.stem}-{number}{file.suffix}")


def write(mip: Mip, path: Path) -> None:
    """In the format that the name ends with, by HiGHS. Raises PoetcError."""
    if not mip.write(path):
        raise PoetcError(f"{path}: cannot be written")


def to_pulp(mip: Mip, name: str = "model") -> tuple[pulp.LpProblem, list[Any]]:
    """The same MILP in PuLP, and its variables by column."""
    problem = pulp.LpProblem(name, pulp.LpMinimize)
    variables = []
    for column, (lower, upper, integer) in enumerate(zip(mip.lower, mip.upper, mip.integer, strict=True)):
        low, high = (None if math.isinf(end) else end for end in (lower, upper))
        variables.append(problem.add_variable(f"x{column}", low, high, "Integer" if integer else "Continuous"))
    problem += pulp.LpAffineExpression(list(zip(variables, mip.cost, strict=True)), mip.offset)
    for row, (lower, upper) in enumerate(zip(mip.row_lower, mip.row_upper, strict=True)):
        part = slice(mip.starts[row], mip.starts[row + 1])
        terms = pulp.LpAffineExpression(
            [(variables[i], v) for i, v in zip(mip.index[part], mip.value[part], strict=True)]
        )
        if lower == upper:
            problem += terms == lower
            continue
        if not math.isinf(lower):
            problem += terms >= lower
        if not math.isinf(upper):
            problem += terms <= upper
    return problem, variables


def from_pulp(variables: list[Any], cost: Any, rows: list[Any]) -> Mip:
    """The MILP of PuLP's variables, objective and constraints, with a column for each variable in their order."""
    mip = Mip(offset=float(cost.constant))
    column = {}
    for variable in variables:
        low, high = variable.lowBound, variable.upBound
        column[variable.name] = mip.column(
            float(cost.get(variable, 0.0)),
            -INFINITY if low is None else low,
            INFINITY if high is None else high,
            integer=variable.cat == "Integer",
        )
    for row in rows:
        terms = [(column[v.name], float(c)) for v, c in row.items() if c]
        low, high = row.getLb(), row.getUb()
        mip.row(
            [c for c, _ in terms],
            [v for _, v in terms],
            -INFINITY if low is None else low,
            INFINITY if high is None else high,
        )
    return mip


def solve_with(
    mip: Mip, interface: str, time_limit_s: float, gap: float, threads: int, start: dict[int, float]
) -> Answer:
    """Solve by PuLP's solver of that name. Raises PoetcError where it fails."""
    problem, variables = to_pulp(mip)
    for column, value in start.items():
        variables[column].setInitialValue(value)
    options: dict[str, Any] = {"msg": False, "timeLimit": max(0.1, time_limit_s), "gapRel": gap}
    if interface.endswith("_CMD"):
        options |= {"threads": threads, "warmStart": bool(start)}
    try:
        with warnings.catch_warnings():  # PuLP 4 comes without a CBC of its own
            warnings.simplefilter("ignore", DeprecationWarning)
            problem.solve(pulp.getSolver(interface, **options))
    except (pulp.PulpError, TypeError, OSError) as error:
        raise PoetcError(f"--milp-solver: {interface} failed: {str(error).splitlines()[0]}") from error
    if problem.status == pulp.LpStatusInfeasible:
        return Answer(-INFINITY, INFINITY, None, False, True, 0)
    if problem.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return Answer(-INFINITY, INFINITY, None, False, False, 0)
    values = np.array([variable.value() or 0.0 for variable in variables])
    objective = float(np.dot(values, mip.cost)) + mip.offset
    is_proven = problem.sol_status == pulp.LpSolutionOptimal
    bound = objective - gap * abs(objective) - TOLERANCE if is_proven else -INFINITY
    return Answer(bound, objective, values, is_proven, False, 0)
