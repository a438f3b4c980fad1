"""ONNX files that are written tensor by tensor have protobuf's own bytes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from poetc.frontend import _serialized
from tests.support.cases import CASES

FILES = sorted(CASES.glob("*.onnx"))


@pytest.mark.parametrize("first", range(10))
def test_the_bytes_are_those_of_protobuf(first: int, tmp_path: Path) -> None:
    for path in FILES[first::10]:
        model = onnx.load(path, load_external_data=False)
        helper.set_model_props(model, {"author": "Ada"})
        _serialized.write_model(model, tmp_path / "m.onnx")
        assert (tmp_path / "m.onnx").read_bytes() == model.SerializeToString(), path


def _model() -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.zeros((256, 1024), np.float32), f"w{k}") for k in range(16)]
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, [256, 1024])
    nodes = [helper.make_node("Sum", [t.name for t in tensors], ["y"])]
    return helper.make_model(helper.make_graph(nodes, "sums", [], [value], tensors), producer_name="poetc")


def test_one_tensor_is_copied_at_a_time(tmp_path: Path) -> None:
    model = _model()
    tracemalloc.start()
    _serialized.write_model(model, tmp_path / "m.onnx")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "m.onnx").read_bytes() == model.SerializeToString()
    assert peak_bytes < 4 << 20


def test_a_message_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model()
    monkeypatch.setattr(_serialized, "MOST_BYTES", model.ByteSize())
    _serialized.write_model(model, tmp_path / "m.onnx")
    monkeypatch.setattr(_serialized, "MOST_BYTES", model.ByteSize() - 1)
    with pytest.raises(ValueError, match="more than the bytes"):
        _serialized.write_model(model, tmp_path / "m.onnx")


def test_fields_of_a_newer_onnx_stay(tmp_path: Path) -> None:
    """A number, eight and four bytes, and a text, of the model and of its graph."""
    fields = b"\xc0\x3e\x96\x01" + b"\xc9\x3e12345678" + b"\xd5\x3e1234" + b"\xda\x3e\x03new"
    model = _model()
    model.graph.MergeFromString(fields)
    model = onnx.ModelProto.FromString(model.SerializeToString() + fields)
    _serialized.write_model(model, tmp_path / "m.onnx")
    written = (tmp_path / "m.onnx").read_bytes()
    assert written.count(fields) == 2
    assert written == model.SerializeToString()
