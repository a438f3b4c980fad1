"""A bound on the stack of firmware, from the compiler's own call graph: the longest way down from reset."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from poetc.boards import command
from poetc.errors import CheckFailed

INDIRECT = "__indirect_call"
# Functions that are called through a pointer: kernels by poetc_run, and of the port the mark and the store. A kernel
# that calls through a pointer calls functions of its own file.
_PORT_CALLBACKS = re.compile(r"(^poetc_port_mark|^poetc_count_hits|^port/.*:page_(in|out))$")
_NODE = re.compile(r'node: { title: "([^"]+)" label: "[^"]*\\n(\d+) bytes \(([\w,]+)\)')
_EDGE = re.compile(r'edge: { sourcename: "([^"]+)" targetname: "([^"]+)"')


@dataclass(slots=True)
class CallGraph:
    """Bytes of stack of each function, and the functions that it calls.

    Functions of libraries have no entry in `frames`.
    """

    frames: dict[str, int] = field(default_factory=dict)
    calls: dict[str, set[str]] = field(default_factory=dict)

    def read(self, text: str, kernels: bool = False) -> None:
        """Add a file that -fcallgraph-info=su wrote; `kernels`: of a kernel file.

        CheckFailed for a frame without a bound.
        """
        for name, size, kind in _NODE.findall(text):
            if kind not in ("static", "dynamic,bounded"):
                raise CheckFailed(f"{name}: its stack has no bound ({kind})")
            self.frames[name] = int(size)
        edges = _EDGE.findall(text)
        own = {name for name, _, _ in _NODE.findall(text) if ":" in name} - {callee for _, callee in edges}
        inside = f"{INDIRECT} {min(own)}" if kernels and own else INDIRECT
        for caller, callee in edges:
            self.calls.setdefault(caller, set()).add(inside if callee == INDIRECT else callee)
        if inside != INDIRECT:
            self.calls[inside] = own

    def depth(self, root: str) -> int:
        """Bytes from the call of `root` on. CheckFailed where functions call each other in a circle."""
        return self._depth(root, {}, ())

    def _depth(self, name: str, known: dict[str, int], way: tuple[str, ...]) -> int:
        if name in way:
            raise CheckFailed(f"recursion has no bound on the stack: {' -> '.join((*way, name))}")
        if name not in known:
            below = (self._depth(callee, known, (*way, name)) for callee in sorted(self.calls.get(name, ())))
            known[name] = self.frames.get(name, 0) + max(below, default=0)
        return known[name]


def stack_bound(build: Path, elf: Path, prefix: str, kernels: Iterable[str], roots: Iterable[str]) -> int:
    """Bytes of stack below `roots`, the functions that run first.

    Indirect calls may reach any kernel and callback of the port; on top of the deepest way comes the deepest function
    of the compiler's libraries.
    """
    graph = CallGraph()
    for path in sorted(build.rglob("*.ci")):
        graph.read(path.read_text(), kernels="kernels" in path.relative_to(build).parts)
    targets = set(kernels) | {name for name in graph.frames if _PORT_CALLBACKS.search(name)}
    graph.calls[INDIRECT] = {name for name in targets if name in graph.frames}
    own = {name.rpartition(":")[2] for name in graph.frames}
    library = library_frames(command([f"{prefix}objdump", "-d", str(elf)], "cannot read the program"))
    deepest = max((size for name, size in library.items() if name not in own), default=0)
    return max(graph.depth(root) for root in roots if root in graph.frames) + deepest


def library_frames(disassembly: str) -> Mapping[str, int]:
    """Stack of each function with all that it calls, counted from the pushes of its instructions: every push counts."""
    frames: dict[str, int] = {}
    calls: dict[str, set[str]] = {}
    name = ""
    for line in disassembly.splitlines():
        if start := re.match(r"[0-9a-f]+ <([^>]+)>:$", line):
            name = start[1]
            frames[name] = 0
        elif pushed := re.search(r"\t(?:push|stmdb|stmfd|vpush)(?:\.w)?\t(?:sp!, )?\{([^}]*)\}", line):
            frames[name] += _registers(pushed[1])
        elif taken := re.search(r"\tsub(?:w|\.w)?\tsp, (?:sp, )?#(\d+)", line):
            frames[name] += int(taken[1])
        elif stored := re.search(r"\[sp, #-(\d+)\]!", line):
            frames[name] += int(stored[1])
        elif called := re.search(r"\tb(?:l|lx|\.w|\.n)?\t[0-9a-f]+ <([^>+]+)>", line):
            calls.setdefault(name, set()).add(called[1])
    graph = CallGraph(frames, {caller: callees - {caller} for caller, callees in calls.items()})
    result = {}
    for function in frames:
        try:
            result[function] = graph.depth(function)
        except CheckFailed:  # jumps between the parts of one function look like calls; each part counts once
            result[function] = sum(frames[f] for f in {function, *calls.get(function, ())})
    return result


def _registers(text: str) -> int:
    total = 0
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        width = 8 if first.startswith("d") else 4
        total += width * (1 if not last else int(last[1:]) - int(first[1:]) + 1)
    return total
