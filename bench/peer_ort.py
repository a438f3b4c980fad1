"""onnxruntime-training's side of bench/kernels.py: `peer_ort.py prepare MODEL FOLDER` makes the training
graphs, `peer_ort.py run FOLDER BATCH CLASSES` then works as peer_torch.py does."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
from memory import peak_bytes


def prepare(source: str, folder: str) -> None:
    import onnx
    from onnxruntime.training import artifacts

    model = onnx.load(source)
    value = model.graph.input[0].type.tensor_type
    shape, is_text = [d.dim_value for d in value.shape.dim], value.elem_type == onnx.TensorProto.INT64
    Path(folder, "input.json").write_text(json.dumps([shape, is_text]))
    weights = [w.name for w in model.graph.initializer]
    adapters = [w for w in weights if ".lora_" in w]
    trained = adapters or [w for w in weights if w.endswith((".weight", ".bias")) or w.startswith("onnx::MatMul")]
    artifacts.generate_artifacts(
        model,
        requires_grad=trained,
        frozen_params=[w for w in weights if w not in trained],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=folder,
    )


def run(folder: Path, batch: int, classes: int) -> None:
    from onnxruntime.training import api  # which imports PyTorch

    shape, is_text = json.loads((folder / "input.json").read_text())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    options.inter_op_num_threads = 1
    state = api.CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = api.Module(str(folder / "training_model.onnx"), state, None, "cpu", options)
    optimizer = api.Optimizer(str(folder / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(1e-4)
    module.train()
    random = np.random.default_rng(0)
    x = random.integers(0, classes, shape) if is_text else random.standard_normal(shape).astype(np.float32)
    target = random.integers(0, classes, shape[1] if is_text else batch)
    clock = time.process_time if threads == 1 else time.perf_counter
    print("ready", flush=True)
    for line in sys.stdin:
        start = clock()
        for _ in range(int(line)):
            module(x, target)
            optimizer.step()
            module.lazy_reset_grad()
        elapsed = 1e3 * (clock() - start) / int(line)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(elapsed, used << 10, flush=True)


def memory(folder: Path, data: str, rows: int) -> None:
    """Train with SGD on all of the data; print the peaks of resident memory at the end and after imports, in bytes."""
    from onnxruntime.training import api  # which imports PyTorch

    before = peak_bytes()
    arrays = np.load(data)
    x, target = arrays["x"], arrays["target"].astype(np.int64)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    state = api.CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = api.Module(str(folder / "training_model.onnx"), state, None, "cpu", options)
    optimizer = api.Optimizer(str(folder / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(0.01)
    module.train()
    for first in range(0, len(x), rows):
        module(x[first : first + rows], target[first : first + rows])
        optimizer.step()
        module.lazy_reset_grad()
    print(peak_bytes(), before)


def demo(folder: Path) -> None:
    """Train a model of bench/demos.py with AdamW, and print the loss of every step."""
    import onnx
    from onnxruntime.training import api, artifacts

    model, task = onnx.load(folder / "model.onnx"), json.loads((folder / "task.json").read_text())
    weights = [w.name for w in model.graph.initializer]
    trained = [name for name in task["trained"] if name in weights]
    artifacts.generate_artifacts(
        model,
        requires_grad=trained,
        frozen_params=[w for w in weights if w not in trained],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=str(folder),
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    state = api.CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = api.Module(str(folder / "training_model.onnx"), state, None, "cpu", options)
    optimizer = api.Optimizer(str(folder / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(task["rate"])
    module.train()
    batches = np.load(folder / "batches.npz")
    for rows in zip(*(batches[name] for name in batches.files), strict=True):
        loss = module(*rows)
        optimizer.step()
        module.lazy_reset_grad()
        print("loss", float(loss if np.ndim(loss) == 0 else loss[0]), flush=True)


def main() -> None:
    if sys.argv[1] == "demo":
        demo(Path(sys.argv[2]))
    elif sys.argv[1] == "memory":
        memory(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    elif sys.argv[1] == "prepare":
        prepare(sys.argv[2], sys.argv[3])
    else:
        run(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))


main()
