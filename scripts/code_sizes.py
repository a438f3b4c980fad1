"""Measure the code of the runtime for every firmware target, for `poetc solve` to predict the size of a program.

    python scripts/code_sizes.py [--target NAME] [--source FILE] [OUT]

OUT is poetc/runtime/code_sizes.tsv by default. --target measures one target anew, and --source one file, such as
kernels/int8/int8_pool.c. The others are taken from there. It needs the cross compilers.

Compiles all sources and ports with the flags of the emitted Makefile. Writes each function's and variable's section,
its size on every target, and the symbols that it refers to. Library functions (libgcc, newlib) are read from the
compiler's archives. Needed after a change that moves a prediction by more than a test allows.
"""

from __future__ import annotations

import argparse
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from poetc.boards import BOARDS, TARGETS, Numerics, numerics_flags, resolve
from poetc.emit._code_size import (
    CHECKPOINTS,
    CODE,
    DATA_FILE,
    INITIALISED,
    LOOP,
    QUEUES,
    TRAIN,
    VARIABLES,
    Key,
    Section,
    columns,
    read_table,
)
from poetc.emit.layouts._contents import WARNINGS
from poetc.runtime import runtime_directory
from poetc.runtime.layout import align

# The headers that train.c needs to compile: the size of its code hardly depends on the numbers.
MODEL_H = """
#include "poetc.h"
#include "poetc_session.h"
#include "poetc_queues.h"
extern const poetc_queues model_queues;
extern const poetc_program model_train;
extern const poetc_binding model_train_inputs[];
extern const poetc_limit model_limits[];
extern const poetc_region model_regions[];
extern const poetc_model model_loop;
extern const uint8_t model_state[], model_constants[];
#define POETC_MODEL_NAME "model"
#define POETC_MODEL_PROGRAM (&model_train)
#define POETC_MODEL_INPUTS model_train_inputs
#define POETC_MODEL_INPUT_COUNT 2u
#define POETC_MODEL_LIMITS model_limits
#define POETC_MODEL_STATE model_state
#define POETC_MODEL_CONSTANTS model_constants
#define POETC_MODEL_ARENA_BYTES 100000u
#define POETC_MODEL_STATE_BYTES 10000u
#define POETC_MODEL_BLOCK_BYTES 512u
#define POETC_MODEL_STORE_BLOCKS 300u
#define POETC_MODEL_STORE_HAS_IMAGE 0
#define POETC_MODEL_BUFFER_OFFSET 10240u
#define POETC_MODEL_REGIONS model_regions
#define POETC_MODEL_REGION_COUNT 2u
#define POETC_MODEL_CHECKPOINT_BLOCK 0u
#define POETC_MODEL_IDENTITY 0x12345678u
#define POETC_MODEL_EMISSION 0x12345678u
#define POETC_MODEL_LOOP (&model_loop)
#define POETC_MODEL_QUEUES (&model_queues)
"""


_LEFT_OUT = (".ARM.ex", ".eh_frame", ".bss.poetc_arena")  # discarded, or counted apart

_WEAK = 2  # binding of a symbol


def read_object(data: bytes, label: str) -> tuple[dict[str, Section], set[str]]:
    """Sections of an ELF object (little-endian, 32 or 64 bits) that take memory, and its undefined symbols."""
    wide = data[4] == 2
    head = struct.unpack_from("<16xHHIQQQIHHHHHH" if wide else "<16xHHIIIIIHHHHHH", data)
    offset, entry, count, names_at = head[5], head[10], head[11], head[12]
    form = "<IIQQQQIIQQ" if wide else "<IIIIIIIIII"
    headers = [struct.unpack_from(form, data, offset + i * entry) for i in range(count)]

    def text(table: int, at: int) -> str:
        start = headers[table][4] + at
        return data[start : data.index(b"\0", start)].decode()

    names = [text(names_at, h[0]) for h in headers]
    symbols: list[tuple[str, int, int, int]] = []  # name, section, type, binding
    for h in headers:
        if h[1] == 2:
            for at in range(h[4], h[4] + h[5], h[9]):
                if wide:
                    name, info, _, section, _, _ = struct.unpack_from("<IBBHQQ", data, at)
                else:
                    name, _, _, info, _, section = struct.unpack_from("<IIIBBH", data, at)
                symbols.append((text(h[6], name), section, info & 15, info >> 4))
    references: dict[int, set[str]] = {}
    for h in headers:
        if h[1] in (4, 9):
            for at in range(h[4], h[4] + h[5], h[9]):
                info = struct.unpack_from("<QQ" if wide else "<II", data, at)[1]
                name, section, _, binding = symbols[info >> 32 if wide else info >> 8]
                if section == 0 and binding == _WEAK:  # the linker brings nothing in for it
                    continue
                local = 0 < section < 0xFF00 and (binding == 0 or not name)
                references.setdefault(h[7], set()).add(f"{label}:{names[section]}" if local else name)
    by_name: dict[str, Section] = {}
    for i, h in enumerate(headers):
        kind = INITIALISED if h[2] & 1 else CODE
        if not h[2] & 2 or h[1] not in (1, 8) or h[5] == 0 or names[i].startswith(_LEFT_OUT):
            continue
        if h[1] == 8:
            kind = VARIABLES
        name = f"{label}:{names[i]}"
        own = tuple(sorted(s for s, section, _, binding in symbols if section == i and binding != 0))
        previous = by_name.get(name)
        size = align(h[5], max(4, h[8]) if h[8] <= 16 else 4) if kind != CODE else align(h[5], 4)
        by_name[name] = Section(
            name,
            kind,
            size + (previous.size_bytes if previous else 0),
            own + (previous.symbols if previous else ()),
            frozenset(references.get(i, set()) | (previous.references if previous else set())),
        )
    return by_name, {s for s, section, _, binding in symbols if section == 0 and s and binding != _WEAK}


def write_table(measured: Mapping[Key, Mapping[str, Section]], note: str) -> str:
    """One line a section: name, kind, symbols, bytes on each target, references (and the targets that have them)."""
    keys = list(measured)
    lines = [
        "# Bytes of code and variables of the runtime on each target; made by scripts/code_sizes.py, do not edit.",
        f"# {note}",
        "\t".join(["section", "kind", "symbols", *(f"{t}/{n}" for t, n in keys), "references"]),
    ]
    for name in sorted({name for sections in measured.values() for name in sections}):
        of = {key: sections[name] for key, sections in measured.items() if name in sections}
        some = next(iter(of.values()))
        sizes = [str(of[key].size_bytes) if key in of else "" for key in keys]
        symbols = sorted({s for section in of.values() for s in section.symbols})
        masks: dict[str, int] = {}
        for bit, key in enumerate(keys):
            for reference in of[key].references if key in of else ():
                masks[reference] = masks.get(reference, 0) | 1 << bit
        full = sum(1 << bit for bit, key in enumerate(keys) if key in of)
        references = [r if mask == full else f"{r}@{mask:x}" for r, mask in sorted(masks.items())]
        lines.append("\t".join([name, some.kind, " ".join(symbols), *sizes, " ".join(references)]))
    return "\n".join([*lines, ""])


def run(*words: str | Path) -> str:
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"code_sizes: {words[0]}: {done.stderr.strip()[:500]}")
    return done.stdout


def measure(target_name: str, numerics: Numerics, scratch: Path, only: str | None = None) -> dict[str, Section]:
    """Sections of the runtime, of every port of the target and of the libraries behind them, by name.

    With `only` that file is compiled, and the table has the others.
    """
    target, _ = resolve(target_name, None, numerics)
    root = runtime_directory()
    ports = [root / "ports" / folder for folder in target.ports]
    boards = [b for b in BOARDS.values() if b.target == target_name]
    starts = {b.processors for b in boards if b.processors}
    named = {root / "ports" / s for b in boards for s in (*b.sources, *starts)}
    sources = [*root.glob("src/*.c"), *root.glob("kernels/*/*.c"), *root.glob("ports/device/train.c"), *named]
    sources += [p for folder in ports if folder.name != "device" for p in folder.iterdir() if p.suffix in (".c", ".S")]
    includes = [
        f"-I{scratch}",
        *(
            f"-I{root / f}"
            for f in ("include", "src", "kernels", "ports/device", "ports/drivers", "ports/loop", "ports/processors")
        ),
    ]
    flags = f"-std=c99 {WARNINGS} {numerics_flags(numerics)} -ffunction-sections -fdata-sections {target.flags}".split()
    flags += ["-DPOETC_CHECKPOINT_STEPS=0", "-DPOETC_EPOCHS=1"]
    compiler = f"{target.cross_compile}gcc"
    found: dict[str, Section] = {}
    if only is not None:
        sources = [s for s in sources if s.relative_to(root).as_posix() == only]
        if not sources:
            sys.exit(f"--source {only}: no such file below {root}")
        before = read_table((target_name, numerics))
        found |= {name: s for name, s in before.items() if not name.startswith(f"{only}:")}
    undefined: set[str] = set()

    def add(path: Path, label: str) -> None:
        sections, missing = read_object(path.read_bytes(), label)
        found.update(sections)
        undefined.update(missing)

    for source in sorted(sources):
        out = scratch / f"{source.stem}.o"
        label = source.relative_to(root).as_posix()
        variants: dict[str, tuple[str, ...]] = {"": ()}
        if label in LOOP:
            variants[CHECKPOINTS] = ("-UPOETC_CHECKPOINT_STEPS", "-DPOETC_CHECKPOINT_STEPS=1")
        if label == TRAIN and starts:
            variants |= {QUEUES + name: (*words, "-DPOETC_QUEUES") for name, words in variants.items()}
        for name, words in variants.items():
            run(compiler, *flags, *includes, *words, "-c", "-o", out, source)
            add(out, label + name)
    archives = [run(compiler, *flags, "-print-libgcc-file-name").strip()]
    if target.cross_compile == "arm-none-eabi-":
        archives.append(run(compiler, *flags, "-print-file-name=libc_nano.a").strip())
    members = {}
    for archive in archives:
        for line in run(f"{target.cross_compile}nm", "-A", "-g", "--defined-only", archive).splitlines():
            where, _, rest = line.rpartition(": ") if ": " in line else line.rpartition(":")
            members.setdefault(rest.split()[-1], (archive, where.split(":")[1]))
    taken = set()
    defined = lambda: {symbol for s in found.values() for symbol in s.symbols}  # noqa: E731
    while waiting := {members[s] for s in undefined - defined() if s in members} - taken:
        for archive, member in sorted(waiting):
            data = subprocess.run([f"{target.cross_compile}ar", "p", archive, member], capture_output=True, check=True)
            (scratch / "member.o").write_bytes(data.stdout)
            add(scratch / "member.o", f"lib/{member}")
        taken |= waiting
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, default=DATA_FILE)
    parser.add_argument("--target", choices=sorted({target for target, _ in columns()}))
    parser.add_argument("--source", metavar="FILE")
    given = parser.parse_args()
    measured = {}
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "model.h").write_text(MODEL_H)
        for target, numerics in columns():
            if given.target not in (None, target):
                measured[target, numerics] = read_table((target, numerics))
                continue
            print(f"{target} {numerics}", file=sys.stderr)
            measured[target, numerics] = measure(target, numerics, Path(scratch), given.source)
    compilers = {TARGETS[t].cross_compile + "gcc" for t, _ in columns()}
    versions = [run(c, "-dumpfullversion").strip() for c in sorted(compilers)]
    note = ", ".join(f"{c} {v}" for c, v in zip(sorted(compilers), versions, strict=True))
    given.out.write_text(write_table(measured, note))


if __name__ == "__main__":
    main()
