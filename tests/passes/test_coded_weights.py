"""Frozen weights that stay coded: the numbers of the decoded matrix, in a fraction of the bytes."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_node

from poetc.errors import UsageError
from poetc.frontend import load
from poetc.graph import Coded, DType, Graph, Role, TrainingGraph, _coded, encode, materialize
from poetc.ops import bind, spec
from poetc.passes import _linear_loss, code_model, run_standard
from poetc.passes._coded_weights import _Coding
from poetc.training import TrainingOptions, build
from tests.frontend.support import make, save
from tests.frontend.test_group_query import packed, with_domains
from tests.passes.networks import kinds, random_batches, trained
from tests.passes.test_linear_loss import CLASSES, decoder

FORMS = ("int4", "int8", "f16", "bf16")


def step_of(graph: Graph, **options: object) -> TrainingGraph:
    given = {"train": "scale", "learning_rate": 0.05, **options}
    return run_standard(build(graph, TrainingOptions(**given)))  # type: ignore[arg-type]


def coded(graph: Graph, name: str, form: str) -> Graph:
    """The graph whose file holds a matrix in that form."""
    codes = encode(np.asarray(graph.values[name]), form, 16)
    return replace(graph, values={**graph.values, name: codes})


@pytest.mark.parametrize(
    ("turned", "form", "joined"),  # every pair of two of them
    [(turned, form, turned == (k % 2 == 0)) for turned in (False, True) for k, form in enumerate(FORMS)],
)
def test_codes_stand_for_a_matrix(turned: bool, form: str, joined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head lies across the terms of its product, a table along them."""
    monkeypatch.setattr(_linear_loss, "LEAST_BYTES", 0 if joined else 1 << 30)
    graph = coded(decoder(turned), "table" if turned else "head", form)
    stays, floats = step_of(graph), step_of(graph, frozen="f32")
    assert ("LinearCrossEntropy" in kinds(stays)) == joined
    assert kinds(stays)["MatMulCoded"] == (0 if joined else 2)
    assert kinds(stays)["GatherCoded"] == turned
    assert not any(isinstance(v, Coded) for step in (stays, floats) for v in step.values.values())
    batches = random_batches(floats, 3, seed=5, below=CLASSES)
    losses, state = trained(stays, batches)
    expected, others = trained(floats, batches)
    assert losses == pytest.approx(expected, rel=2e-6)
    moved, same = (np.frombuffer(s["scale"], np.float32) for s in (state, others))
    np.testing.assert_allclose(moved, same, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_floats_are_rounded_when_asked(form: str) -> None:
    graph = decoder(turned=True)
    step = step_of(graph, frozen=form)
    frozen_bytes = sum(t.size_bytes for t in step.tensors.values() if t.role is Role.CONSTANT and t.name in step.values)
    whole = graph.tensors["table"].size_bytes
    assert frozen_bytes < whole * {"int4": 0.2, "int8": 0.33}.get(form, 0.51) + 16
    (note,) = [n for n in step.notes if "frozen weights stay coded" in n]
    error = float(note.split("changes them by ")[1].split(" ")[0])
    assert error < {"int4": 12, "int8": 0.8, "f16": 0.03, "bf16": 0.3}[form]
    batches = random_batches(step, 2, seed=5, below=CLASSES)
    losses, exact = trained(step, batches)[0], trained(step_of(graph), batches)[0]
    assert losses == pytest.approx(exact, rel=0.2 if form == "int4" else 0.02)
    assert losses != exact


def test_trained_weights_are_floats() -> None:
    graph = coded(decoder(turned=True), "table", "int8")
    step = step_of(graph, train="table")
    assert not {"GatherCoded", "MatMulCoded"} & set(kinds(step))
    np.testing.assert_array_equal(step.values["table"], materialize(graph.values["table"], graph.tensors["table"].type))


def test_what_else_reads_a_matrix_reads_floats() -> None:
    """Columns of a table lie across its rows."""
    graph = coded(decoder(), "table", "int8")
    turned = [replace(o, attributes={"axis": 1}) if o.kind == "Gather" else o for o in graph.operators]
    coding = _Coding(build(graph, TrainingOptions(train="scale")), "as-is")
    assert [coding._reads(o, "table") for o in (graph.operators[0], turned[0])] == [True, False]


def outputs_of(graph: Graph, ids: np.ndarray[Any, np.dtype[np.int32]]) -> np.ndarray[Any, np.dtype[Any]]:
    """The first output, in numpy."""
    held: dict[str, Any] = {n: materialize(v, graph.tensors[n].type) for n, v in graph.values.items()}
    held[graph.inputs[0]] = ids
    for op in graph.operators:
        results = spec(op.kind).evaluate(bind(op, graph.tensors), [held[t] for t in op.inputs])
        held |= dict(zip(op.outputs, results, strict=True))
    return np.asarray(held[graph.outputs[0]])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("is_filed", [False, True])
def test_predictions_share_the_codes_of_the_step(form: str, turned: bool, is_filed: bool) -> None:
    """No matrix has floats beside its codes, and outputs are those of the decoded numbers."""
    name = "table" if turned else "head"
    graph = coded(decoder(turned), name, form) if is_filed else decoder(turned)
    step = step_of(graph, frozen="as-is" if is_filed else form)
    model = code_model(graph, step)
    codes = {t for t in step.values if t.endswith(".codes")}
    assert f"{name}.codes" in codes <= set(model.values)
    for operand in codes:
        assert model.values[operand] is step.values[operand]
        assert operand.removesuffix(".codes") not in {*model.values, *model.tensors}
    decoded = dict(graph.values)
    for op in model.operators:
        for operand in (t for t in op.inputs if t in codes):
            of, whole = op.attributes, operand.removesuffix(".codes")
            parts = [model.values.get(f"{whole}.{part}") for part in ("codes", "scales", "zeros")]
            back = Coded(str(of["form"]), (of["rows"], of["depth"]), *_placed(parts, of["block"])).decoded()  # type: ignore[arg-type]
            decoded[whole] = back if back.shape == graph.tensors[whole].shape else back.T
    ids = np.random.default_rng(3).integers(0, CLASSES, graph.tensors[graph.inputs[0]].shape).astype(np.int32)
    expected = outputs_of(replace(graph, values=decoded), ids)
    np.testing.assert_allclose(outputs_of(model, ids), expected, rtol=1e-5, atol=1e-6)


def _placed(parts: list[Any], block: Any) -> tuple[Any, ...]:
    codes, scales, zeros = parts
    return codes, block, scales, zeros


def test_nothing_is_frozen() -> None:
    step = step_of(decoder(), train="all", frozen="int4")
    assert "--frozen int4: no matrix is frozen" in step.notes


def test_integers_have_a_form_of_their_own() -> None:
    with pytest.raises(UsageError, match="--frozen"):
        TrainingOptions(frozen="int4", precision="niti")


def test_codes_of_a_file(tmp_path: Path) -> None:
    """Table and head of 4 bits, tied as the builder of onnxruntime-genai writes them."""
    draw = np.random.default_rng(4)
    width, block, words = 32, 16, 50
    codes, zeros = draw.integers(0, 16, (words, width)), draw.integers(0, 16, (words, width // block))
    scales = draw.uniform(0.02, 0.05, (words, width // block)).astype(np.float32)
    stored, zero = (packed(a.astype(np.uint8), 4) for a in (codes, zeros))
    weights = {"head_Q4": stored.reshape(words, width // block, block // 2), "s": scales, "z": zero.reshape(-1)}
    weights |= {"norm": np.ones(width, np.float32), "flat": np.array([words, width // 2], np.int64), "z2": zero}
    ms = {"domain": "com.microsoft"}
    table = {"bits": 4, "block_size": block, "quantize_axis": 1, "gather_axis": 0, **ms}
    nodes = [
        make_node("Reshape", ["head_Q4", "flat"], ["table"]),
        make_node("GatherBlockQuantized", ["table", "ids", "s", "z2"], ["h"], **table),
        make_node("SimplifiedLayerNormalization", ["h", "norm"], ["n"], axis=-1),
        make_node("MatMulNBits", ["n", "head_Q4", "s", "z"], ["y"], K=width, N=words, bits=4, block_size=block, **ms),
    ]
    path = save(with_domains(make(nodes, {"ids": (TensorProto.INT64, (2, 9))}, ["y"], weights, opset=21)), tmp_path)
    graph = load(path)
    step = step_of(graph, train="norm")
    held = [t for t in step.tensors.values() if t.dtype is DType.U8 and t.name in step.values]
    assert {t.name.removesuffix(".codes") for t in held if t.name.endswith("codes")} <= set(graph.values)
    assert kinds(step)["GatherCoded"] == 1
    found = next(step.values[t.name] for t in held if t.name.endswith("codes"))
    np.testing.assert_array_equal(found, stored.reshape(words, -1))
    batches = random_batches(step, 2, seed=5, below=words)
    expected = trained(step_of(graph, train="norm", frozen="f32"), batches)[0]
    assert trained(step, batches)[0] == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize("form", ["int4", "int8"])
def test_a_table_is_coded_a_few_rows_at_a_time(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the codes of the whole, and without copies of it."""
    values = np.random.default_rng(0).standard_normal((4099, 96)).astype(np.float32)
    whole = encode(values, form)
    monkeypatch.setattr(_coded, "_PART_NUMBERS", 10_000)
    tracemalloc.start()
    parted = encode(values, form)
    of_encoding = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    numbers = parted.decoded()
    of_decoding = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    error = parted.error(values)
    of_error = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert of_encoding < 0.8 * values.nbytes and of_decoding < 1.6 * values.nbytes and of_error < 1.6 * values.nbytes
    exact = np.square(numbers - values, dtype=np.float64).mean() / np.square(values, dtype=np.float64).mean()
    assert 0 < error == pytest.approx(np.sqrt(exact), rel=1e-6)
    assert np.array_equal(whole.codes, parted.codes) and np.array_equal(np.asarray(whole.scales), parted.scales)
    assert np.array_equal(numbers, whole.decoded())
