"""C of the queues of a program on several processors."""

from __future__ import annotations

from poetc.emit._cprint import table
from poetc.program import Program


def queue_tables(prefix: str, program: Program) -> list[str]:
    """C of the queues of a program that has several."""
    if not program.queues:
        return []
    name, lines = program.name, list[str]()
    for q, queue in enumerate(program.queues):
        items = [f"{n}u" for entry in queue for n in (entry.instruction, *entry.waits)] or ["0u"]
        lines += ["", *table(f"static const uint32_t {name}_queue_{q}[]", items)]
    rows = ", ".join(f"{name}_queue_{q}" for q in range(len(program.queues)))
    counts = ", ".join(f"{len(queue)}u" for queue in program.queues)
    return [
        *lines,
        "",
        f"static const uint32_t *const {name}_queue_rows[] = {{{rows}}};",
        f"static const uint32_t {name}_queue_counts[] = {{{counts}}};",
        "",
        f"const poetc_queues {prefix}_{name}_queues = {{",
        f"    .program = &{prefix}_{name},",
        f"    .processor_count = {len(program.queues)}u,",
        f"    .counts = {name}_queue_counts,",
        f"    .rows = {name}_queue_rows,",
        "};",
    ]
