"""The answer of `poetc run` for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poetc.cli._text import fields, percent, size, table


def run_text(document: Mapping[str, Any]) -> str:
    """The measurements of a run, with the operators that took most of it."""

    def count(key: str) -> str:
        return "" if document.get(key) is None else f"{document[key]:,}"

    measured, predicted = document["peak_measured_bytes"], document["peak_predicted_bytes"]
    operators = list(document.get("operators", ()))
    reserve = document.get("stack_reserved_bytes")
    lines = fields(
        (
            ("on", f"{document['on']}  ({document['target']}, {document['numerics']} numerics)"),
            ("processors", count("processors") if document["processors"] > 1 else ""),
            ("steps", f"{count('steps')}, which all counts are of"),
            ("loss", f"{document['loss']:.6f}  (first {document['losses'][0]:.6f})"),
            ("peak, measured", f"{measured:,} B"),
            ("peak, predicted", f"{predicted:,} B  ({'equal' if measured == predicted else 'NOT EQUAL'})"),
            *((f"of it in {b['name']}", f"{b['peak_measured_bytes']:,} B") for b in document.get("banks", ())),
            ("budget", f"{document['budget_bytes']:,} B"),
            (
                "stack, measured",
                f"{count('stack_measured_bytes')} B, at most {count('stack_bound_bytes')} B of {reserve:,} B"
                if reserve
                else "",
            ),
            ("flash", _beside(document, "flash")),
            ("RAM as linked", _beside(document, "ram")),
            ("instructions", count("instructions") + _error(document, "instructions")),
            (
                "cycles",
                count("cycles") and count("cycles") + _error(document, "cycles") + ", without waits of the flash",
            ),
            ("cycles of operators", _modelled_cycles(document)),
            ("by processor", ", ".join(f"{n:,}" for n in document.get("queue_instructions") or ())),
            ("from begin to end", count("longest_instructions")),
            ("pages", f"{document['page_outs']:,} out, {document['page_ins']:,} in"),
            ("written a step", size(document["store_written_bytes"] or None)),
            ("written a checkpoint", size(document.get("checkpoint_written_bytes") or None)),
            ("state", document["state_sha256"]),
        )
    )
    if not operators:
        return lines
    work = "instructions" if document.get("cycles") is None else "cycles"
    operators.sort(key=lambda o: -int(o[work]))
    total = sum(o[work] for o in operators) or 1
    rows = [(o["name"], o["kind"], f"{o['times']:,}", f"{o[work]:,}", percent(o[work] / total)) for o in operators[:10]]
    return f"{lines}\n\n{table(('operator', 'kind', 'times', work, 'share'), rows)}"


def _error(document: Mapping[str, Any], work: str) -> str:
    if (predicted := document.get(f"{work}_predicted")) is None:
        return ""
    return f", predicted {predicted:,}  ({predicted / document[work] - 1:+.1%})"


def _beside(document: Mapping[str, Any], what: str) -> str:
    """Bytes of the program, measured and predicted."""
    measured, predicted = document.get(f"{what}_bytes"), document.get(f"{what}_predicted_bytes")
    if not measured or predicted is None:
        return f"{measured:,} B" if measured else ""
    return f"{measured:,} B  (predicted {predicted:,} B, {(predicted - measured) / measured:+.1%})"


def _modelled_cycles(document: Mapping[str, Any]) -> str:
    cycles = document.get("cycles_modelled")
    return "" if cycles is None else f"{cycles['value']:,}, modelled  (band: {cycles['low']:,} to {cycles['high']:,})"
