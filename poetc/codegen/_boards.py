"""Targets (a core and how to compile for it) and boards (a memory map and how to start it): two tables, no code."""

from __future__ import annotations

from dataclasses import dataclass, replace

from poetc.errors import UsageError

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

    `portable_flags` are added where all targets are to compute the same bits, `fast_flags` where they need not.
    """

    name: str
    cross_compile: str = ""  # default prefix of the compiler
    flags: str = "-O2"
    portable_flags: str = ""
    fast_flags: str = ""
    build: str = "firmware"  # program | library | firmware
    ports: tuple[str, ...] = ()  # folders of runtime/ports, all of their sources
    board: str = ""  # the one whose memory map is taken if none is named

    @property
    def hosted(self) -> bool:
        return self.build == "program"


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A memory map, the sources of its port, and how QEMU starts it.

    `code` and `ram` are what the linker may use. `trap` says what catches an access past the budget: the protection
    unit, the memory management unit, the end of the RAM (the budget is then put at the end of it), or pages that are
    taken away. `memory_option`: QEMU gets RAM that ends exactly with the budget.
    """

    name: str
    title: str
    target: str
    qemu: tuple[str, ...]
    code: Region | None = None
    ram: Region | None = None
    sources: tuple[str, ...] = ()  # files of runtime/ports besides the target's folders
    trap: str = ""  # mpu | mmu | end | pages | ""
    memory_option: bool = False
    card: bool = False  # pages go to an SD card image; otherwise to a file
    own_store: bool = False  # of the board, not the debugger's: checkpoints are on unless they are switched off
    cross_compile: str = ""  # where it differs from the target's
    flags: str = ""


# GCC would make calls of memcpy and memset out of short loops, which newlib-nano runs byte by byte.
_M = "-O2 -mthumb -fno-tree-loop-distribute-patterns"
_SEMIHOSTING = ("device/semihosting.c", "device/semihosting_store.c")
_SYSTEM_ARM = ("qemu-system-arm", "-nographic", "-monitor", "none", "-serial", "none", "-M")
_SYSTEM_ARM64 = ("qemu-system-aarch64", "-nographic", "-monitor", "none", "-serial", "none", "-nic", "none", "-M")

TARGETS = {
    t.name: t
    for t in (
        Target(name="host", flags="-O3 -march=native", build="program", ports=("host", "posix")),
        Target(
            name="cortex-a",
            cross_compile="aarch64-linux-gnu-",
            flags="-O2 -mcpu=cortex-a72",
            build="program",
            ports=("device", "linux", "posix"),
            board="aarch64",
        ),
        Target(
            name="cortex-a-bare",
            cross_compile="aarch64-linux-gnu-",
            flags="-O2 -mcpu=cortex-a53 -mstrict-align -fno-pie -no-pie -ffreestanding"
            " -fno-tree-loop-distribute-patterns",
            ports=("device", "cortex-a-bare"),
            board="virt-a72",
        ),
        Target(
            name="cortex-m",
            cross_compile="arm-none-eabi-",
            flags="-Os -mthumb -mcpu=cortex-m4 -mfloat-abi=hard -mfpu=fpv4-sp-d16",
            build="library",
        ),
        *(
            Target(
                name=name,
                cross_compile="arm-none-eabi-",
                flags=f"{_M} {flags}",
                portable_flags=portable,
                ports=("device", "cortex-m"),
                board=board,
            )
            for name, flags, portable, board in (
                ("cortex-m0", "-mcpu=cortex-m0", "", "microbit"),
                ("cortex-m3", "-mcpu=cortex-m3", "", "mps2-an385"),
                ("cortex-m4f", "-mcpu=cortex-m4 -mfloat-abi=hard -mfpu=fpv4-sp-d16", "", "mps2-an386"),
                ("cortex-m7", "-mcpu=cortex-m7 -mfloat-abi=hard -mfpu=fpv5-d16", "", "mps2-an500"),
                # Helium's float instructions flush subnormals: only the integer ones are portable.
                ("cortex-m55", "-mcpu=cortex-m55 -mfloat-abi=hard", "-mcpu=cortex-m55+nomve.fp", "mps3-an547"),
            )
        ),
    )
}

_MPS2 = {"code": Region(0, 4 * MIB), "ram": Region(0x20000000, 4 * MIB), "sources": _SEMIHOSTING, "trap": "mpu"}

BOARDS = {
    b.name: b
    for b in (
        Board(
            name="microbit",
            title="BBC micro:bit (nRF51822, Cortex-M0, 16 KiB)",
            target="cortex-m0",
            qemu=(*_SYSTEM_ARM, "microbit"),
            code=Region(0, 256 * KIB),
            ram=Region(0x20000000, 16 * KIB),
            sources=_SEMIHOSTING,
            trap="end",
        ),
        Board(
            name="lm3s6965evb",
            title="Stellaris LM3S6965 (Cortex-M3, 64 KiB, SD card on SPI)",
            target="cortex-m3",
            qemu=(*_SYSTEM_ARM, "lm3s6965evb"),
            code=Region(0, 256 * KIB),
            ram=Region(0x20000000, 64 * KIB),
            sources=("device/semihosting.c", "drivers/sd_spi.c", "drivers/pl022.c"),
            trap="mpu",
            card=True,
            own_store=True,
        ),
        Board(
            name="mps2-an385",
            title="MPS2 with a Cortex-M3",
            target="cortex-m3",
            qemu=(*_SYSTEM_ARM, "mps2-an385"),
            **_MPS2,  # type: ignore[arg-type]
        ),
        Board(
            name="mps2-an385-m0",
            title="MPS2 with a Cortex-M3 that runs the code of a Cortex-M0: room to count in; traps nothing",
            target="cortex-m0",
            qemu=(*_SYSTEM_ARM, "mps2-an385"),
            code=Region(0, 4 * MIB),
            ram=Region(0x20000000, 4 * MIB),
            sources=_SEMIHOSTING,
        ),
        Board(
            name="mps2-an386",
            title="MPS2 with a Cortex-M4F",
            target="cortex-m4f",
            qemu=(*_SYSTEM_ARM, "mps2-an386"),
            **_MPS2,  # type: ignore[arg-type]
        ),
        Board(
            name="mps2-an500",
            title="MPS2 with a Cortex-M7",
            target="cortex-m7",
            qemu=(*_SYSTEM_ARM, "mps2-an500"),
            **_MPS2,  # type: ignore[arg-type]
        ),
        Board(
            name="mps3-an547",
            title="MPS3 Corstone-300 (Cortex-M55)",
            target="cortex-m55",
            qemu=(*_SYSTEM_ARM, "mps3-an547"),
            code=Region(0, 512 * KIB),
            ram=Region(0x21000000, 4 * MIB),
            sources=_SEMIHOSTING,
            trap="mpu",
        ),
        Board(
            name="virt-a72",
            title="QEMU's virt machine with a Cortex-A72, no operating system",
            target="cortex-a-bare",
            qemu=(*_SYSTEM_ARM64, "virt", "-cpu", "cortex-a72"),
            # The device tree takes the first MiB; code and RAM follow each other.
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
            qemu=(*_SYSTEM_ARM64, "raspi3b"),
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
        Board(
            name="armhf",
            title="Linux on a Cortex-A, 32 bits",
            target="cortex-a",
            qemu=("qemu-arm", "-cpu", "cortex-a15", "-L", "/usr/arm-linux-gnueabihf"),
            own_store=True,
            trap="pages",
            cross_compile="arm-linux-gnueabihf-",
            flags="-O2 -march=armv7-a+fp -mfloat-abi=hard",
        ),
    )
}


def board_like(device: str, core: str, fpu: str) -> Board | None:
    """The board that stands for a device: the emulated one of that name, or the usual one with its core. None for cores
    that no firmware target is built for.
    """
    name = device.removeprefix("qemu-")
    if name in BOARDS and BOARDS[name].code is not None:
        return BOARDS[name]
    target = core.replace("plus", "") + ("f" if core == "cortex-m4" and fpu != "none" else "")
    if target in TARGETS and TARGETS[target].build == "firmware":
        return BOARDS[TARGETS[target].board]
    return None


def resolve(target: str, board: str | None, portable: bool) -> tuple[Target, Board | None]:
    """The target with the flags and the compiler that hold for `board` (by default the target's own).

    Raises UsageError for an unknown name, or a board that has another core.
    """
    if target not in TARGETS:
        raise UsageError(f"unknown target {target!r}: choose from {', '.join(TARGETS)}")
    chosen = TARGETS[target]
    name = board or chosen.board
    if not name:
        return chosen, None
    if name not in BOARDS:
        raise UsageError(f"unknown board {name!r}: choose from {', '.join(sorted(BOARDS))}")
    found = BOARDS[name]
    if found.target != target:
        raise UsageError(f"{name} is a board of target {found.target}, not of {target}")
    flags = f"{found.flags or chosen.flags} {chosen.portable_flags if portable else chosen.fast_flags}".rstrip()
    return replace(chosen, flags=flags, cross_compile=found.cross_compile or chosen.cross_compile), found
