"""`poetc validate`."""

from __future__ import annotations

from pathlib import Path

import click

from poetc.cli import _options
from poetc.cli._choices import Value
from poetc.cli._console import Console
from poetc.cli._help import command
from poetc.declare import Whole

EPILOG = """\b
Example:
  poetc validate model.poetc --reference step.npz
  poetc validate model.poetc --timing
  poetc validate model.bundle --switch all
"""


@command(epilog=EPILOG)
@click.argument("directory", metavar="DIR", type=_options.DIRECTORY)
@click.option(
    "--reference",
    type=_options.FILE,
    metavar="REF.npz",
    help="File with loss, gradients and statistics of one training step, to compare with (docs/reference/formats.md).",
)
@_options.compared_steps_option
@click.option(
    "--switch",
    type=Value(Whole(1, word="all")),
    metavar="all|N",
    help="Of a bundle, also take all switches and make 10,000 random requests, or N of each. Compares bits, peaks.",
)
@click.option("--timing", is_flag=True, help="Also time every operator here, beside the profile's prediction.")
@_options.output_options
def validate(
    directory: Path,
    reference: Path | None,
    steps: int,
    switch: int | str | None,
    timing: bool,
    console: Console,
) -> None:
    """Compile the C of DIR for this machine, run training steps, and compare.

    All steps are compared with keep-all bit by bit. The first one is compared with the numpy interpreter, and with a
    reference if one is given. The measured peak is compared with the predicted one. The exit code is 1 when a
    comparison fails. Of a large model one step is enough: `--steps 1`.
    """
    from poetc import artifact, benchmark
    from poetc.cli import _text
    from poetc.commands import validate as command

    with console.progress("reading the schedule") as progress:
        result = command.validate(directory, reference, progress, steps=steps)
        taken = None
        if switch is not None:
            taken = command.validate_switches(directory, None if switch == "all" else int(switch), progress)
        times = None
        if timing:
            progress("timing")
            times = benchmark.time_solved(artifact.read(directory))
    if not (console.as_json and result.problems):  # then the one object is the error's, which holds the document
        text = _text.validate_text(result.document)
        if taken is not None:
            text += f"\n\n{_text.switches_text(taken.document)}"
        if times is not None:
            text += f"\n\n{benchmark.timing_text(times)}"
        switches = {} if taken is None else {"switches": taken.document}
        console.answer(
            {**result.document, **switches, **({"timing": times.to_json()} if times is not None else {})}, text
        )
    result.require()
    if taken is not None:
        taken.require()
