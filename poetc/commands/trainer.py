"""A solved directory as a session: its programs, compiled for this machine."""

from __future__ import annotations

from pathlib import Path

from poetc import boards, emit, measure
from poetc.artifact import Artifact
from poetc.commands.programs import all_programs, graph_of, numerics_of, switches_of, values_of
from poetc.files import scratch_directory
from poetc.runtime.session import Session


def trainer(
    solved: Artifact,
    *,
    store: Path | None = None,
    undo: bool = False,
    threads: int = 0,
    cc: str | None = None,
    elastic: bool = False,
) -> Session:
    """Compile the programs of `solved` and start a session from their initial state; see `Session`.

    `threads`: the most that kernels run in, 0: built without threads. `cc`: the compiler. `elastic`: with all plans of
    a bundle, for `follow_memory`. Nothing of the build stays. Raises UsageError where this machine has no compiler. Its
    trained.bin is that of `poetc emit --target host`.
    """
    bundle = switches_of(solved)[0] if elastic else None
    with scratch_directory("poetc-trainer-") as scratch:
        programs = all_programs(solved, bundle)
        library = measure.compile_library(
            programs,
            values_of(solved),
            scratch,
            model=graph_of(solved).name.removesuffix(".onnx"),
            cc=cc,
            cflags=boards.TARGETS["host"].flags,
            threads=threads,
            bundle=bundle,
            numerics=numerics_of(solved),
        )
        operators = {p.name: [p.where(i) for i in range(len(p.instructions))] for p in programs}
        return Session(library, library.with_name(emit.MANIFEST), store, undo=undo, operators=operators)
