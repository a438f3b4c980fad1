"""The step of a RAM through which operands stream: no operator has more of them than can stream, and the bits stay."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import onnx
import pytest

from poetc.emit import kernel_files
from poetc.frontend import load
from poetc.graph import Graph, Role, TensorType
from poetc.ops import Builder, bind, spec
from poetc.passes import for_small_ram, model_as_it_was, model_for_small_ram, run_standard
from poetc.training import TrainingOptions, build
from tests.passes.networks import kinds, random_batches, trained
from tests.support.small import NETWORKS

PIECES = 23


def network() -> Graph:
    """Rectified pieces of an input beside each other, and a product."""
    draw, b = np.random.default_rng(1), Builder()
    x = b.add_tensor("x", TensorType((3, 2 * PIECES)), Role.INPUT)
    w = draw.standard_normal((2 * PIECES, 5)).astype(np.float32)
    weights = [
        b.add_tensor(name, TensorType(value.shape), Role.PARAMETER, value)
        for name, value in (("v", draw.standard_normal((2 * PIECES, 2 * PIECES)).astype(np.float32)), ("w", w))
    ]
    made = b.emit("Split", [b.emit1("MatMul", [x, weights[0]])], {"axis": 1, "sizes": (2,) * PIECES})
    y = b.emit1("Concat", [b.emit1("Relu" if k % 2 else "Sigmoid", [t]) for k, t in enumerate(made)], {"axis": 1})
    y = b.emit1("MatMul", [b.emit1("Tanh", [y]), weights[1]])
    return Graph("pieces", b.tensors, tuple(b.operators), ("x",), (y,), b.values)


def test_many_pieces_come_in_several_operators() -> None:
    step = run_standard(build(network(), TrainingOptions(learning_rate=0.05)))
    short = for_small_ram(step, 0)
    assert any(len(o.inputs) >= PIECES for o in step.operators)
    assert any(len(o.outputs) >= PIECES for o in step.operators)
    assert max(len(o.inputs) + len(o.outputs) for o in short.operators) <= 11
    assert kinds(short)["Concat"] > kinds(step)["Concat"]
    batches = random_batches(step, 3, seed=2, below=5)
    assert trained(short, batches) == trained(step, batches)


def test_the_model_of_the_file_comes_back() -> None:
    """Operators and tensors, whatever kernels and pieces the step of little RAM had."""
    model = network()
    for ram_bytes in (0, 20_000):
        short = model_for_small_ram(model, ram_bytes)
        assert short.operators != model.operators and len(short.tensors) > len(model.tensors)
        assert model_as_it_was(short) == model
    assert model_as_it_was(model) == model


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_every_kernel_of_little_ram_is_there(tmp_path: Path, optimizer: str) -> None:
    """Gradients of weights that make a batch norm again have no kernel that packs nothing."""
    network = runpy.run_path(str(NETWORKS))["Network"]("norms", 32)
    network.conv(16, norm=True).relu().conv(32, norm=True).relu().conv(64, norm=True).relu().pool().dense(5)
    onnx.save(network.model(), tmp_path / "norms.onnx")
    model = load(tmp_path / "norms.onnx", batch=8)
    step = run_standard(build(model, TrainingOptions(optimizer=optimizer)))
    assert any(op.kind.startswith("ConvGradWeight") and len(op.inputs) > 4 for op in step.operators)
    for ram_bytes in (0, 20_000, 200_000):
        short = for_small_ram(step, ram_bytes)
        kernels = {
            spec(o.kind).kernel(bind(o, short.tensors)).symbol for o in short.operators if not spec(o.kind).is_view
        }
        assert kernels <= kernel_files().keys()
