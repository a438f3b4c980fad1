"""`poetc completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(
    short_help="Shell completion for bash, zsh, fish.",
    epilog='Example, in ~/.bashrc:\n\n  eval "$(poetc completion bash)"',
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes SHELL complete poetc's commands, options and names."""
    completer = get_completion_class(shell)
    if completer is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(completer(context.find_root().command, {}, "poetc", "_POETC_COMPLETE").source())
