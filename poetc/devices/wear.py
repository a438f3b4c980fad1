"""How long a store lasts under the writes of a training step."""

from __future__ import annotations

from collections.abc import Iterable

from poetc.devices.profile import Store

LEVELLED = ("sd", "emmc", "ssd", "file")  # a controller spreads writes over the whole store; raw flash has none


def life_steps(store: Store, written: Iterable[tuple[int, int]]) -> int | None:
    """Training steps until the store's endurance is used up; None if nothing wears out or the profile does not say.

    `written`: of each tensor that a step writes, the bytes that it takes on the store and how often it is written.
    Where a controller levels the wear, all bytes count against capacity x cycles. That is a best case: it omits the
    bytes that the controller writes by itself. On raw flash it is the page that is written most often.
    """
    pages = [(size_bytes, times) for size_bytes, times in written if times]
    if store.endurance_cycles is None or not pages:
        return None
    cycles = int(store.endurance_cycles.value)
    if store.kind in LEVELLED:
        return cycles * int(store.capacity_bytes.value) // sum(size_bytes * times for size_bytes, times in pages)
    return cycles // max(times for _, times in pages)
