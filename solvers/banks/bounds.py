"""A relaxation of banks: one RAM of all budgets, in which an operator's operands fill the cheapest banks first.

An execution holds its inputs, outputs and workspace at once. The cheapest banks have room for some of these bytes. Each
of the others costs no less than the price of a byte in its bank. This holds in any schedule,
whatever else is in RAM, so that a bound of the relaxation is one for any banks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

from poetc.scheduling import BankSpec, OperatorSpec, Problem, Variant


def relaxed(problem: Problem) -> Problem:
    """A problem without banks in which no schedule costs more, or needs more RAM, than with any banks."""
    if not problem.banks:
        return problem
    return replace(problem, banks=(), operators=tuple(_with_least(problem, o) for o in problem.operators))


def least_extra(problem: Problem, operator: OperatorSpec, workspace_bytes: int) -> tuple[int, int]:
    """The least that banks add to the time and the energy of an execution, in ns and pJ.

    The larger of two bounds. In the first, each byte is either read or written, and all share the banks. In the second,
    all that is read has the banks to itself, and so has all that is written.
    """
    touched = {*operator.inputs, *operator.outputs}
    touched -= {p.output for p in operator.in_place}  # it may have the bytes of an input
    held, read, written = (
        workspace_bytes + sum(problem.tensors[t].size_bytes for t in tensors)
        for tensors in (touched, set(operator.inputs), operator.outputs)
    )

    def least(size_bytes: int, price: Callable[[BankSpec], int]) -> int:
        left, total = size_bytes, 0
        prices = sorted((price(b), _room(problem, k)) for k, b in enumerate(problem.banks))
        for per_byte, room in prices:
            taken = min(left, room)
            total += per_byte * taken
            left -= taken
        return total + prices[-1][0] * left

    def larger(reading: Callable[[BankSpec], int], writing: Callable[[BankSpec], int]) -> int:
        together = least(held, lambda b: min(reading(b), writing(b)))
        return -(-max(together, least(read, reading) + least(written, writing)) // 1000)

    return (
        larger(lambda b: b.read_ps_per_byte, lambda b: b.write_ps_per_byte),
        larger(lambda b: b.read_fj_per_byte, lambda b: b.write_fj_per_byte),
    )


def _room(problem: Problem, bank: int) -> int:
    return max(0, problem.banks[bank].budget_bytes - (problem.base_bytes if bank == 0 else 0))


def _with_least(problem: Problem, operator: OperatorSpec) -> OperatorSpec:
    """Each kernel of the operator with the least that banks add.

    Less workspace adds less. No kernel is cheaper than the one before: each has at most the costs of those behind it.
    """
    kernels: tuple[OperatorSpec | Variant, ...] = (operator, *operator.low_workspace)
    costs = []
    time_ns = energy_pj = sys.maxsize
    for k in reversed(kernels):
        extra = least_extra(problem, operator, k.workspace_bytes)
        time_ns, energy_pj = min(time_ns, k.time_ns + extra[0]), min(energy_pj, k.energy_pj + extra[1])
        costs.append((time_ns, energy_pj))
    (time_ns, energy_pj), *others = reversed(costs)
    variants = zip(operator.low_workspace, others, strict=True)
    return replace(
        operator,
        time_ns=time_ns,
        energy_pj=energy_pj,
        low_workspace=tuple(replace(v, time_ns=t, energy_pj=e) for v, (t, e) in variants),
    )
