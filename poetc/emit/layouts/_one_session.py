"""A session of C for languages that cannot hold its structures: functions of plain values around a static one."""

from __future__ import annotations

from poetc.emit._module import Module
from poetc.emit.layouts._texts import text_of


def one_session(module: Module, language: str, word: str) -> str:
    """C: one session and its arena, with functions that take no pointers to them.

    The functions are called PREFIX_`word`_init and so on. `save` without bytes counts them.
    """
    return text_of(
        "one_session.c.in",
        language=language,
        stem=module.stem,
        functions=f"{module.prefix}_{word}",
        arena=module.arena,
        capitals=module.prefix.upper(),
        description=module.description,
    )
