"""Instructions of the products of a decoder on a Cortex-A72, with weights of 32 and of 4 bits.

    python -m bench.decoder_products [--rows 1 4 16 64 128 256] [--board aarch64] [--device rpi4]

A product has the shape of an inner layer of SmolLM2-135M: rows of 576 numbers become rows of 1,536. Its weights are
frozen. The step counts the product of the forward pass and the gradient of its input. QEMU counts instructions of the
code for Linux, in fused numerics. That does not depend on how busy this machine is; they are no cycles.

With --device the cells are times by that profile: instructions by its cycles, and the bytes of the weights by its waits
for memory. A decoder reads each matrix once a pass, from memory. Waits are hidden behind instructions in whole or not
at all, so the ratio of int4 to f32 has two values.
docs/results/language-models.md has the table.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper, save

from bench._command import Rows, main
from poetc import measure
from poetc.commands.requests import ModelRequest, SolveRequest, read_problem
from poetc.devices import DeviceProfile, load_profile
from poetc.ops import bind, spec
from poetc.program import lower, sample_inputs
from poetc.scheduling import keep_all, pack
from poetc.training import TrainingOptions

SMALL, WIDTH, INNER = 8, 576, 1536
FORMS = ("f32", "int8", "int4")
TIMES = ("f32", "its waits", "int4", "its waits", "int4 over f32", "waits hidden")


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


class Count(NamedTuple):
    """A multiply-accumulate's."""

    instructions: float
    bytes: float  # of the weights


def counted(path: Path, form: str, board: str, folder: Path) -> tuple[Count, Count]:
    """Of the inner product and of the gradient of its input."""
    options = TrainingOptions(loss="mse", train="first", frozen=form, learning_rate=0.01)
    request = SolveRequest(model=ModelRequest(source=path, device="host", training=options))
    _, step, _, problem = read_problem(request)
    assert step is not None
    schedule = keep_all(problem)
    program = lower(step, problem, schedule, pack(problem, schedule))
    firmware = measure.build_firmware(program, step.values, board, folder, numerics="fused")
    run = measure.execute(firmware, [sample_inputs(program, 0)])
    operators, results = {op.name: op for op in step.operators}, {t for op in step.operators for t in op.outputs}
    counts = {}
    for item in run.counts:
        op = operators[item.name]
        if macs := spec(op.kind).work(bind(op, step.tensors)).macs * item.times:
            read = sum(step.tensors[t].size_bytes for t in op.inputs if t not in results)
            counts[item.name] = Count(item.instructions / macs, read / macs)
    return counts["MatMul(y)"], counts["MatMul(h.grad)"]


def table(
    *, rows: tuple[int, ...] = (1, 4, 16, 64, 128, 256), board: str = "aarch64", device: str | None = None
) -> Rows:
    what = (*FORMS, "int4 over f32") if device is None else TIMES
    yield "rows", *(f"{product}, {name}" for product in ("forward", "gradient") for name in what)
    for count in rows:
        with tempfile.TemporaryDirectory(prefix="poetc-products-") as scratch:
            save(layer(count), path := Path(scratch) / "layer.onnx")
            forms = [counted(path, form, board, Path(scratch) / form) for form in FORMS]
        products = zip(*forms, strict=True)
        if device is None:
            yield count, *(cell for each in products for cell in _cells(*(c.instructions for c in each)))
        else:
            yield count, *(cell for whole, _, coded in products for cell in _times(whole, coded, load_profile(device)))


def _cells(whole: float, *coded: float) -> tuple[str, ...]:
    return *(f"{each:.3f}" for each in (whole, *coded)), f"{coded[-1] / whole:.2f}"


def _times(whole: Count, coded: Count, profile: DeviceProfile) -> tuple[str, ...]:
    """Nanoseconds a multiply-accumulate."""
    cycles = profile.compute.cycles
    assert cycles is not None and cycles.far_ns_per_byte is not None and profile.cpu.clock_hz is not None
    one_ns = cycles.per_instruction["gemm"].value / profile.cpu.clock_hz.value * 1e9
    far_ns = cycles.far_ns_per_byte.value
    parts = [(c.instructions * one_ns, c.bytes * far_ns) for c in (whole, coded)]
    apart, hidden = (how(parts[1]) / how(parts[0]) for how in (sum, max))
    return *(f"{ns:.3f}" for part in parts for ns in part), f"{apart:.2f}", f"{hidden:.2f}"


if __name__ == "__main__":
    main(table)
