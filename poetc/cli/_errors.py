"""From an exception to one line on stderr and an exit code."""

from __future__ import annotations

import errno
import json
import os
import resource
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import click

from poetc.errors import InfeasibleError, LimitError, PoetcError, UsageError, printable
from poetc.files import finite

INTERNAL = 70
INTERRUPTED = 130
BROKEN_PIPE = 141

_STATUS = {InfeasibleError.exit_code: {"status": "infeasible"}, LimitError.exit_code: {"status": "limit"}}


def exit_code_of(error: BaseException, arguments: Sequence[str]) -> int:
    """Report `error` and return the exit code that stands for it. `arguments` are the command line's."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 0
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        # The reader of a pipe has gone (`| head`). Python would complain again while it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    if "--debug" in arguments:
        traceback.print_exception(error)
    code, message = describe(error)
    if "--json" in arguments and code != INTERRUPTED:
        details = error.details if isinstance(error, PoetcError) else {}
        document = {**_STATUS.get(code, {}), **details, "error": message, "exit_code": code}
        try:
            click.echo(json.dumps(finite(document), allow_nan=False))
        except OSError as full:
            code, message = describe(full)
    elif isinstance(error, PoetcError) and "--quiet" not in arguments and (ways := _ways(error.details)):
        click.echo(f"{ways}\n", err=True)
    label = "interrupted" if code == INTERRUPTED else f"error: {message}"
    click.echo(f"poetc: {label}", err=True)
    return code


def _ways(details: Mapping[str, Any]) -> str:
    """The table of options that change a training which does not fit; "" without any."""
    if not details.get("ways"):
        return ""
    from poetc.cli._text import enough, size, table

    budget, rows = details["budget_bytes"], [("as it is", "no", enough(details["min_budget_bytes"]), "")]
    for way in details["ways"]:
        least = way["least_bytes"]
        if way["refused"] is None and least is not None:
            fits = "yes" if least <= budget else "no"
            rows.append((way["options"], fits, enough(least), size(way["keep_all_peak_bytes"])))
    return table(("option", f"fits in {size(budget)}", "least RAM", "keep-all RAM"), rows) if len(rows) > 1 else ""


def describe(error: BaseException) -> tuple[int, str]:
    """Exit code and message, in one line."""
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return INTERRUPTED, "interrupted"
    if isinstance(error, PoetcError):
        return error.exit_code, one_line(str(error))
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx is not None else "poetc"
        return UsageError.exit_code, one_line(f"{error.format_message().rstrip('.')} (see {command} --help)")
    if isinstance(error, click.ClickException):
        return UsageError.exit_code, one_line(error.format_message())
    if isinstance(error, OSError):
        return UsageError.exit_code, one_line(_os_error(error))
    if isinstance(error, MemoryError):
        return INTERNAL, _no_memory()
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return INTERNAL, f"internal error ({one_line(what)[:200]}); run again with --debug for the traceback and report it"


def _no_memory() -> str:
    """The limit of the process is named where it has one, since another --batch seldom helps then."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        return f"no more memory: this process may take {limit:,} bytes (ulimit -v); raise it, or try a smaller --batch"
    return "this machine has not enough memory for it; try a smaller --batch"


def one_line(text: str) -> str:
    """`text` without line breaks: indented lines become a list after the first one."""
    joined = "; ".join(part for part in (line.strip().rstrip(";") for line in text.splitlines()) if part)
    return printable(joined.replace(":;", ":"))


def _os_error(error: OSError) -> str:
    path = next((os.fspath(p) for p in (error.filename2, error.filename) if isinstance(p, str | os.PathLike)), "")
    where = f"{path}: " if path else ""
    if error.errno == errno.ENOSPC:
        return f"{where}no space left on the disk; free some, or write elsewhere"
    if error.errno == errno.EFBIG:
        return f"{where}a file grew beyond the limit of this system; raise it with ulimit -f, or write elsewhere"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{where}{(error.strerror or 'permission denied').lower()}; choose a place that you may use"
    if error.errno == errno.ENOENT and path.startswith("/proc/"):  # making a file there fails so, too
        return f"{where}there is no such file, and none can be made in /proc; choose another place"
    return f"{where}{(error.strerror or str(error)).lower()}"
