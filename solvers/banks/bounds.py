"""A relaxation of banks: one RAM of all budgets, in which an operator's operands fill the cheapest banks first.

An execution holds its inputs, outputs and workspace at once. The cheapest banks have room for some of these bytes. Each
of the others costs no less than the price of a byte in its bank. This holds in any schedule,
whatever else is in RAM, so that a bound of the relaxation is one for any banks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from poetc.scheduling import BankSpec, OperatorSpec, Problem


def relaxed(problem: Problem) -> Problem:
    """A problem without banks in which no schedule costs more, or needs more RAM, than with any banks."""
    if not problem.banks:
        return problem
    return replace(problem, banks=(), operators=tuple(_with_least(problem, o) for o in problem.operators))


def least_extra(problem: Problem, operator: OperatorSpec) -> tuple[int, int]:
    """The least that banks add to the time and the energy of an execution, in ns and pJ."""
    touched = {*operator.inputs, *operator.outputs}
    touched -= {p.output for p in operator.in_place}  # it may have the bytes of an input
    size_bytes = sum(problem.tensors[t].size_bytes for t in touched)

    def least(price: Callable[[BankSpec], int]) -> int:
        left, total = size_bytes, 0
        prices = sorted((price(b), _room(problem, k)) for k, b in enumerate(problem.banks))
        for per_byte, room in prices:
            taken = min(left, room)
            total += per_byte * taken
            left -= taken
        return (total + prices[-1][0] * left) // 1000

    return (
        least(lambda b: min(b.read_ps_per_byte, b.write_ps_per_byte)),
        least(lambda b: min(b.read_fj_per_byte, b.write_fj_per_byte)),
    )


def _room(problem: Problem, bank: int) -> int:
    return max(0, problem.banks[bank].budget_bytes - (problem.base_bytes if bank == 0 else 0))


def _with_least(problem: Problem, operator: OperatorSpec) -> OperatorSpec:
    time_ns, energy_pj = least_extra(problem, operator)
    if not (time_ns or energy_pj):
        return operator
    variants = tuple(
        replace(v, time_ns=v.time_ns + time_ns, energy_pj=v.energy_pj + energy_pj) for v in operator.low_workspace
    )
    return replace(
        operator,
        time_ns=operator.time_ns + time_ns,
        energy_pj=operator.energy_pj + energy_pj,
        low_workspace=variants,
    )
