"""`poetc profile`."""

from __future__ import annotations

import click

from poetc.cli import _options
from poetc.cli._console import Console


@click.group(invoke_without_command=True)
@click.pass_context
def profile(context: click.Context) -> None:
    """Device profiles: what a board has, and what things cost on it."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@profile.command("list")
@_options.output_options
def list_(as_json: bool, quiet: bool, verbose: bool) -> None:
    """List the devices that poetc knows."""
    from poetc.cli import _text
    from poetc.devices import list_profiles, load_profile

    profiles = [load_profile(name) for name in list_profiles()]
    document = {"profiles": [{"name": p.name, "title": p.title, "ram_bytes": p.ram_bytes} for p in profiles]}
    Console(as_json=as_json, quiet=quiet, verbose=verbose).answer(document, _text.profiles_text(document))


@profile.command(epilog="Example:\n\n  poetc profile show stm32f746 > my-board.yaml")
@click.argument("name", metavar="NAME|FILE")
@_options.output_options
def show(name: str, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Show a device as YAML, whole: what it inherits included, with the source of every number."""
    from poetc.devices import load_profile, profile_to_dict, profile_to_yaml

    device = load_profile(name)
    console = Console(as_json=as_json, quiet=quiet, verbose=verbose)
    console.answer(profile_to_dict(device), profile_to_yaml(device))
