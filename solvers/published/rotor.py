"""rotor: the optimal persistent schedule of a heterogeneous chain.

Source: Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, "Optimal checkpointing for heterogeneous chains", ACM TOMS
50(2), 2024; arXiv 1911.13214, theorem 1.

Let a_k be the bytes that enter block k and A_k those that it saves for its own backward pass. The least cost of the
recomputation that undoes blocks a ... b with m bytes is

    Opt(m, a, b) = min( Opt(m - A_a, a + 1, b) if m >= bytes to undo a,                     record block a
                        min over j of F_a + ... + F_{j-1} + Opt(m - a_j, j, b) + Opt(m, a, j - 1)     checkpoint a_j
                            if m >= bytes to run a ... j - 1 )
    Opt(m, a, a) = 0 if m >= bytes to undo a, else infinite,

the first execution of everything left out, and F_{j-1} where undoing block j - 1 does not take its execution. Bytes
are rounded up to slots. The bytes inside a block are only estimated here. So the program is given memories from twice
the budget down, until its decisions fit when they are replayed exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from poetc.solvers.interface import SolverInfo
from poetc.solvers.published._baseline import Baseline, Irretrievable, method
from poetc.solvers.published._chain import Chain, ChainTape, chain_of, memories

INFO = SolverInfo(
    name="rotor",
    title="Dynamic program over heterogeneous chains",
    citation="O. Beaumont et al., Optimal Checkpointing for Heterogeneous Chains, ACM TOMS 50(2), 2024",
    general_graphs=False,
    energy=True,
    notes="Recomputation only; optimal for chains whose schedules keep a checkpoint until it is used.",
    read="the dynamic programs",
    differs="memory in slots; several budgets are replayed. With `--dma` no debts of transfers: the replay hides them",
    checked="`rotor`: all persistent schedules of small chains",
)

RECORD = -1  # the choice "record block a"

SLOTS = 400  # of the budget: time and memory of the program grow with their number


class Program:
    """The tables for one chain: `cost[a][b][m]` and the choice that attains it (RECORD, or j)."""

    def __init__(self, chain: Chain, slot_bytes: int, slots: int, check_time: Callable[[], None]) -> None:
        """`check_time` raises where the time is up: the tables of a long chain take minutes."""
        self.chain, self.slots = chain, slots
        blocks = chain.blocks
        count = len(blocks)
        self.enters = [0] + [_slots(chain.bytes_of(b.boundary), slot_bytes) for b in blocks[:-1]]
        self.records = [_slots(chain.bytes_of(b.saved | set(b.boundary)), slot_bytes) for b in blocks]
        memory = np.arange(slots + 1)
        fits = [memory >= _slots(b.undo_bytes, slot_bytes) for b in blocks]
        self.cost: list[list[npt.NDArray[np.float64]]] = [[np.zeros(0)] * count for _ in range(count)]
        self.choice: list[list[npt.NDArray[np.int32]]] = [[np.zeros(0, np.int32)] * count for _ in range(count)]
        prefix = np.concatenate(([0.0], np.cumsum([float(b.cost) for b in blocks])))
        for a in range(count):
            self.cost[a][a] = np.where(fits[a], 0.0, math.inf)
            self.choice[a][a] = np.full(slots + 1, RECORD, np.int32)
        for length in range(2, count + 1):
            for a in range(count - length + 1):
                check_time()
                b = a + length - 1
                running = 0
                # Only runs that end with the last block are executed before there are gradients.
                gradients = 0 if b == count - 1 else blocks[b].gradient_bytes
                options = [np.where(fits[a], _shifted(self.cost[a + 1][b], self.records[a]), math.inf)]
                for j in range(a + 1, b + 1):
                    entered = self.enters[j - 1] if j - 1 > a else 0
                    running = max(running, entered + _slots(blocks[j - 1].run_bytes + gradients, slot_bytes))
                    # Block j - 1 is not executed anew for its boundary, which block j alone reads.
                    again = prefix[j if blocks[j - 1].needs_run else j - 1] - prefix[a]
                    cost = again + _shifted(self.cost[j][b], self.enters[j]) + self.cost[a][j - 1]
                    options.append(np.where(memory >= running, cost, math.inf))
                table = np.stack(options)
                best = np.argmin(table, axis=0)
                self.cost[a][b] = np.take_along_axis(table, best[None, :], axis=0)[0]
                self.choice[a][b] = np.where(best == 0, RECORD, a + best).astype(np.int32)

    def codes(self, slots: int) -> list[int] | None:
        """The sequence of the best schedule within `slots`; None if there is none."""
        if slots < 0 or math.isinf(self.cost[0][-1][slots]):
            return None
        tape = ChainTape(self.chain)
        self._write(tape, 0, len(self.chain.blocks) - 1, slots)
        return tape.tape.finish()

    def _write(self, tape: ChainTape, a: int, b: int, m: int) -> None:
        choice = int(self.choice[a][b][m])
        if choice == RECORD:
            if a == b:
                if b == len(self.chain.blocks) - 1:
                    tape.record(a)
            else:
                tape.record(a)
                self._write(tape, a + 1, b, m - self.records[a])
            tape.backward(a)
            return
        for k in range(a, choice):
            tape.advance(k)
            if k > a:
                tape.drop_boundary(k - 1)
        self._write(tape, choice, b, m - self.enters[choice])
        tape.drop_boundary(choice - 1)
        self._write(tape, a, choice - 1, m)


def _slots(size_bytes: int, slot_bytes: int) -> int:
    return -(-size_bytes // slot_bytes)


def _shifted(table: npt.NDArray[np.float64], by: int) -> npt.NDArray[np.float64]:
    """`table` at m - by; infinite below."""
    if by == 0:
        return table
    result = np.full_like(table, math.inf)
    if by < len(table):
        result[by:] = table[:-by]
    return result


@method(INFO)
def solve(baseline: Baseline) -> None:
    """The schedule of the dynamic program for a chain of blocks, replayed for several sizes of the memory.

    Raises UnsupportedProblemError where the graph is no chain, InfeasibleError where no replay fits.
    """
    chain = chain_of(baseline.model, INFO.name)
    slot_bytes = max(1, -(-baseline.problem.budget_bytes // SLOTS))
    tried = memories(SLOTS, 80)
    program = Program(chain, slot_bytes, tried[0], baseline.check_time)
    # The estimate errs to either side: a larger memory than there is may still fit when replayed.
    for slots in tried:
        baseline.check_time()
        if baseline.out_of_time:
            break
        try:
            codes = program.codes(slots)
            if codes is None:
                break
            if baseline.offer(codes, f"{slots} of {SLOTS} memory slots"):
                break
        except Irretrievable as error:
            baseline.refusal = str(error)
