"""`poetc sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from poetc.cli import _options, _solving
from poetc.cli._choices import Value
from poetc.cli._config import config_option
from poetc.cli._console import Console
from poetc.cli._help import command
from poetc.declare import Whole

EPILOG = """\b
Examples:
  poetc sweep model.onnx --batch 16 -d rpi4 -b 30%,50%,70%
  poetc sweep model.onnx -d rpi4 -b 40%,60%,80% --html curve.html
  poetc sweep *.onnx -d stm32f746,nrf52840 -b 128kB -o boards.jsonl -j 4
  poetc sweep *.onnx -d rpi4 -b 50% --scheduler tcp://10.0.0.5:8786
"""


@command(epilog=EPILOG)
@click.argument("models", metavar="MODEL...", type=_options.FILE, nargs=-1, required=True)
@click.option(
    "-d",
    "--device",
    "devices",
    multiple=True,
    default=("host",),
    metavar="NAME|FILE,...",
    callback=_options.split_names,
    shell_complete=_options.complete_device,
    help="Device profiles: rpi4,nrf52840. May be repeated. Default: host.",
)
@_options.budgets_option("Default: the device's RAM.")
@_solving.problem_options
@click.option("-j", "--jobs", type=Value(Whole(1)), metavar="N", help="Number of processes. Default: one a core.")
@click.option(
    "--scheduler",
    metavar="tcp://HOST:PORT",
    help="Address of a Dask scheduler to use instead (pip install '.[cluster]' in the clone).",
)
@click.option(
    "-o",
    "--output",
    "out",
    type=_options.FILE,
    default=Path("sweep.jsonl"),
    show_default=True,
    metavar="FILE",
    help="File of JSON lines, appended as results come in. Points that it holds are not solved again.",
)
@click.option("--html", type=_options.FILE, metavar="FILE", help="Also write a page with a plot of energy over budget.")
@config_option
@_options.output_options
def sweep(
    models: tuple[Path, ...],
    devices: tuple[str, ...],
    budgets: tuple[str, ...],
    jobs: int | None,
    scheduler: str | None,
    out: Path,
    html: Path | None,
    console: Console,
    **options: Any,
) -> None:
    """Solve every MODEL for every device and budget.

    Budgets of one model on one device share their work: ten of them take about as long as three. Those that need
    streamed operands are solved one by one. Interrupt it and run it again: it goes on where it was. The exit code is 0
    where at least one point has a schedule.
    """
    from poetc.cli import _text
    from poetc.commands import sweep as sweeping
    from poetc.devices import format_gap
    from poetc.files import require_writable, write_text

    template = _solving.solve_request(models[0], {**options, "device": devices[0]})
    require_writable(html)
    points = sweeping.make_points(template, models, devices, budgets or (None,))
    with console.progress(f"0 of {len(points)}") as progress:

        def tell(done: int, of: int, result: dict[str, Any]) -> None:
            progress(f"{done} of {of}: {result['model']} on {result['device']}, {result['budget'] or 'all RAM'}")

        results = sweeping.sweep(points, out, jobs=jobs, scheduler=scheduler, on_result=tell)
    from poetc.reporting import sweep as page

    if html is not None:
        write_text(html, page.html(results))
    rows = [
        (
            r["model"],
            r["device"],
            r["budget"] or "all RAM",
            r["status"],
            _text.energy(r.get("energy_pj")),
            "" if r.get("gap") is None else format_gap(r["gap"]),
            _text.size(r.get("peak_bytes")),
            r.get("error") or page.importance_cell(r),
        )
        for r in results
    ]
    last = "importance" if any(r.get("importance") is not None for r in results) else ""
    header = ("model", "device", "budget", "status", "energy", "gap", "peak", last)
    console.answer({"out": str(out), "results": results}, _text.table(header, rows) + f"\n\nwritten to  {out}")
    click.get_current_context().exit(sweeping.exit_code_of(results))
