"""Gradients of weights with lanes along the channels: the results, and the bits, of the packing kernel."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from poetc.graph import Attribute
from poetc.kernels.convolution_shape import Convolution
from poetc.kernels.convolution_turned import selection as turned
from poetc.kernels.loops import loops_of
from poetc.kernels.machine import Machine
from poetc.ops import Kernel, spec
from tests.support.kernels import (
    RUNTIME,
    Case,
    KernelError,
    bind_kind,
    check_kernel,
    run_kernel,
    scalar_library,
    wide_library,
)
from tests.support.threads import require_same_bits


def cases() -> list[Case]:
    """Several images at a time, or one; parts of blocks of terms, of outputs; windows beside the image."""
    found = []
    for image, weight, size, attributes in (
        ((3, 64, 17, 16), (29, 64, 3, 3), (9, 8), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        ((2, 64, 23, 31), (26, 32, 3, 3), (11, 15), {"strides": (2, 2), "group": 2}),
        ((2, 32, 12, 41), (23, 32, 5, 4), (6, 14), {"strides": (2, 3), "pads": (2, 1, 2, 3)}),
        ((5, 32, 16, 16), (14, 32, 1, 2), (8, 8), {"strides": (2, 2)}),
    ):
        geometry: dict[str, Attribute] = {**attributes, "kernel": weight[2:]}
        inputs = (image, (image[0], weight[0], *size))
        found.append(Case("ConvGradWeight", inputs, geometry, gradient=False))
        found.append(Case("ConvGradWeightSgd", (weight, *inputs, (1,)), geometry, gradient=False))
    return found


CASES = cases()


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turned, "LEAST_BYTES", 0)
    monkeypatch.setattr(turned, "SHARE", 0)


def bound(case: Case) -> Kernel:
    return spec(case.kind).kernel(bind_kind(case.kind, case.attributes, case.arrays()))


def one_image_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(c: Convolution, _operand_bytes: int) -> turned.TurnedGradWeight:
        each, least = turned.floats_of(c)
        floats = least + turned.sum_floats(c) + each
        assert turned.images_at_once(floats, c) == 1
        return turned.TurnedGradWeight(c, floats)

    monkeypatch.setattr(turned, "choose", choose)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_and_bits(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [a.astype(np.float32) for a in case.arrays()]
    assert bound(case).symbol.endswith("_turned")
    (first,) = check_kernel(case.kind, case.attributes, arrays, 2e-5, 2e-5)
    for other in (wide_library(), scalar_library()):
        (same,) = run_kernel(case.kind, case.attributes, arrays, lib=other)
        assert same.tobytes() == first.tobytes()
    with monkeypatch.context() as changed:
        one_image_at_a_time(changed)
        for lib in (None, wide_library(), scalar_library()):
            (same,) = run_kernel(case.kind, case.attributes, arrays, lib=lib)
            assert same.tobytes() == first.tobytes()
    monkeypatch.setattr(turned, "LEAST_BYTES", 1 << 40)
    assert bound(case).symbol.endswith("_packed")
    (packed,) = run_kernel(case.kind, case.attributes, arrays, lib=wide_library())
    assert packed.tobytes() == first.tobytes()


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("threads", [2, 3, 5])
def test_bits_do_not_depend_on_threads(tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    require_same_bits(CASES, tmp_path, threads, monkeypatch)


def test_a_workspace_without_room_for_an_image_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(c: Convolution, _operand_bytes: int) -> turned.TurnedGradWeight:
        return turned.TurnedGradWeight(c, 20000)

    monkeypatch.setattr(turned, "choose", choose)
    with pytest.raises(KernelError) as error:
        run_kernel(CASES[0].kind, CASES[0].attributes, [a.astype(np.float32) for a in CASES[0].arrays()])
    assert error.value.code == -22


def test_constants_are_those_of_the_kernel() -> None:
    text = (RUNTIME / "kernels" / "convolution" / "convolution_turned.c").read_text()
    for name in ("TERMS", "CHANNELS", "OUTPUTS", "SLACK"):
        assert re.findall(rf"^#define {name} (\d+)", text, re.MULTILINE) == [str(getattr(turned, name))], name


def weight_gradient(batch: int, channels: int, size: int, outputs: int, stride: int = 2, window: int = 3) -> Kernel:
    x = np.zeros((batch, channels, size, size), np.float32)
    gy = np.zeros((batch, outputs, size // stride, size // stride), np.float32)
    geometry = {"strides": (stride,) * 2, "pads": (window // 2,) * 4, "kernel": (window,) * 2}
    attributes: dict[str, Attribute] = {**geometry}
    return spec("ConvGradWeight").kernel(bind_kind("ConvGradWeight", attributes, [x, gy]))


def test_chosen_by_shape() -> None:
    """Layers of ResNet-18 with strides of two; not where sums are short or windows a pixel, nor what a microcontroller
    trains.
    """
    for kernel in (weight_gradient(8, 64, 32, 128), weight_gradient(8, 128, 16, 256)):
        assert kernel.symbol.endswith("_turned")
    for kernel in (
        weight_gradient(8, 256, 8, 512),
        weight_gradient(8, 3, 32, 64),
        weight_gradient(1, 32, 16, 32),
        weight_gradient(1, 128, 16, 256),
        weight_gradient(8, 128, 16, 128, stride=1),
        weight_gradient(8, 64, 32, 128, window=1),
    ):
        assert not kernel.symbol.endswith("_turned")


@pytest.mark.parametrize(
    "machine", [Machine(1, 4, 4), Machine(4, 12, 2), Machine(8, 6, 2), Machine(16, 12, 2)], ids=str
)
def test_register_blocks_hold_every_product(machine: Machine) -> None:
    loops = loops_of(weight_gradient(8, 64, 32, 128), machine)
    assert loops is not None
    done = sum(n * int(k.rpartition("_")[2]) for k, n in loops.items() if k.startswith("gemm.terms_")) * machine.columns
    assert done == 8 * 256 * 64 * 128 * 9
