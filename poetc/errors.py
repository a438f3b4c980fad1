"""Errors that a user can act on. Each carries the process exit code that the command line returns for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class PoetcError(Exception):
    """Base of every error that is the user's to mend: one line, no traceback."""

    exit_code = 70

    def __init__(self, message: str, *, details: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.details = dict(details or {})  # Fields that `--json` prints besides the message.


class CheckFailed(PoetcError):
    """A comparison or verification that the user asked for did not hold."""

    exit_code = 1


class UsageError(PoetcError):
    """A wrong option, unit, pattern, file or directory."""

    exit_code = 2


class UnsupportedProblemError(UsageError):
    """The chosen solver cannot handle a problem of this kind (no chain, no store, too many operators); others can."""


class UnsupportedModelError(PoetcError):
    """The model holds operators, types or attributes that poetc does not train. Lists all of them at once."""

    exit_code = 3


class InfeasibleError(PoetcError):
    """No schedule exists for the budget or the deadline; says the smallest that works."""

    exit_code = 4


class LimitError(PoetcError):
    """No schedule was found, and none is proven to be impossible: time is up, or the named solver has no answer."""

    exit_code = 5


def nearest(name: str, known: Iterable[str], otherwise: str = "", *, cutoff: float = 0.6) -> str:
    """`did you mean 'adam'?` where `name` is nearly one of `known`; else `otherwise`, or all that are known."""
    import difflib  # for errors alone

    names = list(known)
    lower = [each.lower() for each in names]
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=cutoff)
    return (
        f"did you mean {names[lower.index(close[0])]!r}?" if close else otherwise or f"choose from {', '.join(names)}"
    )


def printable(text: str) -> str:
    """Names come from files: line breaks and other control characters are shown as escapes (`\\n`, `\\x1b`)."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shortened(value: object, most: int = 24) -> str:
    """`value` as text for a message: of one that is too long, the beginning and the number of characters."""
    try:
        text = printable(str(value))
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= most else f"{text[: most // 2]}... ({len(text):,} characters)"


def format_count(count: int, noun: str, plural: str = "") -> str:
    """`1 tensor`, `1,200 tensors`; `plural` where it is not `noun` with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
