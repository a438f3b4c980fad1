"""Every core that is named: built, run where QEMU has it or one that runs its code, with the bits of this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from poetc.boards import BOARDS
from poetc.emit import Form
from poetc.measure import build_firmware, build_host, execute, state_digest
from poetc.program import Program, sample_inputs
from tests.layouts.support import bits, make_model, run, write
from tests.layouts.test_layouts import MAIN
from tests.program.models import Case

GENERIC = sorted(name for name, board in BOARDS.items() if board.target.startswith("generic-"))


def test_each_named_core_has_a_board() -> None:
    names = {BOARDS[name].target.removeprefix("generic-") for name in GENERIC}
    assert names == {"m23", "m33", "m85", "a7", "a55", "a76", "r52"}


def on_host(case: Case, program: Program, steps: int) -> tuple[list[float], str]:
    with build_host([program], case.graph.values) as model:
        losses = [model.run(sample_inputs(program, step)) for step in range(steps)]
        return losses, state_digest({name: model.state(name) for name in model.state_names()})


@pytest.mark.long
@pytest.mark.parametrize("name", GENERIC)
def test_it_has_the_bits_of_the_host(name: str, tmp_path: Path) -> None:
    if shutil.which(BOARDS[name].qemu[0]) is None:
        pytest.skip("make setup-arm")
    model = make_model(4)
    firmware = build_firmware(model.program, model.case.graph.values, name, tmp_path)
    done = execute(firmware, [dict(sample_inputs(model.program, step)) for step in range(2)])
    assert (list(done.losses), done.state_sha256) == on_host(model.case, model.program, 2)


# No operating system and no C library's start: the calls of Linux on RISC-V, which QEMU has for programs.
LINUX = """
#include <string.h>
#include "poetc_port.h"
int main(void);
static long call(long number, long a, long b, long c)
{
    register long a0 __asm__("a0") = a, a1 __asm__("a1") = b, a2 __asm__("a2") = c, a7 __asm__("a7") = number;
    __asm__ volatile("ecall" : "+r"(a0) : "r"(a1), "r"(a2), "r"(a7) : "memory");
    return a0;
}
void poetc_port_log(const char *text) { call(64, 1, (long)text, (long)strlen(text)); }
void _start(void) { call(93, main(), 0, 0); }
void *memcpy(void *to, const void *from, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((volatile char *)to)[i] = ((const char *)from)[i];
    return to;
}
void *memset(void *to, int value, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((volatile char *)to)[i] = (char)value;
    return to;
}
int memcmp(const void *a, const void *b, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (((const volatile unsigned char *)a)[i] != ((const unsigned char *)b)[i])
            return ((const unsigned char *)a)[i] - ((const unsigned char *)b)[i];
    return 0;
}
size_t strlen(const char *text)
{
    const volatile char *end = text;
    while (*end)
        end++;
    return (size_t)(end - text);
}
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("compiler", "flags", "emulator"),
    [
        ("riscv64-unknown-elf-gcc", "-march=rv32imac -mabi=ilp32", "qemu-riscv32"),
        ("riscv64-unknown-elf-gcc", "-march=rv64gc -mabi=lp64d", "qemu-riscv64"),
        ("xtensa-lx106-elf-gcc", "-mlongcalls", ""),
    ],
)
def test_plain_c_on_other_cores(compiler: str, flags: str, emulator: str, tmp_path: Path) -> None:
    """The library of target c99; Xtensa is compiled only."""
    if shutil.which(compiler) is None:
        pytest.skip("make setup-arm")
    model = make_model(4)
    out = write([model.part()], Form("cmsis-pack"), tmp_path / "o", "c99")
    shutil.copy(write([model.part()], Form(), tmp_path / "mk") / "port" / "poetc_port.h", out)
    (out / "main.c").write_text(MAIN)
    (out / "linux.c").write_text(LINUX)
    sources = sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.suffix in (".c", ".S"))
    if not emulator:
        sources.remove("linux.c")
    headers = Path("/usr/lib/picolibc") / compiler.removesuffix("-gcc") / "include"
    words = [compiler, *flags.split(), "-std=gnu99", "-O2", "-Wall", "-Werror", "-isystem", headers]
    words += ["-I.", "-Iruntime/include", "-Iruntime/kernels", "-c"]
    run([*words, *sources], out)
    if emulator:
        objects = sorted(out.glob("*.o"))
        run(
            [compiler, *flags.split(), "-nostdlib", "-static", "-Wl,--no-relax", *objects, "-lgcc", "-o", "program"],
            out,
        )
        assert bits(run([emulator, "program"], out)) == model.losses(2)
