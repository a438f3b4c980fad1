"""Files that describe targets and boards: one in `targets` or `boards` for each, and `board.yaml` of a user's own."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from poetc.boards._boards import Board, Region, Target
from poetc.boards._cores import Core
from poetc.devices import parse_size
from poetc.errors import UsageError
from poetc.runtime import runtime_directory
from poetc.yaml_values import read as read_yaml

FILE = "board.yaml"
LINKER_SCRIPT = "link.ld"  # of the folder: taken as it is
TRAPS = ("", "mpu", "end")
SYSTEM_ARM = ("qemu-system-arm", "-nographic", "-monitor", "none", "-serial", "none", "-M")
SYSTEM_ARM64 = ("qemu-system-aarch64", "-nographic", "-monitor", "none", "-serial", "none", "-nic", "none", "-M")
_ADDRESSES = 1 << 32
Wrong = Callable[[str, str], UsageError]  # of a field, and the reason


class _Memory(msgspec.Struct, forbid_unknown_fields=True):
    origin: int
    size: int | str


class _Core(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    fpu: str = "none"
    simd: str = "none"


class _Target(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    title: str
    build: str = "firmware"
    core: _Core | None = None
    cross_compile: str = ""
    flags: str = "-O2"
    exact_flags: str = ""
    ports: tuple[str, ...] = ()
    board: str = ""


class _Board(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields of a board of the user's own: see `Board`, whose they are."""

    target: str
    code: _Memory
    ram: _Memory
    title: str = ""
    sources: tuple[str, ...] = ()
    serial: str = ""
    trap: str = ""
    bank: str = "ram"
    banks: dict[str, _Memory] = {}
    card: bool = False
    own_store: bool = False
    qemu: str = ""


class _KnownBoard(_Board):
    """Those of a board that poetc brings."""

    code: _Memory | None = None  # type: ignore[assignment]  # an operating system has no map
    ram: _Memory | None = None  # type: ignore[assignment]
    processors: str = ""
    processor_count: int = 2
    smp: bool = False
    memory_option: bool = False
    cross_compile: str = ""
    flags: str = ""
    core: _Core | None = None


F = TypeVar("F", bound=msgspec.Struct)


def _fields(path: Path, kind: type[F], noun: str) -> tuple[F, Wrong]:
    """The fields in a file, and the error that names a field with its line."""
    document, lines = read_yaml(path, noun)
    try:
        file = msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}") from None
    return file, lambda field, text: UsageError(f"{path}:{lines.get((field,), 1)}: {field}: {text}")


def _core(core: _Core | None) -> Core | None:
    return None if core is None else Core(core.name, core.fpu, core.simd)


def _target(path: Path) -> Target:
    file, _ = _fields(path, _Target, "a target")
    values = msgspec.structs.asdict(file)
    core = _core(file.core)
    flags = file.flags.replace("{core}", core.flags()) if core is not None else file.flags
    return Target(**{**values, "name": path.stem, "core": core, "flags": flags})


def _known(path: Path) -> Board:
    file, wrong = _fields(path, _KnownBoard, "a board")
    values = msgspec.structs.asdict(file)
    code, ram = (memory and _region(memory, field, wrong) for field, memory in (("code", file.code), ("ram", file.ram)))
    banks = tuple((name, _region(memory, "banks", wrong)) for name, memory in file.banks.items())
    own = {"name": path.stem, "code": code, "ram": ram, "banks": banks, "core": _core(file.core)}
    return Board(**{**values, **own, "qemu": _qemu(TARGETS[file.target], file.qemu, wrong)})


def _qemu(target: Target, arguments: str, wrong: Wrong) -> tuple[str, ...]:
    """The command: for a program all of `arguments`, for firmware those behind `-M`."""
    system = () if target.hosted else SYSTEM_ARM64 if "aarch64" in target.cross_compile else SYSTEM_ARM
    try:
        return (*system, *shlex.split(arguments)) if arguments else ()
    except ValueError as error:
        raise wrong("qemu", f"{arguments!r}: {str(error).lower()}") from None


def read_board(folder: Path) -> Board:
    """The board that a folder describes. Raises UsageError with the file and the field."""
    path = folder / FILE
    if not path.is_file():
        raise UsageError(f"{folder}: a board of your own is a folder with {FILE} in it")
    file, wrong = _fields(path, _Board, "a board")
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
    own = {"name": folder.resolve().name, "title": file.title or folder.resolve().name, "folder": folder}
    places = {"code": code, "ram": ram, "banks": tuple(banks.items()), "qemu": _qemu(target, file.qemu, wrong)}
    return Board(**{**msgspec.structs.asdict(file), **own, **places})


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


_HERE = Path(__file__).parent
TARGETS = {path.stem: _target(path) for path in sorted(_HERE.glob("targets/*.yaml"))}
BOARDS = {path.stem: _known(path) for path in sorted(_HERE.glob("boards/*.yaml"))}
