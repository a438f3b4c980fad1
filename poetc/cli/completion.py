"""`poetc completion`, and the parts of completion that click leaves out."""

from __future__ import annotations

import os

import click
from click.shell_completion import BashComplete, add_completion_class, get_completion_class, split_arg_string

from poetc.cli._help import command

# Bash splits words at colons, both in its request and in the part that it replaces: qemu:BOARD comes in three pieces.
BASH = r"""%(complete_func)s() {
    local IFS=$'\n' response completion type value
    local line="${COMP_LINE:0:COMP_POINT}"
    local word="${line##*[[:space:]]}" before=""
    [[ $COMP_WORDBREAKS == *:* && $word == *:* ]] && before="${word%%:*}:"

    response=$(env COMP_LINE="$line" %(complete_var)s=bash_complete $1)

    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"

        if [[ $type == 'dir' ]]; then
            COMPREPLY=()
            compopt -o dirnames
        elif [[ $type == 'file' ]]; then
            COMPREPLY=()
            compopt -o default
        elif [[ $type == 'plain' ]]; then
            COMPREPLY+=("${value#"$before"}")
        fi
    done

    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


@add_completion_class
class Bash(BashComplete):
    source_template = BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one at the cursor, and that one."""
        line = os.environ.get("COMP_LINE")
        if line is None:  # click's own script, from an earlier version
            return super().get_completion_args()
        arguments = split_arg_string(line)[1:]
        begun = arguments.pop() if arguments and not line[-1].isspace() else ""
        return arguments, begun


@command(
    epilog="""\b
Examples:
  in ~/.bashrc    eval "$(poetc completion bash)"
  in ~/.zshrc     eval "$(poetc completion zsh)"   (after compinit)
  once, for fish  poetc completion fish > ~/.config/fish/completions/poetc.fish
""",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete poetc's commands, options and names."""
    completer = get_completion_class(shell)
    if completer is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(completer(context.find_root().command, {}, "poetc", "_POETC_COMPLETE").source())
