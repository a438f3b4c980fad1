"""Tables of model.c about the state: where it lives, which pages a store begins with, how the rate moves."""

from __future__ import annotations

from poetc.emit._cprint import table
from poetc.program import Program, regions
from poetc.training.rates import Schedule, c_fields


def formatted_tables(prefix: str, main: Program) -> list[str]:
    """The pages that must be on the store before the first run."""
    pages = [f"{i}u" for i, page in enumerate(main.pages) if page.image]
    if not pages:
        return []
    data = ["#ifdef POETC_FORMATS", f"extern const uint8_t {prefix}_pages[];", "#endif"]
    return ["", *data, *table(f"static const uint32_t {prefix}_formatted[]", pages)]


def region_tables(prefix: str, main: Program) -> list[str]:
    """Where the state lives."""
    parts = regions(main)
    if not parts:
        return []
    rows = (f"{{{r.arena_offset_bytes}u, {r.size_bytes}u}}" if r.page is None else f"{{{r.page}u, 0u}}" for r in parts)
    return ["", *table(f"const poetc_region {prefix}_regions[]", list(rows))]


def schedule_table(prefix: str, schedule: Schedule | None) -> list[str]:
    """The schedule of the learning rate."""
    if schedule is None:
        return []
    values = ", ".join(f"{v}u" if isinstance(v, int) else v.hex() for v in c_fields(schedule))
    return ["", f"const poetc_schedule {prefix}_schedule = {{{values}}};"]
