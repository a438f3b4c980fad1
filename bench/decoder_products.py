"""Instructions of the products of a decoder on a Cortex-A72, with weights of 32 and of 4 bits.

    python -m bench.decoder_products [--rows 1 4 16 64 128 256] [--board aarch64]

A product has the shape of an inner layer of SmolLM2-135M: rows of 576 numbers become rows of 1,536. Its weights are
frozen. The step counts the product of the forward pass and the gradient of its input. QEMU counts instructions of the
code for Linux, in fused numerics. That does not depend on how busy this machine is; they are no cycles.
docs/results/language-models.md has the table.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper, save

from bench._command import Rows, main
from poetc import measure
from poetc.commands.requests import ModelRequest, SolveRequest, read_problem
from poetc.ops import bind, spec
from poetc.program import lower, sample_inputs
from poetc.scheduling import keep_all, pack
from poetc.training import TrainingOptions

SMALL, WIDTH, INNER = 8, 576, 1536
FORMS = ("f32", "int8", "int4")


def layer(rows: int) -> ModelProto:
    """A small trained product, a frozen one behind it, and a mean squared error."""
    shapes = {"x": (rows, SMALL), "y": (rows, INNER)}
    inputs, outputs = ([helper.make_tensor_value_info(n, TensorProto.FLOAT, shapes[n])] for n in ("x", "y"))
    draw = np.random.default_rng(0)
    held = {"first": draw.standard_normal((SMALL, WIDTH)), "inner": draw.standard_normal((WIDTH, INNER)) / 24}
    nodes = [helper.make_node("MatMul", [a, b], [c], c) for a, b, c in (("x", "first", "h"), ("h", "inner", "y"))]
    graph = helper.make_graph(
        nodes, "layer", inputs, outputs, [numpy_helper.from_array(v.astype(np.float32), n) for n, v in held.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def counted(path: Path, form: str, board: str, folder: Path) -> tuple[float, float]:
    """Instructions a multiply-accumulate of the inner product and of the gradient of its input."""
    options = TrainingOptions(loss="mse", train="first", frozen=form, learning_rate=0.01)
    request = SolveRequest(model=ModelRequest(source=path, device="host", training=options))
    _, step, _, problem = read_problem(request)
    assert step is not None
    schedule = keep_all(problem)
    program = lower(step, problem, schedule, pack(problem, schedule))
    firmware = measure.build_firmware(program, step.values, board, folder, numerics="fused")
    run = measure.execute(firmware, [sample_inputs(program, 0)])
    operators, found = {op.name: op for op in step.operators}, {}
    for item in run.counts:
        macs = spec(operators[item.name].kind).work(bind(operators[item.name], step.tensors)).macs * item.times
        found[item.name] = item.instructions / macs if macs else 0.0
    return found["MatMul(y)"], found["MatMul(h.grad)"]


def table(*, rows: tuple[int, ...] = (1, 4, 16, 64, 128, 256), board: str = "aarch64") -> Rows:
    yield "rows", *(f"{what}, {form}" for what in ("forward", "gradient") for form in (*FORMS, "int4 over f32"))
    for count in rows:
        with tempfile.TemporaryDirectory(prefix="poetc-products-") as scratch:
            save(layer(count), path := Path(scratch) / "layer.onnx")
            found = [counted(path, form, board, Path(scratch) / form) for form in FORMS]
        yield count, *(cell for each in zip(*found, strict=True) for cell in _cells(*each))


def _cells(whole: float, *coded: float) -> tuple[str, ...]:
    return *(f"{each:.3f}" for each in (whole, *coded)), f"{coded[-1] / whole:.2f}"


if __name__ == "__main__":
    main(table)
