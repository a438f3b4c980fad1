"""Counting loops: every kernel that a network of the zoo of tests binds, on every kind of processor."""

from __future__ import annotations

import dataclasses
import itertools
import re

import numpy as np
import pytest
from msgspec.structs import replace

from poetc.benchmark import board_networks, coded_steps, integer_steps, step_of
from poetc.devices import build_problem, list_profiles, load_profile, zeros
from poetc.devices.banks import parse_banks
from poetc.devices.machine import machine_of
from poetc.devices.profile import Quantity
from poetc.devices.reuse import distances, fetched_bytes
from poetc.devices.zeros import zero_factors, zero_shares
from poetc.graph import Attribute, Fill, Graph, Role, TensorType, TrainingGraph
from poetc.kernels.convolution.selection import PackedConvolution, PackedGradWeightSgd
from poetc.kernels.convolution_shape import Convolution
from poetc.kernels.convolution_winograd.selection import WinogradConvolution
from poetc.kernels.loops import group_of, groups, loops_of
from poetc.kernels.machine import COUNTS, Machine
from poetc.ops import Bound, Builder, Kernel, bind, spec, view_roots
from tests.support.graphs import small_cnn
from tests.support.kernels import bind_kind

NEON = Machine(4, 12, 2, is_neon=True)
MACHINES = (Machine(1, 4, 4), Machine(1, 4, 4, True), NEON, Machine(8, 6, 2), Machine(16, 12, 2))


@pytest.fixture(scope="module")
def steps() -> list[TrainingGraph]:
    return [step_of(graph, "sgd", fusion=i % 2 == 0) for i, graph in enumerate(board_networks(1 << 20))]


def kernels(step: TrainingGraph) -> list[tuple[Bound, Kernel, int]]:
    """Bound operator, kernel, multiply-accumulates."""
    result = []
    for op in step.operators:
        if not spec(op.kind).is_view:
            bound = bind(op, step.tensors)
            result.append((bound, spec(op.kind).kernel(bound), spec(op.kind).work(bound).macs))
    return result


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.lanes}x{m.rows}{'s' if m.is_soft else ''}")
def test_counts_are_positive_and_of_known_groups(machine: Machine, steps: list[TrainingGraph]) -> None:
    counted, known = 0, groups()
    for step in steps:
        for _, kernel, macs in kernels(step):
            loops = loops_of(kernel, machine)
            assert loops is not None or macs == 0, kernel.symbol
            for name, count in (loops or {}).items():
                assert count > 0, (kernel, name)
                assert name.split(".", 1)[0] in known, name
                counted += 1
    assert counted > 10_000


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.lanes}x{m.rows}{'s' if m.is_soft else ''}")
def test_register_blocks_hold_every_product(machine: Machine, steps: list[TrainingGraph]) -> None:
    """Products of packed operands: rows x columns x terms of the blocks are the multiply-accumulates, and the padding
    of blocks that are not full.
    """
    seen = 0
    for step in steps:
        for _, kernel, macs in kernels(step):
            if not kernel.symbol.endswith("_packed"):
                continue
            loops = loops_of(kernel, machine) or {}
            products = 0
            for name, count in loops.items():
                kind, _, size = name.removeprefix("gemm.").removeprefix("narrow_").partition("_")
                if name.startswith("gemm.") and kind in ("terms", "packed"):
                    narrow = name.startswith("gemm.narrow_")
                    products += int(size) * count * (machine.half if narrow else machine.columns)
                if name.startswith("gemm.single_"):  # four rows by one column
                    products += 4 * count
                kind, _, size = name.removeprefix("direct.").partition("_")
                if name.startswith("direct.") and kind in ("terms", "pixels"):
                    vectors = 1 if kind == "pixels" else 2 if int(size) >= 8 else 4
                    products += int(size) * count * vectors * 16
            products += 9 * 16 * loops.get("direct.channel", 0) + 8 * 12 * loops.get("direct.taps_eight", 0)
            assert products >= macs, kernel
            is_direct = any(name.startswith("direct.") for name in loops)
            if "conv_packed" in kernel.symbol and not is_direct:
                c = kernel.parameters_as(PackedConvolution).convolution
                assert products == macs or c.batch * c.pixels % machine.columns, kernel  # unless a column is padded
            seen += 1
    assert seen > 50


@pytest.mark.parametrize(("terms", "has_helium"), [(4, False), (16, False), (16, True)])
def test_blocks_of_integers_hold_every_product(terms: int, has_helium: bool) -> None:
    """Two rows by two columns, and the zeros that fill up terms; every other loop belongs to a known group."""
    machine, seen = Machine(1, 4, 4, integer_terms=terms, has_helium=has_helium), 0
    for _, kernel, macs in kernels(next(integer_steps())):
        loops = loops_of(kernel, machine) or {}
        assert all(n > 0 and name.split(".", 1)[0] in groups() for name, n in loops.items()), kernel
        if not kernel.symbol.startswith("poetc_op_int8_conv"):
            continue
        if terms == 4:
            products = 16 * loops.get("int8_product.sixteen", 0) + 4 * loops.get("int8_product.four", 0)
        else:
            products = (16 if has_helium else 1) * loops["int8_product.terms"]
        least = macs // 2 if "grad_input" in kernel.symbol else macs  # strides leave taps out at the edge
        assert least <= 4 * products and (macs < 100_000 or 4 * products < 2 * macs), kernel
        seen += 1
    assert seen > 10


def test_updates_of_codes_hold_every_product() -> None:
    """Of gradients in floats: two rows by four columns; a tap of an output beside each of its pixels."""
    seen, priced = 0, load_profile("qemu-mps2-an386").compute.loop_ns
    for step in itertools.islice(coded_steps(), 3):
        for _, kernel, macs in kernels(step):
            loops = loops_of(kernel, Machine(1, 4, 4, integer_terms=4)) or {}
            if "qlinear" not in kernel.symbol or not loops:
                continue
            assert all(n > 0 and name.split(".", 1)[0] in priced for name, n in loops.items()), kernel
            name = kernel.symbol.removeprefix("poetc_op_")
            if name == "qlinear_conv_sgd":
                products = 8 * loops.get(f"{name}.two_term", 0) + 4 * loops.get(f"{name}.one_term", 0)
                assert macs <= products
                seen += 1
            elif name == "qlinear_conv_grad_input":
                products = 16 * loops.get(f"{name}.fours_term", 0) + 4 * loops.get(f"{name}.fours_rest", 0)
                products += loops.get(f"{name}.term", 0) + loops.get(f"{name}.dense_term", 0)
                assert macs // 2 < products <= macs, kernel  # taps beside the image are left out
                seen += 1
    assert seen > 15


def test_planes_of_integers_hold_every_product_with_neon() -> None:
    """Eight sums of a line at a time, and eight errors of a run, and a price for each of their loops."""
    seen, priced = 0, load_profile("qemu-virt-a72").compute.loop_ns
    for step in itertools.islice(integer_steps(), 2, 5):
        for _, kernel, macs in kernels(step):
            loops = loops_of(kernel, NEON) or {}
            assert all(n > 0 and name.split(".", 1)[0] in priced for name, n in loops.items()), kernel
            if not kernel.symbol.startswith("poetc_op_int8_depthwise"):
                continue
            products = 8 * loops.get("int8_lines.any_tap", 0) + 144 * loops.get("int8_lines.nine_pair", 0)
            products += 72 * (loops.get("int8_lines.nine_apart", 0) + loops.get("int8_taps.nine_eight", 0))
            products += 8 * loops.get("int8_taps.eight", 0)
            assert macs // 3 < products, kernel  # at the edge of an image taps read zeros
            seen += 1
    assert seen > 10


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.lanes}x{m.rows}{'s' if m.is_soft else ''}")
def test_sums_of_one_block_move_weights_at_once(machine: Machine) -> None:
    """On x86 and in an FPU of Cortex-M, where the register block adds them to the weights; elsewhere a strip of them
    descends.
    """
    kind = "ConvGradWeightSgd"
    attributes: dict[str, Attribute] = {"kernel": (3, 3), "pads": (1, 1, 1, 1)}
    for size, is_one_block in ((4, True), (12, False)):
        shapes = ((64, 64, 3, 3), (1, 64, size, size), (1, 64, size, size), (1,))
        kernel = spec(kind).kernel(bind_kind(kind, attributes, [np.zeros(s, np.float32) for s in shapes]))
        assert kernel.symbol == "poetc_op_conv_grad_weight_sgd_packed"
        assert (size * size <= kernel.parameters_as(PackedGradWeightSgd).terms) == is_one_block
        loops = loops_of(kernel, machine)
        assert loops is not None
        at_once = is_one_block and (machine.lanes >= 8 or machine.has_fours)
        assert any(name.startswith("descend.") for name in loops) != at_once
        if at_once:  # every block of results is added
            rows = (name.rpartition("_")[2] for name in loops if name.startswith("gemm.block_"))
            assert loops["gemm.accumulate"] == sum(loops[f"gemm.block_{size}"] * int(size) for size in rows)


@pytest.mark.parametrize("profile", ["mkr1000", "qemu-mps2-an386"])
def test_large_convolutions_cost_time_on_small_processors_too(profile: str) -> None:
    """Winograd's filters, chosen by shape: by the roofline, where no loops of theirs were measured."""
    b = Builder()
    x = b.add_tensor("x", TensorType((1, 64, 32, 32)), Role.INPUT)
    for number in range(2):
        weight = np.full((64, 64, 3, 3), 0.01, np.float32)
        w = b.add_tensor(f"w{number}", TensorType(weight.shape), Role.PARAMETER, weight)
        x = b.emit1("Conv", [x, w], {"pads": (1, 1, 1, 1)})
    y = b.emit1("Reshape", [x], {"shape": (1, 64 << 10)})
    step = step_of(Graph("large", b.tensors, tuple(b.operators), ("x",), (y,), b.values), "sgd")
    found = [
        (op.name, spec(op.kind).kernel(bind(op, step.tensors))) for op in step.operators if not spec(op.kind).is_view
    ]
    winograd = {name for name, kernel in found if kernel.symbol.endswith("_winograd")}
    assert len(winograd) == 5  # of the input there is no gradient
    problem = build_problem(step, load_profile(profile), budget_bytes=1)
    macs = 9 * 64 * 64 * 32 * 32
    times = {op.name: op.time_ns for op in problem.operators if op.name in winograd}
    assert len(times) == 5
    assert all(time_ns > macs // 16 for time_ns in times.values())  # no such processor makes 16 in a nanosecond


@pytest.mark.parametrize("symbol", ["conv_winograd", "conv_grad_input_winograd", "conv_grad_weight_winograd"])
def test_winograds_loops_of_any_batch_are_counted_at_once(symbol: str) -> None:
    """Chunks of tiles begin anywhere in an image, and so again after a few images, which cost the same each time."""

    def loops(batch: int) -> dict[str, int]:
        convolution = Convolution(batch, 8, 14, 22, 20, 14, 22, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0)
        parameters = WinogradConvolution(convolution, workspace_floats=70_000, block=16)
        counted = loops_of(Kernel(f"poetc_op_{symbol}", parameters), Machine(8, 6, 2))
        assert counted is not None
        return counted

    again = 64 * 9 * 5  # images whose tiles are whole chunks: these have a multiple of four or of twelve tiles
    few, more, most = loops(7 + again), loops(7 + 2 * again), loops(7 + (again << 20))
    assert most == {name: count + (more[name] - count) * ((1 << 20) - 1) for name, count in few.items()}


def test_an_operator_whose_kernel_was_not_measured_costs_the_roofline() -> None:
    step = step_of(small_cnn(), "sgd")
    roof = build_problem(step, load_profile("mkr1000"), budget_bytes=1)
    counted = build_problem(step, load_profile("qemu-mps2-an386"), budget_bytes=1)
    assert all(op.time_ns > 0 for problem in (roof, counted) for op in problem.operators)


def test_processors_are_known_by_their_vectors() -> None:
    lanes = {name: machine_of(load_profile(name).cpu).lanes for name in list_profiles()}
    assert {lanes[n] for n in ("rpi4", "rpi5", "rpi3bplus", "rpizero2w", "jetson-tx2", "qemu-virt-a72")} == {4}
    assert {lanes[n] for n in ("stm32f746", "nrf52840", "rp2350", "cortex-m55", "mkr1000")} == {1}
    assert machine_of(load_profile("rp2040").cpu).is_soft
    assert not machine_of(load_profile("stm32f405").cpu).is_soft


def test_distances_are_those_of_a_cache_that_holds_every_word_apart() -> None:
    """Replayed word by word: which words a tensor has, and when each was touched last."""
    step = step_of(small_cnn(), "sgd")
    operators = [op for op in step.operators if not spec(op.kind).is_view]
    place = view_roots(step)
    for op in operators:
        place |= {op.outputs[o]: place[op.inputs[i]] for i, o in spec(op.kind).must_alias}
    names = [dict.fromkeys(place[t] for t in (*op.inputs, *op.outputs)) for op in operators]
    made = {t for op in operators for t in op.outputs if place[t] == t}
    words: dict[str, list[int]] = {}
    free: list[int] = []
    fresh = itertools.count()
    last: dict[int, int] = {}  # word -> operator, of all steps
    for now in range(2 * len(operators)):
        at = now % len(operators)
        found: list[tuple[int, int, bool]] = []
        read = {place[t] for t in operators[at].inputs}
        own: set[int] = set()
        for name in names[at]:
            count = step.tensors[name].size_bytes // 4
            if name not in words:
                words[name] = [free.pop() if free else next(fresh) for _ in range(count)]
            mine = words[name]
            oldest = min(last.get(w, -1) for w in mine)
            since = sum(1 for w, when in last.items() if when > oldest and w not in own and w not in mine)
            found.append((4 * count, 4 * (since + count), name not in read))
            own.update(mine)
        last |= dict.fromkeys(own, now)
        for name in names[at]:
            if name in made and not any(name in later for later in names[at + 1 :]):
                free += words.pop(name)
        if now >= len(operators):
            assert distances(step)[operators[at].name] == found, operators[at].name


def test_operands_are_fetched_from_the_level_that_holds_them() -> None:
    step = step_of(small_cnn(), "sgd")
    memory = load_profile("host").memory
    sizes = {name: sum(size for size, _, _ in found) for name, found in distances(step).items()}

    def fetched(first: int, second: int) -> tuple[int, int, int]:
        source = memory.ram_bytes.source
        caches = [Quantity(value=size, source=source) for size in (first, second)]
        found = fetched_bytes(step, replace(memory, first_cache_bytes=caches[0], cache_bytes=caches[1]))
        assert all(sum(f) <= sizes[name] for name, f in found.items())
        sums = [sum(column) for column in zip(*found.values(), strict=True)]
        return sums[0], sums[1], sums[2]

    everything = sum(sizes.values())
    assert fetched(1 << 20, 1 << 30) == (0, 0, 0)
    assert fetched(1, 1 << 30) == (everything, 0, 0)
    none, read, written = fetched(1, 1)
    assert (none, read + written) == (0, everything)
    made = sum(t.size_bytes for name, t in step.tensors.items() if any(name in op.outputs for op in step.operators))
    assert 0 < written < made < read
    near, read, written = fetched(1 << 10, 1 << 14)
    assert 0 < near < everything - read - written < everything
    assert fetched_bytes(step, replace(memory, first_cache_bytes=None, cache_bytes=None)) == {}


def test_zeros_are_counted_in_a_step_on_made_up_inputs() -> None:
    step = step_of(small_cnn(), "sgd", fusion=False)
    shares = zero_shares(step)
    kinds = {op.kind: [shares.get(t, 0.0) for t in op.outputs] for op in step.operators}
    assert 0.1 < kinds["Relu"][0] < 0.9
    assert kinds["MaxPoolGrad"][0] >= 0.75
    assert kinds["ReluGrad"][0] >= kinds["Relu"][0]
    assert kinds["Conv"] == kinds["BatchNormApply"] == [0.0]
    after = [zero_factors(op, shares) for op in step.operators if op.kind == "Conv"]
    assert sorted(after)[0] == 0.0
    assert max(after) >= kinds["Relu"][0]


def test_zeros_depend_on_the_weights() -> None:
    step = step_of(small_cnn(), "sgd", fusion=False)
    rectifier = next(op for op in step.operators if op.kind == "Relu")
    norm = next(op for op in step.operators if rectifier.inputs[0] in op.outputs)
    assert norm.kind == "BatchNormApply"
    dead = dataclasses.replace(step, values={**step.values, norm.inputs[4]: Fill("constant", value=-100.0)})
    assert zero_shares(dead)[rectifier.outputs[0]] == 1.0


def test_of_a_step_that_is_too_large_to_compute_no_zeros_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    step = step_of(small_cnn(), "sgd", fusion=False)
    monkeypatch.setattr(zeros, "MOST_MACS", 1)
    assert zero_shares(step) == {}


def test_kernels_that_make_a_norm_again_are_priced_as_measured() -> None:
    """By the name of the kernel without: a name that no profile has would mean the roofline, several times too dear."""
    measured = set(load_profile("host").compute.loop_ns)
    again = re.compile("grad_weight.*_norm|batch_norm_(relu|clip)_grad")
    kernels = [Kernel(symbol) for symbol in COUNTS if again.search(symbol)]
    assert len(kernels) > 8
    for kernel in kernels:
        assert kernel.symbol.removeprefix("poetc_op_") not in measured
        assert group_of(kernel) in measured, kernel.symbol


def test_budgets_by_bank_leave_the_waits_to_the_banks() -> None:
    """One RAM has its waits in the time of operators, banks have them in their prices."""
    profile = load_profile("stm32f746")
    step = step_of(small_cnn(), "sgd")
    one = build_problem(step, profile, budget_bytes=1)
    banks = build_problem(step, profile, budget_bytes=1, banks=parse_banks("sram1=200kB,dtcm=60kB", profile))
    assert banks.compute_once_ns < one.compute_once_ns
    assert [b.read_ps_per_byte for b in banks.banks] == [2310, 0]
    for name, bank in (("stm32f746", "sram1"), ("stm32h743", "axi"), ("teensy41", "ocram")):
        profile = load_profile(name)
        cycles = profile.compute.cycles
        waited = None if cycles is None else cycles.far_ns_per_byte
        priced = profile.memory.banks[bank].read_ns_per_byte
        assert waited is not None
        assert priced is not None
        assert waited.value == priced.value


def test_an_elementwise_kind_with_a_gradient_has_loops() -> None:
    """So that a new activation is priced by its measured loops, without a list of such kinds."""
    for kind in ("Relu", "Atan", "Gelu", "Cos", "Power"):
        for name, inputs in ((kind, 1), (f"{kind}Grad", 2)):
            bound = bind_kind(name, {}, [np.ones((6, 7), np.float32)] * inputs)
            loops = loops_of(spec(name).kernel(bound), NEON)
            assert loops is not None and loops[f"{group_of(spec(name).kernel(bound))}.call"] == 1, name
