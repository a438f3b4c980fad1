"""Outside models are written back: untrained they compute what they did, trained what `infer` computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from poetc import frontend, passes, training
from poetc.artifact import Artifact
from poetc.commands.export import export_onnx, initial_weights
from poetc.graph import Role
from poetc.training import TrainingOptions
from tests.commands.trained import answers
from tests.conformance.support import files, open_batch
from tests.frontend.support import evaluate

pytestmark = pytest.mark.conformance

NAMES = ("lenet5", "ds_cnn_kws", "gru_tagger", "lstm_har", "nanogpt_tiny", "mobilenetv2_w035_96", "mlperf", "yunet")
# What is left out drops at random, or takes the batch's statistics, when onnxruntime runs it.
ALL = [
    path
    for folder in ("zoo", "thirdparty")
    for path in files(folder, "*.onnx")
    if path.name.startswith(NAMES) and "train" not in path.name
]


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_round_trip(path: Path, tmp_path: Path) -> None:
    given = onnx.load(path, load_external_data=False).graph
    absent = any(t.data_location for t in given.initializer)
    batch = open_batch(path)
    seed = 0 if absent else None
    graph = frontend.load(path, batch=batch, random_weights=seed)
    step = passes.run_standard(training.build(graph, TrainingOptions(random_weights=seed)))
    source = {"path": str(path), "batch": batch, "random_weights": seed}
    solved = Artifact(
        summary={"model": str(path), "source": source},
        problem=None,  # type: ignore[arg-type]
        schedule=None,  # type: ignore[arg-type]
        plan=None,  # type: ignore[arg-type]
        graph=step,
        inference=graph,
    )
    random = np.random.default_rng(0)
    inputs = {}
    for info in given.input:
        if info.name in graph.inputs:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
            shape = graph.tensors[info.name].shape
            is_float = dtype.kind == "f"
            inputs[info.name] = (random.standard_normal(shape) if is_float else random.integers(0, 2, shape)).astype(
                dtype
            )
    start = initial_weights(solved)
    export_onnx(solved, start, tmp_path / "untrained.onnx")
    if not absent:
        before, after = answers(path, inputs), answers(tmp_path / "untrained.onnx", inputs)
        assert all(np.array_equal(before[name], after[name]) for name in before)
    state = {}
    for name, array in start.items():
        moved = array + 0.05 * array.std() * random.standard_normal(array.shape)
        if graph.tensors[name].role is Role.STATISTIC and (array > 0).all():
            moved = np.abs(moved)
        state[name] = moved.astype(np.float32)
    export_onnx(solved, state, tmp_path / "trained.onnx")
    expected = evaluate(replace(graph, values={**graph.values, **state}), inputs)
    found = answers(tmp_path / "trained.onnx", inputs)
    for name, array in expected.items():
        scale = max(1.0, float(np.abs(array).max()))
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5 * scale, err_msg=name)
