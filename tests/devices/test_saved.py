"""What is kept for the backward pass, as it is and with near-free recomputation."""

from __future__ import annotations

import numpy as np
import pytest

from poetc.devices import build_problem, load_profile
from poetc.devices.saved import saved_bytes, saved_near_free, saved_tensors
from poetc.graph import Graph, Role, TensorType
from poetc.ops import Builder
from poetc.passes import run_standard
from poetc.scheduling.problem import Problem
from poetc.training import TrainingOptions, build
from tests.support.graphs import small_cnn


def problem_of(graph: Graph) -> tuple[Problem, Graph]:
    step = run_standard(build(graph, TrainingOptions()))
    return build_problem(step, load_profile("host"), budget_bytes=0), step


def test_convolution_outputs_are_what_remains() -> None:
    """conv-bn-relu twice: the relus go, what the convolutions made stays, for their norms' gradients read it."""
    problem, step = problem_of(small_cnn(batch=64))
    found = saved_near_free(problem, step, share=1.0)
    kept = saved_bytes(problem) - found.saved_bytes
    relus = {o for op in step.operators if op.kind in ("Relu", "BatchNormActivate") for o in op.outputs}
    saved = {problem.tensors[t].name for t in saved_tensors(problem)}
    assert relus & saved
    assert kept >= sum(step.tensors[name].size_bytes for name in relus & saved)
    convolved = sum(step.tensors[o].size_bytes for op in step.operators if op.kind == "Conv" for o in op.outputs)
    assert found.saved_bytes >= convolved
    assert 0 < found.energy_pj < problem.compute_once_pj


def test_a_share_of_the_energy_is_not_exceeded() -> None:
    problem, step = problem_of(small_cnn(batch=64))
    shares = (0.0, 0.02, 0.1, 1.0)
    found = [saved_near_free(problem, step, share) for share in shares]
    assert found[0].saved_bytes == saved_bytes(problem)
    assert [f.saved_bytes for f in found] == sorted((f.saved_bytes for f in found), reverse=True)
    for share, answer in zip(shares, found, strict=True):
        assert answer.energy_pj <= share * problem.compute_once_pj


@pytest.mark.parametrize("near_free", [1.0, 100.0])
def test_products_are_never_redone(near_free: float) -> None:
    """Dense layers with a relu: the relu's output is made of a product that nobody keeps, so it stays."""
    b = Builder()
    h = b.add_tensor("x", TensorType((8, 4)), Role.INPUT)
    for layer in ("one", "two", "three"):
        w = b.add_tensor(f"{layer}.weight", TensorType((4, 4)), Role.PARAMETER, np.eye(4, dtype=np.float32))
        h = b.emit1("MatMul", [h, w], {"trans_a": False, "trans_b": False, "alpha": 1.0})
        h = b.emit1("Relu", [h])
    problem, step = problem_of(Graph("dense", b.tensors, tuple(b.operators), ("x",), (h,), b.values))
    assert saved_near_free(problem, step, near_free).saved_bytes == saved_bytes(problem)
