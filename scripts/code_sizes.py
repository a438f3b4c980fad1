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
import subprocess
import sys
import tempfile
from pathlib import Path

from poetc.boards import BOARDS, TARGETS, Numerics, resolve
from poetc.emit._code_size import (
    CHECKPOINTS,
    DATA_FILE,
    LOOP,
    QUEUES,
    TRAIN,
    Section,
    columns,
    read_object,
    read_table,
    write_table,
)
from poetc.emit.layouts._contents import WARNINGS
from poetc.runtime import runtime_directory

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
    fused = "" if numerics == "separate" else " -DPOETC_FUSED"
    flags = f"-std=c99 {WARNINGS} -ffp-contract=off{fused} -ffunction-sections -fdata-sections {target.flags}".split()
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
