"""Quantised models that are trained as they are (`--precision qas`): keep-all's peak and the smallest RAM.

    python -m bench.qas DEVICE BATCH SECONDS MODEL...    a table row a float model, which onnxruntime quantises first

Activations are calibrated on random inputs, and weights without numbers get random ones: sizes do not depend on them.
docs/results/integer.md has the tables.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process

from bench.saved import smallest_ram
from poetc.errors import PoetcError
from poetc.training import TrainingOptions

SAMPLES = 4


class _Samples(quantization.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, model: onnx.ModelProto) -> None:
        random = np.random.default_rng(0)
        given = {t.name for t in model.graph.initializer}
        shapes = {
            i.name: [d.dim_value or 1 for d in i.type.tensor_type.shape.dim]
            for i in model.graph.input
            if i.name not in given
        }
        feeds = [{n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()} for _ in range(SAMPLES)]
        self.rest: Iterator[dict[str, Any]] = iter(feeds)

    def get_next(self) -> dict[str, Any] | None:
        return next(self.rest, None)


def quantised(source: Path, folder: Path) -> Path:
    """A QDQ model of `source` in `folder`, batch norms folded, with a scale for each output channel."""
    model = onnx.load(source, load_external_data=False)
    random = np.random.default_rng(1)
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            shape = tuple(tensor.dims)
            numbers = np.abs(random.standard_normal(shape)) / np.sqrt(max(1, np.prod(shape[1:])))
            tensor.CopyFrom(numpy_helper.from_array(numbers.astype(np.float32), tensor.name))
    plain, folded, out = (folder / f"{source.stem}.{name}.onnx" for name in ("plain", "folded", "qdq"))
    onnx.save(model, plain)
    quant_pre_process(plain, folded, skip_symbolic_shape=True)
    quantization.quantize_static(
        folded, out, _Samples(onnx.load(folded)), quant_format=quantization.QuantFormat.QDQ, per_channel=True,
        activation_type=quantization.QuantType.QInt8, weight_type=quantization.QuantType.QInt8,
    )  # fmt: skip
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device")
    parser.add_argument("batch", type=int)
    parser.add_argument("seconds", type=float, help="of search for each model and precision")
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    asked = parser.parse_args()
    device, batch, seconds = asked.device, asked.batch, asked.seconds
    print(f"| {device}, batch {batch} | keep-all f32 | niti | qas | smallest f32 | niti | qas |")
    for source in asked.models:
        with tempfile.TemporaryDirectory() as scratch:
            cells: list[tuple[str, str]] = []
            for precision in ("f32", "niti", "qas"):
                try:
                    path = quantised(source, Path(scratch)) if precision == "qas" else source
                    found = smallest_ram(path, device, batch, seconds, TrainingOptions(precision=precision))
                    cells.append((f"{found[0]:,}", f"{found[1]:,}"))
                except PoetcError as error:
                    cells.append((str(error).splitlines()[0][:150], "-"))
        row = " | ".join([*(c[0] for c in cells), *(c[1] for c in cells)])
        print(f"| {source.stem} | {row} |", flush=True)


if __name__ == "__main__":
    main()
