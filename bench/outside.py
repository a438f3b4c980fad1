"""Outside model files as the benchmarks and the conformance tests take them."""

from __future__ import annotations

from pathlib import Path

OPEN_ROWS = 2


def open_batch(path: Path) -> int | None:
    """Two rows where a file leaves the batch open, None where its batch is fixed."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    shapes = [info.type.tensor_type.shape for info in graph.input if info.name not in weights]
    is_open = any(shape.dim and not shape.dim[0].HasField("dim_value") for shape in shapes)
    return OPEN_ROWS if is_open else None
