"""The arena of a library in several memories: a section for each part, which the user's linker script places.

Offsets in the arena count from its lowest part. They are fixed when C is written, from the addresses of the banks. The
header looks at the addresses that the linker gave: an arena that is elsewhere is no arena, and `poetc_init` refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from poetc.emit._cprint import comment, identifier
from poetc.emit._firmware import BankSection, Sections, bank_size
from poetc.emit._module import Module
from poetc.errors import UsageError
from poetc.runtime.layout import ALIGNMENT_BYTES, align
from poetc.scheduling import MemoryPlan, Problem

_ADDRESSES = 1 << 32


@dataclass(frozen=True, slots=True)
class BankPart:
    """A part of an arena: its symbol, the bank, and where it is."""

    symbol: str
    bank: str
    section: str
    address: int
    size_bytes: int


def bank_sections(sections: Sections, problem: Problem, plan: MemoryPlan, usual: Mapping[str, str]) -> Sections:
    """`sections` with one for each bank that `plan` uses, at an address. `usual`: those of the profile, by bank.

    Raises UsageError where two parts would overlap, or a part does not begin at a multiple of 16, or at 0.
    """
    named = {b.bank: b for b in sections.banks}
    if sections.arena:
        names = ", ".join(f"{b.name}=.{b.name}" for b in problem.banks)
        raise UsageError(f"--section arena={sections.arena}: the arena is in banks; name their sections, as in {names}")
    of_banks: list[BankSection] = []
    ends: list[tuple[int, int, str]] = []
    for spec, use in zip(problem.banks, plan.banks, strict=True):
        if not use.arena_bytes:
            continue
        own = named.get(spec.name, BankSection(spec.name, usual.get(spec.name, "") or f".{identifier(spec.name)}"))
        address = spec.address if own.address is None else own.address
        option = f"--section {spec.name}={own.section}@{address:#010x}"
        if not address:
            raise UsageError(f"{option}: no part of an arena is at address 0; give another, as in @0x00000010")
        if address % ALIGNMENT_BYTES:
            raise UsageError(f"{option}: give an address that is a multiple of {ALIGNMENT_BYTES}")
        of_banks.append(BankSection(spec.name, own.section, address))
        ends.append((address, address + align(use.arena_bytes), option))
    for (_, end, _), (first, _, option) in pairwise(sorted(ends)):
        if first < end:
            raise UsageError(f"{option}: another bank's part of the arena ends at {end:#010x}; give it another address")
    if ends and max(end for _, end, _ in ends) > _ADDRESSES:
        raise UsageError(f"{max(ends)[2]}: the part ends beyond the first 4 GiB")
    if len({b.section for b in of_banks}) < len(of_banks):
        raise UsageError("--section: each bank needs a section that no other has")
    return Sections(sections.arena, sections.constants, sections.store, tuple(of_banks))


def bank_parts(module: Module, sections: Sections) -> list[BankPart]:
    """The parts of the module's arena from the lowest on; none where it is in one piece."""
    main = module.programs[0]
    if main.arena_address is None:
        return []
    by_name = {b.bank: b.section for b in sections.banks}
    return [
        BankPart(
            symbol=f"{module.arena}_{identifier(b.name)}",
            bank=b.name,
            section=by_name[b.name],
            address=main.arena_address + b.offset_bytes,
            size_bytes=align(module.arena_bytes - b.offset_bytes) if b is main.banks[-1] else bank_size(main, b.name),
        )
        for b in main.banks
    ]


def bank_declarations(module: Module, parts: list[BankPart]) -> list[str]:
    """Lines of the header. The arena's name stands for its address, or for NULL where a part is elsewhere."""
    lines = [
        f"extern uint8_t {p.symbol}[]; {comment(f'{p.size_bytes} bytes in {p.section}, at {p.address:#010x}')}"
        for p in parts
    ]
    test = "\n        && ".join(f"(uintptr_t){p.symbol} == {p.address:#010x}u" for p in parts)
    return [
        *lines,
        f"#define {module.arena} {module.arena}_in_banks()",
        comment("NULL where the linker has put a part elsewhere: poetc_init then returns POETC_EINVAL."),
        f"static inline uint8_t *{module.arena}_in_banks(void)",
        "{",
        f"    return {test}",
        f"        ? {parts[0].symbol} : NULL;",
        "}",
    ]


def bank_assembly(parts: list[BankPart]) -> Iterator[str]:
    """The parts, each in its section, without bytes in flash."""
    for p in parts:
        yield f'    .section {p.section}, "aw", %nobits'
        yield from (f"    .balign {ALIGNMENT_BYTES}", f"    .global {p.symbol}", f"    .type {p.symbol}, %object")
        yield from (f"{p.symbol}:", f"    .space {p.size_bytes}", f"    .size {p.symbol}, {p.size_bytes}")


def bank_script(parts: list[BankPart]) -> str:
    """Lines for the SECTIONS of a script of GNU ld."""
    lines = [f"    {p.section} {p.address:#010x} (NOLOAD) : {{ *({p.section}) }}" for p in parts]
    return "\n".join(["/* The parts of the arena. INCLUDE this at the end of SECTIONS. */", *lines, ""])
