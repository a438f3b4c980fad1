"""Convolutions of odd shapes and their gradients, all in one program, against numpy: kernels of one board alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from poetc import boards, emit, measure, passes, training
from poetc.devices import build_problem, load_profile
from poetc.graph import Attribute, Graph, Role, TensorType, TrainingGraph
from poetc.kernels.convolution_winograd import selection as winograd
from poetc.kernels.gemm import packing as packed_operands
from poetc.measure import _run, build_firmware, build_host, execute
from poetc.ops import Builder
from poetc.ops.convolution import NORM_ACTIVATIONS
from poetc.passes import _fusion
from poetc.program import Call, Interpreter, Program, lower, sample_inputs
from poetc.scheduling import keep_all, pack
from poetc.training import TrainingOptions

TIMEOUT_S = 40  # for the emulator, which takes one: a loop that never ends must not stop the suite
SHAPES = 36
Shape = tuple[tuple[int, int, int, int], tuple[int, int, int, int], dict[str, Attribute]]  # image, weight, attributes

# Four channels at once: every width of the last block of columns, zeros on either, both or no sides.
SMALL_PLANES: tuple[Shape, ...] = (
    ((2, 6, 7, 7), (6, 1, 3, 3), {"pads": (1, 1, 1, 1), "group": 6}),
    ((1, 5, 1, 8), (5, 1, 3, 3), {"pads": (1, 1, 1, 1), "group": 5}),
    ((1, 8, 6, 6), (8, 1, 3, 3), {"pads": (1, 1, 1, 1), "group": 8}),
    ((2, 5, 7, 7), (5, 1, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "group": 5}),
    ((1, 4, 6, 6), (4, 1, 3, 3), {"strides": (2, 2), "pads": (1, 1, 0, 0), "group": 4}),
    ((1, 7, 6, 6), (7, 1, 3, 3), {"strides": (2, 2), "pads": (0, 0, 1, 1), "group": 7}),
    ((1, 4, 8, 7), (4, 1, 3, 3), {"strides": (2, 2), "group": 4}),
    ((1, 6, 8, 8), (6, 1, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "group": 6}),
    ((2, 4, 9, 9), (4, 1, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "group": 4}),
    ((1, 5, 10, 10), (5, 1, 3, 3), {"strides": (2, 2), "pads": (0, 0, 1, 1), "group": 5}),
    ((1, 4, 10, 9), (4, 1, 3, 3), {"strides": (2, 2), "group": 4}),
    ((1, 4, 12, 11), (4, 1, 3, 3), {"strides": (2, 2), "group": 4}),
    ((2, 6, 2, 2), (6, 1, 3, 3), {"pads": (1, 1, 1, 1), "group": 6}),
    ((1, 5, 1, 1), (5, 1, 3, 3), {"pads": (1, 1, 1, 1), "group": 5}),
    ((1, 4, 6, 1), (4, 1, 3, 3), {"pads": (1, 1, 1, 1), "group": 4}),
    ((2, 5, 4, 4), (5, 1, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "group": 5}),
    ((1, 4, 4, 4), (4, 1, 3, 3), {"strides": (2, 2), "pads": (0, 0, 1, 1), "group": 4}),
    ((1, 6, 3, 3), (6, 1, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "group": 6}),
    ((1, 4, 5, 5), (4, 1, 3, 3), {"strides": (2, 2), "group": 4}),
    ((1, 7, 2, 2), (7, 1, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "group": 7}),
    ((1, 4, 2, 2), (4, 1, 3, 3), {"strides": (2, 2), "pads": (0, 0, 1, 1), "group": 4}),
    ((1, 4, 1, 1), (4, 1, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "group": 4}),
    ((1, 4, 3, 4), (4, 1, 3, 3), {"strides": (2, 2), "pads": (0, 1, 0, 0), "group": 4}),
    ((1, 4, 7, 2), (4, 1, 3, 3), {"strides": (2, 2), "pads": (1, 0, 1, 1), "group": 4}),
)

# Read where they are or from a strip, several blocks of it, instead of being packed: on Helium.
UNPACKED: tuple[Shape, ...] = (
    ((2, 3, 11, 15), (13, 3, 5, 5), {"pads": (2, 2, 2, 2)}),
    ((1, 9, 14, 10), (9, 9, 3, 3), {"pads": (1, 0, 0, 2)}),
    ((2, 2, 9, 16), (6, 2, 5, 5), {}),
    ((2, 6, 14, 14), (16, 6, 5, 5), {}),
    ((1, 14, 13, 11), (20, 7, 3, 3), {"pads": (1, 1, 1, 1), "group": 2}),
    ((1, 4, 17, 12), (14, 2, 3, 5), {"strides": (2, 1), "dilations": (2, 1), "pads": (2, 2, 2, 2), "group": 2}),
)

# Strips of one pixel, which once took Helium's gradient of the weight for ever; zeros on one side only, as TensorFlow's
# SAME has them, on planes that are cut, whole and odd; planes of 3 x 3.
KNOWN: tuple[Shape, ...] = (
    ((1, 2, 3, 2), (8, 2, 5, 2), {"pads": (1, 0, 1, 0)}),
    ((1, 3, 16, 16), (3, 1, 3, 3), {"strides": (2, 2), "pads": (0, 0, 1, 1), "group": 3}),
    ((2, 2, 12, 15), (2, 1, 3, 3), {"strides": (2, 2), "pads": (1, 0, 0, 1), "group": 2}),
    ((1, 3, 6, 6), (3, 1, 3, 3), {"strides": (2, 2), "pads": (0, 0, 1, 1), "group": 3}),
    ((1, 2, 90, 62), (2, 1, 3, 3), {"strides": (2, 2), "pads": (0, 0, 1, 1), "group": 2}),
    ((1, 4, 3, 3), (4, 1, 3, 3), {"pads": (1, 1, 1, 1), "group": 4}),
    ((2, 3, 25, 19), (3, 1, 3, 3), {"pads": (1, 1, 1, 1), "group": 3}),
    ((2, 3, 9, 14), (3, 1, 5, 5), {"pads": (2, 2, 2, 2), "group": 3}),
    ((1, 3, 14, 14), (3, 1, 5, 5), {"strides": (2, 2), "pads": (1, 1, 2, 2), "group": 3}),
    ((2, 3, 15, 37), (3, 1, 5, 5), {"strides": (2, 2), "pads": (2, 2, 2, 2), "group": 3}),
    ((1, 2, 8, 20), (2, 1, 5, 5), {"pads": (2, 2, 2, 2), "group": 2}),
    ((1, 2, 7, 13), (2, 1, 5, 5), {"pads": (2, 2, 2, 2), "group": 2}),
    ((2, 2, 5, 3), (2, 1, 5, 5), {"pads": (2, 2, 2, 2), "group": 2}),
    ((1, 2, 12, 12), (2, 1, 5, 5), {"strides": (2, 2), "pads": (2, 2, 2, 2), "group": 2}),
    ((1, 2, 9, 28), (2, 1, 5, 5), {"strides": (2, 2), "pads": (1, 1, 2, 2), "group": 2}),
    ((1, 3, 9, 7), (3, 1, 3, 3), {"dilations": (2, 1), "pads": (2, 1, 2, 1), "group": 3}),
    ((1, 2, 6, 9), (2, 1, 1, 5), {"strides": (2, 1), "pads": (0, 2, 0, 2), "group": 2}),
    ((1, 2, 9, 9), (2, 1, 3, 5), {"strides": (2, 1), "dilations": (2, 1), "pads": (2, 2, 2, 2), "group": 2}),
    ((1, 2, 9, 9), (2, 1, 2, 5), {"strides": (3, 1), "pads": (0, 2, 0, 2), "group": 2}),
    ((1, 3, 7, 7), (3, 1, 5, 3), {"strides": (2, 2), "pads": (2, 1, 2, 1), "group": 3}),
    ((1, 3, 24, 24), (8, 3, 3, 3), {"strides": (2, 2), "pads": (0, 0, 1, 1)}),
    ((2, 2, 9, 30), (2, 1, 7, 7), {"pads": (3, 3, 3, 3), "group": 2}),
    ((1, 3, 12, 27), (3, 1, 7, 7), {"strides": (2, 2), "pads": (2, 3, 3, 2), "group": 3}),
    ((2, 2, 11, 12), (2, 1, 7, 7), {"strides": (2, 2), "pads": (3, 2, 3, 3), "group": 2}),
    ((1, 2, 8, 19), (2, 1, 3, 7), {"strides": (2, 2), "pads": (1, 3, 1, 3), "group": 2}),
    ((1, 2, 8, 8), (2, 1, 7, 5), {"pads": (3, 2, 3, 2), "group": 2}),
    *SMALL_PLANES,
    *UNPACKED,
)


def random_shapes(number: int) -> Sequence[Shape]:
    """Small ones; every third with a filter a channel."""
    random = np.random.default_rng(20)
    found: list[Shape] = []
    while len(found) < number:
        kernel, stride, dilation = (random.integers(1, n + 1, 2) for n in (5, 3, 2))
        size, pads = random.integers(1, 14, 2), random.integers(0, kernel.repeat(2).reshape(2, 2).T.flatten())
        if np.any(size + pads[:2] + pads[2:] < (kernel - 1) * dilation + 1):
            continue
        batch, channels, outputs = (int(random.integers(1, n)) for n in (3, 9, 20))
        group = channels if len(found) % 3 == 0 else 1
        inside = channels // group
        attributes: dict[str, Attribute] = {
            "strides": tuple(stride.tolist()),
            "dilations": tuple(dilation.tolist()),
            "pads": tuple(pads.tolist()),
            "group": group,
        }
        image, weight = (
            (batch, channels, *size.tolist()),
            (channels if group > 1 else outputs, inside, *kernel.tolist()),
        )
        found.append((image, weight, attributes))
    return found


def network(shapes: Sequence[Shape], normalized: bool = False) -> Graph:
    """Images, weights and biases are parameters, so that a step shows their gradients. `normalized`: convolutions of
    batch norms and activations of the images, each kind in turn.
    """
    random = np.random.default_rng(21)
    b = Builder()

    def parameter(name: str, shape: tuple[int, ...]) -> str:
        value = random.standard_normal(shape).astype(np.float32)
        return b.add_tensor(name, TensorType(shape), Role.PARAMETER, value)

    results = [b.add_tensor("input", TensorType((1, 4)), Role.INPUT)]
    for number, (image, weight, attributes) in enumerate(shapes):
        operands = [parameter(f"image{number}", image), parameter(f"weight{number}", weight)]
        if normalized:
            vectors = [parameter(f"{name}{number}", image[1:2]) for name in ("mean", "var", "scale", "shift")]
            b.values[vectors[1]] = np.abs(b.values[vectors[1]])
            norm = {"epsilon": 1e-3, "momentum": 0.9}
            operands[0] = b.emit1("BatchNormApply", [operands[0], *vectors], norm)
            activation = NORM_ACTIVATIONS[number % len(NORM_ACTIVATIONS)]
            if activation:
                limits: dict[str, Attribute] = {"min": 0.25, "max": 1.5} if activation == "Clip" else {}
                operands[0] = b.emit1(activation, operands[:1], limits)
        if number % 2:
            operands.append(parameter(f"bias{number}", weight[:1]))
        y = b.emit1("Conv", operands, attributes)
        results.append(b.emit1("Reshape", [y], {"shape": (1, b.type(y).elements)}))
    y = b.emit1("Concat", results, {"axis": 1}, hint="y")
    return Graph("odd", b.tensors, tuple(b.operators), ("input",), (y,), b.values)


def compiled(graph: Graph, rate: float, fusion: bool = False) -> tuple[TrainingGraph, Program]:
    options = TrainingOptions(loss="mse", learning_rate=rate, fusion=fusion)
    step = passes.run_standard(training.build(graph, options))
    problem = build_problem(step, load_profile("host"), budget_bytes=1 << 40)
    schedule = keep_all(problem)
    return step, lower(step, problem, schedule, pack(problem, schedule))


def symbols_of(program: Program) -> list[str]:
    return [i.symbol for i in program.instructions if isinstance(i, Call)]


def check(
    shapes: Sequence[Shape], board: str, numerics: emit.Numerics, directory: Path, positive: bool = False
) -> list[str]:
    """Gradients of all parameters against numpy's; the kernels. `positive`: sums that grow from term to term."""
    graph = network(shapes)
    for value in graph.values.values() if positive else ():
        np.abs(value, out=value)
    rate = graph.tensors[graph.outputs[0]].type.elements / 2  # of a mean of squares: gradients are not small
    step, program = compiled(graph, rate)
    batch = sample_inputs(program, 0)
    interpreter = Interpreter(program, step.values)
    interpreter.run(batch)
    run = execute(build_firmware(program, step.values, board, directory, numerics=numerics), [batch])
    for number, shape in enumerate(shapes):
        for name in (f"image{number}", f"weight{number}", f"bias{number}"):
            if name in graph.values:
                gradient = np.asarray(graph.values[name]) - interpreter.state(name)
                off = np.abs(run.state[name] - interpreter.state(name)).max()
                most = 1e-6 * np.abs(gradient).max() if positive else 4e-6 * np.abs(gradient).max() + 2e-6
                assert off < most, f"the gradient of {name}: {shape}"
    return symbols_of(program)


@pytest.fixture
def small_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have workspaces too, and an emulator has the time that their many cases take."""
    monkeypatch.setattr(_run, "TIMEOUT_S", TIMEOUT_S)
    monkeypatch.setattr(packed_operands, "SHARE", 0.25)


@pytest.mark.usefixtures("small_operands")
@pytest.mark.parametrize(("board", "numerics"), [("mps2-an386", "separate"), ("mps3-an547", "fast")])
def test_odd_convolutions_are_those_of_numpy(board: str, numerics: emit.Numerics, tmp_path: Path) -> None:
    shapes = [*KNOWN, *random_shapes(SHAPES)]
    symbols = check(shapes, board, numerics, tmp_path)
    assert sum(symbol.endswith("_packed") for symbol in symbols) >= len(shapes)
    assert sum(symbol.startswith("poetc_op_depthwise") for symbol in symbols) >= len(shapes) // 2


@pytest.mark.parametrize("board", ["mps2-an386", "mps3-an547"])
@pytest.mark.long
def test_planes_in_registers_have_the_bits_of_the_host(
    board: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one, four, nine and sixteen results, and rows of five and six; zeros around, after or before; without and with
    a bias. And seven taps, products in blocks of four rows (terms that are odd, weights moved at once), three taps of a
    row at once, and planes of five to seven columns.
    """
    monkeypatch.setattr(packed_operands, "SHARE", 0.25)  # workspaces for small operands too
    shapes: list[Shape] = [
        ((2, 3, 10, 9), (3, 1, 7, 7), {"pads": (3, 3, 3, 3), "group": 3}),
        ((2, 3, 12, 27), (3, 1, 7, 7), {"strides": (2, 2), "pads": (2, 3, 3, 2), "group": 3}),
        ((1, 3, 12, 12), (3, 1, 7, 7), {"strides": (2, 2), "pads": (3, 3, 3, 3), "group": 3}),
        ((1, 12, 3, 3), (14, 12, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((2, 33, 2, 2), (24, 33, 1, 1), {}),
        ((1, 9, 8, 8), (10, 9, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((2, 8, 6, 16), (10, 4, 3, 3), {"pads": (1, 1, 1, 1), "group": 2}),
        ((1, 5, 7, 12), (8, 5, 5, 3), {"pads": (2, 1, 2, 1)}),
        ((1, 6, 9, 4), (8, 6, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((1, 6, 10, 8), (8, 6, 3, 3), {"dilations": (2, 1), "pads": (2, 1, 2, 1)}),
        ((1, 7, 9, 9), (12, 7, 3, 3), {"pads": (1, 0, 1, 0)}),
        *(
            ((2, 3, *size), (3, 1, 3, 3), {"pads": (1, 1, 1, 1), "group": 3})
            for size in ((9, 5), (1, 5), (11, 6), (4, 7))
        ),
        *(  # read where they are: rows of every lane, few rows, columns of eights
            ((2, 3, *size), (3, 1, 3, 3), {"pads": (1, 1, 1, 1), "group": 3})
            for columns in (3, 5, 6, 7, 8, 16, 24)
            for size in ((1, columns), (2, columns), (3, columns), (10, columns), (13, columns))
        ),
    ]
    for side in (1, 2, 3, 4, 5, 6):
        for stride, pads in ((1, (1, 1, 1, 1)), (2, (0, 0, 1, 1)), (2, (1, 1, 0, 0))):
            size = side * stride
            attributes: dict[str, Attribute] = {"strides": (stride, stride), "pads": pads, "group": 3}
            shapes += [((2, 3, size, size), (3, 1, 3, 3), attributes)] * 2
    graph = network(shapes)
    for number in range(1, len(shapes), 4):  # sums of nothing but products of zero begin with a bias of -0
        graph.values[f"bias{number}"][:2], graph.values[f"image{number}"][...] = -0.0, 0.0
    step, program = compiled(graph, graph.tensors[graph.outputs[0]].type.elements / 2)  # gradients are not small
    batch = sample_inputs(program, 0)
    with build_host([program], step.values) as model:
        model.run(batch)
        expected = measure.state_digest({name: model.state(name) for name in model.state_names()})
    assert execute(build_firmware(program, step.values, board, tmp_path), [batch]).state_sha256 == expected


@pytest.mark.usefixtures("small_operands")
@pytest.mark.parametrize(("board", "numerics"), [("mps2-an386", "separate"), ("mps3-an547", "fast")])
@pytest.mark.long
def test_what_is_made_again_is_what_was_not_kept(
    board: str, numerics: emit.Numerics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch norm and activation, in gradients of weights: the bits of the host without fusion, or near them."""
    monkeypatch.setattr(_fusion, "LEAST_BYTES", 0)
    large = [shape for shape in [*KNOWN, *random_shapes(SHAPES)] if shape[0][2] * shape[0][3] >= _fusion.LEAST_PIXELS]
    graph = network(large, normalized=True)
    plain, apart = compiled(graph, 1.0)
    step, program = compiled(graph, 1.0, fusion=True)
    symbols = [s for s in symbols_of(program) if "norm" in s and "grad_weight" in s]
    assert len({s for s in symbols if s.endswith("packed")}) == 2 and len(symbols) > len(large) // 2
    assert "poetc_op_depthwise_grad_weight_norm" in symbols
    batch = sample_inputs(program, 0)
    with build_host([apart], plain.values) as model:
        model.run(batch)
        expected = {name: model.state(name) for name in model.state_names()}
    run = execute(build_firmware(program, step.values, board, tmp_path, numerics=numerics), [batch])
    for name, value in expected.items():
        if numerics == "separate":
            assert run.state[name].tobytes() == value.tobytes(), name
        else:
            np.testing.assert_allclose(run.state[name], value, 1e-5, 1e-5, err_msg=name)


@pytest.mark.usefixtures("small_operands")
def test_rounding_errors_do_not_grow_with_the_planes(tmp_path: Path) -> None:
    """Thousands of terms, all positive: one of several blocks, many small planes, rows longer than a block."""
    shapes: tuple[Shape, ...] = (
        ((1, 4, 96, 96), (4, 1, 3, 3), {"pads": (1, 1, 1, 1), "group": 4}),
        ((1, 5, 90, 71), (5, 1, 3, 3), {"strides": (2, 2), "pads": (0, 1, 1, 0), "group": 5}),
        ((30, 4, 7, 7), (4, 1, 3, 3), {"pads": (1, 1, 1, 1), "group": 4}),
        ((1, 4, 3, 600), (4, 1, 3, 3), {"pads": (1, 1, 1, 1), "group": 4}),
    )
    check(shapes, "mps3-an547", "fast", tmp_path, positive=True)


@pytest.mark.usefixtures("small_operands")
@pytest.mark.parametrize(("board", "numerics"), [("mps2-an386", "fused"), ("mps3-an547", "fast")])
@pytest.mark.long
def test_what_is_compiled_for_a_debugger_computes_the_same(
    board: str, numerics: emit.Numerics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Assembly asks for more registers than -O0 leaves."""
    target = boards.TARGETS[boards.BOARDS[board].target]
    flags = target.flags.replace("-O2", "-O0")
    assert flags != target.flags
    monkeypatch.setitem(boards.TARGETS, target.name, replace(target, flags=flags))
    check(KNOWN, board, numerics, tmp_path)


def test_winograds_filters_are_those_of_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With vectors of four, in 64-bit code."""
    monkeypatch.setattr(_run, "TIMEOUT_S", TIMEOUT_S)
    for name, value in (("LEAST_BYTES", 0), ("SHARE", 1e9), ("DIRECT", 1e9)):
        monkeypatch.setattr(winograd, name, value)
    shapes: tuple[Shape, ...] = (
        ((2, 20, 7, 9), (35, 20, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((1, 5, 6, 8), (7, 5, 3, 3), {"pads": (0, 1, 2, 1)}),
    )
    symbols = check(shapes, "virt-a72", "separate", tmp_path)
    assert sum(symbol.endswith("_winograd") for symbol in symbols) == 3 * len(shapes)


@pytest.mark.usefixtures("small_operands")
def test_sums_of_zeros_have_one_sign(tmp_path: Path) -> None:
    """Planes of nine pixels, the last of which has a loop of its own: a bias of -0, and products that are -0, are added
    to 0. What is observed of the sign is its reciprocal's.
    """
    # 36 terms, one block: what a second block adds begins with +0 and hides the sign.
    b = Builder()
    x = b.add_tensor("x", TensorType((1, 4, 3, 3)), Role.INPUT)
    values = {
        "w": np.full((64, 4, 3, 3), -1, np.float32),
        "bias": np.full(64, -0.0, np.float32),
        "p": np.zeros((1, 64, 3, 3), np.float32),
    }
    for name, value in values.items():
        b.add_tensor(name, TensorType(value.shape), Role.PARAMETER if name == "p" else Role.CONSTANT, value)
    y = b.emit1("Conv", [x, "w", "bias"], {"pads": (1, 1, 1, 1)})
    sign = b.emit1("Clip", [b.emit1("Reciprocal", [y])], {"min": -1.0, "max": 1.0})
    y = b.emit1("Reshape", [b.emit1("Mul", [sign, "p"])], {"shape": (1, 576)})
    graph = Graph("zeros", b.tensors, tuple(b.operators), ("x",), (y,), b.values)
    step, program = compiled(graph, 1.0)
    assert "poetc_op_conv_packed" in symbols_of(program)
    batch = {name: np.full_like(value, name != "x") for name, value in sample_inputs(program, 0).items()}
    assert {value.any() for value in batch.values()} == {False, True}  # the image; the target
    run = execute(build_firmware(program, step.values, "mps2-an386", tmp_path), [batch])
    np.testing.assert_array_equal(np.sign(run.state["p"]), np.ones((1, 64, 3, 3)))  # towards the target
