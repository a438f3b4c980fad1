"""Answers as text: aligned label and value, tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from poetc.cli._wrapping import LEAST_COLUMNS, columns_of, hanging
from poetc.devices import format_bytes, format_enough, format_gap, format_ns, format_pj
from poetc.errors import format_count, printable

COLUMNS = 80  # of a terminal
ILL_CONDITIONED = 1e-2  # such a change of gradients by last bits leaves little to compare


def fields(rows: Iterable[tuple[str, str]]) -> str:
    """Two columns; on a terminal a long value goes on under where it began."""
    pairs = [(label, printable(value)) for label, value in rows if value]
    width = max((len(label) for label, _ in pairs), default=0)
    return "\n".join(f"{label:<{width}}  {_hanging(value, width + 2)}" for label, value in pairs)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns under a header.

    On a terminal the last column is wrapped, and names in the first one are shortened where the others leave no room.
    """
    from poetc.reporting import shorten

    lines = [tuple(map(printable, line)) for line in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header) - 1)]
    last = min(max(len(line[-1]) for line in lines), LEAST_COLUMNS)
    excess = sum(widths) + 2 * len(widths) + last - (terminal_columns() or sys.maxsize)
    if excess > 0:
        widths[0] = max(widths[0] - excess, LEAST_COLUMNS)
        lines = [(shorten(line[0], widths[0]), *line[1:]) for line in lines]
    indent = sum(widths) + 2 * len(widths)
    begins = ("".join(f"{cell:<{width}}  " for cell, width in zip(line, widths, strict=False)) for line in lines)
    return "\n".join((begin + _hanging(line[-1], indent)).rstrip() for begin, line in zip(begins, lines, strict=True))


def paragraph(text: str, indent: int = 0, first: int = 0) -> str:
    """Wrapped on a terminal: indented by `first`, in further lines by `indent`."""
    return " " * first + _hanging(printable(text), indent, first)


def terminal_columns() -> int | None:
    """The width of the terminal that gets the answers; None where they go to a file or a program."""
    return columns_of(sys.stdout)


def _hanging(text: str, indent: int, first: int | None = None) -> str:
    return hanging(text, terminal_columns(), indent, first)


def size(value: int | None) -> str:
    return "" if value is None else format_bytes(value)


def enough(value: int | None) -> str:
    """A budget that suffices."""
    return "" if value is None else format_enough(value)


def duration(value: int | None) -> str:
    return "" if value is None else format_ns(value)


def energy(value: int | None) -> str:
    return "" if value is None else format_pj(value)


def percent(value: float) -> str:
    return f"{value:.2%}"


def share(part: int | None, whole: int | None) -> str:
    """`part` as a size, with its share of `whole`."""
    from poetc.reporting import of_keep_all

    return size(part) + (f"  ({of_keep_all(part, whole)})" if part is not None and whole else "")


def enough_share(part: int | None, whole: int | None) -> str:
    """A budget that suffices, with its share of `whole`: rounded up both."""
    from poetc.reporting import enough_of_keep_all

    return enough(part) + (f"  ({enough_of_keep_all(part, whole)})" if part is not None and whole else "")


def _bound(summary: Mapping[str, Any]) -> str:
    bound_ns = round(summary["time_ns"] * (1 - summary["gap"]))
    return energy(summary["energy_bound_pj"]) if summary["objective"] == "energy" else duration(bound_ns)


def solve_text(summary: Mapping[str, Any]) -> str:
    """The answer of `poetc solve` on the terminal: cost, RAM, time, proof, and the choices of the planner."""
    from poetc.reporting import band_rows, guesses, recomputed_of, rounded_up, status_words
    from poetc.scheduling.scope import names_everything

    keep_all = summary["keep_all_peak_bytes"]
    up = rounded_up(*(summary[f"{size}_bytes"] for size in ("min_budget", "budget", "peak", "ram")))

    def ram(size_bytes: int) -> str:
        return (enough_share if size_bytes in up else share)(size_bytes, keep_all)

    limit = summary["deadline_ns"]
    bound = summary["gap"], summary["asked_gap"]
    claimed = status_words(
        summary["status"],
        *bound,
        summary["one_core_of"],
        summary.get("stopped_by"),
        least=_bound(summary),
        is_everything=names_everything(summary["scope"]),
    )
    recomputed = recomputed_of(summary["recomputed_operators"], summary["recomputes"], summary["operators"])
    return fields(
        (
            ("status", claimed),
            ("solved by", f"{summary['solver']}, {summary['solve_seconds']:.1f} s"),
            ("budget", ram(summary["budget_bytes"])),
            ("peak", ram(summary["peak_bytes"])),
            ("packed arena", size(summary["arena_bytes"])),
            *(
                (f"bank {b['name']}", f"{size(b['peak_bytes'])} of {size(b['budget_bytes'])}")
                for b in summary.get("banks", ())
            ),
            ("keep-all peak", size(keep_all)),
            ("smallest budget found", _smallest(summary)),
            ("energy", f"{energy(summary['energy_pj'])}  (computing once: {energy(summary['compute_once_pj'])})"),
            ("proven bound", f"{_bound(summary)}"),
            ("gap on overhead", gap_on_overhead(summary)),
            ("proven for", summary["schedule_class"] or ""),
            ("waiting for the store", duration(summary["stall_ns"] or None)),
            ("time", duration(summary["time_ns"]) + (f"  (deadline {duration(limit)})" if limit is not None else "")),
            ("longest piece", piece(summary)),
            ("recomputed", recomputed),
            ("streamed operands", _streamed(summary)),
            ("page transfers", f"{summary['page_outs']} out, {summary['page_ins']} in"),
            ("moved within RAM", _moved(summary)),
            ("micro-batches", str(summary["micro_batches"]) if summary["micro_batches"] != 1 else ""),
            ("written", _written(summary)),
            ("flash", _flash(summary)),
            ("rests on guesses", guesses(summary)),
            *((f"if {label}", text) for label, text in band_rows(summary)),
            ("written to", str(summary["out"] or "")),
        )
    )


def piece(summary: Mapping[str, Any]) -> str:
    """The piece of a step that cannot be interrupted for the longest time."""
    from poetc.planning.pieces import Piece

    longest, limit = Piece(**summary["longest_piece"]), summary.get("longest_piece_limit_ns")
    whole = f"{duration(longest.time_ns)}: {longest.in_words(longest.name)}"
    return whole + (f"  (limit {duration(limit)})" if limit is not None else "")


def gap_on_overhead(summary: Mapping[str, Any]) -> str:
    """Nothing where the schedule costs no more than computing once, and the bound is lower still."""
    gap = summary["overhead_gap"]
    return format_gap(gap) if gap or not summary["gap"] else ""


def _streamed(summary: Mapping[str, Any]) -> str:
    count = summary["streamed_operators"]
    ahead = summary["overlapping_operators"]
    overlap = f", {ahead:,} with transfers beside their kernels" if ahead else ""
    return f"of {count:,} of {format_count(summary['operators'], 'operator')}{overlap}" if count else ""


def _smallest(summary: Mapping[str, Any]) -> str:
    """The smallest budget that was found, if there was time to look for one."""
    if not summary.get("min_budget_searched", True):
        return "not searched for lack of time"
    return enough(summary["min_budget_bytes"]) + _whole(summary)


def _whole(summary: Mapping[str, Any]) -> str:
    """The smaller budget that does with streamed operands, or the reservation that one may."""
    if summary.get("streamed_min_budget_bytes") is not None:
        return f"  ({enough(summary['streamed_min_budget_bytes'])} with streamed operands)"
    return "  (streamed operands may need less)" if summary["may_stream"] and not summary["streamed_operators"] else ""


def _moved(summary: Mapping[str, Any]) -> str:
    if not summary["moves"]:
        return ""
    costs = f"{energy(summary['move_pj'])} and {duration(summary['move_ns'])} of the totals"
    return f"{format_count(summary['moves'], 'time')}, {size(summary['moved_bytes'])}, {costs}"


def _flash(summary: Mapping[str, Any]) -> str:
    """The predicted size of firmware."""
    if summary.get("flash_bytes") is None:
        return ""
    code, tables, image = (size(summary[f"flash_{part}_bytes"]) for part in ("code", "tables", "image"))
    parts = f"code {code}, tables {tables}, weights {image}"
    return f"{size(summary['flash_bytes'])}  ({parts}; as firmware for {summary['firmware_board']})"


def _written(summary: Mapping[str, Any]) -> str:
    from poetc.reporting import written

    bytes_a_step = summary["store_written_bytes"]
    return written(summary, bytes_a_step, summary["store_write_limit_bytes"]) if bytes_a_step else ""


def validate_text(result: Mapping[str, Any]) -> str:
    """The results of a validation."""

    def error(key: str) -> str:
        return "" if result.get(key) is None else f"{result[key]:.2e}"

    identical = result.get("bit_identical_to_keep_all")
    peak = size(result.get("peak_predicted_bytes"))
    return fields(
        (
            ("loss, relative error", error("loss_rel_error")),
            ("gradients, largest error", error("max_grad_rel_error")),
            ("by last bits of inputs", _ill_conditioned(result)),
            ("by last bits of probabilities near 1", error("probability_rel_error")),
            ("processors", str(result["processors"]) if result.get("processors", 1) > 1 else ""),
            ("same bits as keep-all", "" if identical is None else _same_bits(identical, result.get("steps"))),
            ("peak, predicted", f"{peak}  (up to the highest byte of the arena)" if peak else ""),
            ("peak, measured", size(result.get("peak_measured_bytes"))),
            *((f"error by --saved, {e['name']}", f"{e['rel_error']:.2e}") for e in result.get("saved_errors", ())),
        )
    )


def _same_bits(identical: bool, steps: int | None) -> str:
    answer = "yes" if identical else "NO"
    return answer if steps is None else f"{answer}, in {format_count(steps, 'step')}"


def _ill_conditioned(result: Mapping[str, Any]) -> str:
    """Why an error above the tolerance may be rounding alone."""
    change = result.get("last_bits_grad_rel_error", 0.0)
    if not change:
        return ""
    few = "" if change < ILL_CONDITIONED else "; a larger --batch tells more"
    return f"{change:.2e}: another last bit of the inputs changes gradients so much{few}"


def switches_text(result: Mapping[str, Any]) -> str:
    """The switches of a bundle that were taken."""
    return fields(
        (
            ("switches", f"{result['switches']:,} between {format_count(result['plans'], 'plan')}"),
            ("taken", f"{result['tried']:,}, and {result['requests']:,} random requests"),
            ("ways of adding up the batch", str(result["histories"]) if result["histories"] > 1 else ""),
            ("same bits, peaks as predicted", "yes" if result["passed"] else "NO"),
        )
    )


def bundle_text(summary: Mapping[str, Any]) -> str:
    """The plans of a bundle, and the switches between them."""
    from poetc.devices import format_ns

    document = summary["bundle"]
    unit = energy if summary["objective"] == "energy" else duration
    split = len({p["micro_batches"] for p in document["plans"]}) > 1
    plans = [
        (
            str(k),
            size(p["budget_bytes"]),
            *((str(p["micro_batches"]),) if split else ()),
            size(p["ram_bytes"]),
            unit(p["cost"]),
            format_gap(p["gap"]),
        )
        for k, p in enumerate(document["plans"])
    ]
    switches = [
        (
            f"{s['source']} to {s['target']}",
            f"{s['switches']} of {s['points']}",
            format_ns(s["longest_ns"]),
            percent(s["mean_extra"]),
            percent(s["most_extra"]),
            format_gap(s["most_gap"]),
        )
        for s in document["switches"]
    ]
    header = ("switch", "safe points", "longest wait", "extra, mean", "most", "most to save")
    lines = [
        table(("plan", "budget", *(("micro-batches",) if split else ()), "RAM", summary["objective"], "gap"), plans),
        "",
        table(header, switches),
        "",
        f"flash of switches  {size(document['switch_bytes'])}",
    ]
    if summary.get("out"):
        lines.append(f"written to         {summary['out']}")
    return "\n".join(lines)


_ABILITIES = {
    "general_graphs": "G handles any graph, not only chains",
    "paging": "P pages tensors",
    "energy": "E minimises the objective itself",
    "deadline": "D seeks the deadline",
    "proof": "B proves a bound",
}


def solvers_text(document: Mapping[str, Any]) -> str:
    """With abilities as letters, then citations and remarks."""
    rows = [
        (
            s["name"],
            "".join(ability_name[0] if s[ability] else "-" for ability, ability_name in _ABILITIES.items()),
            s["title"],
        )
        for s in document["solvers"]
    ]
    remarks = [
        paragraph(f"{s['name']}: {'. '.join(part.rstrip('.') for part in (s['citation'], s['notes']) if part)}.", 2)
        for s in document["solvers"]
        if s["citation"] or s["notes"]
    ]
    legend = paragraph(f"can: {', '.join(_ABILITIES.values())}", 5)
    return "\n\n".join((table(("solver", "can", "method"), rows), legend, "\n".join(remarks)))


def profiles_text(document: Mapping[str, Any]) -> str:
    rows = [(p["name"], size(p["ram_bytes"]), p["title"]) for p in document["profiles"]]
    return table(("device", "RAM", "board"), rows)


def analyze_text(analysis: Mapping[str, Any]) -> str:
    """The memory and the operators that training the model takes."""
    keep_all = analysis["keep_all_peak_bytes"]

    def shapes(key: str) -> str:
        return ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in analysis[key].items())

    kinds = ", ".join(f"{count} {kind}" for kind, count in analysis["forward_operators"].items())
    parts = [
        fields(
            (
                ("inputs", shapes("inputs")),
                ("outputs", shapes("outputs")),
                ("forward operators", kinds),
                ("operators of a step", f"{analysis['operators']:,}"),
                ("parameters", f"{analysis['parameters']:,}  ({size(analysis['parameter_bytes'])})"),
                ("of them trained", f"{analysis['trained_parameters']:,}"),
                ("multiply-accumulates", f"{analysis['forward_macs']:,} forward, {analysis['step_macs']:,} a step"),
                ("longest piece", piece(analysis)),
                ("saved for backward", size(analysis["saved_bytes"])),
                ("  with near-free remade", size(analysis["saved_near_free_bytes"])),
                ("keep-all peak", f"{size(keep_all)}  on {analysis['device']}"),
                ("smallest budget found", enough_share(analysis["min_budget_bytes"], keep_all)),
                ("  operands streamed", enough_share(analysis["streamed_min_budget_bytes"], keep_all)),
                ("beside training all", _savings_of_part(analysis["pruned"])),
            )
        )
    ]
    if "parameter_table" in analysis:
        rows = [
            (
                row["name"],
                "x".join(map(str, row["shape"])),
                row["role"],
                "yes" if row["trained"] else "no",
                row["reason"],
            )
            for row in analysis["parameter_table"]
        ]
        parts.append(table(("tensor", "shape", "taken for", "trained", "because"), rows))
    if "facts" in analysis:
        facts = [
            (f["kind"], f["subject"], str(f["value"]), f["confidence"], f["evidence"], f["option"])
            for f in analysis["facts"]
        ]
        empty = "no facts: the file says all that was asked"
        parts.append(table(("fact", "about", "value", "confidence", "evidence", "option"), facts) if facts else empty)
    return "\n\n".join(parts)


def _savings_of_part(less: Mapping[str, Any] | None) -> str:
    """The parts of a whole training step that the chosen parameters do without; "" where all is trained."""
    if less is None:
        return ""

    def signed(fewer: int) -> str:
        return f"{'-' if fewer > 0 else '+'}{size(abs(fewer))}"

    saved = (
        f"{signed(less['keep_all_peak_bytes'])} at the keep-all peak, {signed(less['saved_bytes'])} saved for backward,"
        f" {-less['macs']:+,} multiply-accumulates"
    )
    return f"{saved}, {format_count(len(less['kernels']), 'kernel')} not needed"


_WRITTEN = ("npz", "safetensors", "adapter", "gguf_adapter", "onnx_adapter", "adapter_base")


def gguf_text(document: Mapping[str, Any]) -> str:
    """The result of an import of a GGUF file."""
    layers = format_count(document["layers"], "layer")
    return fields(
        (
            ("written to", document["out"]),
            ("tokenizer", document["tokenizer"] or "none"),
            ("model", f"{document['architecture']}, {layers} of width {document['width']:,}"),
            ("tokens", f"{document['vocabulary']:,}"),
            ("tensors", ", ".join(f"{count} of {form}" for form, count in document["forms"].items())),
        )
    )


def train_text(document: Mapping[str, Any]) -> str:
    """The result of a training."""
    epochs, best = document["epochs"], document["best_epoch"]
    row = next((r for r in epochs if r["epoch"] == best), epochs[-1])
    measured, predicted = document["peak_measured_bytes"], document["peak_predicted_bytes"]
    before = document["before"] or {}
    trained = [epochs[0], row] if row is not epochs[0] else [row]

    def change(name: str, shown: str) -> str:
        after = row["validation"].get(name)
        begin = f"{format(before[name], shown)}  ->  " if before.get(name) is not None else ""
        return "" if after is None else f"{begin}{format(after, shown)}"

    others = [n for n in row["validation"] if n not in ("loss", "accuracy", "confusion")]
    lines = fields(
        (
            ("written to", document["output"]),
            ("best epoch", f"{best} of {len(epochs)}" + ("  (stopped early)" if document["stopped_early"] else "")),
            ("training loss", "  ->  ".join(f"{r['loss']:.4f}" for r in trained)),
            ("validation loss", change("loss", ".4f")),
            ("accuracy", change("accuracy", ".1%")),
            *((name, change(name, ".1%" if name.startswith("top") else ".4g")) for name in others),
            ("steps", f"{document['steps']:,}  ({document['step_ms']:.2f} ms each)"),
            *(() if row.get("tokens_per_second") is None else (("tokens/s", f"{row['tokens_per_second']:.4g}"),)),
            *((("clipped values", _clipped(document["clipped"])),) if document.get("clipped") else ()),
            ("peak, predicted", f"{predicted:,} B"),
            ("peak, measured", f"{measured:,} B{'' if measured == predicted else '  (NOT EQUAL)'}"),
            ("budget", f"{document['budget_bytes']:,} B"),
            ("report", document["report"]),
            *(
                (f"text {when}", " ".join(document["sample"][when].split()))
                for when in ("before", "after")
                if document.get("sample")
            ),
        )
    )
    lines = "\n".join((lines, *(f"warning: {text}" for text in document["warnings"])))
    matrix = row["validation"].get("confusion")
    if not matrix:
        return lines
    names = document["classes"] or [str(n) for n in range(len(matrix))]
    header = ("true \\ found", *names)
    return (
        f"{lines}\n\n{table(header, [(name, *map(str, counts)) for name, counts in zip(names, matrix, strict=True)])}"
    )


def _clipped(counts: Mapping[str, int]) -> str:
    """Of integer training: values that ±127 cut off, in all steps."""
    kinds = ("activations", "errors", "updates")
    weights = sum(n for name, n in counts.items() if name not in kinds)
    return ", ".join((*(f"{counts[kind]:,} {kind}" for kind in kinds if kind in counts), f"{weights:,} weights"))


def export_text(document: Mapping[str, Any]) -> str:
    """The written file, and the number of trained tensors in it."""
    written = ""
    if document["out"] is not None:
        weight_file = document["external_data"]
        written = f"{document['out']}{f', its weights to {weight_file}' if weight_file else ''}"
    changed = document["changed"]
    return fields(
        (
            ("model", written),
            (
                "arrays",
                ", ".join(document[kind] for kind in _WRITTEN if document[kind] is not None),
            ),
            ("weights", f"{document['tensors']}, {document['trained']} of them trainable"),
            ("changed", "" if changed is None else f"{changed} of those in {document['model']}"),
        )
    )


def import_text(document: Mapping[str, Any]) -> str:
    """Where the weights are now, and how many of them came."""
    return fields(
        (
            ("written to", document["out"]),
            ("taken over", f"{format_count(document['taken'], 'tensor')} from {document['from']}"),
            ("of the state", f"{format_count(document['state'], 'tensor')} that training changes"),
        )
    )


def _built_for(document: Mapping[str, Any]) -> str:
    solved = f"solved for {document['device']}"
    on = f", board {document['board']}" if document["board"] and document["makes"] == "firmware.elf" else ""
    return f"{document['target']}{on} with {document['flags']}  ({solved})"


def _next_step(document: Mapping[str, Any]) -> str:
    if document["layout"] == "makefile":
        return f"make -C {document['out']} builds {document['makes']}"
    from poetc.emit import LAYOUTS

    return LAYOUTS[document["layout"]].next_step


def emit_text(document: Mapping[str, Any]) -> str:
    """The emitted directory, and the memory that its program needs."""
    trained = document["train_arena_bytes"]
    alone = f"; {trained:,} B for training alone" if trained < document["arena_bytes"] else ""
    arena = f"{document['arena_bytes']:,} B  (state {document['state_bytes']:,} B at the bottom of it{alone})"
    return fields(
        (
            ("written to", f"{document['out']}  ({_next_step(document)}; README.md there says more)"),
            ("built for", _built_for(document)),
            ("programs", ", ".join(document["programs"])),
            ("arena", arena),
            ("constants in flash", size(document["flash_bytes"])),
            ("store", size(document["store_bytes"])),
            ("calls and transfers", f"{document['steps']:,}"),
            ("flash, all of it", size(document["firmware_flash_bytes"])),
            ("RAM, all of it", size(document["firmware_ram_bytes"])),
        )
    )


def importance_text(importance: Any, out: str) -> str:
    """A row a parameter, in shares of the importance of all; at most 80 columns with the usual updates."""
    from poetc.reporting import shorten
    from poetc.reporting.importance import columns, rows

    names, parameters = columns(importance), rows(importance)
    total = sum(max(0.0, *values.values()) for _, values in parameters) or 1.0
    width = max(LEAST_COLUMNS, COLUMNS - sum(max(len(n), 6) + 2 for n in names))
    lines = [
        (shorten(parameter, width), *(f"{values[n] / total:.2%}" if n in values else "-" for n in names))
        for parameter, values in parameters
    ]
    unit = f"by {importance.by}: {importance.unit}; 100 % is {total:.4g}"
    return f"{table(('parameter', *names), lines)}\n\n{unit}\nwritten to  {out}"
