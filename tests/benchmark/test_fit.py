"""Least squares, cross-validation, the profile that comes out, the CSV."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetc.benchmark import (
    Measurement,
    board_networks,
    cross_validate,
    fit,
    fit_text,
    least,
    networks,
    nnls,
    read_csv,
    write_csv,
    write_profile,
)
from poetc.devices import build_problem, load_profile
from poetc.devices.cost import CostModel
from poetc.devices.features import Features
from poetc.errors import UsageError
from poetc.passes import run_standard
from poetc.training import TrainingOptions, build


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 20))
def test_nnls_meets_the_conditions_of_optimality(seed: int, columns: int, rows: int) -> None:
    """x >= 0, gradient <= 0 everywhere and 0 where x > 0 (Karush, Kuhn, Tucker)."""
    random = np.random.default_rng(seed)
    a, b = random.standard_normal((rows, columns)), random.standard_normal(rows)
    x = nnls(a, b)
    gradient = a.T @ (b - a @ x)
    scale = 1e-7 * (1 + np.abs(a).sum() * np.abs(b).sum())
    assert (x >= 0).all()
    assert (gradient <= scale).all()
    assert (np.abs(gradient[x > 1e-9]) <= scale).all()


def test_nnls_of_columns_of_very_different_size() -> None:
    random = np.random.default_rng(0)
    a = random.uniform(0, 1, (50, 3)) * np.array([1.0, 1e9, 1e-6])
    x = np.array([300.0, 2e-7, 0.0])
    assert nnls(a, a @ x) == pytest.approx(x, rel=1e-6, abs=1e-6)


def measurements(noise: float = 0.0) -> list[Measurement]:
    """Two kernels that share the loops of `gemm`, and a store."""
    random = np.random.default_rng(1)
    rows = []
    for i in range(60):
        net = f"net{i % 6}"
        terms, rest, moved = (int(random.integers(low, 1000 * low)) for low in (1_000, 1, 1_000))
        factor = 1 + noise * random.standard_normal()
        loops = {"conv_packed.call": 1, "gemm.terms_4": terms, "gemm.terms_1": rest, "conv_packed.byte": moved}
        time = (500 + 0.5 * terms + 40.0 * rest + 0.1 * moved) * factor
        rows.append(Measurement(net, f"conv{i}", "Conv", "dsp", 1 << 15, 1 << 20, loops, round(time)))
        loops = {"matmul_packed.call": 1, "gemm.terms_4": 3 * terms}
        rows.append(
            Measurement(net, f"mm{i}", "MatMul", "dsp", 1 << 15, 1 << 20, loops, round((90 + 1.5 * terms) * factor))
        )
        blocks = 512 * (1 + moved // 512)
        loops = {"PageIn.call": 1, "PageIn.byte": blocks, "PageIn.checked": moved}
        rows.append(
            Measurement(
                net, f"page{i}", "PageIn", "dsp", 1 << 15, 1 << 20, loops, round(4_000 + blocks * 0.25 + moved * 2.0)
            )
        )
    return rows


@pytest.mark.parametrize(("single", "unseen"), [(7.0, 0), (0.5, 0), (0.5, 150)])
def test_a_single_element_does_not_stand_for_what_has_no_loop(single: float, unseen: int) -> None:
    """Every measurement has about as many."""
    random = np.random.default_rng(3)
    rows = []
    for i in range(40):
        wide, rest = int(random.integers(10, 400)), int(random.integers(2, 4))
        loops = {"clear.wide": wide, "clear.single": rest}
        time = 5.0 * wide + single * rest + unseen
        rows.append(Measurement(f"net{i % 5}", f"p{i}", "Pool", "dsp", 1 << 15, 1 << 20, loops, round(1e6 * time)))
    found = {name: ns / 1e6 for name, ns in fit(rows).loop_ns.items()}
    if unseen:
        assert found["clear.single"] <= 2 * found["clear.wide"] < 15
    else:
        assert found == {"clear.wide": pytest.approx(5.0, rel=1e-6), "clear.single": pytest.approx(single, rel=1e-6)}


def test_a_fit_finds_what_made_the_measurements() -> None:
    fitted = fit(measurements())
    found = {name: fitted.loop_ns[name] for name in ("conv_packed.call", "gemm.terms_4", "gemm.terms_1")}
    assert found == pytest.approx({"conv_packed.call": 500, "gemm.terms_4": 0.5, "gemm.terms_1": 40.0}, rel=0.02)
    assert fitted.loop_ns["PageIn.byte"] == pytest.approx(0.25, rel=0.01)
    assert fitted.classes["Conv"].cross_validated_error < 0.001
    assert fitted.simd == "dsp"


def test_what_kernels_share_is_measured_together() -> None:
    """Where one kernel never runs a loop, it is known from the other."""
    rows = [r for r in measurements() if r.cost_class != "PageIn"]
    only = [r for r in rows if r.cost_class == "MatMul"] + [r for r in rows if r.cost_class == "Conv"][:4]
    assert fit(only).loop_ns["gemm.terms_4"] == pytest.approx(0.5, rel=0.01)


def test_errors_are_of_networks_that_the_fit_did_not_see() -> None:
    odd = [
        replace(r, time_ns=r.time_ns * 3) if r.network == "net0" else r
        for r in measurements()
        if r.cost_class == "Conv"
    ]
    alone = [p / r.time_ns for r, p in zip(odd, cross_validate(odd), strict=True) if r.network == "net0"]
    assert np.median(alone) == pytest.approx(1 / 3, rel=0.05)
    noisy = fit(measurements(0.1)).classes["Conv"]
    assert 0.02 < noisy.cross_validated_error < 0.2
    assert "Conv" in fit_text(fit(measurements(0.1)))


def test_measurements_of_two_processors_do_not_mix() -> None:
    rows = measurements()
    with pytest.raises(UsageError, match="different processors or flags: avx2 with 32768 and 1048576 B of cache, dsp"):
        fit([*rows, replace(rows[0], simd="avx2")])


def test_the_profile_predicts_what_the_fit_predicts(tmp_path: Path) -> None:
    rows = measurements()
    fitted = fit(rows)
    profile = write_profile(fitted, "host", tmp_path / "mine.yaml", title="Mine", source="60 measurements")
    costs = CostModel(profile)
    for row in rows:
        if row.cost_class != "PageIn":
            predicted = costs.operator(Features(row.cost_class, 1, 1, 1, row.loops)).time_ns
            assert predicted == pytest.approx(sum(fitted.loop_ns[k] * n for k, n in row.loops.items()), rel=1e-3)
    assert profile.compute.loop_ns["gemm"]["terms_4"].source.kind == "measured"
    assert profile.cpu.simd == "dsp"
    store = profile.stores[profile.default_store]
    assert store.read_latency_ns.value == pytest.approx(4000, rel=0.01)
    assert store.read_bytes_per_s.value == pytest.approx(4e9, rel=0.01)
    assert store.checksum_cycles_per_byte is not None
    assert store.checksum_cycles_per_byte.value == pytest.approx(2.0 * profile.cpu.clock_hz.value / 1e9, rel=0.01)
    page = costs.page(store, 100_000, write=False)
    assert page.time_ns == pytest.approx(4_000 + 196 * 512 * 0.25 + 100_000 * 2.0, rel=0.01)
    assert store.write_bytes_per_s == load_profile("host").stores["file"].write_bytes_per_s
    unmeasured = Features("Relu", 0, 10**6, 8 * 10**6, {"relu.call": 1, "relu.single": 10**6})
    assert costs.operator(unmeasured) == CostModel(load_profile("_host")).operator(unmeasured)  # the roofline
    child = write_profile(fitted, str(tmp_path / "mine.yaml"), tmp_path / "child.yaml", title="C", source="s")
    assert child.ram_bytes == profile.ram_bytes


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ("host", "the measurements are of a board"),  # the default of `poetc profile fit`
        ("rpi4", r"other vectors \(dsp\) than --like rpi4 \(neon\)"),
    ],
)
def test_a_board_does_not_become_another_processor(tmp_path: Path, like: str, message: str) -> None:
    """Counted instructions of a Cortex-M4 once became the profile of a computer without a word."""
    fitted = fit([replace(row, first_cache_bytes=0, cache_bytes=0) for row in measurements()])
    with pytest.raises(UsageError, match=message):
        write_profile(fitted, like, tmp_path / "mine.yaml", title="Mine", source="s")
    assert not (tmp_path / "mine.yaml").exists()
    write_profile(fitted, "qemu-mps2-an386", tmp_path / "mine.yaml", title="Mine", source="s")


def test_nothing_is_inherited_of_what_was_measured_elsewhere(tmp_path: Path) -> None:
    elsewhere = measurements()
    other = [replace(r, cost_class="Relu", loops={"relu.call": 1, "relu.chunk": i}) for i, r in enumerate(elsewhere)]
    convolutions = [r for r in elsewhere if r.cost_class == "Conv"]
    more = [
        replace(r, loops={**r.loops, "gemm.tile": 2 * i}, time_ns=r.time_ns + 100 * i)
        for i, r in enumerate(convolutions)
    ]
    write_profile(fit([*more, *other]), "host", tmp_path / "elsewhere.yaml", title="E", source="s")
    parent = load_profile(tmp_path / "elsewhere.yaml")
    assert "relu" in parent.compute.loop_ns
    assert "tile" in parent.compute.loop_ns["gemm"]
    fitted = fit(elsewhere)
    mine = write_profile(fitted, str(tmp_path / "elsewhere.yaml"), tmp_path / "mine.yaml", title="M", source="s")
    there = {f"{group}.{loop}" for group, loops in mine.compute.loop_ns.items() for loop in loops}
    assert there <= fitted.loop_ns.keys()
    assert "relu" not in mine.compute.loop_ns


def test_of_several_runs_the_least_times_count() -> None:
    rows = measurements()
    slow = [replace(r, time_ns=r.time_ns + 7 * (i % 2)) for i, r in enumerate(rows)]
    other = [replace(r, time_ns=r.time_ns + 5 * (1 - i % 2)) for i, r in enumerate(rows)]
    assert least([slow, other]) == rows
    twice = [rows[0], replace(rows[0], time_ns=1)]
    assert least([twice]) == twice  # in one run, these are two


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "bench.csv"
    write_csv(measurements(), path)
    assert read_csv(path) == measurements()
    text = path.read_text()
    path.write_text(text.replace("gemm.terms_4=", "gemm.terms_4=x", 1))
    with pytest.raises(UsageError, match=r"bench\.csv:2: loops has 'gemm.terms_4=x"):
        read_csv(path)
    first = text.splitlines()[1]
    path.write_text(text.replace(first, first + "x", 1))
    with pytest.raises(UsageError, match=r"bench\.csv:2: time_ns is '\d+x'"):
        read_csv(path)
    for damage in ("²", "٣", "9" * 5000):
        path.write_text(text.replace(first, first + damage, 1))
        with pytest.raises(UsageError, match="not a whole number"):
            read_csv(path)
        path.write_text(text.replace("gemm.terms_4=", f"gemm.terms_4={damage}", 1))
        with pytest.raises(UsageError, match=r"not group\.loop=times"):
            read_csv(path)
    path.write_text(text.replace(first, first + " " * 200_000, 1))
    with pytest.raises(UsageError, match=r"bench\.csv: not a text file"):
        read_csv(path)
    path.write_text(text.replace("time_ns", "time"))
    with pytest.raises(UsageError, match="no column 'time_ns'"):
        read_csv(path)
    path.write_text(text.splitlines()[0])
    with pytest.raises(UsageError, match="no measurements"):
        read_csv(path)


@pytest.mark.long
def test_the_networks_reach_the_common_kernels() -> None:
    kinds: set[str] = set()
    profile = load_profile("host")
    for graph in networks():
        step = run_standard(build(graph, TrainingOptions()))
        kinds |= {op.kind for op in step.operators}
        assert build_problem(step, profile, budget_bytes=1).operators
    wanted = "Conv ConvGradInput ConvGradWeight MatMul BatchNormStats MaxPoolGrad Softmax LayerNorm Gelu Gather Add Sgd"
    assert kinds >= set(wanted.split())
    for most_bytes in (16 << 10, 1 << 20):
        graphs = list(board_networks(most_bytes))
        parts = [op.source for g in graphs for op in g.operators if op.source]
        assert len(dict.fromkeys(parts)) > 60
        assert len({g.name for g in graphs}) == len(graphs)
    assert len(graphs) < 20
