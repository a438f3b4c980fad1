"""`poetc emit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from poetc.cli import _options
from poetc.cli._console import Console
from poetc.cli._help import command
from poetc.errors import nearest
from poetc.training.rates import kinds

TARGETS = _options.file_names("boards/targets", "yaml")
LAYOUTS = tuple(name.replace("_", "-") for name in _options.file_names("emit/layouts", "py"))
OPT_LEVELS = ("-O0", "-O1", "-O2", "-O3", "-Os")

EPILOG = """\b
Example:
  poetc emit model.poetc --target host -o src
  make -C src
  poetc emit model.poetc --target cortex-m3 --board lm3s6965evb -o firmware
  poetc emit model.poetc --target cortex-a --package -o digits
  poetc emit digits.poetc words.poetc --layout arduino -o poetc_models
"""


class _OptLevel(click.Choice[str]):
    """-O2, O2 and 2 are the same level."""

    def convert(self, value: str, parameter: click.Parameter | None, context: click.Context | None) -> str:
        return super().convert(f"-O{value.removeprefix('-').removeprefix('O')}", parameter, context)


class _Target(click.Choice):  # type: ignore[type-arg]
    """A target. A device in its place gets an error of its own."""

    def convert(self, value: str, parameter: click.Parameter | None, context: click.Context | None) -> str:
        from poetc.devices import list_profiles

        if value in list_profiles() and value not in TARGETS:
            self.fail(f"{value} is a device, and a target is one of {', '.join(TARGETS)}", parameter, context)
        if value not in TARGETS:
            self.fail(f"{value!r}: {nearest(value, TARGETS)}", parameter, context)
        return str(super().convert(value, parameter, context))


@command(epilog=EPILOG)
@click.argument("directories", metavar="DIR...", type=_options.DIRECTORY, nargs=-1, required=True)
@click.option(
    "-t",
    "--target",
    type=_Target(TARGETS),
    help="Machine that the C is built for. Default: that of --board, or host; c99 for several models and for layouts "
    "that are libraries alone.",
)
@click.option(
    "-o", "--output-dir", "out", type=_options.DIRECTORY, required=True, metavar="SRC", help="Directory of the C."
)
@click.option(
    "--board",
    metavar="NAME|DIR",
    help="Board whose memory map firmware is linked for (`poetc run --help` lists them), or a folder with board.yaml"
    " and the files of your own board. Default: the target's usual board.",
)
@click.option(
    "--layout",
    type=click.Choice(LAYOUTS),
    default="makefile",
    show_default=True,
    help="Build system of SRC. makefile builds the program by itself, and so does android, with scripts for adb."
    " Others fit into a project of that build system.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="Name that the symbols of a model begin with. Repeat it for each DIR, in order. Default: the model's name.",
)
@click.option(
    "--share-arena",
    is_flag=True,
    help="One arena for all models, as large as the largest. One model trains at a time; save its state before another"
    " begins.",
)
@click.option(
    "--opt-level",
    type=_OptLevel(OPT_LEVELS),
    metavar="LEVEL",
    help="Optimisation of the compiler: -O0, -O1, -O2, -O3 or -Os. Default: the target's, or the project's.",
)
@click.option(
    "--section",
    "sections",
    multiple=True,
    metavar="PART=SECTION",
    help="Linker section of the arena, the constants or the store's first pages, as arena=.axi_sram. May be repeated."
    " Of an arena in banks: dtcm=.dtcm, or dtcm=.dtcm@0x20001000 with its address.",
)
@click.option(
    "--package",
    is_flag=True,
    help="Write a Python package that needs numpy alone, for host and cortex-a. Copy SRC and import it.",
)
@click.option(
    "--fleet",
    is_flag=True,
    help="Firmware that a gateway of a fleet drives over the board's serial line (see poetc.flower.gateway_app).",
)
@_options.force_option
@_options.numerics_option
@_options.checkpoint_option
@click.option(
    "--schedule",
    metavar="SCHEDULE",
    help=f"Learning rate of the program: {', '.join(kind.firmware for kind in kinds()[:-1])} or"
    f" {kinds()[-1].firmware}, each with warmup=N if wanted. Default: as it was solved.",
)
@_options.output_options
def emit(
    directories: tuple[Path, ...],
    target: str | None,
    out: Path,
    opt_level: str | None,
    console: Console,
    **options: Any,
) -> None:
    """Write the C that trains the solved directory DIR to SRC.

    Several DIR make one library, which has the runtime and each kernel once. --layout fits it into a firmware project.

    For cortex-m0 to cortex-m55, generic-m*, generic-r52 and cortex-a-bare that is a firmware project, linked for the
    budget. For cortex-m and c99 (any core: make CC=... AR=... CFLAGS=...) it is a library; for host, cortex-a and
    generic-a* (Linux) a program. SRC holds the instructions, the initial weights, the kernels used, the runtime and a
    Makefile.

    With --package, SRC is a Python package instead: libmodel.so (built if its compiler is here), and a session on numpy
    arrays. The session trains, evaluates, predicts, saves and loads. The machine that imports it needs no poetc.

    The compiler's flags are those of the device's core that was solved for. A target whose code that core does not run
    is refused, unless --board says that another board is meant.

    Where SRC is there already, only its files that poetc wrote and you did not change are replaced.
    """
    from poetc.cli import _text
    from poetc.commands import emit as command

    with console.progress("emitting C") as progress:
        document = command.emit(directories, target, out, progress, opt_level=opt_level or "", **options)
    console.notes(document["notes"])
    console.copies(document["copies"], out)
    console.answer(document, _text.emit_text(document))
