"""Results for the last problems: choices of a planner ask the same of problems that share operators and tensors."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from poetc.scheduling.problem import OperatorSpec, Problem, TensorSpec

KeyT = TypeVar("KeyT")
ResultT = TypeVar("ResultT")

KNOWN = 16  # results of so many problems are kept


def for_recent(function: Callable[[Problem], ResultT]) -> Callable[[Problem], ResultT]:
    """`function` with a memory of the last problems. It depends on neither budget nor deadline.

    Operators and tensors are told apart by identity, since to compare or hash thousands of them takes long.
    """
    known: OrderedDict[tuple[int, int, Problem], tuple[_Parts, ResultT]] = OrderedDict()
    lock = threading.Lock()

    @functools.wraps(function)
    def recalled(problem: Problem) -> ResultT:
        rest = replace(problem, operators=(), tensors=(), budget_bytes=0, deadline_ns=None)
        key = id(problem.operators), id(problem.tensors), rest
        with lock:
            entry = known.pop(key, None)
        if entry is None:
            entry = (problem.operators, problem.tensors), function(problem)  # the parts live as long as their ids
        with lock:
            known[key] = entry  # the last one
            while len(known) > KNOWN:
                known.popitem(last=False)
        return entry[1]

    return recalled


def remember(known: dict[KeyT, ResultT], key: KeyT, result: ResultT) -> ResultT:
    """Keep `result` for a problem, or for a key that holds one, in place of the first of too many."""
    known[key] = result
    while len(known) > KNOWN:
        del known[next(iter(known))]
    return result


_Parts = tuple[tuple[OperatorSpec, ...], tuple[TensorSpec, ...]]
