"""Whole steps with fused operators: the weights keep their bits."""

from __future__ import annotations

import pytest

from poetc.ops.batch_norm_activation import ACTIVATIONS
from poetc.passes import run_standard
from poetc.training import TrainingOptions, build
from tests.passes.networks import batched, kinds, network, random_batches, steps, tied, trained


@pytest.mark.usefixtures("however_small")
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_emitted_c_computes_the_same_bits(activation: str) -> None:
    without, fused = steps(network(activation), learning_rate=0.05)
    batches = random_batches(without, 3, seed=5, below=32)
    batches[1]["tokens"][:4] = 7
    assert trained(fused, batches) == trained(without, batches)


@pytest.mark.parametrize("parts", [1, 3])
def test_sums_of_gradients_have_the_same_bits(parts: int) -> None:
    """Of a weight that four layers share, and of micro-batches: convolutions, an embedding."""
    graph = tied(4) if parts == 1 else batched(6)
    part = None if parts == 1 else batched(2)
    made = [
        run_standard(build(graph, TrainingOptions(fusion=fusion, micro_batches=parts, learning_rate=0.05), part))
        for fusion in (False, True)
    ]
    added = {kind for kind in kinds(made[1]) if kind.endswith("Sum") and kind != "ReduceSum"}
    assert added == ({"MatMulSum"} if parts == 1 else {"MatMulSum", "ConvGradWeightSum", "GatherGradSum"})
    batches = random_batches(made[0], 2, seed=9)
    assert trained(made[1], batches) == trained(made[0], batches)
