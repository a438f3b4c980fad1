"""Banks of RAM: the bank of everything that a schedule has in RAM, and the cost of reading and writing there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from poetc.scheduling.problem import BankSpec, Problem
from poetc.scheduling.schedule import Compute, MemoryPlan, Move, PageIn, Schedule

Access = tuple[BankSpec, int, int]  # bytes read in a bank, and bytes written


def access_cost(accesses: Iterable[Access]) -> tuple[int, int]:
    """The time and the energy that accesses add to an action, in ns and pJ."""
    time_ps = energy_fj = 0
    for bank, read, written in accesses:
        time_ps += bank.read_ps_per_byte * read + bank.write_ps_per_byte * written
        energy_fj += bank.read_fj_per_byte * read + bank.write_fj_per_byte * written
    return -(-time_ps // 1000), -(-energy_fj // 1000)


def operator_access(problem: Problem, index: int, banks: Mapping[int, int], workspace_bank: int) -> list[Access]:
    """Of one execution of operator `index`, whose inputs and outputs are in `banks`."""
    operator = problem.operators[index]
    accesses: list[Access] = [(problem.banks[banks[t]], problem.tensors[t].size_bytes, 0) for t in set(operator.inputs)]
    accesses += [(problem.banks[banks[t]], 0, problem.tensors[t].size_bytes) for t in operator.outputs]
    workspace_bytes = operator.workspace_bytes
    return [*accesses, (problem.banks[workspace_bank], workspace_bytes, workspace_bytes)]


def allocation_banks(problem: Problem, schedule: Schedule, plan: MemoryPlan) -> list[int]:
    """The bank of each allocation of a plan; the page buffer is in the first one, as is all where there are none."""
    arrivals = arrival_banks(problem, schedule) if problem.banks else {}
    banks = []
    for a in plan.allocations:
        if not problem.banks or (a.operator is None and not a.tensors):
            banks.append(0)
        else:
            banks.append(schedule.workspace_banks[a.operator] if a.operator is not None else arrivals[a.tensors[0]])
    return banks


def arrival_banks(problem: Problem, schedule: Schedule) -> dict[tuple[int, int], int]:
    """By (tensor, action of its arrival at a place in RAM), its bank. An action that moves it is an arrival too."""
    own, now = schedule.banks, dict[int, int]()
    arrivals: dict[tuple[int, int], int] = {}

    def arrive(t: int, action: int, bank: int) -> None:
        now[t] = arrivals[t, action] = bank

    for t, tensor in enumerate(problem.tensors):
        if tensor.initial == "ram":
            arrive(t, 0, own[t])
    for index, action in enumerate(schedule.actions):
        match action:
            case Compute(operator, in_place):
                taken_over = {o: now[i] for i, o in in_place}
                for t in problem.operators[operator].outputs:
                    arrive(t, index, taken_over.get(t, own[t]))
            case PageIn(t):
                arrive(t, index, own[t])
            case Move(t, bank):
                arrive(t, index, now[t] if bank is None else bank)
            case _:
                pass
    return arrivals
