"""The pieces of a step that cannot be interrupted: an operator, a block of one, a transfer, a move within RAM.

A control loop runs a step piece by piece between its turns (`poetc_session_continue`). A turn waits for one piece at
most. `in_pieces` bounds the longest one before anything is planned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from poetc.devices.streaming import StreamedAlternatives
from poetc.devices.units import format_ns
from poetc.errors import InfeasibleError, UsageError
from poetc.graph import Graph, Role
from poetc.scheduling import Compute, Move, OperatorSpec, PageIn, PageOut, Problem, Schedule, TensorSpec


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a step and its modelled time. `kind`: that of the operator, or page-out, page-in, move."""

    name: str
    kind: str
    time_ns: int
    blocks: bool = False  # a block of an operator

    def in_words(self, name: str) -> str:
        """The piece as a phrase, with `name` for its name. Many names begin with the kind."""
        kind = "" if self.name.startswith(self.kind) else f"{self.kind} "
        return f"{'a block of ' if self.blocks else ''}{kind}{name}"


def longest_piece(problem: Problem, schedule: Schedule | None = None) -> Piece:
    """Of a schedule; without one, of operators that run once each."""
    if schedule is None:
        pieces = [_of_operator(op, 0) for op in problem.operators]
    else:
        pieces = []
        for action in schedule.actions:
            if isinstance(action, Compute):
                pieces.append(_of_operator(problem.operators[action.operator], action.processor))
            elif isinstance(action, PageOut):
                tensor = problem.tensors[action.tensor]
                pieces.append(Piece(tensor.name, "page-out", tensor.page_out_ns))
            elif isinstance(action, PageIn):
                tensor = problem.tensors[action.tensor]
                pieces.append(Piece(tensor.name, "page-in", tensor.page_in_ns))
            elif isinstance(action, Move):
                tensor = problem.tensors[action.tensor]
                pieces.append(Piece(tensor.name, "move", tensor.move_ns or 0))
    return max(pieces, key=lambda piece: piece.time_ns, default=Piece("", "", 0))


def _of_operator(op: OperatorSpec, processor: int) -> Piece:
    cost = op.cost_on(processor)
    time_ns = op.longest_ns if processor == 0 or cost is None else cost[0]
    return Piece(op.name, op.kind, time_ns, blocks=bool(op.piece_ns))


def in_pieces(
    problem: Problem, longest_ns: int, offer: StreamedAlternatives | None, option: str = "--longest-piece"
) -> Problem:
    """`problem` in which nothing runs longer than `longest_ns` without a point where it can be interrupted.

    Longer operators run in blocks from `offer`, with all operands in RAM. Longer kernels of little workspace, moves and
    transfers are no longer allowed. InfeasibleError names the operator with the longest block, or the tensor, that
    cannot keep the limit.
    """
    if problem.processors or problem.banks:
        raise UsageError(f"{option} is for one processor and RAM in one piece")
    operators: list[OperatorSpec] = []
    too_long: list[tuple[int, str]] = []
    for index, op in enumerate(problem.operators):
        op = replace(op, low_workspace=tuple(v for v in op.low_workspace if v.time_ns <= longest_ns))
        if op.longest_ns > longest_ns:
            cut = None if offer is None else offer.in_pieces(index, longest_ns)
            if cut is None or cut.piece_ns > longest_ns:
                too_long.append(_too_long(op, cut, longest_ns, offer, option))
            else:
                op = cut
        operators.append(op)
    if too_long:
        raise InfeasibleError(max(too_long)[1])
    tensors = tuple(_in_time(t, longest_ns, option) for t in problem.tensors)
    return replace(problem, operators=tuple(operators), tensors=tensors)


def _in_time(tensor: TensorSpec, longest_ns: int, option: str) -> TensorSpec:
    if tensor.move_ns is not None and tensor.move_ns > longest_ns:
        tensor = replace(tensor, move_ns=None, move_pj=0)
    transfer_ns = max(tensor.page_in_ns, tensor.page_out_ns)
    if transfer_ns <= longest_ns:
        return tensor
    if tensor.initial == "store":
        raise InfeasibleError(
            f"{option} {format_ns(longest_ns)}: {tensor.name!r} lives on the store, and its transfer takes"
            f" {format_ns(transfer_ns)}; allow that, or keep state in RAM"
        )
    return replace(tensor, pageable=False)


def _too_long(
    op: OperatorSpec, cut: OperatorSpec | None, longest_ns: int, offer: StreamedAlternatives | None, option: str
) -> tuple[int, str]:
    """The least piece of an operator, ns, and the message."""
    node = "" if offer is None else offer.operators[op.name].source
    named = f"{op.kind} {op.name!r}" + (f" of node {node!r}" if node and node != op.name else "")
    least = op.longest_ns if cut is None else min(op.longest_ns, cut.piece_ns)
    way = "cannot be cut" if least == op.longest_ns else f"in its smallest blocks {format_ns(least)}"
    other = ", or train with a smaller --batch" if offer is not None and _is_batch(offer.graph) else ""
    return least, (
        f"{option} {format_ns(longest_ns)}: {named} takes {format_ns(op.longest_ns)}, and {way};"
        f" allow {format_ns(least)}{other}"
    )


def _is_batch(graph: Graph) -> bool:
    """Whether a step has more than one sample."""
    inputs = (t for t in graph.tensors.values() if t.role is Role.INPUT)
    return any(t.shape and t.shape[0] > 1 for t in inputs)
