"""A training step seen as a chain of blocks: where a single tensor separates what came before from what comes after.

Block k (0 ... L-1) is a run of forward operators that ends where exactly one tensor leads on, its boundary, and the run
of backward operators that undoes it. The dynamic programs over chains (revolve, rotor, POFO, GPipe) work on the blocks'
totals; what they decide is then written out operator by operator and replayed exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from poetc.errors import UnsupportedProblemError
from poetc.scheduling import Compute, Free, PageIn, keep_all
from poetc.solvers._model import Model
from poetc.solvers._tape import Tape
from poetc.solvers._training import Split, split


@dataclass(frozen=True, slots=True)
class Block:
    forward: range
    backward: range
    boundary: tuple[int, ...]  # what the next block reads; of the last block: nothing
    saved: frozenset[int]  # what it makes and the backward pass reads
    kept: frozenset[int]  # of what it makes, what cannot be given up
    cost: int  # of its forward operators that can be repeated
    undo_bytes: int  # the most RAM of its backward operators, without what other blocks' forward operators made


@dataclass(frozen=True, slots=True)
class Chain:
    model: Model
    parts: Split
    blocks: tuple[Block, ...]

    def bytes_of(self, tensors: frozenset[int] | set[int] | tuple[int, ...]) -> int:
        return sum(self.model.size[t] for t in tensors)


def chain_of(model: Model, solver: str) -> Chain:
    """Raises UnsupportedProblemError if the forward pass is no chain of at least two blocks."""
    parts = split(model, solver)
    ends = list(_block_ends(model, parts))
    if len(ends) < 2:
        raise UnsupportedProblemError(
            f"{solver}: works on chains; no single tensor separates this forward pass into blocks"
        )
    block_of: dict[int, int] = {}
    starts = [0, *(end + 1 for end, _ in ends[:-1])]
    for k, (start, (end, _)) in enumerate(zip(starts, ends, strict=True)):
        block_of.update(dict.fromkeys(range(start, end + 1), k))
    backward = _backward_runs(model, parts, block_of, len(ends))
    undo = _undo_bytes(model, block_of, backward)
    saved = frozenset(parts.saved)
    blocks = []
    for k, (start, (end, boundary)) in enumerate(zip(starts, ends, strict=True)):
        made = frozenset(t for v in range(start, end + 1) for t in model.outputs[v])
        blocks.append(
            Block(
                forward=range(start, end + 1),
                backward=backward[k],
                boundary=boundary,
                saved=made & saved,
                kept=made - parts.optional,
                cost=int(sum(model.op_cost[v] for v in range(start, end + 1) if v in parts.to_loss)),
                undo_bytes=undo[k],
            )
        )
    return Chain(model, parts, tuple(blocks))


def _block_ends(model: Model, parts: Split) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(last forward operator, boundary) of each block."""
    last_use = {t: max((u for u in model.consumers[t] if u in parts.to_loss), default=-1) for t in parts.made}
    open_tensors: set[int] = set()
    previous: tuple[int, tuple[int, ...]] | None = None
    for v in range(parts.cut - 1):
        open_tensors |= {t for t in model.outputs[v] if last_use[t] > v}
        open_tensors = {t for t in open_tensors if last_use[t] > v}
        if len(open_tensors) != 1:
            continue
        boundary = tuple(open_tensors)
        # A tensor that goes on separating while operators off the path to the loss run is one boundary.
        if previous is not None and previous[1] != boundary:
            yield previous
        previous = (v, boundary)
    if previous is not None:
        yield previous
    yield parts.cut - 1, ()


def _backward_runs(model: Model, parts: Split, block_of: dict[int, int], count: int) -> list[range]:
    """The backward operators of each block: runs in reverse order of the blocks.

    An operator belongs to the latest block that made what it reads, or that first read its parameters; and to no
    earlier one than any operator after it.
    """
    level = [0] * (model.n_ops - parts.cut)
    for v in range(parts.cut, model.n_ops):
        if model.problem.operators[v].phase != "backward":
            continue
        for t in model.inputs[v]:
            p = model.producer[t]
            if 0 <= p < parts.cut:
                level[v - parts.cut] = max(level[v - parts.cut], block_of[p])
            elif p < 0:
                first = min((block_of[u] for u in model.consumers[t] if u < parts.cut), default=0)
                level[v - parts.cut] = max(level[v - parts.cut], first)
    for i in range(len(level) - 2, -1, -1):
        level[i] = max(level[i], level[i + 1])
    runs = [range(model.n_ops, model.n_ops)] * count
    at = parts.cut
    for k in reversed(range(count)):
        end = at
        while end < model.n_ops and level[end - parts.cut] == k:
            end += 1
        runs[k] = range(at, end)
        at = end
    return runs


def _undo_bytes(model: Model, block_of: dict[int, int], backward: list[range]) -> list[int]:
    """`Block.undo_bytes`, measured on keep-all."""
    undo = [0] * len(backward)
    undone = {v: k for k, run in enumerate(backward) for v in run}
    held = [0] * len(backward)  # live bytes that each block's forward operators made
    total = sum(s for s, there in zip(model.size, model.in_ram, strict=True) if there)

    def change(t: int, sign: int) -> None:
        nonlocal total
        total += sign * model.size[t]
        block = block_of.get(model.producer[t])
        if block is not None:
            held[block] += sign * model.size[t]

    for step in keep_all(model.problem).steps:
        if isinstance(step, Compute):
            v, k = step.operator, undone.get(step.operator)
            for t, _ in step.in_place:
                change(t, -1)
            for t in model.outputs[v]:
                change(t, 1)
            if k is not None:
                used = model.problem.base_bytes + total + model.workspace[v]
                undo[k] = max(undo[k], used - (sum(held) - held[k]))
        elif isinstance(step, PageIn):
            change(step.tensor, 1)
        elif isinstance(step, Free):
            change(step.tensor, -1)
    return undo


class ChainTape:
    """Writes what a dynamic program decided, block by block."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.tape = Tape(chain.model)
        self._swept = 0  # blocks whose forward operators were executed for the first time

    def record(self, k: int) -> None:
        """Make block k's saved tensors and its boundary available, and drop the rest of it."""
        block = self.chain.blocks[k]
        self._sweep(k)
        wanted = block.saved | set(block.boundary)
        if k + 1 < len(self.chain.blocks):
            self.tape.fetch(sorted(wanted))
        self._drop_made(k, wanted)

    def advance(self, k: int) -> None:
        """Make block k's boundary available and drop everything else that it makes."""
        block = self.chain.blocks[k]
        self._sweep(k)
        self.tape.fetch(block.boundary)
        self._drop_made(k, set(block.boundary))

    def _sweep(self, k: int) -> None:
        if k == self._swept:
            for v in self.chain.blocks[k].forward:
                self.tape.compute(v)
            self._swept += 1

    def _drop_made(self, k: int, wanted: set[int] | frozenset[int]) -> None:
        block, model = self.chain.blocks[k], self.chain.model
        made = {t for v in block.forward for t in model.outputs[v]}
        self.tape.drop(made - wanted - block.kept)

    def drop_boundary(self, k: int) -> None:
        self.tape.drop(set(self.chain.blocks[k].boundary) - self.chain.blocks[k].kept)

    def backward(self, k: int) -> None:
        """Undo block k; what its operators miss is brought back for them. Then drop what it made."""
        brought: set[int] = set()
        for v in self.chain.blocks[k].backward:
            brought |= self.tape.compute(v)
        self.tape.drop(brought)
        self._drop_made(k, set(self.chain.blocks[k].boundary))
