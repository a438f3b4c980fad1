"""Saved tensors in 16 bits in a step whose operands stream: the bits of its keep-all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import poetc
from poetc.training import TrainingOptions

LAYERS, CHANNELS, SIDE = 8, 24, 12


def _deep(path: Path) -> Path:
    """Convolutions whose sigmoids are saved, 14 kB each, before a dense layer of 442 kB."""
    random = np.random.default_rng(0)
    nodes, shapes, last = [], {}, "x"
    for k in range(LAYERS):
        nodes += [
            helper.make_node("Conv", [last, f"w{k}"], [f"c{k}"], pads=[1, 1, 1, 1]),
            helper.make_node("Sigmoid", [f"c{k}"], [f"s{k}"]),
        ]
        shapes[f"w{k}"] = (CHANNELS, CHANNELS if k else 2, 3, 3)
        last = f"s{k}"
    nodes += [
        helper.make_node("Flatten", [last], ["f"]),
        helper.make_node("Gemm", ["f", "dense"], ["d"], transB=1),
        helper.make_node("Sigmoid", ["d"], ["e"]),
        helper.make_node("Gemm", ["e", "head"], ["y"], transB=1),
    ]
    shapes |= {"dense": (32, CHANNELS * SIDE * SIDE), "head": (5, 32)}
    weights = [
        numpy_helper.from_array((0.2 * random.standard_normal(shape)).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 2, SIDE, SIDE]), ("y", [1, 5]))
    ]
    graph = helper.make_graph(nodes, "deep", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def test_tensors_are_saved_in_16_bits_while_a_weight_streams(tmp_path: Path) -> None:
    path, energies = _deep(tmp_path / "deep.onnx"), []
    for saved in ("exact", "f16"):
        loaded = poetc.load(path, training=TrainingOptions(saved=saved))
        solution = loaded.solve(device="nrf52840", budget=110_000, time_limit_s=10)
        kinds = [op.kind for op in solution.problem.operators]
        assert any(op.cut for op in solution.problem.operators)
        assert ("Encode" in kinds) == (saved == "f16")
        found = solution.validate()  # raises CheckFailed
        assert found["bit_identical_to_keep_all"] and found["peak_measured_bytes"] == found["peak_predicted_bytes"]
        energies.append(solution.summary["energy_pj"])
    assert energies[1] < energies[0]
