"""A batch in parts that fit the cache: chosen by cost, and by Mandheling's rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.commands.solve import solve
from poetc.devices.reuse import parts_for_cache, working_set_bytes
from poetc.graph import Graph, Role, TensorType
from poetc.ops import Builder
from poetc.scheduling.schedule import SolveOptions
from poetc.training import TrainingOptions

BATCH, SIDE, CHANNELS = 8, 16, 8
IMAGE_BYTES = 4 * CHANNELS * SIDE * SIDE  # of one sample's activations
CACHED = """title: small caches
inherits: rpi4
sources: {test: {kind: estimated, text: caches that a small network is too large for}}
memory: {first_cache_bytes: {value: 4096, source: test}, cache_bytes: {value: CACHE, source: test}}
"""


def network(path: Path) -> Path:
    """Pointwise convolutions: many bytes for few products."""
    random, nodes, weights = np.random.default_rng(0), [], []
    for i in range(2):
        weights.append(
            numpy_helper.from_array(
                random.normal(0, 0.3, (CHANNELS, 1 if i == 0 else CHANNELS, 1, 1)).astype(np.float32), f"w{i}"
            )
        )
        nodes.append(helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"a{i}"]))
        nodes.append(helper.make_node("Relu", [f"a{i}"], [f"x{i + 1}"]))
    nodes.append(helper.make_node("GlobalAveragePool", ["x2"], ["p"]))
    nodes.append(helper.make_node("Flatten", ["p"], ["y"]))
    ends = [
        helper.make_tensor_value_info("x0", 1, ["n", 1, SIDE, SIDE]),
        helper.make_tensor_value_info("y", 1, ["n", CHANNELS]),
    ]
    onnx.save(helper.make_model(helper.make_graph(nodes, "wide", ends[:1], ends[1:], weights), ir_version=8), path)
    return path


def request(folder: Path, parts: int | str, solver: str = "poetc", processors: str = "") -> SolveRequest:
    device = folder / "cached.yaml"
    device.write_text(CACHED.replace("CACHE", str(7 * IMAGE_BYTES)))
    training = TrainingOptions(micro_batches=parts)  # type: ignore[arg-type]
    model = ModelRequest(source=network(folder / "n.onnx"), batch=BATCH, device=str(device), training=training)
    options = SolveOptions(time_limit_s=60)
    return SolveRequest(model=model, budget="100%", options=options, solver=solver, processors=processors)


def test_parts_that_fit_the_cache_cost_less_where_everything_fits_in_ram(tmp_path: Path) -> None:
    found = solve(request(tmp_path, "auto")).summary
    whole = solve(request(tmp_path, 1)).summary
    assert found["micro_batches"] > 1
    assert found["energy_pj"] < whole["energy_pj"]
    assert any("each operator fits the cache of 57.34 kB in 4 parts" in note for note in found["notes"]), found["notes"]


@pytest.mark.long
def test_mandhelings_solver_takes_the_number_of_its_rule(tmp_path: Path) -> None:
    assert solve(request(tmp_path, "auto", "mandheling", "all")).summary["micro_batches"] == 4


@pytest.mark.parametrize(("cache", "parts"), [(96, 1), (95, 2), (48, 2), (24, 4), (8, 4)])
def test_the_rule_takes_the_fewest_parts(cache: int, parts: int) -> None:
    """Of an elementwise operator of 24 bytes a sample, and one on 20 bytes that no split makes smaller."""

    def step(rows: int) -> Graph:
        b = Builder()
        x, w = (b.add_tensor(n, TensorType((size,)), Role.INPUT) for n, size in (("x", 3 * rows), ("w", 3)))
        y = b.emit1("Relu", [x])
        return Graph("s", b.tensors, tuple(b.operators), ("x", "w"), (y, b.emit1("Relu", [w])), b.values)

    graphs = {1: step(4), 2: step(2), 4: step(1)}
    assert [working_set_bytes(g) for g in graphs.values()] == [96, 48, 24]
    assert parts_for_cache(graphs, cache) == parts
