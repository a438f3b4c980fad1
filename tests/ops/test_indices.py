"""Ranges that kinds declare of their indices and classes, beside what their numerics take."""

from __future__ import annotations

import numpy as np
import pytest

from poetc.ops import Indices, OpSpec, Use, spec
from tests.ops.test_cases import CASES
from tests.support.kernels import AnyArray, Case, evaluate, tensor_type

_NO_INDICES = OpSpec.indices
INDEXED = [case for case in CASES if type(spec(case.kind)).indices is not _NO_INDICES]


def _declared(case: Case, arrays: list[AnyArray]) -> tuple[Indices, int]:
    """And the place of the operand among the inputs."""
    names = [str(n) for n in range(len(arrays))]
    indices = spec(case.kind).indices(Use(case.kind, case.attributes, names, ["y"], tensor_type(arrays[0])))
    assert indices is not None
    return indices, int(indices.operand)


def _with(arrays: list[AnyArray], operand: int, index: int) -> list[AnyArray]:
    return [np.full_like(a, index) if n == operand else a for n, a in enumerate(arrays)]


@pytest.mark.parametrize("case", INDEXED, ids=str)
def test_indices_are_taken_up_to_the_ends_of_their_range(case: Case) -> None:
    arrays = case.arrays()
    indices, operand = _declared(case, arrays)
    assert arrays[operand].dtype == np.int32
    for index in (indices.least, indices.most):
        evaluate(case.kind, case.attributes, _with(arrays, operand, index))


@pytest.mark.parametrize("case", [case for case in INDEXED if case.kind[:8] != "GatherND"], ids=str)
def test_an_index_beyond_its_range_is_refused(case: Case) -> None:
    arrays = case.arrays()
    indices, operand = _declared(case, arrays)
    assert indices.is_exact
    for index in {indices.least - 1, indices.most + 1} - {indices.ignored}:
        with pytest.raises((IndexError, ValueError)):
            evaluate(case.kind, case.attributes, _with(arrays, operand, index))


def test_losses_of_classes_and_their_gradients_declare_them() -> None:
    kinds = {case.kind for case in INDEXED}
    assert {"CrossEntropy", "CrossEntropyGrad", "Dice", "DiceGrad", "Ctc", "CtcGrad", "LinearCrossEntropy"} < kinds
