"""The command line: one file a command, no logic."""

import click


@click.group()
def main() -> None:
    """Compile the training of a neural network for a small board."""
