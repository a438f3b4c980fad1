"""RAM banks of a device: their costs, and budgets that name them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from poetc.devices.profile import Bank, DeviceProfile, Quantity
from poetc.devices.units import parse_size
from poetc.errors import UsageError, nearest
from poetc.scheduling.problem import BankSpec, Problem


def names_banks(budget: str | None) -> bool:
    """Whether a value of --budget gives budgets by bank, as in axi=400kB,dtcm=100kB."""
    return budget is not None and "=" in budget


def ram_banks(profile: DeviceProfile) -> dict[str, Bank]:
    """The memories of a device that tensors may be placed in, by name."""
    return {name: bank for name, bank in profile.memory.banks.items() if bank.kind == "ram"}


def parse_banks(budget: str | None, profile: DeviceProfile) -> tuple[BankSpec, ...]:
    """The banks that a value of --budget names, in its order; none where it names none.

    A share, as in axi=80%, is one of the bank. Raises UsageError for a bank that the device does not have, and for a
    budget above the size of the bank.
    """
    if budget is None or not names_banks(budget):
        return ()
    banks = ram_banks(profile)
    banks_with_budget: list[BankSpec] = []
    for name, text in _pairs(budget):
        _require_known(name, banks, budget, f"device {profile.name!r}")
        size_bytes = int(banks[name].size_bytes.value)
        budget_bytes = parse_size(text, of=size_bytes, option=f"--budget {name}=")
        if budget_bytes > size_bytes:
            raise UsageError(f"--budget {name}={text}: the bank has {size_bytes:,} bytes; give it that or less")
        banks_with_budget.append(_spec(name, banks[name], profile, budget_bytes))
    return tuple(banks_with_budget)


def with_bank_budgets(problem: Problem, budget: str) -> Problem:
    """A problem that names its banks with other budgets for some of them. Raises UsageError."""
    budgets = dict(_pairs(budget))
    for name in budgets:
        _require_known(name, [b.name for b in problem.banks], budget, f"problem {problem.name!r}")
    banks = tuple(
        replace(b, budget_bytes=parse_size(budgets[b.name], of=b.budget_bytes, option=f"--budget {b.name}="))
        if b.name in budgets
        else b
        for b in problem.banks
    )
    return replace(problem, banks=banks, budget_bytes=sum(b.budget_bytes for b in banks))


def _pairs(budget: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for part in budget.split(","):
        name, equals, text = part.strip().partition("=")
        if not (name and equals and text):
            raise UsageError(f"--budget {budget}: give each bank a size, as in axi=400kB,dtcm=100kB")
        if name in (n for n, _ in pairs):
            raise UsageError(f"--budget {budget}: bank {name!r} has a budget already")
        pairs.append((name, text))
    return pairs


def _require_known(name: str, known: Iterable[str], budget: str, owner: str) -> None:
    names = list(known)
    if name in names:
        return
    hint = nearest(name, names, f"it has: {', '.join(names) or 'none'}")
    raise UsageError(f"--budget {budget}: {owner} has no RAM bank {name!r}; {hint}")


def _spec(name: str, bank: Bank, profile: DeviceProfile, budget_bytes: int) -> BankSpec:
    def fj(time_ns: Quantity | None, energy_pj: Quantity | None) -> int:
        return round(_value(time_ns) * profile.power.active_w.value * 1e6 + _value(energy_pj) * 1e3)

    return BankSpec(
        name=name,
        budget_bytes=budget_bytes,
        address=bank.address or 0,
        read_ps_per_byte=round(_value(bank.read_ns_per_byte) * 1e3),
        write_ps_per_byte=round(_value(bank.write_ns_per_byte) * 1e3),
        read_fj_per_byte=fj(bank.read_ns_per_byte, bank.read_pj_per_byte),
        write_fj_per_byte=fj(bank.write_ns_per_byte, bank.write_pj_per_byte),
    )


def _value(quantity: Quantity | None) -> float:
    return 0.0 if quantity is None else float(quantity.value)
