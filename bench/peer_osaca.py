"""Cycles of loops by OSACA: read a JSON object {arch, bodies} from the input, write a list with a row for each body.

A row is {ports, carried, unknown}: cycles of the busiest port, cycles of the longest chain from one pass to the next,
and how many instructions the model lacks. It runs in the environment of `bench/setup_peers osaca`.

OSACA's A72 knows few forms of an instruction. Others are written as the nearest that it knows, of the same unit: 32
bits as 64, an address without an offset or with an index as one with an offset, each conditional branch as bne.
"""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import redirect_stdout
from typing import Any

from osaca.osaca import get_asm_parser
from osaca.semantics import ArchSemantics, KernelDG, MachineModel

CHAIN_LIMIT_S = 10


def main() -> None:
    asked = json.load(sys.stdin)
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        parser, machine = get_asm_parser(asked["arch"]), MachineModel(arch=asked["arch"])
        semantics = ArchSemantics(parser, machine)
        found = [row(parser, machine, semantics, body) for body in asked["bodies"]]
    json.dump(found, sys.stdout)


def known_form(line: str) -> str:
    """The line with operands as the model's rows have them."""
    name, _, operands = line.partition("\t")
    if re.fullmatch(r"b\.?(eq|ne|cs|cc|hs|lo|mi|pl|vs|vc|hi|ls|ge|lt|gt|le)|[ct]bn?z", name):
        return f"bne\t{operands.rpartition(' ')[2]}"
    operands = re.sub(r"\bw(\d+|zr)\b", r"x\1", operands)
    operands = re.sub(r"\[(x\d+|sp)\]", r"[\1, #0]", operands)
    operands = re.sub(r"\[(x\d+|sp), (x\d+)[^]]*\]", r"[\1, #0]", operands)
    operands = re.sub(r"(?<=, )(-?\d+)\b", r"#\1", operands)
    return f"{name}\t{operands}"


def row(parser: Any, machine: Any, semantics: Any, body: list[str]) -> dict[str, float] | None:
    """None for a loop that OSACA cannot read."""
    try:
        kernel = parser.parse_file("\n".join(map(known_form, body)) + "\n")
        semantics.normalize_instruction_forms(kernel)
        semantics.add_semantics(kernel)
        unknown = sum("tp_unknown" in form.flags for form in kernel)
        semantics.assign_optimal_throughput(kernel)
        semantics.assign_optimal_throughput(kernel)
        graph = KernelDG(kernel, parser, machine, semantics, CHAIN_LIMIT_S, False)
        carried = max((c["latency"] for c in graph.get_loopcarried_dependencies().values()), default=0.0)
        ports = max(semantics.get_throughput_sum(kernel), default=0.0)
    except Exception as error:  # its parser raises many kinds
        print(error, file=sys.stderr)
        return None
    return {"ports": float(ports), "carried": float(carried), "unknown": unknown}


if __name__ == "__main__":
    main()
