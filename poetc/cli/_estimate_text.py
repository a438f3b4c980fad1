"""The costs of a training as text: three budgets side by side, ways to save, and a row for each board."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from poetc.cli._text import duration, energy, enough, fields, percent, size, table
from poetc.errors import format_count

Row = Mapping[str, Any]


def estimate_text(answer: Row) -> str:
    """The answer of `poetc estimate`: budgets, inference, the largest batch, and ways to save."""
    budgets = answer["budgets"]
    header = (f"on {answer['device']}", *(b["name"] for b in budgets))
    rows = [(label, *values) for label, values in _rows(answer, budgets) if any(values)]
    parts = [table(header, rows), fields(_beside(answer))]
    if answer["ways"]:
        parts.append(f"Options that would change this\n{_ways(answer)}")
    return "\n\n".join(parts)


def _rows(answer: Row, budgets: Sequence[Row]) -> Iterator[tuple[str, list[str]]]:
    def of(text: Any) -> list[str]:
        return [text(b) for b in budgets]

    yield "RAM", of(lambda b: enough(b["ram_bytes"]) + ("" if b["fits"] else " (too much)"))
    yield "flash of the firmware", of(lambda b: size(b["flash_bytes"]))
    yield "constants, frozen weights", of(lambda b: size(b["constant_bytes"] or None))
    yield "time of a step", of(lambda b: duration(b["time_ns"]))
    yield "  its band", of(lambda b: _band(b["time_band_ns"], duration))
    yield "  on guesses", of(lambda b: _guessed(b, "time"))
    yield "energy of a step", of(lambda b: energy(b["energy_pj"]))
    yield "  its band", of(lambda b: _band(b["energy_band_pj"], energy))
    yield "  on guesses", of(lambda b: _guessed(b, "energy"))
    yield "recomputed", of(lambda b: f"{b['recomputes']:,}" if b["recomputes"] else "")
    yield "pages out, in", of(lambda b: f"{b['page_outs']:,}, {b['page_ins']:,}" if b["page_ins"] else "")
    steps, epochs = answer["steps_per_epoch"], answer["epochs"]
    if steps is not None:
        yield f"epoch, {format_count(steps, 'step')}", of(lambda b: duration(b["epoch_ns"]))
        if epochs is not None:
            yield f"run, {format_count(epochs, 'epoch')}", of(lambda b: duration(b["run_ns"]))
            yield "  its band", of(lambda b: _band(b["run_band_ns"], duration))
        what = "epoch" if epochs is None else "run"
        yield f"energy of the {what}", of(lambda b: energy(b["run_pj"]))
        yield "  its band", of(lambda b: _band(b["run_band_pj"], energy))
        yield f"written in the {what}", of(lambda b: size(b["run_written_bytes"] or None))
        yield "  of the card's life", of(lambda b: "" if b["run_wear"] is None else _share(b["run_wear"]))
        yield f"{what} of the battery", of(lambda b: _share(b["run_of_battery"]))
    yield "steps of a battery", of(lambda b: _count(b["steps_per_battery"]))


def _beside(answer: Row) -> Iterator[tuple[str, str]]:
    ratio = answer["training_to_inference"]
    yield "RAM of the device", size(answer["ram_bytes"])
    yield "inference peak", f"{size(answer['inference_peak_bytes'])}  (keep-all training takes {ratio:.2f}x)"
    tight = [b["name"] for b in answer["budgets"] if b["ram_bytes"] < answer["inference_peak_bytes"]]
    if tight:
        names = " and ".join(f"{name!r}" for name in tight)
        yield "predictions", f"take more than {names} with all kept: poetc solve says whether a schedule of them fits"
    batch = answer["largest_batch"]
    if batch is not None:
        bound = (
            f"none above {batch['bound']:,} fits without streams" if batch["bound"] < batch["most"] else "any may fit"
        )
        kept = f"{'' if batch['is_largest'] else 'at least '}{batch['keep_all']:,} with all kept"
        yield "largest batch", f"{kept}; {bound}; --largest-batch searches between them"


def _ways(answer: Row) -> str:
    keep = answer["budgets"][-1]
    ways = [way for way in answer["ways"] if not way["refused"]]
    as_it_is = {
        "least_bytes": answer["budgets"][0]["ram_bytes"],
        "least_whole_bytes": answer["least_without_streams_bytes"],
        **{key: keep[key] for key in ("time_ns", "energy_pj")},
        "keep_all_peak_bytes": keep["ram_bytes"],
    }
    streams = any(way["least_bytes"] != way["least_whole_bytes"] for way in (as_it_is, *ways))
    columns = [
        ("least_bytes", "least RAM", enough),
        *([("least_whole_bytes", "without streams", enough)] if streams else []),
        ("keep_all_peak_bytes", "keep-all RAM", enough),
        ("time_ns", "time once", duration),
        ("energy_pj", "energy once", energy),
    ]
    rows = [("as it is", *(show(as_it_is[key]) for key, _, show in columns))]
    for way in ways:
        shown = (f"{show(way[key])} {_change(way[key], as_it_is[key])}" for key, _, show in columns)
        rows.append((way["options"], *shown))
    text = table(("option", *(title for _, title, _ in columns)), rows)
    refused = [(way["options"], way["refused"]) for way in answer["ways"] if way["refused"]]
    return text if not refused else f"{text}\n\n{fields((f'not {options}', why) for options, why in refused)}"


def boards_text(answer: Row) -> str:
    """Boards that the training fits first, by the energy of a step."""
    steps, epochs = answer["steps_per_epoch"], answer["epochs"]
    run = () if steps is None else ("epoch" if epochs is None else format_count(epochs, "epoch"), "energy")
    charge = () if answer["battery_pj"] is None else ("steps of a battery",)
    header = ("device", "fits", "RAM", "least", "keep-all", "step", "energy", *run, *charge)
    rows = []
    for b in answer["boards"]:
        of_run = (duration(b["run_ns"]) or "-", energy(b["run_pj"]) or "-") if run else ()
        of_charge = (_count(b["steps_per_battery"]) or "-",) if charge else ()
        fits = b["schedule"] if b["fits"] else f"no: {b['schedule']}"
        ram = (size(b["ram_bytes"]), enough(b["least_bytes"]), enough(b["keep_all_peak_bytes"]))
        cost = (duration(b["time_ns"]) or "-", energy(b["energy_pj"]) or "-")
        rows.append((b["device"], fits, *ram, *cost, *of_run, *of_charge))
    return table(header, rows)


def _band(ends: Sequence[int] | None, show: Any) -> str:
    return "" if ends is None or ends[0] == ends[1] else f"{show(ends[0])} to {show(ends[1])}"


def _guessed(budget: Row, what: str) -> str:
    guesses = budget["guesses"]
    return percent(guesses[what]) if guesses and guesses[what] else ""


def _share(part: float | None) -> str:
    return "" if part is None else f"{100 * part:.3g} %"


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _change(value: int, base: int) -> str:
    percents = round(100 * (value - base) / base) if base else 0
    return f"({percents:+} %)" if percents else ""
