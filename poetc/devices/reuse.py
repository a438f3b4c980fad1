"""Which operands a step must fetch from beyond a cache: by how much else it touches since it touched them last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from poetc.devices.profile import Memory
from poetc.graph import Graph
from poetc.ops import bind, spec


class Fetched(NamedTuple):
    """Bytes of an operator's operands that are not in the first level of cache when it runs."""

    second: int = 0  # in the second level
    far: int = 0  # beyond it, read
    far_written: int = 0  # beyond it, and only written


class _Recency:
    """Bytes by when they were touched last: a Fenwick tree over moments."""

    def __init__(self, moments: int) -> None:
        self._sums = [0] * (moments + 1)
        self.total = 0

    def add(self, moment: int, size: int) -> None:
        self.total += size
        at = moment + 1
        while at < len(self._sums):
            self._sums[at] += size
            at += at & -at

    def since(self, moment: int) -> int:
        """Bytes touched last after this moment."""
        at, until = moment + 1, 0
        while at > 0:
            until += self._sums[at]
            at -= at & -at
        return self.total - until


def distances(graph: Graph) -> dict[str, list[tuple[int, int, bool]]]:
    """By operator, the reuse of each operand: its bytes, the cache that holds them, and whether it is only written.

    The second number is the size of a cache that still has the operand when the operator runs. Such a cache replaces
    the least recently used bytes. It must hold the operand, and whatever the step touched since it touched it last.

    Step after step in the graph's order with every tensor kept until its last use. A new tensor takes the memory that
    was let go of last.
    """
    operators = [op for op in graph.operators if not spec(op.kind).is_view]
    places = {name: name for name in graph.tensors}  # the name that a tensor's bytes go by
    for op in graph.operators:
        kind = spec(op.kind)
        for i, o in ((0, 0),) if kind.is_view else kind.must_alias:
            places[op.outputs[o]] = places[op.inputs[i]]
    used = [dict.fromkeys(places[t] for t in (*op.inputs, *op.outputs)) for op in operators]
    last_use = {name: at for at, names in enumerate(used) for name in names}
    results = {t for op in operators for t in op.outputs if places[t] == t}
    moved = [spec(op.kind).work(bind(op, graph.tensors)).bytes_moved for op in operators]
    recency = _Recency(2 * len(operators))
    touched: dict[str, tuple[int, int]] = {}  # (moment, bytes)
    freed: list[tuple[int, int]] = []  # (moment of the last touch, bytes), latest at the end
    result: dict[str, list[tuple[int, int, bool]]] = {}
    for moment in range(2 * len(operators)):  # the second time as in every later step
        at = moment % len(operators)
        reads: list[tuple[int, int, bool]] = []
        read = {places[t] for t in operators[at].inputs}
        sizes = {name: graph.tensors[name].size_bytes for name in used[at]}
        if (most := moved[at]) is not None:  # few rows of a large tensor
            sizes = {name: min(size, most) for name, size in sizes.items()}
        for name, size in sizes.items():
            if name in touched:
                when, before = touched[name]
                reads.append((size, recency.since(when) + size, name not in read))
                recency.add(when, -before)
            else:
                reads.append((size, _take(freed, size, recency) + size, name not in read))
            touched[name] = moment, size
        recency.add(moment, sum(sizes.values()))
        for name, size in sizes.items():
            if last_use[name] == at and name in results:
                del touched[name]
                freed.append((moment, size))
        result[operators[at].name] = reads
    return result


def working_set_bytes(graph: Graph) -> int:
    """The most bytes that one operator reads and writes. Copies of a part of a tensor, read once each, are left out."""
    largest = 0
    for op in graph.operators:
        kind = spec(op.kind)
        if kind.is_view or op.kind == "Slice":
            continue
        replaced = {op.outputs[o] for _, o in kind.must_alias}
        size = sum(graph.tensors[t].size_bytes for t in {*op.inputs, *op.outputs} - replaced)
        moved = kind.work(bind(op, graph.tensors)).bytes_moved
        largest = max(largest, size if moved is None else min(size, moved))
    return largest


def parts_for_cache(graphs: Mapping[int, Graph], cache_bytes: int) -> int:
    """The fewest parts of a batch for which each operator fits the cache: Mandheling's rule.

    `graphs`: the training step by number of parts. Where weights alone are larger than the cache, it is the fewest
    parts beyond which no working set shrinks. Source: Xu et al., MobiCom 2022.
    """
    return min(graphs, key=lambda count: (max(cache_bytes, working_set_bytes(graphs[count])), count))


def _take(freed: list[tuple[int, int]], size: int, recency: _Recency) -> int:
    """Memory for `size` bytes, of the pieces that were let go of last: how much was touched since the oldest was."""
    oldest = recency.total
    while size > 0 and freed:
        moment, there = freed.pop()
        oldest = recency.since(moment)
        recency.add(moment, -min(size, there))
        if there > size:
            freed.append((moment, there - size))
        size -= there
    return recency.total if size > 0 else oldest


def fetched_bytes(graph: Graph, memory: Memory) -> dict[str, Fetched]:
    """By operator; empty for a processor without caches."""
    if memory.cache_bytes is None or memory.first_cache_bytes is None:
        return {}
    first, second = int(memory.first_cache_bytes.value), int(memory.cache_bytes.value)
    result: dict[str, Fetched] = {}
    for name, reads in distances(graph).items():
        far = [(size, is_written) for size, distance, is_written in reads if distance > second]
        read, written = (sum(size for size, is_written in far if is_written == w) for w in (False, True))
        result[name] = Fetched(sum(s for s, distance, _ in reads if distance > first) - read - written, read, written)
    return result
