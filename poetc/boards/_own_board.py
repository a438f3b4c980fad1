"""A board of the user's own: a folder with `board.yaml` and the files of its port."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import msgspec

from poetc.boards._boards import SYSTEM_ARM, SYSTEM_ARM64, TARGETS, Board, Region
from poetc.devices import parse_size
from poetc.devices._yaml import read as read_yaml
from poetc.errors import UsageError
from poetc.runtime import runtime_directory

FILE = "board.yaml"
LINKER_SCRIPT = "link.ld"  # of the folder: taken as it is
TRAPS = ("", "mpu", "end")
_ADDRESSES = 1 << 32
Wrong = Callable[[str, str], UsageError]  # of a field, and the reason


class _Memory(msgspec.Struct, forbid_unknown_fields=True):
    origin: int
    size: int | str


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields of `board.yaml`: see `Board`, whose they are."""

    target: str
    code: _Memory
    ram: _Memory
    title: str = ""
    sources: list[str] = []
    serial: str = ""
    trap: str = ""
    bank: str = "ram"
    banks: dict[str, _Memory] = {}
    card: bool = False
    own_store: bool = False
    qemu: str = ""


def read_board(folder: Path) -> Board:
    """The board that a folder describes. Raises UsageError with the file and the field."""
    path = folder / FILE
    if not path.is_file():
        raise UsageError(f"{folder}: a board of your own is a folder with {FILE} in it")
    document, lines = read_yaml(path, "a board")
    try:
        file = msgspec.convert(document, _File)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}") from None

    def wrong(field: str, text: str) -> UsageError:
        return UsageError(f"{path}:{lines.get((field,), 1)}: {field}: {text}")

    target = TARGETS.get(file.target)
    if target is None or target.build != "firmware":
        known = ", ".join(t.name for t in TARGETS.values() if t.build == "firmware")
        raise wrong("target", f"{file.target!r} is none of {known}")
    if file.trap not in TRAPS:
        raise wrong("trap", f"{file.trap!r} is neither mpu nor end; leave it out where nothing catches an access")
    code, ram = (_region(memory, field, wrong) for field, memory in (("code", file.code), ("ram", file.ram)))
    if code.origin < ram.end and ram.origin < code.end:
        raise wrong("ram", "it overlaps the code")
    banks = {name: _region(memory, "banks", wrong) for name, memory in file.banks.items()}
    for name, bank in banks.items():
        if name == file.bank:
            raise wrong("banks", f"{name!r} is the name of the memory 'ram' already; give that another one with bank:")
        for other in (ram, *(b for n, b in banks.items() if n < name)):
            if bank.origin < other.end and other.origin < bank.end:
                raise wrong("banks", f"{name!r} overlaps another memory")
    ports = runtime_directory() / "ports"
    for field, names in (("sources", file.sources), ("serial", [file.serial] if file.serial else [])):
        for name in names:
            mine = field == "serial" and (folder / name).is_file()
            if not mine and (".." in Path(name).parts or not (ports / name).is_file()):
                raise wrong(field, f"{name!r} is no file of poetc/runtime/ports, as device/semihosting.c is")
    system = SYSTEM_ARM64 if "aarch64" in target.cross_compile else SYSTEM_ARM
    return Board(
        name=folder.resolve().name,
        title=file.title or folder.resolve().name,
        target=target.name,
        qemu=(*system, *shlex.split(file.qemu)) if file.qemu else (),
        code=code,
        ram=ram,
        sources=tuple(file.sources),
        serial=file.serial,
        trap=file.trap,
        bank=file.bank,
        banks=tuple(banks.items()),
        card=file.card,
        own_store=file.own_store,
        folder=folder,
    )


def _region(memory: _Memory, field: str, wrong: Wrong) -> Region:
    try:
        size = memory.size if isinstance(memory.size, int) else parse_size(memory.size, option="size")
    except UsageError as error:
        raise wrong(field, str(error)) from None
    if not (memory.origin >= 0 and size > 0 and memory.origin + size <= _ADDRESSES):
        raise wrong(field, f"{size} bytes from {memory.origin:#x} on are not within the first 4 GiB")
    return Region(memory.origin, size)


def own_files(board: Board) -> dict[str, Path]:
    """Sources and headers of the board's folder by their names."""
    if board.folder is None:
        return {}
    return {p.name: p for p in sorted(board.folder.iterdir()) if p.suffix in (".c", ".h", ".S")}


def own_linker_script(board: Board) -> Path | None:
    """The linker script of the board's folder; None: it is made from the memory map."""
    path = None if board.folder is None else board.folder / LINKER_SCRIPT
    return path if path is not None and path.is_file() else None
