"""A solved step as one graph of networkx: the problem, with the schedule, the places and the model's own words."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from poetc.reporting._facts import gather
from poetc.reporting._solved import Solved
from poetc.scheduling import Compute, Move, PageIn, PageOut

if TYPE_CHECKING:
    import networkx


def solved_network(solved: Solved) -> networkx.DiGraph[str]:
    """`Problem.to_networkx` with annotations.

    Operators: `executions`, `processor`, `first_instruction`. Tensors: `category`, `stays` ("3-7 computed, ..."),
    `page_outs`, `page_ins`, `moves`, `offset_bytes` of each place, and shape, dtype and role of the model.
    """
    graph, problem, facts = solved.problem.to_networkx(), solved.problem, gather(solved)
    graph.graph |= {"peak_bytes": solved.trace.peak_bytes, "energy_pj": solved.trace.energy_pj}
    graph.graph |= {"time_ns": solved.trace.time_ns, "solver": solved.schedule.solver}
    first: dict[int, tuple[int, int]] = {}
    counts: dict[type, Counter[int]] = defaultdict(Counter)
    for position, action in enumerate(solved.schedule.actions):
        if isinstance(action, Compute):
            first.setdefault(action.operator, (position, action.processor))
        elif isinstance(action, PageIn | PageOut | Move):
            counts[type(action)][action.tensor] += 1
    for index, executions in enumerate(solved.trace.executions):
        position, processor = first.get(index, (-1, 0))
        graph.nodes[f"op {index}"].update(executions=executions, first_instruction=position, processor=processor)
    stays: dict[int, list[str]] = defaultdict(list)
    for stay in facts.stays:
        stays[stay.tensor].append(f"{stay.start}-{stay.end} {stay.origin.value}")
    places: dict[int, list[str]] = defaultdict(list)
    for allocation in solved.plan.allocations:
        for t, _ in allocation.tensors:
            places[t].append(str(allocation.offset_bytes))
    for index, tensor in enumerate(problem.tensors):
        node = graph.nodes[f"tensor {index}"]
        node.update(category=facts.categories[index].value, stays=", ".join(stays[index]))
        node.update(offset_bytes=", ".join(places[index]), moves=counts[Move][index])
        node.update(page_outs=counts[PageOut][index], page_ins=counts[PageIn][index])
        known = None if solved.graph is None else solved.graph.tensors.get(tensor.name)
        if known is not None:
            shape = "x".join(map(str, known.shape))
            node.update(shape=shape, dtype=known.dtype.value, role=known.role.value)
    return graph


def network_text(solved: Solved, suffix: str) -> str:
    """As GraphML, or as GEXF where the suffix of the file says so."""
    import networkx  # takes long to import

    graph = solved_network(solved)
    lines = networkx.generate_gexf(graph) if suffix == ".gexf" else networkx.generate_graphml(graph)
    return "\n".join(lines) + "\n"
