"""The home of state: where it is when a step begins, and when it ends. RAM, or the store."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from poetc.scheduling._bounds import state_chains
from poetc.scheduling.problem import Paging, Place, Problem


def movable_state(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """Of `state_chains`, what could as well live on the store: all versions pageable, and more than a scalar (a page
    takes whole blocks of the store)."""
    if problem.paging is Paging.NONE:
        return ()
    tensors = problem.tensors
    return tuple(
        chain
        for chain in state_chains(problem)
        if tensors[chain[0]].size_bytes > problem.alignment_bytes and all(tensors[t].pageable for t in chain)
    )


def on_store(problem: Problem, first: Collection[int]) -> Problem:
    """The problem with the store as the home of those of `movable_state` whose first versions are `first`: they begin
    the step there, and their last versions end it there."""
    return _with_places(problem, [chain for chain in movable_state(problem) if chain[0] in first], "store")


def stored_state(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """State whose home is the store, as `state_chains` has what lives in RAM."""
    successor = {p.input: p.output for o in problem.operators for p in o.in_place if p.required}
    chains = []
    for first, tensor in enumerate(problem.tensors):
        chain = [first]
        while tensor.initial == "store" and chain[-1] in successor:
            chain.append(successor[chain[-1]])
        if tensor.initial == "store" and problem.tensors[chain[-1]].final == "store":
            chains.append(tuple(chain))
    return tuple(chains)


def all_in_ram(problem: Problem) -> Problem:
    """The problem with RAM as the home of all state."""
    return _with_places(problem, stored_state(problem), "ram")


def _with_places(problem: Problem, chains: Collection[tuple[int, ...]], home: Place) -> Problem:
    if not chains:
        return problem
    tensors = list(problem.tensors)
    for chain in chains:
        tensors[chain[0]] = replace(tensors[chain[0]], initial=home)
        tensors[chain[-1]] = replace(tensors[chain[-1]], final=home)
    return replace(problem, tensors=tuple(tensors))
