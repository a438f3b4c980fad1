"""Convolutions of 3 x 3 by Winograd's minimal filters: the results of the direct ones, and the same bits whatever the
width of the vectors, the size of the workspace and the number of threads.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from poetc.graph import Attribute
from poetc.kernels.convolution_winograd import selection as winograd
from poetc.kernels.convolution_winograd.selection import FIXED, GAP, Shape, round_up
from poetc.kernels.loops import loops_of
from poetc.kernels.machine import Machine
from poetc.ops import Kernel, spec
from tests.ops.cases import convolution
from tests.support.kernels import (
    RUNTIME,
    Case,
    KernelError,
    bind_kind,
    check_kernel,
    evaluate,
    run_kernel,
    scalar_library,
    uniform,
    wide_library,
)
from tests.support.threads import require_same_bits

PADS = ((1, 1, 1, 1), (0, 0, 0, 0), (1, 0, 1, 2), (2, 2, 2, 2), (0, 1, 2, 1))
SHAPES = (  # parts of vectors, panels and pieces; tiles at edges; rows longer than a strip; tiny planes
    ((2, 20, 7, 9), 35),
    ((3, 33, 4, 4), 17),
    ((2, 5, 6, 150), 70),
    ((1, 140, 5, 6), 40),
    ((5, 3, 3, 3), 4),
    ((1, 7, 37, 35), 64),
    ((9, 4, 8, 8), 5),
)


def cases() -> list[Case]:
    found = []
    for i, (image, outputs) in enumerate(SHAPES):
        attributes: dict[str, Attribute] = {"pads": PADS[i % len(PADS)]}
        weight = (outputs, image[1], 3, 3)
        found += convolution.three(image, weight, attributes, bias=i % 2 == 0, gradient=False)
    wide = ((2, 12, 9, 8), (12, 21, 3, 3), (21,))
    found.append(Case("ConvTranspose", wide, {"pads": (1, 1, 1, 1)}, gradient=False))
    w, x, gy = (23, 18, 3, 3), (2, 18, 13, 12), (2, 23, 13, 12)
    sgd: dict[str, Attribute] = {"pads": (1, 1, 1, 1), "kernel": (3, 3)}
    found.append(Case("ConvGradWeightSgd", (w, x, gy, (1,)), sgd, gradient=False))
    norm: dict[str, Attribute] = {"epsilon": 1e-5, "activation": "Relu"}
    vectors = ((18,), uniform((18,), 0.5, 1.5), (18,), (18,))
    found.append(Case("ConvGradWeight", (x, gy, *vectors), sgd | norm, gradient=False))
    found.append(Case("ConvGradWeightSgd", (w, x, gy, *vectors, (1,)), sgd | norm, gradient=False))
    return found


CASES = cases()


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LEAST_BYTES", 0), ("SHARE", 1e9), ("DIRECT", 1e9)):
        monkeypatch.setattr(winograd, name, value)


def tight(tiles: int, keeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workspaces for so many tiles at a time, with transformed weights kept or not; for 64 of sums over tiles."""

    def products(shape: Shape) -> list[tuple[int, int, int]]:
        depth = round_up(shape.depth, 16)
        weights = 16 * (32 * min(depth, 128) + GAP)
        if keeps:
            weights = -(-shape.outputs // 32) * 16 * (32 * depth + GAP)
        return [(0, FIXED + weights + tiles * 16 * (depth + 32), 32)]

    def sums(shape: Shape) -> list[tuple[int, int, int]]:
        columns = min(128, round_up(shape.depth, 32))
        return [(0, FIXED + 16 * (16 * columns + GAP) + 16 * min(shape.tiles, 64) * (columns + 16), 16)]

    monkeypatch.setattr(winograd, "_product_plans", products)
    monkeypatch.setattr(winograd, "sum_plans", sums)


def symbol(case: Case) -> str:
    return spec(case.kind).kernel(bind_kind(case.kind, case.attributes, case.arrays())).symbol


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_and_bits(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [a.astype(np.float32) for a in case.arrays()]
    assert symbol(case).endswith("_winograd")
    (first,) = check_kernel(case.kind, case.attributes, arrays, 1e-4, 1e-4)  # of sums up to 100
    for other in (wide_library(), scalar_library()):
        (same,) = run_kernel(case.kind, case.attributes, arrays, lib=other)
        assert same.tobytes() == first.tobytes()
    for tiles, keeps in ((5, False), (24, True)):
        tight(tiles, keeps, monkeypatch)
        for lib in (None, wide_library(), scalar_library()):
            (same,) = run_kernel(case.kind, case.attributes, arrays, lib=lib)
            assert same.tobytes() == first.tobytes(), (tiles, keeps)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("threads", [2, 3, 5])
def test_bits_do_not_depend_on_threads(tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    require_same_bits(CASES, tmp_path, threads, monkeypatch)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[2], CASES[-1]], ids=str)
def test_a_workspace_without_room_for_tiles_is_an_error(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    for plans in ("_product_plans", "sum_plans"):
        monkeypatch.setattr(winograd, plans, lambda _: [(0, FIXED + 16, 16)])
    assert symbol(case).endswith("_winograd")
    with pytest.raises(KernelError) as error:
        run_kernel(case.kind, case.attributes, [a.astype(np.float32) for a in case.arrays()])
    assert error.value.code == -22


def test_constants_are_those_of_the_kernel() -> None:
    folder = RUNTIME / "kernels" / "convolution"
    text = "".join((folder / name).read_text() for name in ("poetc_winograd.h", "convolution_winograd.c"))
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^#define ([A-Z_]+) ([^/\n]+?) *(?:/\*.*)?$", text, re.MULTILINE):
        found.setdefault(name, []).append(value)
    for name in ("STRIP_FLOATS", "MOST_TILES", "WIDTH", "GAP", "TERMS", "KEEPS_FROM"):
        assert found[name] == [str(getattr(winograd, name))], name
    assert found["PIECE"] == [str(winograd.PIECE), "TERMS"]  # with vectors, without
    assert found["MOST_SUMS"] == [str(winograd.MOST_SUMS), "TERMS"]
    assert found["MOST_PIECE"] == [str(winograd.PIECE)]
    assert found["SCRATCH_FLOATS"] == ["(STRIP_FLOATS + ROWS_FLOATS)"]
    assert int(*found["ROWS_FLOATS"]) == winograd.SCRATCH_FLOATS - winograd.STRIP_FLOATS
    assert found["FIXED"] == ["(SCRATCH_FLOATS + 3 * 16 * GAP + 16)"]
    assert FIXED == winograd.SCRATCH_FLOATS + 3 * 16 * GAP + 16


def conv(image: tuple[int, ...], outputs: int, **attributes: Attribute) -> Kernel:
    x, w = np.zeros(image, np.float32), np.zeros((outputs, image[1], 3, 3), np.float32)
    return spec("Conv").kernel(bind_kind("Conv", {"pads": (1, 1, 1, 1), **attributes}, [x, w]))


def test_chosen_by_shape() -> None:
    """Layers of ResNet-18; not those that a microcontroller trains, nor what is not 3 x 3 with strides of one."""
    for image, batches in (((64, 32, 32), (1, 8)), ((128, 16, 16), (1, 8)), ((256, 8, 8), (8,)), ((512, 4, 4), (8,))):
        for batch in batches:
            kernel = conv((batch, *image), image[0])
            assert kernel.symbol == "poetc_op_conv_winograd"
            operands = 4 * (2 * batch * image[0] * image[1] ** 2 + 9 * image[0] ** 2)
            assert 0 < kernel.workspace_bytes <= operands
    for kernel in (
        conv((1, 512, 4, 4), 512),  # few tiles for so many weights
        conv((1, 3, 224, 224), 64),  # few channels
        conv((1, 64, 16, 16), 64),
        conv((8, 128, 16, 16), 128, strides=(2, 2)),
        conv((8, 128, 16, 16), 128, pads=(2, 2, 2, 2), dilations=(2, 2)),
    ):
        assert not kernel.symbol.endswith("_winograd")


@pytest.mark.parametrize("kind", ["Conv", "ConvGradInput", "ConvGradWeight"])
def test_errors_are_those_of_the_direct_kernel(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a layer of ResNet-18, against double precision: at most twice the direct kernel's."""
    random = np.random.default_rng(3)
    image, weight = (2, 128, 16, 16), (128, 128, 3, 3)
    x, w, gy = (random.standard_normal(shape).astype(np.float32) for shape in (image, weight, image))
    attributes: dict[str, Attribute] = {"pads": (1, 1, 1, 1)}
    if kind == "ConvGradInput":
        attributes["input_size"] = (16, 16)
    if kind == "ConvGradWeight":
        attributes["kernel"] = (3, 3)
    inputs = {"Conv": [x, w], "ConvGradInput": [gy, w], "ConvGradWeight": [x, gy]}[kind]
    (exact,) = evaluate(kind, attributes, [a.astype(np.float64) for a in inputs])
    errors = []
    for least in (0, 1 << 40):
        monkeypatch.setattr(winograd, "LEAST_BYTES", least)
        (made,) = run_kernel(kind, attributes, inputs)
        errors.append(float(np.sqrt(np.mean((made - exact) ** 2)) / np.std(exact)))
    assert errors[0] < 2 * errors[1] < 1e-6


@pytest.mark.parametrize(
    "machine", [Machine(1, 4, 4), Machine(4, 12, 2), Machine(8, 6, 2), Machine(16, 12, 2)], ids=str
)
def test_register_blocks_hold_every_product(machine: Machine) -> None:
    """What is counted multiplies all of the 16 transformed planes, and the padding of blocks that are not full."""
    for image, outputs in (((1, 64, 32, 32), 64), ((8, 256, 8, 8), 256), ((9, 130, 13, 9), 100)):
        x, w, y = image, (outputs, image[1], 3, 3), (image[0], outputs, *image[2:])
        tiles = image[0] * -(-image[2] // 2) * -(-image[3] // 2)
        for kind, shapes, attributes in (
            ("Conv", (x, w), {}),
            ("ConvGradInput", (y, w), {"input_size": image[2:]}),
            ("ConvGradWeight", (x, y), {"kernel": (3, 3)}),
        ):
            inputs = [np.zeros(s, np.float32) for s in shapes]
            kernel = spec(kind).kernel(bind_kind(kind, {"pads": (1, 1, 1, 1), **attributes}, inputs))
            assert kernel.symbol.endswith("_winograd")
            loops = loops_of(kernel, machine)
            assert loops is not None
            done = 0
            for name, count in loops.items():
                what, _, rows = name.removeprefix("gemm.").rpartition("_")
                if what in ("terms", "packed", "narrow_terms", "narrow_packed"):
                    done += count * int(rows) * (machine.half if "narrow" in what else machine.columns)
            needed = 16 * tiles * image[1] * outputs
            assert needed <= done <= 1.5 * needed
