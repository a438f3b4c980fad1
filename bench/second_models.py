"""Two models of one pipeline, side by side: OSACA beside llvm-mca, and rp2040js beside Arm's table.

    python -m bench.second_models osaca     innermost loops of the kernels on a Cortex-A72 (bench/setup_peers osaca)
    python -m bench.second_models rp2040    training steps on an emulated RP2040 (bench/setup_peers rp2040, and node)

Both print a table of docs/results/cycles.md. A loop takes part where both models know all of its instructions. OSACA's
low end is its busiest port, and its high end the longest chain from pass to pass, if that is longer.
"""

from __future__ import annotations

import functools
import json
import re
import runpy
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import poetc
from bench._command import Rows, main
from bench.cycles import milliseconds, three
from poetc import boards
from poetc.benchmark import _pipeline
from poetc.devices import load_profile
from poetc.devices.core_cycles import instruction_costs
from poetc.graph import TrainingGraph

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / "build" / "peers"
CORE, DEVICE, MODEL = "cortex-a72", "rpi4", "A72"
LONGEST = 64  # instructions of a loop; OSACA's search for chains takes minutes for longer ones
PICO, PICO_CORE = "rp2040", "cortex-m0plus"
STEPS = {"mlp": 1, "lenet": 1}  # networks of demo/boards, and their batch
RAM, STACK = 0x20000000, 0x20040000
FLAGS = "-mthumb -std=c99 -O2 -fno-tree-loop-distribute-patterns -ffp-contract=off -ffunction-sections -nostartfiles"
SCRIPT = f"ENTRY(main) SECTIONS {{ . = {RAM}; .text : {{ *(.text.main) *(.text*) *(.rodata*) }} }}"
PROGRAM = """
#include "model.h"
#include "poetc_session.h"
static unsigned char arena[POETC_MODEL_ARENA_BYTES] __attribute__((aligned(16)));
static poetc_session session;
static float image[64];
static int target[1] = {3};
int main(void) {
    poetc_config config = {0};
    const void *inputs[] = {image, target};
    float loss;
    int err;
    config.arena = arena;
    config.arena_bytes = sizeof arena;
    for (int i = 0; i < 64; i++) image[i] = (float)(i % 7) / 7.0f;
    err = poetc_session_init(&session, POETC_MODEL_DESCRIPTION, &config);
    err |= poetc_session_step(&session, inputs, &loss);
    __asm__ volatile("bkpt 1");
    err |= poetc_session_step(&session, inputs, &loss);
    __asm__ volatile("bkpt 2");
    return err;
}
"""


def osaca_rows(bodies: list[list[str]]) -> list[dict[str, float] | None]:
    command = [str(PEERS / "osaca" / "bin" / "python"), str(ROOT / "bench" / "peer_osaca.py")]
    asked = json.dumps({"arch": MODEL, "bodies": bodies})
    done = subprocess.run(command, input=asked, stdout=subprocess.PIPE, text=True, check=True)
    found: list[dict[str, float] | None] = json.loads(done.stdout)
    return found


def osaca() -> Rows:
    """Cycles an instruction by class, and the profile's own with its band, in which both should lie."""
    prefix, flags, triple = _pipeline.target_of(boards.Core(CORE), load_profile(DEVICE).cpu.numerics)
    model = _pipeline.MODELS[CORE]
    loops = [loop for text in _pipeline.assemble(prefix, flags.split()) for loop in _pipeline.innermost_loops(text)]
    loops = [loop for loop in loops if len(loop.body) <= LONGEST]
    bodies = [[line.split("\t//")[0] for line in loop.body] for loop in loops]
    timed = {id(t.loop): t.cycles for t in _pipeline.run_model(loops, triple, model.cpu)}
    both: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for loop, row in zip(loops, osaca_rows(bodies), strict=True):
        if row is not None and not row["unknown"] and id(loop) in timed:
            ends = row["ports"], max(row["ports"], row["carried"])
            both[loop.kernel_class].append((len(loop.body), timed[id(loop)], *ends))
    cycles = load_profile(DEVICE).compute.cycles
    assert cycles is not None
    yield ("class", "loops", "llvm-mca", "OSACA, ports", "OSACA, chains too", "profile", "its band", "by OSACA's ratio")
    for name, rows in sorted(both.items()):
        total = sum(row[0] for row in rows)
        mca, ports, chains = (sum(row[k] for row in rows) / total for k in (1, 2, 3))
        own = cycles.per_instruction[name]
        scaled = f"{own.value * ports / mca:.3f} to {own.value * chains / mca:.3f}"
        means = (f"{x:.2f}" for x in (mca, ports, chains))
        yield (name, len(rows), *means, f"{own.value:.3f}", f"{own.low:g} to {own.high:g}", scaled)


def rp2040() -> Rows:
    """Cycles of a training step."""
    names = runpy.run_path(str(ROOT / "demo" / "boards" / "networks.py"))
    yield ("network", "instructions", "rp2040js", "Arm's table, the same run", "profile", "its band")
    for name, batch in STEPS.items():
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            names["write"](name, folder / "model.onnx")
            solution = poetc.load(folder / "model.onnx", batch=batch).solve(device=PICO, budget="100%", time_limit_s=3)
            solution.save(folder / "model.poetc")
            solution.emit(folder / "c", target="c99")
            ran = emulated(folder)
            step = solution.artifact.graph
            assert step is not None
            instructions = sum(count for _, count in ran["executed"])
            yield (
                name,
                f"{instructions:,}",
                f"{ran['cycles']:,}",
                f"{by_table(folder, ran):,}",
                *of_profile(step),
            )


def of_profile(step: TrainingGraph) -> tuple[str, str]:
    """Cycles of the profile and of the ends of its band."""
    profile = load_profile(PICO)
    cycles = [ms * 1e-3 * profile.cpu.clock_hz.value for ms in three(functools.partial(milliseconds, step), profile)]
    value, low, high = (f"{c:,.0f}" for c in cycles)
    return value, f"{low} to {high}"


def emulated(folder: Path) -> dict[str, Any]:
    """The second step, from one breakpoint to the next."""
    source, script, elf = folder / "main.c", folder / "ram.ld", folder / "model.elf"
    source.write_text(PROGRAM, encoding="utf-8")
    script.write_text(SCRIPT, encoding="utf-8")
    runtime = folder / "c" / "runtime"
    files: list[Path] = [source, folder / "c" / "model.c", folder / "c" / "model_data.S", *runtime.rglob("*.c")]
    includes = [f"-I{p}" for p in (folder / "c", *(runtime / n for n in ("include", "kernels", "src")))]
    command = [
        "arm-none-eabi-gcc",
        f"-mcpu={PICO_CORE}",
        *FLAGS.split(),
        "-w",
        f"-T{script}",
        *includes,
        *map(str, files),
    ]
    subprocess.run([*command, "-Wl,--gc-sections", "-lm", "-o", str(elf)], check=True, stderr=subprocess.DEVNULL)
    image = folder / "model.bin"
    subprocess.run(["arm-none-eabi-objcopy", "-O", "binary", str(elf), str(image)], check=True)
    modules = PEERS / "rp2040" / "node_modules"
    words = [str(x) for x in (ROOT / "bench" / "peer_rp2040.mjs", modules, image, RAM, RAM, STACK)]
    done = subprocess.run(["node", *words], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def by_table(folder: Path, ran: dict[str, Any]) -> int:
    """Cycles of the same instructions by Arm's table."""
    command = ["arm-none-eabi-objdump", "-d", "--no-show-raw-insn", str(folder / "model.elf")]
    text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    lines = {int(m[1], 16): m[2] for m in re.finditer(r"^\s*([0-9a-f]+):\t(.*)$", text, re.MULTILINE)}
    left = dict(map(tuple, ran["left"]))
    total = 0
    for address, count in ran["executed"]:
        (cost,) = instruction_costs([lines[address]], PICO_CORE)
        total += count * cost.cycles + left.get(address, 0) * cost.taken
    return total


if __name__ == "__main__":
    main(osaca, rp2040)
