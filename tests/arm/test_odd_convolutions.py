"""Convolutions of odd shapes and their gradients, all in one program, against numpy: kernels of one board alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from poetc import codegen, passes, training
from poetc.codegen import Interpreter, _run, build_firmware, execute, sample_inputs
from poetc.codegen.program import Call
from poetc.devices import build_problem, load_profile
from poetc.graph import Attribute, Graph, Role, TensorType
from poetc.ops import Builder, _packing
from poetc.scheduling import keep_all, pack
from poetc.training import TrainingOptions

TIMEOUT_S = 40  # for the emulator, which takes one: a loop that never ends must not stop the suite
SHAPES = 36
Shape = tuple[tuple[int, int, int, int], tuple[int, int, int, int], dict[str, Attribute]]  # image, weight, attributes

# Strips of one pixel, which once took Helium's gradient of the weight for ever; zeros on one side only, as TensorFlow's
# SAME has them, on planes that are cut, whole and odd; planes of 3 x 3.
KNOWN: tuple[Shape, ...] = (
    ((1, 2, 3, 2), (8, 2, 5, 2), {"pads": (1, 0, 1, 0)}),
    ((1, 3, 16, 16), (3, 1, 3, 3), {"strides": (2, 2), "pads": (0, 0, 1, 1), "group": 3}),
    ((2, 2, 12, 15), (2, 1, 3, 3), {"strides": (2, 2), "pads": (1, 0, 0, 1), "group": 2}),
    ((1, 3, 6, 6), (3, 1, 3, 3), {"strides": (2, 2), "pads": (0, 0, 1, 1), "group": 3}),
    ((1, 2, 90, 62), (2, 1, 3, 3), {"strides": (2, 2), "pads": (0, 0, 1, 1), "group": 2}),
    ((1, 4, 3, 3), (4, 1, 3, 3), {"pads": (1, 1, 1, 1), "group": 4}),
    ((1, 3, 24, 24), (8, 3, 3, 3), {"strides": (2, 2), "pads": (0, 0, 1, 1)}),
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


def network(shapes: Sequence[Shape]) -> Graph:
    """Images, weights and biases are parameters, so that a step shows their gradients."""
    random = np.random.default_rng(21)
    b = Builder()

    def parameter(name: str, shape: tuple[int, ...]) -> str:
        value = random.standard_normal(shape).astype(np.float32)
        return b.add_tensor(name, TensorType(shape), Role.PARAMETER, value)

    results = [b.add_tensor("input", TensorType((1, 4)), Role.INPUT)]
    for number, (image, weight, attributes) in enumerate(shapes):
        operands = [parameter(f"image{number}", image), parameter(f"weight{number}", weight)]
        if number % 2:
            operands.append(parameter(f"bias{number}", weight[:1]))
        y = b.emit1("Conv", operands, attributes)
        results.append(b.emit1("Reshape", [y], {"shape": (1, b.type(y).elements)}))
    y = b.emit1("Concat", results, {"axis": 1}, hint="y")
    return Graph("odd", b.tensors, tuple(b.operators), ("input",), (y,), b.values)


@pytest.mark.parametrize(("board", "numerics"), [("mps2-an386", "portable"), ("mps3-an547", "fast")])
def test_odd_convolutions_are_those_of_numpy(
    board: str, numerics: codegen.Numerics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_run, "TIMEOUT_S", TIMEOUT_S)
    monkeypatch.setattr(_packing, "SHARE", 0.25)  # workspaces for small operands too
    shapes = [*KNOWN, *random_shapes(SHAPES)]
    graph = network(shapes)
    rate = graph.tensors[graph.outputs[0]].type.elements / 2  # of a mean of squares: gradients are not small
    options = TrainingOptions(loss="mse", learning_rate=rate, fusion=False)
    step = passes.run_standard(training.build(graph, options))
    problem = build_problem(step, load_profile("host"), budget_bytes=1 << 40)
    schedule = keep_all(problem)
    program = codegen.lower(step, problem, schedule, pack(problem, schedule))
    symbols = [i.symbol for i in program.instructions if isinstance(i, Call)]
    assert sum(symbol.endswith("_packed") for symbol in symbols) >= len(shapes)
    assert sum(symbol.startswith("poetc_op_depthwise") for symbol in symbols) >= len(shapes) // 2

    batch = sample_inputs(program, 0)
    interpreter = Interpreter(program, step.values)
    interpreter.run(batch)
    run = execute(build_firmware(program, step.values, board, tmp_path, numerics=numerics), [batch])
    for number, shape in enumerate(shapes):
        for name in (f"image{number}", f"weight{number}", f"bias{number}"):
            if name in graph.values:
                gradient = np.asarray(graph.values[name]) - interpreter.state(name)
                off = np.abs(run.state[name] - interpreter.state(name)).max()
                assert off < 4e-6 * np.abs(gradient).max() + 2e-6, f"the gradient of {name}: {shape}"
