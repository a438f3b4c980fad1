"""The C targets: a small emitted model beside c/TARGET.c, compiled with a sanitizer."""

from __future__ import annotations

import hashlib
import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

import poetc.runtime
from poetc.emit import emit
from poetc.fleet.frames import Request, frame
from poetc.fleet.update import Quantizer
from poetc.graph import Value
from poetc.program import (
    Program,
    all_inputs,
    fit_input,
    initial_pages,
    lower_inference,
    pack_state,
    sample_inputs,
    state_image,
    store_image,
)
from poetc.scheduling import keep_all, pack
from tests.program.models import make_problem, mlp, state_paged_decisions, training_case

SOURCES = Path(__file__).with_name("c")
ON_STORE = ("fc1.weight:velocity", "fc2.weight")
SANITIZERS = ("-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all")
NAMES = ("records", "serial", "state", "store")


def programs(target: str) -> tuple[list[Program], Mapping[str, Value]]:
    """The model of a target: that of `store` and `state` has state on the store, the others predict as well."""
    on_store = ON_STORE if target in ("store", "state") else ()
    case = training_case(on_store=on_store)
    if on_store:
        return [case.program(state_paged_decisions(case, on_store))], case.graph.values
    forward = mlp()
    problem = make_problem(forward)
    schedule = keep_all(problem)
    training = case.program()
    return [training, lower_inference(forward, problem, schedule, pack(problem, schedule), training)], case.graph.values


def compile_target(
    target: str, folder: Path, compiler: Sequence[str], *, replay: bool = False, objects: Path | None = None
) -> Path:
    """The program of a target in `folder`. `compiler`: its words, such as clang with -fsanitize=fuzzer.

    `replay`: the program runs the files that are its arguments, without a fuzzer. `objects`: a folder that keeps those
    of the runtime, which several targets have in common.
    """
    of_model, values = programs(target)
    source = emit(of_model, values, model="model", target="host", out_dir=folder / target, force=True)
    shutil.copy(SOURCES / "medium.h", source)
    image = source / "store.img"
    data = image.read_bytes() if image.exists() else b"\0"
    (source / "store_image.h").write_text(f"static const uint8_t store_image[] = {{{', '.join(map(str, data))}}};\n")
    runtime = sorted((source / "runtime").rglob("*.c"))
    files = [SOURCES / f"{target}.c", *source.glob("model*.[cS]")]
    files += [source / "port" / "poetc_loop.c"] if target == "records" else []
    files += [SOURCES / "replay.c"] if replay else []
    includes = [source, *(source / "runtime" / name for name in ("include", "kernels", "src")), source / "port"]
    includes += [Path(poetc.runtime.__file__).parent / "ports" / "device"] if target == "serial" else []
    out = folder / f"fuzz-{target}"
    flags = ["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", *SANITIZERS, *(f"-I{path}" for path in includes)]
    for path in runtime:
        if objects is None:
            files.append(path)
            continue
        made = objects / f"{path.stem}-{hashlib.sha256(path.read_bytes()).hexdigest()}.o"
        if not made.exists():
            subprocess.run([*compiler, *flags, "-c", path, "-o", made], check=True)
        files.append(made)
    subprocess.run([*compiler, *flags, *files, "-lm", "-lpthread", "-o", out], check=True)
    return out


def seeds(target: str) -> Iterator[tuple[str, bytes]]:
    """Good inputs of a target by name."""
    of_model, values = programs(target)
    training = of_model[0]
    match target:
        case "store":
            image = store_image(training, values)
            for mends in range(4):
                yield f"image_{mends}", bytes([mends]) + image
        case "state":
            arena = np.frombuffer(state_image(training, values), np.uint8)
            state = pack_state(training, 1, arena, dict(initial_pages(training, values)).__getitem__)
            for mends in range(2):
                yield f"trained_{mends}", bytes([mends]) + state
        case "records":
            batches = [sample_inputs(training, seed) for seed in range(4)]
            data = b"".join(fit_input(b, batch).tobytes() for batch in batches for b in all_inputs(training))
            for steps, checkpoints in ((0, 0), (6, 0), (6, 2)):
                yield f"steps_{steps}_{checkpoints}", bytes([steps, 2, 4, 191, checkpoints]) + data
        case "serial":
            for kind, payload in _requests():
                yield kind.name.lower(), b"\0" + frame(kind, 1, payload)
                yield f"{kind.name.lower()}_framed", struct.pack("<BBBH", 1, kind, 1, len(payload)) + payload
            whole = b"".join(frame(kind, n, payload) for n, (kind, payload) in enumerate(_requests()))
            yield "session", b"\0" + whole


def _requests() -> Iterator[tuple[Request, bytes]]:
    yield Request.HELLO, b""
    yield Request.RESET, b""
    yield Request.WRITE, struct.pack("<I4f", 16, 1, 2, 3, 4)
    yield Request.READ, struct.pack("<II", 0, 64)
    yield Request.TRAIN, struct.pack("<I", 1)
    fields = struct.pack(
        "<5I4I", 0, 0, 4, 0, 0xFFFFFFFF, *range(4)
    )  # offset, first, count, no old weights, mask, terms
    yield Request.UPDATE, Quantizer(clip=1.0, range=1 << 16).bytes() + fields
    yield Request.END, b""
