"""Least squares, cross-validation, the profile that comes out, the CSV."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetc.benchmark import (
    Measurement,
    cross_validate,
    fit,
    fit_text,
    networks,
    nnls,
    read_csv,
    write_csv,
    write_profile,
)
from poetc.devices import build_problem, load_profile
from poetc.devices.cost import CostModel
from poetc.errors import UsageError
from poetc.ops import Work
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
    random = np.random.default_rng(1)
    rows = []
    for i in range(60):
        macs, width = int(random.integers(1_000, 10_000_000)), int(random.integers(4, 100))
        moved = int(random.integers(1_000, 1_000_000))
        time = (500 + 0.5 * macs + 0.1 * moved + 3.0 * (macs // width)) * (1 + noise * random.standard_normal())
        rows.append(Measurement(f"net{i % 6}", f"op{i}", "Conv", macs, 0, moved, width, round(time)))
        rows.append(Measurement(f"net{i % 6}", f"page{i}", "PageIn", 0, 0, moved, 1, round(4_000 + moved * 0.25)))
    return rows


def test_a_fit_finds_what_made_the_measurements() -> None:
    fitted = fit(measurements())
    conv = fitted.classes["Conv"]
    assert conv.coefficients == pytest.approx((500, 0.5, 0, 0.1, 3.0), rel=0.02, abs=0.02)
    assert conv.cross_validated_error < 0.001
    assert fitted.classes["PageIn"].coefficients == pytest.approx((4000, 0, 0, 0.25, 0), rel=0.01, abs=1e-9)


def test_errors_are_of_networks_that_the_fit_did_not_see() -> None:
    odd = [
        Measurement(r.network, r.operator, r.cost_class, r.macs, 0, r.bytes_moved, r.width, r.time_ns * 3)
        if r.network == "net0"
        else r
        for r in measurements()
        if r.cost_class == "Conv"
    ]
    alone = [(p, m) for p, m in cross_validate(odd) if any(r.time_ns == m for r in odd if r.network == "net0")]
    assert np.median([p / m for p, m in alone]) == pytest.approx(1 / 3, rel=0.05)
    noisy = fit(measurements(0.1)).classes["Conv"]
    assert 0.02 < noisy.cross_validated_error < 0.2
    assert "Conv" in fit_text(fit(measurements(0.1)))


def test_the_profile_predicts_what_the_fit_predicts(tmp_path: Path) -> None:
    rows = measurements()
    fitted = fit(rows)
    profile = write_profile(fitted, "host", tmp_path / "mine.yaml", title="Mine", source="60 measurements")
    costs = CostModel(profile)
    for row in rows[::2]:
        work = Work(macs=row.macs, flops=row.flops, bytes_moved=row.bytes_moved)
        predicted = costs.operator("Conv", work, row.bytes_moved, row.width).time_ns
        assert predicted == pytest.approx(fitted.predict(row.features), rel=1e-3)
    assert profile.compute.kernels["Conv"].overhead_ns.source.kind == "measured"
    store = profile.stores[profile.default_store]
    assert store.read_latency_ns.value == pytest.approx(4000, rel=0.01)
    assert store.read_bytes_per_s.value == pytest.approx(4e9, rel=0.01)
    assert store.write_bytes_per_s == load_profile("host").stores["file"].write_bytes_per_s
    child = write_profile(fitted, str(tmp_path / "mine.yaml"), tmp_path / "child.yaml", title="C", source="s")
    assert child.ram_bytes == profile.ram_bytes


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "bench.csv"
    write_csv(measurements(), path)
    assert read_csv(path) == measurements()
    text = path.read_text()
    path.write_text(text.replace("Conv,", "Conv,x", 1))
    with pytest.raises(UsageError, match=r"bench\.csv:2: macs is 'x"):
        read_csv(path)
    path.write_text(text.replace("time_ns", "time"))
    with pytest.raises(UsageError, match="no column 'time_ns'"):
        read_csv(path)
    path.write_text(text.splitlines()[0])
    with pytest.raises(UsageError, match="no measurements"):
        read_csv(path)


def test_the_networks_reach_the_common_kernels() -> None:
    kinds: set[str] = set()
    for graph in networks():
        step = run_standard(build(graph, TrainingOptions()))
        kinds |= {op.kind for op in step.operators}
        assert build_problem(step, load_profile("host"), budget_bytes=1).operators
    wanted = "Conv ConvGradInput ConvGradWeight MatMul BatchNormStats MaxPoolGrad Softmax LayerNorm Gelu Gather Add Sgd"
    assert kinds >= set(wanted.split())
    separate = list(networks(merged=False))
    assert len({g.name for g in separate}) == len(separate) > 40
