"""Every operator kind through the tables in `tests/ops/cases/`: types, C kernel, gradient. Nothing ships that no table
covers.
"""

from __future__ import annotations

import importlib
import pkgutil

import numpy as np
import pytest

import tests.ops.cases
from poetc.ops import registry, spec
from tests.support import kernels
from tests.support.kernels import Case, bind_kind, check_gradient, check_kernel, differentiable, evaluate, library

CASES: list[Case] = [
    case
    for module in sorted(m.name for m in pkgutil.iter_modules(tests.ops.cases.__path__))
    for case in importlib.import_module(f"tests.ops.cases.{module}").CASES
]
KERNEL_CASES = [case for case in CASES if not spec(case.kind).is_view]
GRADIENT_CASES = [case for case in CASES if case.checks_gradient]


def test_runtime_compiles() -> None:
    assert not library().failures


@pytest.mark.parametrize("case", CASES, ids=str)
def test_types(case: Case) -> None:
    evaluate(case.kind, case.attributes, case.arrays())
    op = bind_kind(case.kind, case.attributes, case.arrays())
    work = spec(case.kind).work(op)
    assert min(work.macs, work.flops, work.bytes_moved or 0) >= 0
    assert all(type(number) is int for number in (work.macs, work.flops, work.bytes_moved or 0))


def test_a_kind_that_counts_its_work_has_no_part_of_another_kind() -> None:
    """A class below that of another kind names both numbers, or neither."""
    for kind in registry():
        cls = type(spec(kind))
        own, above = vars(cls), cls.__mro__[1]
        if above.__dict__.get("kind") and ("macs" in own) != ("flops" in own):
            inherited = {"macs": above.macs, "flops": above.flops}
            assert not any(number for name, number in inherited.items() if name not in own), kind


@pytest.mark.parametrize("case", KERNEL_CASES, ids=str)
def test_kernel(case: Case) -> None:
    check_kernel(case.kind, case.attributes, case.arrays(), case.rtol, case.atol)


def test_a_small_number_beside_a_large_one_has_its_own_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [np.float32([1000, 0, 0]), np.float32([0, 0, 0])]
    monkeypatch.setattr(kernels, "run_kernel", lambda *_, **__: (np.float32([1000, 0, 1e-5]),))
    with pytest.raises(AssertionError, match="Add output 0"):
        check_kernel("Add", {}, inputs)


@pytest.mark.parametrize("case", GRADIENT_CASES, ids=str)
def test_gradient(case: Case) -> None:
    check_gradient(case.kind, case.attributes, case.arrays(), case.wrt, step=case.step, outputs_of=case.outputs)


def test_every_kind_has_a_case() -> None:
    assert sorted(set(registry()) - {case.kind for case in CASES}) == []


def test_every_differentiable_kind_has_a_gradient_case() -> None:
    # Integers have no slopes: tests/training/test_integers.py and test_qas.py compare their steps with formulas.
    integers = ("Integer", "QLinear", "Quantize", "Dequantize")
    # Ciou's gradient leaves out the slope of its alpha: tests/training/test_pytorch.py has torchvision's formula.
    kinds = {kind for kind in registry() if differentiable(kind) and not kind.startswith(integers)} - {"Ciou"}
    assert sorted(kinds - {case.kind for case in GRADIENT_CASES}) == []


@pytest.mark.parametrize("kind", sorted(registry()))
def test_every_kind_is_documented(kind: str) -> None:
    assert spec(kind).summary
