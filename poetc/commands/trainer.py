"""A solved directory as a session: its programs, compiled for this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from poetc import boards, emit, measure
from poetc.artifact import Artifact
from poetc.commands.programs import all_programs, graph_of, numerics_of, switches_of, values_of
from poetc.errors import UsageError
from poetc.files import scratch_directory
from poetc.program import Program
from poetc.runtime.session import Session, SessionError

MOST_TWICE = 32 << 20  # bytes of an arena that may be there twice, from the first step of the faster code on


def trainer(
    solved: Artifact,
    *,
    store: Path | None = None,
    undo: bool = False,
    threads: int = 0,
    elastic: bool = False,
    programs: list[Program] | None = None,
) -> Session:
    """Compile the programs of `solved` and start a session from their initial state; see `Session`.

    `threads`: the most that kernels run in, 0: built without threads. `elastic`: with all plans of
    a bundle, for `follow_memory`. `programs`: those of `solved`, where they are there. Nothing of the build stays.
    Raises UsageError where this machine has no compiler. Its trained.bin is that of `poetc emit --target host`.
    """
    bundle = switches_of(solved)[0] if elastic else None
    with scratch_directory("poetc-trainer-") as scratch:
        programs = programs or all_programs(solved, bundle)
        library = measure.compile_library(
            programs,
            values_of(solved),
            scratch,
            model=graph_of(solved).name.removesuffix(".onnx"),
            cflags=boards.TARGETS["host"].flags,
            threads=threads,
            bundle=bundle,
            numerics=numerics_of(solved),
        )
        return _session(library, programs, store=store, undo=undo)


def follow_memory(session: Session) -> None:
    """Let training follow the memory that is left to this process. UsageError where nothing tells of it."""
    try:
        session.follow_memory(os.environ.get("POETC_CGROUP"))
    except SessionError as error:
        raise UsageError(f"--elastic: {error}") from None


def _session(library: Path, programs: list[Program], *, store: Path | None = None, undo: bool = False) -> Session:
    operators = {p.name: [p.where(i) for i in range(len(p.instructions))] for p in programs}
    return Session(library, library.with_name(emit.MANIFEST), store, undo=undo, operators=operators)


@contextmanager
def quick_trainer(solved: Artifact, *, elastic: bool = False) -> Iterator[tuple[Session, Callable[[], Session | None]]]:
    """A session that is there soon, and a function that yields its faster successor, once, when that is compiled.

    The successor has the same bits, and the initial state. Both are closed after the block.
    """
    programs = [] if elastic else all_programs(solved)
    if not programs or programs[0].arena_bytes > MOST_TWICE:
        # Those that the schedule counts on: more than this machine has would wait for each other.
        threads = min(int(solved.summary.get("threads") or 1), len(os.sched_getaffinity(0)))
        with trainer(solved, elastic=elastic, programs=programs, threads=threads if threads > 1 else 0) as session:
            yield session, lambda: None
        return
    following: list[Session] = []

    def successor() -> Session | None:
        library = build.better()
        if library is None:
            return None
        following.append(_session(library, programs))
        return following[-1]

    with scratch_directory("poetc-trainer-") as scratch:
        name = graph_of(solved).name.removesuffix(".onnx")
        flags, numerics = boards.TARGETS["host"].flags, numerics_of(solved)
        try:
            with (
                measure.QuickBuild(
                    programs, values_of(solved), scratch, model=name, cflags=flags, numerics=numerics
                ) as build,
                _session(build.library, programs) as session,
            ):
                yield session, successor
        finally:
            for other in following:
                other.close()
