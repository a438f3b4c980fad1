"""`poetc profile`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from poetc.cli import _options
from poetc.cli._choices import Value
from poetc.cli._commands import COMMANDS
from poetc.cli._console import Console
from poetc.cli._help import Command
from poetc.declare import Number, Whole
from poetc.errors import format_count


@click.group(invoke_without_command=True, short_help=COMMANDS["profile"])
@click.pass_context
def profile(context: click.Context) -> None:
    """Device profiles: the parts of a board, and the costs on it."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@profile.command("list", cls=Command)
@_options.output_options
def list_(console: Console) -> None:
    """List the devices that poetc knows."""
    from poetc.cli import _text
    from poetc.devices import list_profiles, load_profile

    profiles = [load_profile(name) for name in list_profiles()]
    document = {"profiles": [{"name": p.name, "title": p.title, "ram_bytes": p.ram_bytes} for p in profiles]}
    console.answer(document, _text.profiles_text(document))


@profile.command(cls=Command, epilog="Example:\n\n  poetc profile show stm32f746 > my-board.yaml")
@click.argument("name", metavar="NAME|FILE", shell_complete=_options.complete_device)
@_options.output_options
def show(name: str, console: Console) -> None:
    """Show a whole device as YAML, with everything that it inherits and the source of every number."""
    from poetc.devices import load_profile, profile_to_dict, profile_to_yaml

    device = load_profile(name)
    console.answer(profile_to_dict(device), profile_to_yaml(device, columns=64))


@profile.command(cls=Command, epilog="Example:\n\n  poetc profile check boards/*.yaml")
@click.argument("names", metavar="NAME|FILE...", nargs=-1, required=True, shell_complete=_options.complete_device)
@_options.output_options
def check(names: tuple[str, ...], console: Console) -> None:
    """Check device profiles: the schema, the sources, and whether the numbers are possible. Exit code 1 if not."""
    from poetc.devices import check_profiles

    result = check_profiles(names)
    # With --json the one object is then the error's, which holds the document. Without, no good profile leaves no text.
    if not result.errors or (result.text and not console.as_json):
        console.answer(result.document, result.text)
    result.require()


@profile.command(
    cls=Command, epilog="Example:\n\n  poetc profile new --like nrf52840 --title 'My board' --clock 128 -o mine.yaml"
)
@click.option(
    "--like",
    "inherits",
    metavar="NAME|FILE",
    shell_complete=_options.complete_device,
    help="The closest device. Its numbers stand for those that you do not give.",
)
@click.option("--title", help="Title of the profile, one line.")
@click.option("--core", help="Core, by the name that compilers use: cortex-m4.")
@click.option("--clock", "clock_mhz", type=Value(Number(above=True)), metavar="MHZ", help="Clock of the core.")
@click.option("--ram", metavar="SIZE", help="One piece of RAM that training may use: 256KiB.")
@click.option("--flash", metavar="SIZE", help="Flash for code, tables and weights.")
@click.option(
    "--mac-per-s",
    type=Value(Number(above=True)),
    metavar="RATE",
    help="Multiply-accumulates a second in float. Default: those of --like, scaled by the clock.",
)
@click.option("--active-w", type=Value(Number()), metavar="WATT", help="Power while computing.")
@click.option("--idle-w", type=Value(Number()), metavar="WATT", help="Power while waiting.")
@click.option(
    "--source-kind",
    type=click.Choice(["measured", "datasheet", "published", "derived", "estimated"]),
    default="estimated",
    show_default=True,
    help="Kind of source of the numbers that you give.",
)
@click.option("--source", "source_text", metavar="TEXT", help="The measurement, data sheet or paper.")
@click.option(
    "-o", "--output", "out", type=_options.FILE, metavar="FILE.yaml", required=True, help="File of the profile."
)
@click.option("--force", is_flag=True, help="Replace FILE.yaml where it exists. One that is not valid changes nothing.")
@_options.output_options
def new(out: Path, force: bool, console: Console, **options: Any) -> None:
    """Write a profile of your own board, from the closest one and the differences.

    On a terminal it asks for everything that you do not give.
    """
    from poetc.devices import NewProfile, create_profile, load_profile, parse_size, profile_to_dict

    if sys.stdin.isatty():
        _ask(options)
    if options["inherits"] is None or options["title"] is None:
        raise click.UsageError("--like and --title are needed")
    load_profile(options["inherits"])
    clock_mhz = options.pop("clock_mhz")
    for name in ("ram", "flash"):
        text = options.pop(name)
        options[f"{name}_bytes"] = None if text is None else parse_size(text, option=f"--{name}")
    options["clock_hz"] = None if clock_mhz is None else round(clock_mhz * 1e6)
    profile = create_profile(NewProfile(**{k: v for k, v in options.items() if v is not None}), out, force=force)
    console.answer(profile_to_dict(profile), f"written to  {out}\nuse it with  --device {out}")


def _size(text: str) -> str:
    """A prompt asks again for an answer that is not a size."""
    from poetc.devices import parse_size
    from poetc.errors import UsageError

    try:
        parse_size(text, option="it")
    except UsageError as error:
        raise click.UsageError(str(error)) from None
    return text


def _ask(options: dict[str, Any]) -> None:
    """Ask for the missing values; the base's values are the answers to an empty line."""
    from poetc.devices import list_profiles, load_profile

    if options["inherits"] is None:
        click.echo(f"Known devices: {', '.join(list_profiles())}", err=True)
        options["inherits"] = click.prompt("The closest one", err=True)
    base = load_profile(options["inherits"])
    if options["title"] is None:
        options["title"] = click.prompt("Title", err=True)
    questions: tuple[tuple[str, str, Any], ...] = (
        ("clock_mhz", "Clock in MHz", base.cpu.clock_hz.value / 1e6),
        ("ram", "RAM in one piece", f"{base.ram_bytes}B"),
        ("active_w", "Watts while computing", float(base.power.active_w.value)),
        ("idle_w", "Watts while waiting", float(base.power.idle_w.value)),
    )
    for name, text, default in questions:
        if options[name] is None:
            check = _size if name == "ram" else None
            answer = click.prompt(text, default=default, type=type(default), value_proc=check, err=True)
            options[name] = None if answer == default else answer


def _complete_target(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    del context, parameter
    from poetc.boards import BOARDS

    return [CompletionItem(name) for name in ("host", *BOARDS) if name.startswith(incomplete)]


@profile.command(
    cls=Command,
    epilog="Example:\n\n  poetc profile bench --target host -o host.csv && poetc profile fit host.csv -o my-host.yaml",
)
@click.option(
    "--target",
    default="host",
    show_default=True,
    metavar="host|BOARD",
    shell_complete=_complete_target,
    help="This machine, or an emulated board of `poetc run`, where instructions are counted.",
)
@click.option("--model", "models", multiple=True, type=_options.FILE, metavar="MODEL", help="Measure this model too.")
@_options.batch_option
@_options.dim_options
@click.option("--repeats", type=Value(Whole(1)), default=9, show_default=True, help="Training steps of each network.")
@click.option(
    "--cflags", default="-O3 -march=native", show_default=True, help="Flags for the C compiler of this machine."
)
@click.option("-o", "--output", "out", type=_options.FILE, metavar="FILE.csv", help="File of the measurements.")
@click.option(
    "--emit",
    type=_options.DIRECTORY,
    metavar="DIR",
    help="Write firmware for a real board instead, whose log is the CSV file.",
)
@click.option(
    "--device",
    metavar="NAME|FILE",
    shell_complete=_options.complete_device,
    help="For --emit: device profile of the board.",
)
@click.option("--board", metavar="BOARD", help="For --emit: board with the start-up code and the memory map.")
@_options.force_option
@_options.output_options
def bench(
    target: str,
    models: tuple[Path, ...],
    out: Path | None,
    emit: Path | None,
    device: str | None,
    board: str | None,
    force: bool,
    console: Console,
    **options: Any,
) -> None:
    """Measure every kernel over a sweep of shapes, and the store over a sweep of sizes.

    Firmware that --emit writes (poetc profile bench --emit DIR --device stm32f746) prints a CSV line for each operator.
    It calls `poetc_bench_power_mark`, which you can let drive a pin, around every other one, for a power meter.
    """
    from poetc import benchmark
    from poetc.files import require_writable

    if emit is not None:
        if device is None or out is not None:
            raise click.UsageError("--emit needs --device and takes no -o: the CSV file is the log of its firmware")
        copies, steps = benchmark.emit_bench(device, emit, board=board, force=force)
        console.copies(copies, emit)
        document = {"out": str(emit), "device": device, "steps": steps, "copies": copies}
        console.answer(
            document,
            f"firmware that measures {format_count(steps, 'step')}\nwritten to  {emit}\nbuild it    make -C {emit}",
        )
        return
    if out is None or device is not None or board is not None:
        raise click.UsageError("-o FILE.csv is needed" if out is None else "--device and --board go with --emit")
    require_writable(out)
    with console.progress(f"measuring on {target}") as progress:
        rows = benchmark.bench(target, models, progress=progress, **options)
    benchmark.write_csv(rows, out)
    classes = sorted({row.cost_class for row in rows})
    document = {"out": str(out), "target": target, "measurements": len(rows), "classes": classes}
    console.answer(document, f"{len(rows)} measurements of {len(classes)} classes of operators\nwritten to  {out}")


@profile.command(
    cls=Command, epilog="Example:\n\n  poetc profile fit host.csv --like host --title 'My computer' -o my-host.yaml"
)
@click.argument("files", metavar="[FILE.csv...]", nargs=-1, type=_options.FILE)
@click.option(
    "--like",
    "inherits",
    default="host",
    show_default=True,
    metavar="NAME|FILE",
    shell_complete=_options.complete_device,
    help="Profile for everything that was not measured.",
)
@click.option("--title", default="", help="Title of the profile, one line.")
@click.option(
    "--cycles",
    is_flag=True,
    help="Without measurements: cycles of the kernels' loops on the core of --like, by llvm-mca.",
)
@click.option("--store-only", is_flag=True, help="Fit only the store's numbers; the kernels' are those of --like.")
@click.option(
    "-o", "--output", "out", type=_options.FILE, required=True, metavar="FILE.yaml", help="File of the profile."
)
@_options.output_options
@click.pass_context
def fit(
    context: click.Context,
    files: tuple[Path, ...],
    inherits: str,
    title: str,
    cycles: bool,
    store_only: bool,
    out: Path,
    console: Console,
) -> None:
    """Fit a profile to measurements: the time of a pass of each kernel's loops, by non-negative least squares.

    With --cycles there is nothing to measure: a model of the core's pipeline gives the times, each with its band.

    Of several files the least times count. The error reported is cross-validated: of measurements in networks
    that the fit did not see.
    """
    from poetc import benchmark
    from poetc.files import require_writable

    require_writable(out)
    if cycles:
        if files or store_only:
            raise click.UsageError("--cycles needs no measurements: it takes neither FILE.csv nor --store-only")
        if context.get_parameter_source("inherits") is ParameterSource.DEFAULT:
            raise click.UsageError("--cycles needs --like DEVICE, the board whose core is modelled: --like rpi4")
        notes: list[str] = []
        with console.progress(f"modelling the core of {inherits}") as progress:
            _, classes, source = benchmark.fit_cycles(inherits, out, title=title, progress=progress, note=notes.append)
        console.notes(notes)
        document = {"out": str(out), "model": source, **benchmark.cycles_document(classes)}
        console.answer(document, f"{benchmark.cycles_text(classes)}\n\nmodelled by  {source}\nwritten to   {out}")
        return
    if not files:
        raise click.UsageError("name the files of measurements, or --cycles")
    rows = benchmark.least(benchmark.read_csv(file) for file in files)
    fitted = benchmark.fit(rows)
    source = f"poetc profile bench, {len(rows)} measurements: {', '.join(file.name for file in files)}"
    title = title or f"{inherits}, measured"
    benchmark.write_profile(fitted, inherits, out, title=title, source=source, store_only=store_only)
    document = {"out": str(out), **benchmark.fit_document(fitted)}
    console.answer(document, f"{benchmark.fit_text(fitted)}\n\nwritten to  {out}")
