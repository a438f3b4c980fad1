"""Modules that declare something when they are imported: poetc's own, and those that entry points of others name."""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import string
from importlib.metadata import EntryPoint
from types import ModuleType

from poetc.errors import UsageError


def own_modules(package: str, prefix: str = "") -> dict[str, ModuleType]:
    """The modules of a package of poetc whose names begin so, imported in their order.

    Those with an underscore are left out, unless `prefix` has one.
    """
    modules = pkgutil.iter_modules(importlib.import_module(package).__path__)
    names = [m.name for m in modules if not m.ispkg and m.name.startswith(prefix or tuple(string.ascii_lowercase))]
    return {name: importlib.import_module(f"{package}.{name}") for name in names}


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
