"""RAM of a training step by its numbers: floats, encoded saved tensors, integers, and quantised models as they are.

    python -m bench.qas DEVICE BATCH SECONDS MODEL...    a table row a float model, which onnxruntime quantises first

Each row has keep-all's peak for each kind of numbers, then the least RAM that a search found. `saved` is
`--saved int8`, whose schedules include those without encodings. Activations are calibrated on random inputs, and
weights without numbers get random ones: sizes do not depend on them.
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
NUMBERS = {
    "f32": TrainingOptions(saved="off"),
    "saved": TrainingOptions(saved="int8"),
    "niti": TrainingOptions(precision="niti"),
    "qas": TrainingOptions(precision="qas"),
}


class _Samples(quantization.CalibrationDataReader):  # type: ignore[misc]
    """Random ones."""

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
    kinds = " | ".join(NUMBERS)
    print(f"| {device}, batch {batch} | keep-all {kinds} | smallest {kinds} |")
    for source in asked.models:
        with tempfile.TemporaryDirectory() as scratch:
            peaks: list[str] = []
            least: list[str] = []
            exact = 0
            for name, options in NUMBERS.items():
                try:
                    path = quantised(source, Path(scratch)) if name == "qas" else source
                    peak, found = smallest_ram(path, device, batch, seconds, options)
                except PoetcError as error:
                    peaks.append(str(error).splitlines()[0][:150])
                    least.append("-")
                    continue
                exact = found if name == "f32" else exact
                found = min(found, exact) if name == "saved" else found  # a schedule without encodings is one with them
                peaks.append(f"{peak:,}")
                least.append(f"{found:,}")
        print(f"| {source.stem} | {' | '.join([*peaks, *least])} |", flush=True)


if __name__ == "__main__":
    main()
