"""State placement: RAM or the store, whichever holds a state tensor when a step begins and when it ends."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from poetc.scheduling.problem import Paging, Place, Problem


def state_chains(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """State that lives in RAM from step to step, as chains of versions, ordered by the first.

    A chain is a tensor that starts in RAM and the versions that required in-place pairs make of it. The last must be in
    RAM at the end.
    """
    successor = {p.input: p.output for o in problem.operators for p in o.in_place if p.required}
    chains = []
    for first, tensor in enumerate(problem.tensors):
        if tensor.initial != "ram":
            continue
        chain = [first]
        while chain[-1] in successor:
            chain.append(successor[chain[-1]])
        if problem.tensors[chain[-1]].final == "ram":
            chains.append(tuple(chain))
    return tuple(chains)


def movable_state(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """The chains of `state_chains` that could as well live on the store.

    All their versions are pageable, and each is more than a scalar: a page takes whole blocks of the store.
    """
    if problem.paging is Paging.NONE:
        return ()
    tensors = problem.tensors
    return tuple(
        chain
        for chain in state_chains(problem)
        if tensors[chain[0]].size_bytes > problem.alignment_bytes and all(tensors[t].pageable for t in chain)
    )


def unchanged_state(problem: Problem) -> frozenset[int]:
    """The state of `movable_state` that no operator changes, by its first versions: frozen weights.

    On the store it has a copy for good. So it leaves RAM without a transfer, and nothing is written.
    """
    return frozenset(chain[0] for chain in movable_state(problem) if len(chain) == 1)


def on_store(problem: Problem, first: Collection[int]) -> Problem:
    """The problem with some chains of `movable_state` placed on the store: those whose first versions are `first`.

    They begin the step there, and their last versions end it there.
    """
    return _with_places(problem, [chain for chain in movable_state(problem) if chain[0] in first], "store")


def stored_state(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """The chains of versions of the state that is placed on the store."""
    successor = {p.input: p.output for o in problem.operators for p in o.in_place if p.required}
    successor |= {p.input: p.output for o in problem.operators for p in o.replaces}
    chains = []
    for first, tensor in enumerate(problem.tensors):
        chain = [first]
        while tensor.initial == "store" and chain[-1] in successor:
            chain.append(successor[chain[-1]])
        if tensor.initial == "store" and problem.tensors[chain[-1]].final == "store":
            chains.append(tuple(chain))
    return tuple(chains)


def all_in_ram(problem: Problem) -> Problem:
    """The problem with all state placed in RAM, but for that which streamed operators read or write on the store."""
    streamed = {t for o in problem.operators for t in (*o.reads_store, *o.writes_store)}
    return _with_places(problem, [chain for chain in stored_state(problem) if streamed.isdisjoint(chain)], "ram")


def _with_places(problem: Problem, chains: Collection[tuple[int, ...]], place: Place) -> Problem:
    if not chains:
        return problem
    tensors = list(problem.tensors)
    for chain in chains:
        tensors[chain[0]] = replace(tensors[chain[0]], initial=place)
        tensors[chain[-1]] = replace(tensors[chain[-1]], final=place)
    return replace(problem, tensors=tuple(tensors))
