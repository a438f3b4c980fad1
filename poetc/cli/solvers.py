"""`poetc solvers`."""

from __future__ import annotations

import dataclasses

from poetc.cli import _options
from poetc.cli._console import Console
from poetc.cli._help import command


@command()
@_options.output_options
def solvers(console: Console) -> None:
    """List the solvers with their abilities."""
    from poetc.cli import _text
    from poetc.solvers import available

    document = {"solvers": [dataclasses.asdict(info) for _, info in sorted(available().items())]}
    console.answer(document, _text.solvers_text(document))
