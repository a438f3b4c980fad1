"""Finds the solvers and runs one: every module of this package without a leading underscore, and the entry points
"poetc.solvers" of other distributions. Nothing has to be registered by hand."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import pkgutil
from types import ModuleType

from poetc.errors import UsageError
from poetc.scheduling import Problem, Schedule, SolveOptions, verify
from poetc.solvers._types import Progress, SolverInfo

ENTRY_POINTS = "poetc.solvers"


@functools.cache
def _modules() -> dict[str, ModuleType]:
    package = importlib.import_module("poetc.solvers")
    found: dict[str, ModuleType] = {}
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            found[module.name] = importlib.import_module(f"poetc.solvers.{module.name}")
    for point in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda p: p.name):
        found.setdefault(point.name, point.load())
    return {name: found[name] for name in sorted(found) if isinstance(getattr(found[name], "INFO", None), SolverInfo)}


def _module(name: str) -> ModuleType | None:
    """The solver of this name; the others are not imported for it, which takes longer than solving a small problem."""
    if name.isidentifier() and not name.startswith("_") and importlib.util.find_spec(f"poetc.solvers.{name}"):
        module = importlib.import_module(f"poetc.solvers.{name}")
        if isinstance(getattr(module, "INFO", None), SolverInfo):
            return module
    return _modules().get(name)


def available() -> dict[str, SolverInfo]:
    """Name -> description, sorted by name."""
    return {name: module.INFO for name, module in _modules().items()}


def solve(
    problem: Problem, solver: str = "poetc", options: SolveOptions | None = None, progress: Progress | None = None
) -> Schedule:
    """Run a solver and check what it returns before handing it out.

    Raises UsageError (unknown solver), InfeasibleError, LimitError; ScheduleError would be a defect of the solver.
    """
    module = _module(solver)
    if module is None:
        raise UsageError(f"unknown solver {solver!r}; there are {', '.join(_modules())}")
    schedule: Schedule = module.solve(problem, options or SolveOptions(), progress)
    verify(problem, schedule)
    return schedule
