"""Targets (a core and how to compile for it) and boards (a memory map and how to start it): two tables, no code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from poetc.boards._cores import Core

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Region:
    origin: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.origin + self.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """How a family of devices is built for. `build`: a program for an operating system, a library, or firmware.

    `exact_flags` are added where subnormal numbers count: for all numerics but `fast`.
    """

    name: str
    cross_compile: str = ""  # The compiler's default prefix.
    flags: str = "-O2"
    exact_flags: str = ""
    build: str = "firmware"  # program | library | firmware | package
    ports: tuple[str, ...] = ()  # folders of runtime/ports, all of their sources
    board: str = ""  # the one whose memory map is taken if none is named
    core: Core | None = None  # whose instructions the code has; None: any core's

    @property
    def hosted(self) -> bool:
        return self.build in ("program", "package")


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A memory map, the sources of its port, and how QEMU starts it.

    `code` and `ram` are the memories that the linker may use. `trap` names the mechanism that catches an access past
    the budget. That is the protection unit, the memory management unit, pages that are taken away, or the end of the
    RAM: then the budget ends there. `memory_option`: QEMU gets RAM that ends exactly with the budget.
    """

    name: str
    title: str
    target: str
    qemu: tuple[str, ...]
    code: Region | None = None
    ram: Region | None = None
    sources: tuple[str, ...] = ()  # files of runtime/ports besides the target's folders
    serial: str = ""  # the driver of its serial line, a file of runtime/ports; "": none here
    processors: str = ""  # the port of its other processors, a file of runtime/ports; "": it has one
    processor_count: int = 2  # with that port, the most
    smp: bool = False  # QEMU is told how many processors there are
    trap: str = ""  # mpu | mmu | end | pages | ""
    memory_option: bool = False
    bank: str = "ram"  # name of the memory `ram`, where an arena is spread over several
    banks: tuple[tuple[str, Region], ...] = ()  # the others that it may be spread over, by name
    card: bool = False  # pages go to an SD card image; otherwise to a file
    own_store: bool = False  # of the board, not the debugger's: checkpoints are on unless they are switched off
    cross_compile: str = ""  # where it differs from the target's
    flags: str = ""
    core: Core | None = None
    folder: Path | None = None  # of a board of the user's own: its files are compiled, too


_M4F = Core("cortex-m4", "single", "dsp")
_M85 = Core("cortex-m85", "double", "helium")
# GCC would make calls of memcpy and memset out of short loops, which newlib-nano runs byte by byte.
_M = "-O2 -mthumb -fno-tree-loop-distribute-patterns"
_SEMIHOSTING = ("device/semihosting.c", "device/semihosting_store.c")
SYSTEM_ARM = ("qemu-system-arm", "-nographic", "-monitor", "none", "-serial", "none", "-M")
SYSTEM_ARM64 = ("qemu-system-aarch64", "-nographic", "-monitor", "none", "-serial", "none", "-nic", "none", "-M")

TARGETS = {
    t.name: t
    for t in (
        Target(name="host", flags="-O3 -march=native", build="program", ports=("host", "posix", "loop")),
        Target(
            name="cortex-a",
            cross_compile="aarch64-linux-gnu-",
            flags="-O2 -mcpu=cortex-a72",
            build="program",
            ports=("device", "linux", "posix", "loop"),
            board="aarch64",
            core=Core("cortex-a72", "double", "neon"),
        ),
        *(
            Target(
                name=f"generic-{core.removeprefix('cortex-')}",
                cross_compile=compiler,
                flags=f"-O2 -mcpu={core}{more}",
                build="program",
                ports=("device", "linux", "posix", "loop"),
                board=f"linux-{core.removeprefix('cortex-')}",
                core=Core(core, "double", "none" if core == "cortex-a7" else "neon"),
            )
            for core, compiler, more in (
                ("cortex-a7", "arm-linux-gnueabihf-", " -mfpu=vfpv4-d16 -mfloat-abi=hard"),
                ("cortex-a55", "aarch64-linux-gnu-", ""),
                ("cortex-a76", "aarch64-linux-gnu-", ""),
            )
        ),
        Target(
            name="cortex-a-bare",
            cross_compile="aarch64-linux-gnu-",
            flags="-O2 -mcpu=cortex-a53 -mstrict-align -fno-pie -no-pie -ffreestanding"
            " -fno-tree-loop-distribute-patterns",
            ports=("device", "cortex-a-bare", "traps", "loop"),
            board="virt-a72",
            core=Core("cortex-a53", "double", "neon"),
        ),
        Target(
            name="generic-r52",
            cross_compile="arm-none-eabi-",
            flags=f"{_M} -mcpu=cortex-r52 -mfpu=neon-fp-armv8 -mfloat-abi=hard -mno-unaligned-access",
            ports=("device", "cortex-r", "traps", "loop"),
            board="virt-r52",
            core=Core("cortex-r52", "double", "neon"),
        ),
        Target(
            name="cortex-m",
            cross_compile="arm-none-eabi-",
            flags=f"-Os -mthumb {_M4F.flags()}",  # for want of a device
            build="library",
            core=_M4F,
        ),
        Target(name="c99", build="library"),
        *(
            Target(
                name=name,
                cross_compile="arm-none-eabi-",
                flags=f"{_M} {core.flags()}",
                exact_flags=exact,
                ports=("device", "cortex-m", "loop"),
                board=board,
                core=core,
            )
            for name, core, exact, board in (
                ("cortex-m0", Core("cortex-m0"), "", "microbit"),
                ("cortex-m3", Core("cortex-m3"), "", "mps2-an385"),
                ("cortex-m4f", _M4F, "", "mps2-an386"),
                ("cortex-m7", Core("cortex-m7", "double", "dsp"), "", "mps2-an500"),
                ("generic-m23", Core("cortex-m23"), "", "mps2-an505-m23"),
                ("generic-m33", Core("cortex-m33", "single", "dsp"), "", "mps2-an505"),
                ("generic-m85", _M85, _M85.flags(exact=True), "mps3-an547-m85"),
                # Helium's float instructions flush subnormals, its integer ones are exact.
                ("cortex-m55", Core("cortex-m55", "double", "helium"), "-mcpu=cortex-m55+nomve.fp", "mps3-an547"),
            )
        ),
    )
}

# Secure code and RAM of the AN505.
_AN505 = {
    "qemu": (*SYSTEM_ARM, "mps2-an505"),
    "code": Region(0x10000000, 4 * MIB),
    "ram": Region(0x38000000, 4 * MIB),
    "sources": _SEMIHOSTING,
    "trap": "mpu",
}
# The first processor of QEMU's AN521 has neither FPU nor DSP instructions unless it is asked for.
_FPU = ("-global", "sse-200.CPU0_FPU=on", "-global", "sse-200.CPU0_DSP=on")
_AN547 = {
    "qemu": (*SYSTEM_ARM, "mps3-an547"),
    "code": Region(0, 512 * KIB),
    "ram": Region(0x21000000, 4 * MIB),
    "banks": (
        ("dtcm", Region(0x20000000, 512 * KIB)),
        ("sram", Region(0x01000000, 2 * MIB)),
        ("ddr", Region(0x60000000, 256 * MIB)),
    ),
    "sources": _SEMIHOSTING,
    "trap": "mpu",
}
_MPS2 = {
    "code": Region(0, 4 * MIB),
    "ram": Region(0x20000000, 4 * MIB),
    "banks": (("psram", Region(0x21000000, 16 * MIB)), ("bram", Region(0x01000000, 16 * KIB))),
    "sources": _SEMIHOSTING,
    "serial": "drivers/cmsdk_uart.c",
    "trap": "mpu",
}
_AN500 = {**_MPS2, "banks": (("psram", Region(0x60000000, 16 * MIB)),)}

BOARDS = {
    b.name: b
    for b in (
        Board(
            name="microbit",
            title="BBC micro:bit (nRF51822, Cortex-M0, 16 KiB)",
            target="cortex-m0",
            qemu=(*SYSTEM_ARM, "microbit"),
            code=Region(0, 256 * KIB),
            ram=Region(0x20000000, 16 * KIB),
            sources=_SEMIHOSTING,
            trap="end",
        ),
        Board(
            name="lm3s6965evb",
            title="Stellaris LM3S6965 (Cortex-M3, 64 KiB, SD card on SPI)",
            target="cortex-m3",
            qemu=(*SYSTEM_ARM, "lm3s6965evb"),
            code=Region(0, 256 * KIB),
            ram=Region(0x20000000, 64 * KIB),
            sources=("device/semihosting.c", "drivers/sd_spi.c", "drivers/pl022.c"),
            serial="drivers/pl011_uart.c",
            trap="mpu",
            card=True,
            own_store=True,
        ),
        Board(
            name="mps2-an385",
            title="MPS2 with a Cortex-M3",
            target="cortex-m3",
            qemu=(*SYSTEM_ARM, "mps2-an385"),
            **_MPS2,  # type: ignore[arg-type]
        ),
        Board(
            name="mps2-an385-m0",
            title="MPS2 with a Cortex-M3 that runs the code of a Cortex-M0: room to count in; traps nothing",
            target="cortex-m0",
            qemu=(*SYSTEM_ARM, "mps2-an385"),
            code=Region(0, 4 * MIB),
            ram=Region(0x20000000, 4 * MIB),
            sources=_SEMIHOSTING,
            serial="drivers/cmsdk_uart.c",
        ),
        Board(
            name="mps2-an386",
            title="MPS2 with a Cortex-M4F",
            target="cortex-m4f",
            qemu=(*SYSTEM_ARM, "mps2-an386"),
            **_MPS2,  # type: ignore[arg-type]
        ),
        Board(
            name="mps2-an500",
            title="MPS2 with a Cortex-M7",
            target="cortex-m7",
            qemu=(*SYSTEM_ARM, "mps2-an500"),
            **_AN500,  # type: ignore[arg-type]
        ),
        Board(
            name="mps3-an547",
            title="MPS3 Corstone-300 (Cortex-M55)",
            target="cortex-m55",
            **_AN547,  # type: ignore[arg-type]
        ),
        Board(
            name="mps3-an547-m85",
            title="MPS3 Corstone-300 with a Cortex-M55 that runs the code of a Cortex-M85",
            target="generic-m85",
            **_AN547,  # type: ignore[arg-type]
        ),
        Board(
            name="mps2-an505",
            title="MPS2 with a Cortex-M33",
            target="generic-m33",
            **_AN505,  # type: ignore[arg-type]
        ),
        Board(
            name="mps2-an521",
            title="MPS2 with two Cortex-M33",
            target="generic-m33",
            processors="processors/sse200.c",
            **{**_AN505, "qemu": (*SYSTEM_ARM, "mps2-an521", *_FPU, "-accel", "tcg,thread=single")},  # type: ignore[arg-type]
        ),
        Board(
            name="mps2-an505-m23",
            title="MPS2 with a Cortex-M33 that runs the code of a Cortex-M23",
            target="generic-m23",
            **_AN505,  # type: ignore[arg-type]
        ),
        Board(
            name="virt-a72",
            title="QEMU's virt machine with a Cortex-A72, no operating system",
            target="cortex-a-bare",
            qemu=(*SYSTEM_ARM64, "virt", "-cpu", "cortex-a72"),
            # The device tree takes the first MiB; code and RAM follow each other.
            code=Region(0x40100000, 64 * MIB),
            ram=Region(0x40100000, 1024 * MIB),
            sources=_SEMIHOSTING,
            processors="processors/psci.c",
            processor_count=8,
            smp=True,
            trap="end",
            memory_option=True,
        ),
        Board(
            name="virt-r52",
            title="QEMU's virt machine with a core that runs the code of a Cortex-R52",
            target="generic-r52",
            qemu=(*SYSTEM_ARM, "virt", "-nic", "none", "-cpu", "max"),
            code=Region(0x40100000, 64 * MIB),
            ram=Region(0x40100000, 1024 * MIB),
            sources=_SEMIHOSTING,
            trap="end",
            memory_option=True,
        ),
        Board(
            name="raspi3b",
            title="Raspberry Pi 3B (Cortex-A53), no operating system, SD card on SDHCI",
            target="cortex-a-bare",
            qemu=(*SYSTEM_ARM64, "raspi3b"),
            code=Region(0x80000, 64 * MIB),
            ram=Region(0x80000, 512 * MIB),
            sources=("device/semihosting.c", "drivers/sdhci.c", "drivers/arm64_mmu.c"),
            trap="mmu",
            card=True,
            own_store=True,
        ),
        Board(
            name="aarch64",
            title="Linux on a Cortex-A72, 64 bits",
            target="cortex-a",
            qemu=("qemu-aarch64", "-cpu", "cortex-a72", "-L", "/usr/aarch64-linux-gnu"),
            own_store=True,
            trap="pages",
        ),
        *(
            Board(
                name=f"linux-{core}",
                title=title,
                target=f"generic-{core}",
                qemu=qemu,
                own_store=True,
                trap="pages",
            )
            for core, title, qemu in (
                (
                    "a7",
                    "Linux on a Cortex-A7, 32 bits",
                    ("qemu-arm", "-cpu", "cortex-a7", "-L", "/usr/arm-linux-gnueabihf"),
                ),
                (
                    "a55",
                    "Linux on a Cortex-A76, the same architecture as a Cortex-A55's",
                    ("qemu-aarch64", "-cpu", "cortex-a76", "-L", "/usr/aarch64-linux-gnu"),
                ),
                (
                    "a76",
                    "Linux on a Cortex-A76",
                    ("qemu-aarch64", "-cpu", "cortex-a76", "-L", "/usr/aarch64-linux-gnu"),
                ),
            )
        ),
        Board(
            name="armhf",
            title="Linux on a Cortex-A, 32 bits",
            target="cortex-a",
            qemu=("qemu-arm", "-cpu", "cortex-a15", "-L", "/usr/arm-linux-gnueabihf"),
            own_store=True,
            trap="pages",
            cross_compile="arm-linux-gnueabihf-",
            flags="-O2 -march=armv7-a+fp -mfloat-abi=hard",
            core=Core("cortex-a7"),  # the least of them
        ),
    )
}
