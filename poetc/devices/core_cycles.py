"""Cycles of instructions on Cortex-M cores, by the tables of Arm's technical reference manuals.

Cores in order, without a cache: each instruction has its own cycles, and stalls where it needs the result of the one
before it. Waits of the flash are no part of it: `fetch_cycles_per_instruction` of a profile has them.

Sources are Arm's manuals. Cortex-M0: DDI 0432C, table 3-1. Cortex-M0+: DDI 0484C, table 3-1. Cortex-M3: DDI 0337I,
table 3-1, section 3.3.2. Cortex-M4: DDI 0439B, tables 3-1 and 7-1. Arm has no table of the Cortex-M33; it takes the
M4's.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_CONDITIONS = "eq|ne|cs|cc|hs|lo|mi|pl|vs|vc|hi|ls|ge|lt|gt|le"
_FLOAT_SUM = re.compile(r"v(?:add|sub|mul|abs|neg|cvt|cmp|nmul|rint)")
_FLOAT_CHAIN = re.compile(r"vf?n?m(?:la|ls)|vfma|vfms|vfnm")
_REGISTER = re.compile(r"\b(?:r\d+|s\d+|d\d+|sl|fp|ip|sp|lr)\b")
_SINGLE_LOAD = re.compile(r"ldr(?!d|ex)")
_SINGLE_STORE = re.compile(r"str(?!d|ex)")


@dataclass(frozen=True, slots=True)
class Cost:
    """Cycles of an instruction, and those of a branch on top if it is taken."""

    cycles: int
    taken: int = 0


@dataclass(frozen=True, slots=True)
class CoreTable:
    """The rows in which cores differ; `refill` is the P of Arm's tables, which is 1 to 3 on cores with three stages."""

    refill: int
    call_refill: int
    system: int  # MRS, MSR
    multiply_add: int = 1
    long_multiply: int = 1
    long_multiply_add: int = 1
    pipelined_loads: bool = True  # neighbouring loads take one cycle each
    divide: int = 6  # 2 to 12, by the operands


_THREE_STAGES = CoreTable(refill=2, call_refill=2, system=2)
TABLES = {
    "cortex-m0": CoreTable(refill=2, call_refill=3, system=4, pipelined_loads=False),
    "cortex-m0plus": CoreTable(refill=1, call_refill=2, system=3, pipelined_loads=False),
    "cortex-m3": CoreTable(refill=2, call_refill=2, system=2, multiply_add=2, long_multiply=4, long_multiply_add=5),
    "cortex-m4": _THREE_STAGES,
    "cortex-m33": _THREE_STAGES,
}


@dataclass(frozen=True, slots=True)
class _Instruction:
    name: str  # without a width
    operands: str
    writes: frozenset[str]
    reads: frozenset[str]


def has_table(core: str) -> bool:
    return core in TABLES


def instruction_costs(lines: Iterable[str], core: str) -> list[Cost]:
    """The cost of each instruction of a straight run of code, as GCC or objdump write it.

    Stalls count at the instruction that waits. KeyError for a core without a table.
    """
    table = TABLES[core]
    costs: list[Cost] = []
    before: _Instruction | None = None
    for line in lines:
        instruction = _read(line)
        costs.append(_cost(instruction, before, table))
        before = instruction
    return costs


def loop_cycles(lines: Sequence[str], core: str) -> int:
    """Cycles of a pass of a loop whose last instruction is its taken branch."""
    costs = instruction_costs([lines[-1], *lines], core)[1:]
    return sum(cost.cycles for cost in costs) + costs[-1].taken


@functools.lru_cache(1 << 14)  # programs have few different instructions
def _read(line: str) -> _Instruction:
    text = re.split(r"[;@<]", line.strip(), maxsplit=1)[0].strip()
    name, _, operands = text.partition("\t") if "\t" in text else text.partition(" ")
    name = re.sub(r"\.[nw]$", "", name)
    registers = _registers(operands)
    memory = name.startswith(("str", "vstr", "vstm", "stm", "push", "vpush", "cmp", "cmn", "tst", "teq", "vcmp"))
    if memory:
        writes: list[str] = []
    elif name.startswith(("ldm", "vldm", "pop", "vpop")):
        writes = _registers(operands[operands.find("{") :])
    else:
        writes = registers[: 2 if name.startswith(("ldrd", "smull", "umull", "smlal", "umlal")) else 1]
    chained = _FLOAT_CHAIN.match(name) is not None or name.startswith(("movt", "bfi"))
    reads = registers if memory or chained else registers[len(writes) :]
    return _Instruction(name, operands, frozenset(writes), frozenset(reads))


def _registers(operands: str) -> list[str]:
    """Those named, ranges written out."""
    registers: list[str] = []
    for part in re.split(r"[,\s\[\]{}!]+", operands):
        ends = re.fullmatch(r"([rsd])(\d+)-[rsd](\d+)", part)
        if ends:
            registers += [f"{ends[1]}{n}" for n in range(int(ends[2]), int(ends[3]) + 1)]
        elif _REGISTER.fullmatch(part):
            registers.append(part)
    return registers


def _cost(now: _Instruction, before: _Instruction | None, table: CoreTable) -> Cost:
    name = now.name
    if re.fullmatch(rf"b(?:{_CONDITIONS})|cbn?z", name):
        return Cost(1, table.refill)
    if re.fullmatch(r"b|bx|bxns", name) or name.startswith("tb"):
        return Cost(1 + table.refill)
    if re.fullmatch(r"bl|blx", name):
        return Cost(1 + table.call_refill)
    cycles = _own_cycles(now, before, table)
    if before is not None and name.startswith("v") and before.name.startswith("v"):
        cycles += _float_stall(now, before)
    return Cost(cycles)


def _own_cycles(now: _Instruction, before: _Instruction | None, table: CoreTable) -> int:
    name = now.name
    if re.match(r"v?ldm|v?stm|v?push|v?pop|ldrd|strd", name):
        transfers = sum(2 if r.startswith("d") else 1 for r in _registers(now.operands[now.operands.find("{") :]))
        transfers = 2 if name.startswith(("ldrd", "strd")) else transfers
        return 1 + transfers + (1 + table.call_refill if re.search(r"\bpc\b", now.operands) else 0)
    if re.match(r"v(?:ldr|str)", name):
        return (1 if _pipelines(now, before, table) else 2) + (1 if now.operands.startswith("d") else 0)
    if re.match(r"ldr|str", name):
        if re.match(r"pc\b", now.operands):
            return 2 + table.refill
        stored = _SINGLE_STORE.match(name) and table.pipelined_loads
        at_register = re.search(r"\[\w+,\s*[rsfil]", now.operands)
        cycles = 1 if _pipelines(now, before, table) or (stored and not at_register) else 2
        return cycles + _address_stall(now, before, table)
    if _FLOAT_CHAIN.match(name):
        return 3
    if re.match(r"vdiv|vsqrt", name):
        return 14
    if re.match(r"vmov", name):
        return 2 if len(_registers(now.operands)) > 2 else 1
    if re.match(r"[su]mull", name):
        return table.long_multiply
    if re.match(r"[su]mlal$", name):
        return table.long_multiply_add
    if re.match(r"ml[as]", name):
        return table.multiply_add
    if re.match(r"[su]div", name):
        return table.divide
    if re.match(r"mrs|msr|dmb|dsb|isb", name):
        return table.system
    return 1


def _pipelines(now: _Instruction, before: _Instruction | None, table: CoreTable) -> bool:
    """Whether a load or store shares its address phase with the data phase of the one before it."""
    if before is None or not table.pipelined_loads:
        return False
    single = re.match(r"v?(?:ldr|str)(?!d|ex)", before.name)
    return bool(single) and not before.writes & _address(now)


def _address_stall(now: _Instruction, before: _Instruction | None, table: CoreTable) -> int:
    """An address that the instruction before it computed is not forwarded (DDI 0337I, section 3.3.2)."""
    if before is None or not table.pipelined_loads or re.match(r"v|ldr|str|ldm|stm|pop|push|b", before.name):
        return 0
    return 1 if before.writes & _address(now) else 0


def _address(instruction: _Instruction) -> frozenset[str]:
    return frozenset(_registers(instruction.operands[instruction.operands.find("[") :]))


def _float_stall(now: _Instruction, before: _Instruction) -> int:
    """One cycle where the result of the instruction before is wanted; not as the addend of a multiply-add."""
    arithmetic = _FLOAT_SUM.match(before.name) or _FLOAT_CHAIN.match(before.name)
    if not arithmetic:
        return 0
    wanted = now.reads
    if _FLOAT_CHAIN.match(now.name):
        wanted = frozenset(_registers(now.operands)[1:])
    return 1 if before.writes & wanted else 0
