"""Names of new tensors and nodes."""

from __future__ import annotations

from collections.abc import Container


def free_name(name: str, taken: Container[str]) -> str:
    """`name`, or the first of name.2, name.3, ... that is not taken."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}.{number}"
    return free
