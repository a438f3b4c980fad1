"""`poetc solvers`."""

from __future__ import annotations

import dataclasses

from poetc.cli import _options
from poetc.cli._console import Console
from poetc.cli._help import command


@command()
@_options.output_options
def solvers(as_json: bool, quiet: bool, verbose: bool) -> None:
    """List the solvers with their abilities."""
    from poetc.cli import _text
    from poetc.solvers import available

    document = {"solvers": [dataclasses.asdict(info) for _, info in sorted(available().items())]}
    Console(as_json=as_json, quiet=quiet, verbose=verbose).answer(document, _text.solvers_text(document))
