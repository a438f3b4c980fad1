"""The registry finds the solvers and runs one. Nothing has to be registered by hand.

A solver is a module of `FOLDERS` without a leading underscore that has an `INFO`, or an entry point "poetc.solvers" of
another distribution.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
from dataclasses import replace
from types import ModuleType

from poetc.entry_points import entry_points, load
from poetc.errors import UnsupportedProblemError, UsageError, nearest
from poetc.scheduling import Problem, Schedule, SolveOptions, verify
from poetc.solvers.grouping import LEVELS, Grouped, Groups, layers
from poetc.solvers.interface import ENGINE_NAME, Progress, SolverInfo
from poetc.solvers.overlap import as_energy, prices_waiting, with_waiting

ENTRY_POINTS = "poetc.solvers"
FOLDERS = ("poetc.solvers", "poetc.solvers.published")  # a file that is dropped into either is found


def _if_solver(module: ModuleType) -> ModuleType | None:
    return module if isinstance(getattr(module, "INFO", None), SolverInfo) else None


@functools.cache
def _modules() -> dict[str, ModuleType]:
    modules: dict[str, ModuleType] = {}
    for folder in FOLDERS:
        for file in pkgutil.iter_modules(importlib.import_module(folder).__path__):
            if not file.name.startswith("_"):
                module = _if_solver(importlib.import_module(f"{folder}.{file.name}"))
                if module is not None:
                    modules.setdefault(file.name, module)
    for point in entry_points(ENTRY_POINTS):
        module = None if point.name in modules else _if_solver(load(point, "solver"))
        if module is not None:
            modules[point.name] = module
    return dict(sorted(modules.items()))


def _module(name: str) -> ModuleType | None:
    """The solver of this name. Others are not imported: that takes longer than solving a small problem."""
    if name.isidentifier() and not name.startswith("_"):
        for folder in FOLDERS:
            if importlib.util.find_spec(f"{folder}.{name}"):
                module = _if_solver(importlib.import_module(f"{folder}.{name}"))
                if module is not None:
                    return module
    return _modules().get(name)


def available() -> dict[str, SolverInfo]:
    """The descriptions of all solvers, sorted by name. A solver of another package has the name of its entry point."""
    return {name: replace(module.INFO, name=name) for name, module in _modules().items()}


def info(solver: str) -> SolverInfo:
    """The description of one solver. Raises UsageError."""
    return _known(solver).INFO  # type: ignore[no-any-return]


def _known(solver: str) -> ModuleType:
    module = _module(solver)
    if module is None:
        raise UsageError(f"unknown solver {solver!r}: {nearest(solver, _modules())}")
    return module


def solve(
    problem: Problem, solver: str = ENGINE_NAME, options: SolveOptions | None = None, progress: Progress | None = None
) -> Schedule:
    """Run a solver, check its schedule, and return it.

    Raises UsageError (unknown solver), InfeasibleError, LimitError. A ScheduleError is a defect of the solver.
    """
    if problem.banks:
        names = ", ".join(b.name for b in problem.banks)
        raise UnsupportedProblemError(
            f"{problem.name} has several banks of RAM ({names}): only poetc solve takes those"
        )
    if prices_waiting(problem):  # no solver counts waiting itself
        plain = replace(as_energy(problem), idle_uw=0)
        waiting = with_waiting(problem, solve(plain, solver, options, progress))
        verify(problem, waiting)
        return waiting
    module, options = _known(solver), options or SolveOptions()
    groups = _groups(problem, module.INFO, options)
    schedule: Schedule
    if groups is None:
        schedule = module.solve(problem, options, progress)
    else:
        grouped = Grouped(problem, groups)
        schedule = grouped.expanded(module.solve(grouped.problem, options, progress))
    verify(problem, schedule)
    return schedule


def _groups(problem: Problem, about: SolverInfo, options: SolveOptions) -> Groups | None:
    """The layers that the solver is given in place of operators, the finest that it takes; None for operators."""
    most = about.most_operators
    fits = not most or len(problem.operators) <= most
    if options.group == "none" or (options.group == "auto" and (fits or problem.processors)):
        return None
    if about.name == ENGINE_NAME or problem.processors:
        reason = "is for published methods" if about.name == ENGINE_NAME else "is for one processor"
        raise UnsupportedProblemError(f"--group layer {reason}")
    levels = [layers(problem, level) for level in LEVELS]
    return next((groups for groups in levels if not most or len(groups) <= most), levels[-1])
