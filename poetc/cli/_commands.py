"""The commands by name. The file of a command is loaded when it is asked for, so that `poetc --help` is quick."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, MutableMapping

import click
from click.shell_completion import CompletionItem

BEGAN = "poetc.began"  # in the context: when the command began, by `time.monotonic`

# In the order of docs/reference/cli.md. `import-gguf` is `import_gguf` in the file import_gguf.py.
COMMANDS = {
    "analyze": "Show the needs of training MODEL: memory, operators, smallest budget.",
    "solve": "Find the schedule of least energy under a RAM budget.",
    "bundle": "Solve for several budgets, with switches in mid-step.",
    "train": "Train a model on data, and write it as ONNX.",
    "emit": "Write the C that trains.",
    "run": "Train on an emulated board, measured.",
    "export": "Put trained weights back into the ONNX file.",
    "generate": "Write the text of a language model behind a prompt.",
    "import-gguf": "Make an ONNX file of a language model of llama.cpp.",
    "import-state": "Start from other weights without solving again.",
    "importance": "Measure the worth of training each parameter, on your data.",
    "validate": "Compile, run and compare the emitted C.",
    "report": "Show a schedule and its memory: text, HTML, picture.",
    "lock": "Record a schedule in a lock file that CI checks.",
    "check": "Recompute a lock file; fail when a schedule got worse.",
    "diff": "Tell the changes between two schedules, in words.",
    "sweep": "Solve models x devices x budgets in parallel, resumable.",
    "compare": "Run every solver on the same problem, side by side.",
    "solvers": "List the solvers with their abilities.",
    "profile": "Device profiles: the parts of a board, and the costs on it.",
    "completion": "Print shell completion for bash, zsh, fish.",
}


class _Loading(MutableMapping[str, click.Command]):
    """All names, and the commands that have been asked for."""

    def __init__(self) -> None:
        self._loaded: dict[str, click.Command | None] = dict.fromkeys(COMMANDS)

    def __getitem__(self, name: str) -> click.Command:
        entry = self._loaded[name]
        if entry is None:
            attribute = name.replace("-", "_")
            loaded: click.Command = getattr(importlib.import_module(f"poetc.cli.{attribute}"), attribute)
            self._loaded[name] = entry = loaded
        return entry

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)


class Commands(click.Group):
    """The group of all commands: its own help and the completion of their names load none of them."""

    def __init__(self, name: str | None = None, **settings: object) -> None:
        super().__init__(name, **{**settings, "commands": _Loading()})  # type: ignore[arg-type]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(n, help=text) for n, text in sorted(COMMANDS.items()) if n.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]
