"""Reports of long work while it runs."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]  # one line about the present stage


def silent(message: str) -> None:
    """A Progress that says nothing."""
    del message
