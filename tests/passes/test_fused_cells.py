"""Cells of recurrent layers as single operators."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from poetc.graph import DType, Graph, Role, TensorType
from poetc.ops import Builder
from tests.passes.networks import kinds, random_batches, recurrent, steps, trained


@pytest.mark.parametrize(("cell", "terms"), [("LstmCell", 2), ("GruCell", 3)])
def test_cells_take_in_the_sum_of_gradients(cell: str, terms: int) -> None:
    """From the second layer or the loss, the next step's product and, in a GRU, the next state; the last step: one."""
    step = steps(recurrent(cell))[1]
    sizes = Counter(op.attributes["gradients"] for op in step.operators if op.kind == f"{cell}Grad")
    assert sizes == {terms: 6, 1: 2}
    assert not {"Sigmoid", "Tanh", "Mul"} & kinds(step).keys()


def test_a_sum_that_makes_one_of_its_terms_is_not_taken_in() -> None:
    """The state is looked up and multiplied: the gradient of the lookup joins the other's without being stored."""
    b = Builder()
    x = b.add_tensor("x", TensorType((20, 3)), Role.INPUT)
    rows = b.add_tensor("rows", TensorType((2,), DType.I32), Role.CONSTANT, np.int32([3, 7]))
    weights = [
        b.add_tensor(name, TensorType(shape), Role.PARAMETER, np.ones(shape, np.float32))
        for name, shape in (("w", (20, 3)), ("v", (5, 5)))
    ]
    h = b.emit("LstmCell", [b.emit1("MatMul", [x, weights[0]], {"trans_b": True})])[0]
    first = b.emit1("Gather", [h, rows], {"axis": 0})
    y = b.emit1("Add", [first, b.emit1("Gather", [b.emit1("MatMul", [h, weights[1]]), rows], {"axis": 0})])
    step = steps(Graph("looked up", b.tensors, tuple(b.operators), ("x",), (y,), b.values))[1]
    assert kinds(step)["GatherGradSum"] == 1


@pytest.mark.parametrize("cell", ["LstmCell", "GruCell"])
def test_cells_have_the_bits_of_their_parts(cell: str) -> None:
    without, fused = steps(recurrent(cell), learning_rate=0.1, loss="mse")
    assert not [kind for kind in kinds(without) if "Cell" in kind]
    batches = random_batches(without, 2, seed=8)
    assert trained(fused, batches) == trained(without, batches)
