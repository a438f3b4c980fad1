"""A lower bound on RAM that is easy to see through, beside those of the solvers."""

from __future__ import annotations

from poetc.scheduling import choose_pairs, state_chains
from poetc.scheduling.problem import Paging, Problem


def order_free_bound_bytes(problem: Problem) -> int:
    """No schedule runs in less RAM than this, whatever the order.

    It is the largest of three sums: all that is in RAM at the start, all that must be there at the end, and what one
    operator touches at once (as much in place as is allowed) beside the state that cannot leave RAM.
    """
    sizes = [t.size_bytes for t in problem.tensors]
    paged = problem.paging is not Paging.NONE
    stuck: dict[int, int] = {}  # tensor -> its chain, for state of which some version is always in RAM
    weights: list[int] = []
    for chain in state_chains(problem):
        if not (paged and any(problem.tensors[t].pageable for t in chain)):
            stuck |= dict.fromkeys(chain, len(weights))
            weights.append(sizes[chain[0]])
    always = sum(weights)
    bound = max(
        sum(s for t, s in zip(problem.tensors, sizes, strict=True) if t.initial == "ram"),
        sum(s for t, s in zip(problem.tensors, sizes, strict=True) if t.final == "ram"),
    )
    for operator in problem.operators:
        touched = {*operator.inputs, *operator.outputs}
        required = tuple((p.input, p.output) for p in operator.in_place if p.required)
        taken = {t for pair in required for t in pair}
        optional = [(p.input, p.output) for p in operator.in_place if not taken & {p.input, p.output}]
        overlap = sum(sizes[o] for _, o in choose_pairs(required, optional, sizes))
        elsewhere = always - sum(weights[c] for c in {stuck[t] for t in touched if t in stuck})
        bound = max(bound, elsewhere + sum(sizes[t] for t in touched) - overlap + operator.workspace_bytes)
    must_page = any(t.initial == "store" for t in problem.tensors if t.final == "ram") or any(
        problem.tensors[t].initial == "store" for o in problem.operators for t in o.inputs
    )
    must_page |= any(t.final == "store" and t.initial != "store" for t in problem.tensors)
    return problem.base_bytes + bound + (problem.page_buffer_bytes if must_page else 0)
