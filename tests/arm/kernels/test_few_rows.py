"""Products of few rows or terms, of odd sizes, and the weights that they move, on Cortex-M: against numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from poetc import passes, training
from poetc.boards import Numerics
from poetc.devices import build_problem, load_profile
from poetc.graph import Graph, Role, TensorType
from poetc.measure import build_firmware, execute
from poetc.ops import Builder
from poetc.program import Call, Interpreter, lower, sample_inputs
from poetc.scheduling import keep_all, pack
from poetc.training import TrainingOptions

# Rows of the batch, terms, results: ends of vectors, of blocks of rows and columns, of sums of 64 terms; rows of fewer
# than four.
SIZES = (
    (1, 33, 20),
    (1, 2, 5),
    (1, 3, 131),
    (1, 28, 7),
    (1, 61, 4),
    (1, 160, 10),
    (1, 1104, 9),
    (2, 7, 3),
    (2, 3, 9),
    (3, 30, 13),
    (5, 2, 1),
    (5, 9, 70),
    (6, 130, 9),
    (7, 66, 6),
    (8, 21, 10),
    (13, 5, 11),
)


def layers() -> Graph:
    """Each size with weights as they are stored by rows of results, and by rows of terms."""
    random = np.random.default_rng(30)
    b = Builder()

    def parameter(name: str, shape: tuple[int, ...]) -> str:
        return b.add_tensor(name, TensorType(shape), Role.PARAMETER, random.standard_normal(shape).astype(np.float32))

    results = [b.add_tensor("input", TensorType((1, 4)), Role.INPUT)]
    for number, (rows, terms, columns) in enumerate(SIZES):
        for turned in (True, False):
            name = f"{number}{'t' if turned else ''}"
            x = b.emit1("Relu", [parameter(f"x{name}", (rows, terms))])
            weight = parameter(f"weight{name}", (columns, terms) if turned else (terms, columns))
            operands = [x, weight, *([parameter(f"bias{name}", (columns,))] if number % 2 else [])]
            y = b.emit1("MatMul", operands, {"trans_a": False, "trans_b": turned, "alpha": 1.0})
            results.append(b.emit1("Reshape", [y], {"shape": (1, b.type(y).elements)}))
    y = b.emit1("Concat", results, {"axis": 1}, hint="y")
    return Graph("layers", b.tensors, tuple(b.operators), ("input",), (y,), b.values)


@pytest.mark.parametrize(("board", "numerics"), [("mps3-an547", "fast"), ("mps2-an386", "separate")])
@pytest.mark.parametrize(("optimizer", "moving"), [("sgd", len(SIZES)), ("momentum", 0)])
@pytest.mark.long_but("sgd-16-mps2-an386-separate")
def test_products_of_few_rows_are_those_of_numpy(
    optimizer: str, moving: int, board: str, numerics: Numerics, tmp_path: Path
) -> None:
    graph = layers()
    rate = graph.tensors[graph.outputs[0]].type.elements / 2  # of a mean of squares: gradients are not small
    options = TrainingOptions(loss="mse", optimizer=optimizer, learning_rate=rate)
    step = passes.run_standard(training.build(graph, options))
    problem = build_problem(step, load_profile("host"), budget_bytes=1 << 40)
    schedule = keep_all(problem)
    program = lower(step, problem, schedule, pack(problem, schedule))
    symbols = [i.symbol for i in program.instructions if isinstance(i, Call)]
    assert symbols.count("poetc_op_matmul_sgd") >= moving
    batch = sample_inputs(program, 0)
    interpreter = Interpreter(program, step.values)
    interpreter.run(batch)
    run = execute(build_firmware(program, step.values, board, tmp_path, numerics=numerics), [batch])
    for name, value in graph.values.items():
        gradient = np.asarray(value) - interpreter.state(name)
        off = np.abs(run.state[name] - interpreter.state(name)).max()
        assert off <= 4e-6 * np.abs(gradient).max() + 2e-6, name
