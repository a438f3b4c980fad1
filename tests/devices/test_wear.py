"""How long a store lasts: levelled cards by all that is written, raw flash by the page that is written most."""

from __future__ import annotations

import msgspec

from poetc.devices import life_steps, load_profile
from poetc.devices.profile import Quantity, Source


def test_life() -> None:
    card = load_profile("stm32f746").stores["sd"]
    assert card.endurance_cycles is not None
    whole = int(card.endurance_cycles.value) * int(card.capacity_bytes.value)
    assert life_steps(card, [(512, 1), (1024, 3)]) == whole // (512 + 3072)
    assert life_steps(card, []) is None
    assert life_steps(card, [(512, 0)]) is None
    cycles = Quantity(value=100_000, source=Source(kind="datasheet", text="test"))
    raw = msgspec.structs.replace(card, kind="nor-flash", endurance_cycles=cycles)
    assert life_steps(raw, [(512, 1), (1_000_000, 1)]) == 100_000
    assert life_steps(raw, [(512, 4), (1_000_000, 1)]) == 25_000
    assert life_steps(msgspec.structs.replace(card, endurance_cycles=None), [(512, 1)]) is None
