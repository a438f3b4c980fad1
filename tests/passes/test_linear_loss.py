"""A product and its cross-entropy as one operator: the same bits, with the logits of a few rows in RAM."""

from __future__ import annotations

import numpy as np
import pytest

from poetc.graph import DType, Graph, Role, TensorType, TrainingGraph
from poetc.ops import Builder, bind, spec
from poetc.passes import _linear_loss, run_standard
from poetc.training import TrainingOptions, build
from tests.passes.networks import kinds, random_batches, trained
from tests.support.kernels import library, run_kernel, scalar_library, wide_library

ROWS, FEATURES, CLASSES = (2, 21), 24, 70


@pytest.fixture(autouse=True)
def however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_linear_loss, "LEAST_BYTES", 0)


def decoder(turned: bool = False, bias: bool = False, rows: tuple[int, int] = ROWS) -> Graph:
    """Rows of a table, a norm, a product with the table or a head."""
    draw, b = np.random.default_rng(2), Builder()

    def parameter(name: str, *shape: int) -> str:
        return b.add_tensor(name, TensorType(shape), Role.PARAMETER, draw.standard_normal(shape).astype(np.float32))

    tokens = b.add_tensor("tokens", TensorType(rows, DType.I32), Role.INPUT)
    table = parameter("table", CLASSES, FEATURES)
    read = b.emit1("Gather", [table, tokens], {"axis": 0})
    x = b.emit("RmsNorm", [read, parameter("scale", FEATURES)], {"axis": 2, "epsilon": 1e-5})[0]
    head = table if turned else parameter("head", FEATURES, CLASSES)
    inputs = [x, head, *([parameter("bias", CLASSES)] if bias else [])]
    y = b.emit1("MatMul", inputs, {"trans_b": turned, "alpha": 0.25})
    return Graph("decoder", b.tensors, tuple(b.operators), ("tokens",), (y,), b.values)


def steps(graph: Graph, part: Graph | None = None, **options: object) -> list[TrainingGraph]:
    """Without fusion and with it."""
    return [
        run_standard(build(graph, TrainingOptions(train="scale", learning_rate=0.05, fusion=f, **options), part))  # type: ignore[arg-type]
        for f in (False, True)
    ]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_frozen_head_keeps_the_bits(turned: bool, bias: bool) -> None:
    apart, joined = steps(decoder(turned, bias), label_smoothing=0.1 * bias, ignore_index=3 if turned else None)
    assert kinds(joined)["LinearCrossEntropy"] == 1
    assert not {"CrossEntropy", "CrossEntropyGrad", "MatMul"} & set(kinds(joined))
    batches = random_batches(apart, 3, seed=5, below=CLASSES)
    assert trained(joined, batches) == trained(apart, batches)


def test_micro_batches_keep_the_bits() -> None:
    apart, joined = steps(decoder(rows=(4, 6)), decoder(rows=(2, 6)), micro_batches=2, ignore_index=1)
    assert kinds(joined)["LinearCrossEntropy"] == 2
    batches = random_batches(apart, 2, seed=3, below=CLASSES)
    assert trained(joined, batches) == trained(apart, batches)


def test_any_number_of_rows_at_a_time_has_the_same_bits() -> None:
    step = steps(decoder(bias=True))[1]
    op = next(o for o in step.operators if o.kind == "LinearCrossEntropy")
    kernels = spec(op.kind).kernels(bind(op, step.tensors))
    sizes = [k.workspace_bytes for k in kernels]
    assert sizes == sorted(set(sizes), reverse=True)
    assert sizes[0] - sizes[-2] == 4 * (42 - 4) * CLASSES, "the last one has less for its products"
    draw = np.random.default_rng(1)
    x, w, bias = (draw.standard_normal(step.tensors[t].shape).astype(np.float32) for t in op.inputs[:3])
    target = draw.integers(0, CLASSES, ROWS).astype(np.int32)
    for lib in (library(), scalar_library(), wide_library()):
        made = [run_kernel(op.kind, op.attributes, [x, w, bias, target], lib=lib, kernel=k) for k in kernels]
        assert len({tuple(y.tobytes() for y in results) for results in made}) == 1


@pytest.mark.parametrize(
    ("graph", "options"),
    [
        (decoder(), {"train": "head"}),
        (decoder(turned=True), {"train": "table"}),
        (decoder(), {"class_weights": (1.0,) * CLASSES}),
        (decoder(), {"output_logits": True}),
        (decoder(bias=True), {"train": "bias"}),
    ],
)
def test_what_reads_the_logits_keeps_them(graph: Graph, options: dict[str, object]) -> None:
    given = {"train": "scale", **options}
    step = run_standard(build(graph, TrainingOptions(**given)))  # type: ignore[arg-type]
    assert "LinearCrossEntropy" not in kinds(step)
