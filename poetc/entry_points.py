"""Solvers and operators of other distributions: modules that their entry points name."""

from __future__ import annotations

import importlib.metadata
from importlib.metadata import EntryPoint
from types import ModuleType

from poetc.errors import UsageError


def entry_points(group: str) -> list[EntryPoint]:
    """Those of a group, sorted by name."""
    return sorted(importlib.metadata.entry_points(group=group), key=lambda point: point.name)


def load(point: EntryPoint, kind: str) -> ModuleType:
    """The module of an entry point, imported. UsageError names it, and its package, if that fails.

    `kind`: the noun of the group, such as "solver".
    """
    try:
        module: ModuleType = point.load()
    except Exception as error:  # whatever a stranger's module does when it is imported
        package = point.dist.name if point.dist is not None else "a package"
        raise UsageError(
            f"{kind} {point.name!r} of {package}: {point.value} cannot be imported: {error}; mend or uninstall it"
        ) from error
    return module
