"""The files of the plugin that counts: the cycles of every instruction, which it reads, and its numbers."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from poetc.boards import command
from poetc.devices.core_cycles import instruction_costs

_INSTRUCTION = re.compile(r"\s+([0-9a-f]+):\t(.*)$")


def write_costs(elf: Path, prefix: str, core: str, out: Path) -> None:
    """A line "ADDRESS CYCLES TAKEN" in hexadecimal for each instruction of `elf`, sorted by address.

    KeyError for a core without a table.
    """
    out.write_text(_costs(elf, elf.stat().st_mtime_ns, prefix, core))


@functools.lru_cache(maxsize=8)  # a program may be executed many times
def _costs(elf: Path, made_ns: int, prefix: str, core: str) -> str:
    """`made_ns`: when `elf` was written."""
    text = command([f"{prefix}objdump", "-d", "--no-show-raw-insn", elf], "cannot read the program's instructions")
    costs: dict[int, str] = {}
    for part in re.split(r"^[0-9a-f]+ <.*>:$", text, flags=re.MULTILINE):
        matches = [m for line in part.splitlines() if (m := _INSTRUCTION.match(line)) and not m[2].startswith(".")]
        for match, cost in zip(matches, instruction_costs([m[2] for m in matches], core), strict=True):
            costs[int(match[1], 16)] = f"{int(match[1], 16):x} {cost.cycles:x} {cost.taken:x}"
    return "\n".join(costs[address] for address in sorted(costs)) + "\n"


def read_counts(path: Path) -> tuple[dict[str, int], list[int], list[int], list[list[int]], list[int]]:
    """Numbers by name, peaks of banks, marks, instructions by processor as each step begins and at the end, cycles.

    The last are those at each mark.
    """
    values: dict[str, int] = {}
    banks: list[int] = []
    marks: list[int] = []
    cycles: list[int] = []
    works: dict[int, list[int]] = {}
    for line in path.read_text().splitlines():
        key, *numbers = line.split()
        if key == "mark":
            marks.append(int(numbers[0]))
            cycles.append(int(numbers[1]))
        elif key == "bank":
            banks.append(int(numbers[0]))
        elif key in ("work", "processor"):
            works.setdefault(int(numbers[0]), []).append(int(numbers[1]))
        else:
            values[key] = int(numbers[0])
    return values, banks, marks, [works[n] for n in sorted(works)], cycles
