"""The flash that the emitted tables of a model take."""

from __future__ import annotations

from poetc.emit._instruction_tables import Pools, instruction_rows
from poetc.emit._module import Module
from poetc.program import Program, all_inputs, regions
from poetc.runtime.layout import align


def tables_bytes(module: Module, pointer_bytes: int, *, queues: bool = False) -> int:
    """The flash of the main program's tables: instructions and their operands, pages, inputs, outputs, descriptors.

    `queues`: with those of its processors.
    """
    main = module.programs[0]
    pools = Pools()
    instruction_rows(main, pools)
    inputs = all_inputs(main)
    names = sum(align(len(b.name.encode()) + 1, pointer_bytes) for b in inputs)
    return (
        5 * pointer_bytes * len(main.instructions)
        + 4 * pools.entries
        + 12 * len(main.pages)
        + 4 * sum(page.image for page in main.pages)
        + 16 * len(main.absences)
        + 8 * len(regions(main))
        + 16 * len(inputs)
        + (pointer_bytes + 8) * (len(inputs) + len(main.outputs))
        + names
        + (60 if pointer_bytes == 4 else 88)  # poetc_program
        + (124 if pointer_bytes == 4 else 200)  # poetc_model
        + (_queues_bytes(main, pointer_bytes) if queues else 0)
    )


def _queues_bytes(program: Program, pointer_bytes: int) -> int:
    count = len(program.queues)
    rows = 4 * (1 + count) * sum(len(queue) for queue in program.queues)
    return rows + (4 + pointer_bytes) * count + 4 * pointer_bytes  # poetc_queues last
