"""A bundle of plans and its switches as tables of C."""

from __future__ import annotations

from dataclasses import replace

from poetc.emit._cprint import table
from poetc.emit._instruction_tables import Pools, instruction_rows
from poetc.program import ProgramBundle, ProgramSwitch


def bundle_tables(bundle: ProgramBundle, prefix: str) -> list[str]:
    """C of the plans, and of the switches between them; equal transitions are stored once."""
    pools, instructions, absences = Pools(), list[str](), list[str]()
    placed: dict[tuple[str, ...], int] = {}
    placed_absences: dict[tuple[str, ...], int] = {}
    rows: list[str] = []
    count = len(bundle.programs)
    ranges = [0] * (count * count + 1)
    for switch in bundle.switches:
        own = tuple(_rows(bundle, switch, pools))
        if own not in placed:
            placed[own] = len(instructions)
            instructions += own
        away = tuple(f"    {{{a.begin}u, {a.end}u, {a.page}u, {a.operand.offset_bytes}u}}," for a in switch.absences)
        if away not in placed_absences:
            placed_absences[away] = len(absences)
            absences += away
        numbers = placed[own], len(own), switch.at, switch.join, placed_absences[away], len(away)
        rows.append(f"{{{', '.join(f'{n}u' for n in numbers)}}}")
        ranges[switch.source * count + switch.target + 1] += 1
    for i in range(count * count):
        ranges[i + 1] += ranges[i]
    lines = pools.tables("bundle")
    if instructions:
        lines += ["", "static const poetc_instruction bundle_instructions[] = {", *instructions, "};"]
    if absences:
        lines += ["", "static const poetc_absence bundle_absences[] = {", *absences, "};"]
    if rows:
        lines += ["", *table("static const poetc_switch bundle_switches[]", rows)]
    plans = ", ".join(f"&{prefix}_{p.name}" for p in bundle.programs)
    return [
        *lines,
        "",
        *table("static const uint32_t bundle_ranges[]", [f"{n}u" for n in ranges]),
        "",
        f"static const poetc_program *const bundle_plans[] = {{{plans}}};",
        "",
        f"const poetc_bundle {prefix}_bundle = {{",
        "    .plans = bundle_plans,",
        f"    .plan_count = {count}u,",
        f"    .switches = {'bundle_switches' if rows else 'NULL'},",
        "    .ranges = bundle_ranges,",
        f"    .instructions = {'bundle_instructions' if instructions else 'NULL'},",
        f"    .absences = {'bundle_absences' if absences else 'NULL'},",
        "};",
    ]


def switch_bytes(bundle: ProgramBundle, pointer_bytes: int) -> int:
    """The flash that the tables of switches take, but for the plans themselves."""
    pools, instructions, absences = Pools(), set[tuple[str, ...]](), set[tuple[str, ...]]()
    for switch in bundle.switches:
        instructions.add(tuple(_rows(bundle, switch, pools)))
        absences.add(tuple(str((a.begin, a.end, a.page, a.operand.offset_bytes)) for a in switch.absences))
    return (
        16 * len(bundle.switches)
        + 5 * pointer_bytes * sum(len(s) for s in instructions)
        + 16 * sum(len(a) for a in absences)
        + 4 * (pools.entries + len(bundle.programs) ** 2 + 1)
        + 7 * pointer_bytes
    )


def _rows(bundle: ProgramBundle, switch: ProgramSwitch, pools: Pools) -> list[str]:
    return instruction_rows(replace(bundle.programs[0], name="bundle", instructions=switch.instructions), pools)
