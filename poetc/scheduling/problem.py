"""The scheduling problem: operators with costs, tensors with sizes, a budget, a deadline.

It is free of any solver and of ONNX.

`operators` stand in the order in which keep-all executes them; a solver of the class "fixed order" keeps the first
executions in that order. Tensors are storages: views share one entry. Operators and tensors are named by their index.
The JSON form (docs/reference/formats.md) is these dataclasses field by field.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from poetc.scheduling.objective import Objective

if TYPE_CHECKING:
    import networkx

Place = Literal["", "ram", "store"]


class Paging(enum.StrEnum):
    NONE = "none"  # no secondary storage
    SYNC = "sync"  # a transfer adds its time to the step
    DMA = "dma"  # a transfer overlaps compute: see scheduling/_transfers.py


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    name: str
    size_bytes: int  # in RAM, alignment included
    initial: Place = ""  # where it is when the step begins: "" = nowhere, an operator makes it
    final: Place = ""  # where it must be when the step ends: "" = nowhere in particular
    pageable: bool = True  # may it be copied to the store
    page_out_ns: int = 0
    page_out_pj: int = 0
    page_in_ns: int = 0
    page_in_pj: int = 0
    store_bytes: int | None = None  # on the store, in whole blocks; None: size_bytes
    move_ns: int | None = None  # of moving it to another place in RAM; None: it may not be moved
    move_pj: int = 0

    @property
    def footprint_bytes(self) -> int:
        """Its bytes on the store, which count against `store_capacity_bytes`."""
        return self.size_bytes if self.store_bytes is None else self.store_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlace:
    """Output `output` may (or, if `required`, must) take over the bytes of input `input`, which ceases to exist.
    Tensor indices.
    """

    input: int
    output: int
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorSpec:
    """A processor. Power is in microwatts; 1000 of them draw a picojoule a nanosecond.

    An operator that reads tensors of another processor takes longer, by the larger `hand_over_ns` of the two. The
    larger `flush_ps_per_byte` counts for every byte of them. Its processor is active for that time.
    """

    name: str
    active_uw: int = 0
    idle_uw: int = 0
    hand_over_ns: int = 0
    flush_ps_per_byte: int = 0  # picoseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BankSpec:
    """A memory for tensors. Costs are those beyond a tensor in the cheapest memory, for each byte read or written.

    Every execution of an operator reads each input once, and writes each output once. It does both with its workspace.
    """

    name: str
    budget_bytes: int
    address: int = 0  # of its first byte: the parts of an arena are in this order
    read_ps_per_byte: int = 0  # picoseconds
    write_ps_per_byte: int = 0
    read_fj_per_byte: int = 0  # femtojoules
    write_fj_per_byte: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """The costs of an operator's kernel on processor `processor`, which is not the first one."""

    processor: int
    time_ns: int
    energy_pj: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Another way to execute an operator, with the same results: its kernel `kernel`, if kernels have names."""

    workspace_bytes: int
    time_ns: int
    energy_pj: int
    kernel: str = ""
    elsewhere: tuple[Elsewhere, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSpec:
    """An operator with its costs. `kernel` names the kernel that runs it; "" leaves it the fastest one.

    `low_workspace`: kernels with less and less workspace, none of them faster or cheaper than the one before. A
    schedule runs one kernel of an operator throughout: a problem that was solved has the name and the numbers of the
    chosen one (`poetc.planning.kernels`). Solvers may leave the others aside.

    `time_ns` and `energy_pj` are those of the first processor, which runs every operator. `elsewhere` has those of the
    other processors that can run it, in ascending order.

    A streamed operator runs in blocks of `block` units along its axis `cut`. Tensors of `reads_store` are read from the
    store, and those of `writes_store` written there, block by block through windows in its workspace. They are never in
    RAM. A tensor that it reads begins the step on the store; or an operator wrote it there, and it is among `inputs`. A
    tensor that it writes is among `outputs`, and has a size of 0 bytes in RAM. `replaces`: pairs of versions of state,
    the one that it reads and the one that it writes. Costs include the transfers. Where `cut` names two axes, blocks
    have `inner_block` units along the second one. `rewritten_bytes`: of blocks of the store that it writes again, since
    pieces of a tensor share them. It is negative where only some rows of a tensor are written. `piece_ns`: of its
    longest block, with its transfers; 0: it is one piece. An operator in blocks may have all its operands in RAM.
    `overlaps`: each operand on the store has two windows, so that the transfers of a block overlap the kernel of
    another one.
    """

    name: str
    kind: str = ""
    phase: str = "forward"
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    time_ns: int
    energy_pj: int
    workspace_bytes: int = 0
    recomputable: bool = True  # False: must be executed exactly once
    in_place: tuple[InPlace, ...] = ()
    kernel: str = ""
    low_workspace: tuple[Variant, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()
    reads_store: tuple[int, ...] = ()
    writes_store: tuple[int, ...] = ()
    replaces: tuple[InPlace, ...] = ()
    cut: str = ""
    block: int = 0
    inner_block: int = 0
    rewritten_bytes: int = 0
    piece_ns: int = 0
    overlaps: bool = False

    @property
    def is_streamed(self) -> bool:
        """Whether operands pass between the store and windows."""
        return bool(self.reads_store or self.writes_store)

    @property
    def longest_ns(self) -> int:
        """The time for which it cannot be interrupted, on the first processor."""
        return self.piece_ns or self.time_ns

    def cost_on(self, processor: int) -> tuple[int, int] | None:
        """Its time and energy on a processor, ns and pJ; None where it cannot run."""
        if processor == 0:
            return self.time_ns, self.energy_pj
        return next(((e.time_ns, e.energy_pj) for e in self.elsewhere if e.processor == processor), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Minimise the objective subject to RAM at every action and the deadline.

    RAM in use at an action = base_bytes + resident tensors + the operator's workspace + page_buffer_bytes if the
    schedule pages at all. Resident tensors include inputs and outputs of the running operator. Store in use =
    footprints of all that is or ever was there in the step. Written = the footprint of every page-out, a second one of
    the same tensor too. Energy of a schedule = sum of operator, page and move energies. Time likewise (Paging.SYNC), or
    with transfers overlapping compute (Paging.DMA). The energy then has `idle_uw` besides, for as long as the processor
    waits. Every operator is executed at least once; every tensor with `final` is there at the end.

    `processors`: none, or at least two that run side by side. docs/explanation/processors.md says how long a schedule
    takes then, and which RAM it needs. Its energy has the idle power of each processor besides.

    `banks`: none, or the memories that RAM consists of; `budget_bytes` is the sum of their budgets. A schedule then
    says in which bank each tensor and each workspace lies. The budget of each bank holds at every action. `base_bytes`
    and the page buffer are in the first bank.
    """

    name: str
    operators: tuple[OperatorSpec, ...]
    tensors: tuple[TensorSpec, ...]
    budget_bytes: int
    deadline_ns: int | None = None
    objective: Objective = Objective.ENERGY
    paging: Paging = Paging.NONE
    base_bytes: int = 0  # RAM outside the tensors: runtime state, stack
    page_buffer_bytes: int = 0
    dma_full_duplex: bool = False  # Paging.DMA: page-ins and page-outs at once, instead of one transfer at a time
    idle_uw: int = 0  # Paging.DMA: the power while the processor waits, of a problem without `processors`
    store_capacity_bytes: int | None = None
    write_limit_bytes: int | None = None  # that a schedule writes to the store at most, which wears out
    alignment_bytes: int = 16
    device: str = ""
    processors: tuple[ProcessorSpec, ...] = ()
    banks: tuple[BankSpec, ...] = ()

    @property
    def written_by_operators(self) -> frozenset[int]:
        """Tensors that streamed operators write to the store."""
        return frozenset(t for o in self.operators for t in o.writes_store)

    @property
    def order(self) -> tuple[str, ...]:
        """The names of the operators in the problem's order."""
        return tuple(op.name for op in self.operators)

    @property
    def compute_once_pj(self) -> int:
        return sum(o.energy_pj for o in self.operators)

    @property
    def compute_once_ns(self) -> int:
        return sum(o.time_ns for o in self.operators)

    def to_networkx(self) -> networkx.DiGraph[str]:
        """Operators and tensors as nodes, with all their numbers; see `poetc.scheduling.networks`."""
        from poetc.scheduling.networks import problem_network

        return problem_network(self)
