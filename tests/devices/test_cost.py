"""The cost model alone: every term of a price by hand, in numbers that no two terms share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from poetc.devices import DeviceProfile, load_profile
from poetc.devices.cost import SOFT_DEPTHWISE, SOFT_FLOP, SOFT_MAC, Cost, CostModel
from poetc.devices.features import Features
from poetc.devices.profile import Quantity
from poetc.errors import UsageError

WORK = Features(cost_class="MatMul", macs=3000, flops=700, bytes_moved=400, loops={"unmeasured.x": 1})


def q(value: float) -> Quantity:
    return Quantity(value=value, source="guess")


def profile(**more: Any) -> DeviceProfile:
    """4 ns a multiply-add, 2 a float operation, 5 a byte, 11 for a call; 2 W active, .5 W idle; a clock of 100 MHz."""
    known = load_profile("stm32f746")
    cpu = msgspec.structs.replace(known.cpu, clock_hz=q(1e8), **more.pop("cpu", {}))
    compute = msgspec.structs.replace(
        known.compute,
        contraction_mac_per_s=q(2.5e8),
        elementwise_flop_per_s=q(5e8),
        memory_bytes_per_s=q(2e8),
        operator_overhead_ns=q(11),
        efficiency={},
        loop_ns={},
    )
    compute = msgspec.structs.replace(compute, **more.pop("compute", {}))
    power = msgspec.structs.replace(
        known.power, active_w=q(2), idle_w=q(0.5), pj_per_mac=None, pj_per_flop=None, pj_per_byte=None
    )
    power = msgspec.structs.replace(power, **more.pop("power", {}))
    assert not more
    return msgspec.structs.replace(known, cpu=cpu, compute=compute, power=power)


def test_arithmetic_adds_up_under_the_roof() -> None:
    """11 + 3000 * 4 + 700 * 2 ns, at 2 W."""
    assert CostModel(profile()).operator(WORK) == Cost(13411, 26_822_000)


def test_memory_is_the_roof_where_it_takes_longer() -> None:
    assert CostModel(profile()).operator(replace(WORK, bytes_moved=4000)).time_ns == 11 + 20_000


def test_efficiency_divides_the_roof_and_not_the_overhead() -> None:
    model = CostModel(profile(compute={"efficiency": {"MatMul": q(0.5)}}))
    assert model.operator(WORK).time_ns == 11 + 26_800
    assert model.operator(replace(WORK, cost_class="Add")).time_ns == 13411


@pytest.mark.parametrize(
    ("known", "kind", "took"),
    [
        ({"Conv/depthwise": 0.5, "Conv": 0.25}, "Conv/depthwise", 0.5),
        ({"Conv": 0.25}, "Conv/depthwise", 0.25),
        ({"BatchNormApply": 0.5}, "BatchNormActivate", 0.5),  # it costs like that kind
        ({"BatchNormActivate": 0.25, "BatchNormApply": 0.5}, "BatchNormActivate", 0.25),
        ({"ConvGradInput/depthwise": 0.5, "ConvGradInput": 0.25}, "QLinearConvGradInput/depthwise", 0.5),
        ({"MatMul": 0.25}, "NoSuchKind", 1.0),
    ],
)
def test_the_closest_class_of_a_profile_counts(known: dict[str, float], kind: str, took: float) -> None:
    model = CostModel(profile(compute={"efficiency": {k: q(v) for k, v in known.items()}}))
    assert model.operator(replace(WORK, cost_class=kind)).time_ns == 11 + 13400 / took


def test_dynamic_energy_is_paid_besides_the_power() -> None:
    power = {"pj_per_mac": q(7), "pj_per_flop": q(13), "pj_per_byte": q(17)}
    cost = CostModel(profile(power=power)).operator(WORK)
    assert cost == Cost(13411, 13411 * 2000 + 3000 * 7 + 700 * 13 + 400 * 17)


def test_measured_loops_replace_the_roof_where_all_groups_are_measured() -> None:
    model = CostModel(profile(compute={"loop_ns": {"matmul": {"call": q(100), "block": q(3)}, "pack": {}}}))
    loops = {"matmul.call": 1, "matmul.block": 50, "matmul.never": 9, "pack.row": 4}
    assert model.operator(replace(WORK, loops=loops)) == Cost(250, 500_000)
    assert model.operator(replace(WORK, loops={**loops, "other.row": 1})).time_ns == 13411


def test_integers_on_a_core_without_an_fpu_have_cycles_of_their_own() -> None:
    soft = CostModel(profile(cpu={"core": "cortex-m0plus", "fpu": "none", "simd": "none"}))
    integers = replace(WORK, is_integer=True)
    assert soft.machine.is_soft
    assert soft.operator(integers).time_ns == round(11 + (SOFT_MAC * 3000 + SOFT_FLOP * 700) * 10)
    deep = replace(integers, cost_class="Conv/depthwise")
    assert soft.operator(deep).time_ns == round(11 + (SOFT_DEPTHWISE * 3000 + SOFT_FLOP * 700) * 10)
    assert (SOFT_MAC, SOFT_DEPTHWISE, SOFT_FLOP) == (8.0, 80.0, 56.0)
    assert soft.operator(WORK).time_ns == 13411, "floats have the rates of the profile"
    assert CostModel(profile()).operator(integers).time_ns == 13411, "an FPU's rates are not those of emulated floats"


def test_a_move_reads_and_writes_every_byte() -> None:
    """11 + 2 * 100 * 5 ns at 2 W, and twice the bytes' energy."""
    model = CostModel(profile(power={"pj_per_byte": q(17)}))
    assert model.move(100) == Cost(1011, 1011 * 2000 + 200 * 17)
    assert model.move(0) == Cost(11, 22_000)


def test_a_page_takes_whole_blocks_with_its_trailer() -> None:
    known = profile()
    store = msgspec.structs.replace(
        known.stores[known.default_store],
        block_bytes=q(512),
        read_latency_ns=q(1000),
        write_latency_ns=q(3000),
        read_bytes_per_s=q(1e9),
        write_bytes_per_s=q(5e8),
        read_w=q(0.25),
        write_w=q(1),
        cpu_during_transfer="idle",
        checksum_cycles_per_byte=None,
    )
    model = CostModel(known)
    assert model.page(store, 100, write=False) == Cost(1512, 1512 * 750)
    assert model.page(store, 100, write=True) == Cost(4024, 4024 * 1500)
    assert model.page(store, 512, write=False).time_ns == 1000 + 1024, "the trailer needs a block of its own"
    busy = msgspec.structs.replace(store, cpu_during_transfer="active")
    assert model.page(busy, 100, write=False) == Cost(1512, 1512 * 2250)
    # The processor checks the data alone, at 3 cycles of 10 ns a byte, and is active meanwhile.
    checked = msgspec.structs.replace(store, checksum_cycles_per_byte=q(3))
    assert model.page(checked, 100, write=False) == Cost(1512 + 3000, 1512 * 750 + 3000 * 2000)


def test_numbers_are_rounded_to_integers() -> None:
    cost = CostModel(profile(compute={"operator_overhead_ns": q(0.6)})).operator(
        replace(WORK, macs=0, flops=0, bytes_moved=0)
    )
    assert cost == Cost(1, 2000)
    assert all(isinstance(v, int) for v in (cost.time_ns, cost.energy_pj))


def test_entries_that_match_nothing_are_refused() -> None:
    kinds = ("Conv", "MatMul", "Softmax")
    CostModel(profile(compute={"efficiency": {"Conv/depthwise": q(1), "MatMul": q(1)}})).check_kinds(kinds, "mine")
    wrong = CostModel(profile(compute={"efficiency": {"Sofmax": q(1)}}))
    with pytest.raises(UsageError) as raised:
        wrong.check_kinds(reversed(kinds), "mine")
    assert str(raised.value) == "device profile 'mine': there is no operator kind 'Sofmax'; did you mean 'Softmax'?"
    far = CostModel(profile(compute={"efficiency": {"zzz": q(1)}}))
    with pytest.raises(UsageError, match=r"^device profile 'mine': there is no operator kind 'zzz'; docs/reference/op"):
        far.check_kinds(kinds, "mine")
    loops = CostModel(profile(compute={"loop_ns": {"matmull": {}}}))
    with pytest.raises(UsageError, match="no operator kind 'matmull'; did you mean"):
        loops.check_kinds(kinds, "mine")
