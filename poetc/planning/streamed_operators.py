"""The operators that stream so that each keeps within a limit of RAM: which operands, and in which blocks.

An operator whose operands take more than the limit streams some of them: the largest first, as many as it must.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from poetc.devices.blocks import MOST_STREAMS
from poetc.devices.streaming import Form, StreamedAlternatives, streamed_problem
from poetc.ops import INDICES
from poetc.scheduling import OperatorSpec, Problem

StreamedOperators = dict[int, OperatorSpec]
# By operators that are alike and the places of their operands: the streamed operands, and the alternative's number.
Decided = dict[tuple[object, ...], tuple[tuple[int, ...], int] | None]


class Bans(NamedTuple):
    """Operators may not stream tensors of `in_ram`, nor take single rows of those of `whole`.

    `little`: nor may they stream in blocks that are only for a longest piece.
    """

    in_ram: frozenset[int]
    whole: frozenset[int]
    little: bool


def needs_bytes(problem: Problem, op: OperatorSpec, tokens: frozenset[int]) -> int:
    """The RAM of an operator's operands and workspace, bytes. `tokens` are on the store alone."""
    least = op.low_workspace[-1].workspace_bytes if op.low_workspace else op.workspace_bytes
    taken = {p.output for p in op.in_place if p.required}
    tensors = {*op.inputs, *(t for t in op.outputs if t not in taken)} - tokens - set(op.writes_store)
    return least + sum(problem.tensors[t].size_bytes for t in tensors)


def within(offer: StreamedAlternatives, limit_bytes: int) -> StreamedOperators:
    """The operators that stream so that each keeps within the limit, or comes as near to it as it can.

    A tensor that an operator makes and others read is on the store for all of them, or for none. So is state whose
    transfer as a whole is not allowed.
    """
    return {k: _priced(offer, k, op) for k, op in unpriced(offer, limit_bytes).items()}


def unpriced(offer: StreamedAlternatives, limit_bytes: int, *, little: bool = True) -> StreamedOperators:
    """The same without prices, which take longer than the choice. `little`: as in Bans."""
    barred: frozenset[int] = frozenset()
    decided: Decided = {}
    movers = offer.problem.operators
    whole = {t for t, k in offer.mover.items() if needs_bytes(offer.problem, movers[k], frozenset()) <= limit_bytes}
    while True:
        operators = _within(offer, limit_bytes, Bans(barred, frozenset(whole), little), decided)
        # Rows can be read alone where they move alone, which keeps their checksums.
        others = {t for t, k in offer.mover.items() if k not in operators or operators[k].cut != INDICES} - whole
        stuck = _stuck(offer.problem, operators)
        if not stuck and not others:
            return operators
        whole |= others
        barred |= frozenset() if others else stuck


def _stuck(problem: Problem, operators: StreamedOperators) -> frozenset[int]:
    """Tensors, all versions of state, that are on the store between steps and would have to come from it whole."""
    stuck: set[int] = set()
    fixed = streamed_problem(problem, operators)
    for op in fixed.operators:
        for t in {*op.inputs, *op.outputs} - {*op.reads_store, *op.writes_store}:
            if "store" in (fixed.tensors[t].initial, fixed.tensors[t].final) and not problem.tensors[t].pageable:
                stuck.add(t)
    pairs = [{p.input, p.output} for op in problem.operators for p in op.in_place if p.required]
    return frozenset(stuck.union(*(pair for pair in pairs if pair & stuck)))


def _within(offer: StreamedAlternatives, limit_bytes: int, bans: Bans, decided: Decided) -> StreamedOperators:
    """The same without prices, and without the choices that `bans` rules out.

    `decided`: of this limit, by operators that are alike.

    An operator is looked at again when one of its operands has gone to the store, or come back. For no limit at all it
    is looked at only once no more of its operands go there.
    """
    problem = offer.problem
    replaced = {new for op in problem.operators for new in (p.output for p in op.in_place if p.required)}
    state = replaced - offer.sums.keys() - offer.readers.keys()
    candidates = {t for t in offer.maker if t not in state and _can_be_token(offer, t)}
    candidates = {t for t in candidates if _versions_of_sum(offer, t) <= candidates}
    tokens: frozenset[int] = frozenset()
    operators: StreamedOperators = {}
    short: set[int] = set()  # operators that need more than the limit
    stuck: set[int] = set()  # those that have no cut for all of their tokens
    again: Iterable[int] = range(len(problem.operators))
    later: set[int] = set()  # operators that wait, since more of their operands will go to the store
    while True:
        for k in again:
            op = problem.operators[k]
            own = frozenset(t for t in (*op.inputs, *op.outputs) if t in tokens)
            short.discard(k)
            stuck.discard(k)
            later.discard(k)
            operators.pop(k, None)
            fits = not own and needs_bytes(problem, op, tokens) <= limit_bytes
            if fits and not offer.tables_of(k) - bans.whole:
                continue
            if not limit_bytes and not own and not candidates.isdisjoint((*op.inputs, *op.outputs)):
                short.add(k)
                later.add(k)
                continue
            best = _once(offer, k, own, tokens, limit_bytes, bans, decided)
            if fits and best is not None and best.cut != INDICES:
                best = None
            if best is not None:
                operators[k] = best
            elif own:
                stuck.add(k)
            if needs_bytes(problem, best or op, tokens) > limit_bytes:
                short.add(k)
        wanted: set[int] = set()
        for k in sorted(short | stuck):
            operands = (*problem.operators[k].inputs, *problem.operators[k].outputs)
            if k in short:
                more = [t for t in operands if t in candidates and t not in tokens]
                more.sort(key=lambda t: -problem.tensors[t].size_bytes)
                room = max(1, MOST_STREAMS - sum(1 for t in operands if t in tokens))
                chosen = more[:1] if limit_bytes else more[:room]  # nothing keeps within no bytes
                wanted |= frozenset[int]().union(*(_versions_of_sum(offer, t) for t in chosen))
            if k in stuck:
                candidates -= frozenset[int]().union(*(_versions_of_sum(offer, t) for t in operands if t in tokens))
        lost = tokens - candidates
        changed = lost or wanted
        if not changed and not later:
            return dict(sorted(operators.items()))
        if not changed:
            again = sorted(later)  # those operands stay in RAM after all
            continue
        tokens = tokens - lost if lost else tokens | wanted
        again = sorted({k for t in changed for k in (offer.maker[t], *offer.readers.get(t, ()))})


def _priced(offer: StreamedAlternatives, k: int, op: OperatorSpec) -> OperatorSpec:
    streamed = frozenset({*op.reads_store, *op.writes_store})
    return offer.priced(k, streamed, offer.forms(k, streamed).index(Form.of(op)))


def _can_be_token(offer: StreamedAlternatives, t: int) -> bool:
    """Whether it may be on the store alone: it ends with the step. No operator need read it, as a frozen pool's."""
    problem = offer.problem
    tensor = problem.tensors[t]
    if tensor.initial or t in offer.results:
        return False
    return offer.can_leave(t) and tensor.size_bytes > problem.alignment_bytes


def _versions_of_sum(offer: StreamedAlternatives, t: int) -> frozenset[int]:
    """The tensor; all versions of a sum, which are on the store together or in RAM."""
    return offer.sums.get(t, frozenset({t}))


def _versions(offer: StreamedAlternatives, k: int, tokens: frozenset[int]) -> frozenset[int]:
    """The state that an operator replaces, both versions, but for scalars and versions that others read in RAM."""
    problem = offer.problem
    pairs = [p for p in problem.operators[k].in_place if p.required and p.input not in offer.sums]
    pairs = [p for p in pairs if p.output in tokens or p.output not in offer.readers]
    large = [p for p in pairs if problem.tensors[p.input].size_bytes > problem.alignment_bytes]
    return frozenset(t for p in large for t in (p.input, p.output))


def _once(
    offer: StreamedAlternatives,
    k: int,
    own: frozenset[int],
    tokens: frozenset[int],
    limit_bytes: int,
    bans: Bans,
    decided: Decided,
) -> OperatorSpec | None:
    """The result of `_best`: as for an operator that is alike, where there was one."""
    op = offer.problem.operators[k]
    operands = (*op.inputs, *op.outputs)
    key = offer.alike(k), tuple((t in tokens, t in bans.in_ram, t in bans.whole) for t in operands)
    if key not in decided:
        best = _best(offer, k, own, tokens, limit_bytes, bans)
        if best is None:
            decided[key] = None
        else:
            streamed = frozenset({*best.reads_store, *best.writes_store})
            number = offer.forms(k, streamed).index(Form.of(best))
            decided[key] = tuple(operands.index(t) for t in streamed), number
    recorded = decided[key]
    if recorded is None:
        return None
    places, number = recorded
    return offer.alternative(k, frozenset(operands[n] for n in places), number)


def _best(
    offer: StreamedAlternatives,
    k: int,
    own: frozenset[int],
    tokens: frozenset[int],
    limit_bytes: int,
    bans: Bans,
) -> OperatorSpec | None:
    """The operator with `own` streamed, and as much of its state as the limit asks for; None if it cannot be."""
    problem, op = offer.problem, offer.problem.operators[k]
    versions = _versions(offer, k, tokens)
    read = [t for t in op.inputs if offer.is_state(t) and t not in versions | bans.in_ram]
    read.sort(key=lambda t: -problem.tensors[t].size_bytes)
    read = [t for t in read if problem.tensors[t].size_bytes > problem.alignment_bytes]
    streamed = own | versions  # all versions: a bad block must not reach state in RAM
    sets = [streamed] if streamed else []
    sets += [streamed | frozenset(read[: n + 1]) for n in range(len(read))]
    if own and versions:
        sets.insert(0, own)
    if versions & bans.in_ram:
        sets = [own] if own else []
    tables = offer.tables_of(k)
    is_whole = bool(tables & bans.whole)
    if tables and not tables & bans.in_ram and not is_whole:
        sets.insert(0, streamed | tables)
    best: OperatorSpec | None = None
    least = math.inf
    for chosen in sets:
        if bans.little and offer.is_little(k, chosen):
            continue
        forms = enumerate(zip(offer.forms(k, chosen), offer.workspaces(k, chosen), strict=True))
        sizes = {n: size for n, (form, size) in forms if not (is_whole and form.cut == INDICES)}
        if not sizes:
            continue
        first = next(iter(sizes))
        besides = needs_bytes(problem, offer.alternative(k, chosen, first), tokens) - sizes[first]  # the same for each
        fitting = [n for n, size in sizes.items() if besides + size <= limit_bytes]
        if fitting:
            priced = [offer.priced(k, chosen, n) for n in fitting]
            best = min(priced, key=lambda f: problem.objective.cost(f.energy_pj, f.time_ns))
            break
        smallest = min(sizes, key=lambda n: sizes[n])
        if besides + sizes[smallest] < least:
            least = besides + sizes[smallest]
            best = offer.alternative(k, chosen, smallest)
    if best is None or (not own and needs_bytes(problem, best, tokens) >= needs_bytes(problem, op, tokens)):
        return None
    return best
