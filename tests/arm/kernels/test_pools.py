"""The maximum of windows of 2 x 2, which Cortex-M compares in vectors or without branches, against numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from poetc import emit
from poetc.boards import BOARDS
from poetc.graph import Graph, Role, TensorType
from poetc.measure import build_firmware, execute, rebuild
from poetc.ops import Builder
from poetc.program import Interpreter, sample_inputs
from tests.arm.kernels.test_odd_convolutions import compiled, symbols_of

# Zeros of both signs and numbers that vectors of Helium take for zeros; what is no number.
VALUES = {
    "ordinary": (-2.0, -1.0, 1.0, 2.0, 3.0),
    "subnormal": (0.0, -0.0, 1e-40, 2e-40, -1e-40),
    "nan": (np.nan, -1.0, 1.0, np.inf, -np.inf),
}


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize(("board", "numerics"), [("mps2-an386", "separate"), ("mps3-an547", "fast")])
@pytest.mark.long_but("mps2-an386-separate-nan")
def test_the_first_of_the_largest_is_taken(board: str, numerics: emit.Numerics, values: str, tmp_path: Path) -> None:
    """Where the gradient goes: planes of which one alone has such values, rows that no vectors fill, few columns."""
    random = np.random.default_rng(22)
    b = Builder()
    results = [b.add_tensor("input", TensorType((1, 4)), Role.INPUT)]
    images = {}
    for number, shape in enumerate(((1, 3, 6, 22), (1, 2, 5, 13), (1, 2, 4, 6))):
        image = random.choice(np.float32(VALUES["ordinary"]), shape)
        image[:, 1] = random.choice(np.float32(VALUES[values]), shape[2:])
        name = f"image{number}"
        images[name] = image
        x = b.add_tensor(name, TensorType(shape), Role.PARAMETER, image)
        y = b.emit1("MaxPool", [x], {"kernel": (2, 2), "strides": (2, 2)})
        results.append(b.emit1("Reshape", [y], {"shape": (1, b.type(y).elements)}))
    y = b.emit1("Concat", results, {"axis": 1}, hint="y")
    graph = Graph("pools", b.tensors, tuple(b.operators), ("input",), (y,), b.values)
    step, program = compiled(graph, b.type(y).elements / 2)
    assert symbols_of(program).count("poetc_op_max_pool") == 3
    batch = sample_inputs(program, 0)
    interpreter = Interpreter(program, step.values)
    interpreter.run(batch)
    firmware = build_firmware(program, step.values, board, tmp_path, numerics=numerics)
    if values == "nan":  # training goes on: what is compared is where the gradient went
        session = firmware.run_directory.parent / "src" / "runtime" / "src" / "poetc_session.c"
        text = session.read_text()
        assert text.count("if (!err && !poetc_is_finite(value))") == 1
        session.write_text(text.replace("if (!err && !poetc_is_finite(value))", "if (0)"))
        firmware = rebuild(BOARDS[board], program, step.values, tmp_path)
    run = execute(firmware, [batch])
    for name in images:
        np.testing.assert_allclose(
            run.state[name], interpreter.state(name), rtol=1e-6, atol=1e-6 if numerics == "fast" else 1e-30
        )
