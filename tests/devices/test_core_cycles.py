"""Cycles of instructions by the tables of Arm's manuals."""

from __future__ import annotations

import pytest

from poetc.devices.core_cycles import TABLES, Cost, instruction_costs, loop_cycles


def cycles(core: str, *lines: str) -> list[int]:
    return [cost.cycles for cost in instruction_costs(lines, core)]


def test_cycles_of_a_cortex_m0plus_are_the_manuals() -> None:
    """Arm DDI 0484C, table 3-1: `ble` is a branch, and neither `bl` nor `bics`."""
    words = {"b.n\t.L3": 2, "bl\tx": 3, "bx\tlr": 2, "bics\tr0, r1": 1, "muls\tr0, r1": 1}
    words |= {"ldrb\tr0, [r1]": 2, "push\t{r4, lr}": 3, "pop\t{r4, pc}": 5}
    for line, wanted in words.items():
        assert cycles("cortex-m0plus", line) == [wanted], line
    assert instruction_costs(["ble\t.L3"], "cortex-m0plus") == [Cost(1, 1)]
    assert loop_cycles(["ldmia\tr0!, {r3, r4}", "adds\tr3, r3, r4", "bne\t.L3"], "cortex-m0plus") == 3 + 1 + 2


def test_floats_of_a_cortex_m4() -> None:
    """Arm DDI 0439B, table 7-1 and its notes."""
    assert cycles("cortex-m4", "vmul.f32 s0, s1, s2", "vadd.f32 s4, s4, s5") == [1, 1]
    assert cycles("cortex-m4", "vmul.f32 s0, s1, s2", "vadd.f32 s4, s4, s0") == [1, 2]  # it waits
    assert cycles("cortex-m4", "vmla.f32 s0, s1, s2", "vmla.f32 s0, s1, s3") == [3, 3]  # an addend comes later
    assert cycles("cortex-m4", "vmul.f32 s1, s2, s2", "vmla.f32 s0, s1, s3") == [1, 4]
    assert cycles("cortex-m4", "vldmia r0!, {s16-s23}", "vldr s0, [r1]", "vdiv.f32 s0, s1, s2") == [9, 2, 14]
    assert cycles("cortex-m4", "vldmia r0!, {d8-d9}", "vmov r0, s0", "vmov r0, r1, d7") == [5, 1, 2]


def test_loads_of_a_cortex_m4() -> None:
    """Neighbours share their phases; a loaded address, or one that was just computed, makes them wait."""
    assert cycles("cortex-m4", "ldr r0, [r1]", "ldr r2, [r1, #4]", "ldr r3, [r2]") == [2, 1, 2]
    assert cycles("cortex-m4", "add r1, r1, r2", "ldr r0, [r1]") == [1, 3]
    assert cycles("cortex-m4", "str r0, [r1]", "str.w r0, [r1, r2]") == [1, 1]
    assert cycles("cortex-m4", "mov r0, r3", "str r5, [r1, r2, lsl #2]", "ldrd r0, r1, [r2]") == [1, 2, 3]
    assert cycles("cortex-m0", "ldr r0, [r1]", "ldr r2, [r1, #4]") == [2, 2]


def test_a_multiply_accumulate_of_the_four_row_block() -> None:
    """32 products in a loop: 3.7 cycles each by VMLA, 2.7 by VMUL and VADD of four at a time."""
    chained = [f"vmla.f32 s{i}, s{16 + i // 4}, s{24 + i % 4}" for i in range(16)] * 2
    apart = []
    for row in range(0, 16, 4):
        apart += [f"vmul.f32 s{28 + j}, s{24 + j}, s{16 + row // 4}" for j in range(4)]
        apart += [f"vadd.f32 s{row + j}, s{row + j}, s{28 + j}" for j in range(4)]
    loads, step = ["vldmia r0!, {s16-s23}", "vldmia r1!, {s24-s27}"], ["subs r2, #1", "bne 2b"]
    assert loop_cycles([*loads, "vldmia r1!, {s28-s31}", *chained, *step], "cortex-m4") == 9 + 5 + 5 + 96 + 4
    assert loop_cycles([*loads, *apart, "vldmia r1!, {s24-s27}", *apart, *step], "cortex-m4") == 9 + 5 + 5 + 64 + 4


@pytest.mark.parametrize("core", TABLES)
def test_objdump_and_gcc_write_the_same_instruction(core: str) -> None:
    written = ["ldr\tr3, [r4, #8]", "bne.n\t8010 <poetc_op_add+0x10>", "cmp\tr3, #0 ; zero"]
    plain = ["ldr r3, [r4, #8]", "bne .L4", "cmp r3, #0"]
    assert instruction_costs(written, core) == instruction_costs(plain, core)
