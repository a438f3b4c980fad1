"""A training step seen as a chain of blocks, with a single tensor between one block and the next.

Block k (0 ... L-1) is two runs. A run of forward operators ends where exactly one tensor leads on, its boundary. A run
of backward operators undoes it. The dynamic programs over chains (revolve, rotor, POFO, GPipe) work on the blocks'
totals. Their decisions are then written out operator by operator and replayed exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from poetc.errors import UnsupportedProblemError
from poetc.scheduling import Compute, Free, PageIn, keep_all
from poetc.solvers.model import Model
from poetc.solvers.published._tape import Tape
from poetc.solvers.published._training import Split, split

MOST_BUDGETS = 2  # the largest memory that is tried: the estimate may be twice the need of the replay
LEAST_SHARE = 10  # the smallest one is the budget over this: the estimate errs by less


def memories(slots: int, steps: int) -> range:
    """Memories for a program over a chain to try, in slots of the budget, from the largest down.

    `slots`: of the budget. `steps`: memories between one budget and none.
    """
    return range(MOST_BUDGETS * slots, slots // LEAST_SHARE, -max(1, slots // steps))


@dataclass(frozen=True, slots=True)
class Block:
    forward: range
    backward: range
    boundary: tuple[int, ...]  # tensors that the next block reads; none for the last block
    saved: frozenset[int]  # tensors that it makes and the backward pass reads
    kept: frozenset[int]  # tensors that it makes and that cannot be given up
    needs_run: bool  # its backward operators read tensors inside it, or no block follows
    cost: int  # of its forward operators that can be repeated
    run_bytes: int  # the most RAM of its forward operators, without tensors of other blocks' forward operators
    undo_bytes: int  # likewise for its backward operators, and for its forward ones if `needs_run`
    gradient_bytes: int  # gradients that are still needed when the backward pass gets here


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
    backward = _backward_runs(model, parts, block_of, ends)
    run, undo, gradients = _ram_bytes(model, block_of, backward)
    saved = frozenset(parts.saved)
    blocks = []
    for k, (start, (end, boundary)) in enumerate(zip(starts, ends, strict=True)):
        outputs = frozenset(t for v in range(start, end + 1) for t in model.outputs[v])
        needs_run = bool(outputs & saved - set(boundary)) or k + 1 == len(ends)
        blocks.append(
            Block(
                forward=range(start, end + 1),
                backward=backward[k],
                boundary=boundary,
                saved=outputs & saved,
                kept=outputs - parts.optional,
                needs_run=needs_run,
                cost=int(sum(model.op_cost[v] for v in range(start, end + 1) if v in parts.to_loss)),
                run_bytes=run[k],
                undo_bytes=max(run[k], undo[k]) if needs_run else undo[k],
                gradient_bytes=gradients[k],
            )
        )
    return Chain(model, parts, tuple(blocks))


def _block_ends(model: Model, parts: Split) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The last forward operator and the boundary of each block."""
    last_use = {
        t: max((u for u in model.consumers[t] if u in parts.to_loss), default=-1) for t in parts.forward_tensors
    }
    open_tensors: set[int] = set()
    previous: tuple[int, tuple[int, ...]] | None = None
    # The loss makes the gradient that the last block starts from: it is no block of its own.
    last = max((v for v in range(parts.cut) if model.problem.operators[v].phase != "loss"), default=0)
    for v in range(last):
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


def _backward_runs(
    model: Model, parts: Split, block_of: dict[int, int], ends: list[tuple[int, tuple[int, ...]]]
) -> list[range]:
    """The backward operators of each block: runs in reverse order of the blocks.

    An operator belongs to the latest block of which it reads tensors inside or parameters. One that reads a boundary
    and nothing later belongs to the block behind it, which is undone while its input is there. It may undo the maker
    (and read its output) or the reader. No operator belongs to an earlier block than any operator after it.
    """
    count = len(ends)
    boundary_of = {t: k for k, (_, boundary) in enumerate(ends) for t in boundary}
    level = [0] * (model.n_ops - parts.cut)
    for v in range(parts.cut, model.n_ops):
        if model.problem.operators[v].phase != "backward":
            continue
        inside = -1  # the latest block of which it reads more than the boundary
        entering = -1  # the latest block that it reads the input of
        for t in model.inputs[v]:
            p = model.producer[t]
            if t in boundary_of:
                entering = max(entering, boundary_of[t] + 1)
            elif 0 <= p < parts.cut:
                inside = max(inside, block_of[p])
            elif p < 0:
                inside = max(inside, min((block_of[u] for u in model.consumers[t] if u < parts.cut), default=-1))
        level[v - parts.cut] = max(0, inside if entering == inside + 1 and inside >= 0 else max(inside, entering))
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


def _ram_bytes(model: Model, block_of: dict[int, int], backward: list[range]) -> tuple[list[int], list[int], list[int]]:
    """`run_bytes`, `undo_bytes` (backward operators) and `gradient_bytes` of each block, measured on keep-all."""
    run, undo, gradients = ([0] * len(backward) for _ in range(3))
    undone = {v: k for k, operators in enumerate(backward) for v in operators}
    held = [0] * len(backward)  # live bytes that each block's forward operators made
    initial_bytes = total = sum(s for s, there in zip(model.size, model.in_ram, strict=True) if there)

    def change(t: int, sign: int) -> None:
        nonlocal total
        total += sign * model.size[t]
        block = block_of.get(model.producer[t])
        if block is not None:
            held[block] += sign * model.size[t]

    for action in keep_all(model.problem).actions:
        if isinstance(action, Compute):
            v = action.operator
            if v in undone and v == backward[undone[v]].start:
                gradients[undone[v]] = max(0, total - sum(held) - initial_bytes)
            for t, _ in action.in_place:
                change(t, -1)
            for t in model.outputs[v]:
                change(t, 1)
            for peaks, k in ((run, block_of.get(v)), (undo, undone.get(v))):
                if k is not None:
                    used = model.problem.base_bytes + total + model.workspace[v]
                    peaks[k] = max(peaks[k], used - (sum(held) - held[k]))
        elif isinstance(action, PageIn):
            change(action.tensor, 1)
        elif isinstance(action, Free):
            change(action.tensor, -1)
    return run, undo, gradients


class ChainTape:
    """Writes the decisions of a dynamic program, block by block."""

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
        outputs = {t for v in block.forward for t in model.outputs[v]}
        self.tape.drop(outputs - wanted - block.kept)

    def drop_boundary(self, k: int) -> None:
        self.tape.drop(set(self.chain.blocks[k].boundary) - self.chain.blocks[k].kept)

    def backward(self, k: int) -> None:
        """Undo block k, bring back the operands that its operators miss, and drop the tensors that it made."""
        brought: set[int] = set()
        for v in self.chain.blocks[k].backward:
            brought |= self.tape.compute(v)
        self.tape.drop(brought)
        self._drop_made(k, set(self.chain.blocks[k].boundary))
