"""Sparse updates of quantised networks, as published: instructions of a step on a Cortex-M4F, and RAM.

    python -m bench.sparse_update count [mcunet|mobilenet35] [--scheme 49kb] [--board mps2-an386] [--rows]
    python -m bench.sparse_update ram DEVICE SECONDS

The networks are MCUNet-5fps at 128 x 128 (the network of TinyEngine's person detection) and MobileNetV2 x 0.35. Their
shapes and the schemes are those of the authors' public code (Lin et al. 2022, "On-Device Training Under 256KB
Memory"): which layers' biases and weights are updated, and which share of the input channels. Weights are random:
instructions and bytes do not depend on them. docs/results/integer.md has the tables.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import onnx

from bench import instructions
from bench._command import Rows, main
from bench.precisions import quantised, smallest_ram
from demo.boards.networks import Network
from poetc.training import TrainingOptions

MCUNET = (  # of each block: expanded channels, kernel, stride, channels
    (16, 3, 1, 8), (32, 3, 2, 16), (48, 3, 1, 16), (48, 7, 2, 24), (120, 3, 1, 24), (120, 3, 2, 40), (160, 7, 1, 40),
    (160, 5, 1, 48), (144, 3, 1, 48), (192, 3, 1, 48), (240, 7, 2, 96), (384, 5, 1, 96), (384, 5, 1, 96),
    (576, 3, 1, 160),
)  # fmt: skip
MOBILENET = (
    (16, 3, 1, 8), (48, 3, 2, 8), (48, 3, 1, 8), (48, 3, 2, 16), *[(96, 3, 1, 16)] * 2, (96, 3, 2, 24),
    *[(144, 3, 1, 24)] * 3, (144, 3, 1, 32), *[(192, 3, 1, 32)] * 2, (192, 3, 2, 56), *[(336, 3, 1, 56)] * 2,
    (336, 3, 1, 112),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scheme:
    """The last `biases` convolutions in front of the classifier update their biases.

    `weights` maps a convolution, counted from 0, to the share of its input channels.
    """

    biases: int
    weights: dict[int, Fraction]


def _scheme(biases: int, layers: Sequence[int], shares: Sequence[float]) -> Scheme:
    return Scheme(biases, {at: Fraction(share) for at, share in zip(layers, shares, strict=True) if share})


SCHEMES = {
    ("mcunet", "49kb"): _scheme(20, (24, 27, 30), (0.25, 0.5, 0.5)),
    ("mcunet", "99kb"): _scheme(22, (21, 24, 27, 30, 36, 39), (1, 1, 1, 1, 0.125, 0.25)),
    ("mobilenet35", "73kb"): _scheme(20, (32, 33, 36, 39, 41, 42, 45, 48), (0.125, 0.5, 0.5, 1, 0.25, 0.125, 0.125, 1)),
    ("mobilenet35", "99kb"): _scheme(25, (27, 30, 33, 36, 39, 42, 45, 48), (1, 1, 1, 1, 1, 0.125, 0.5, 1)),
}


def network(name: str, side: int) -> onnx.ModelProto:
    """Batch norms are folded already. The names of weights end in the number of their node."""
    net = Network(name, side, channels=3).conv(16, stride=2).relu()
    for hidden, kernel, stride, channels in MCUNET if name == "mcunet" else MOBILENET:
        start, inputs = net.at, net.channels
        if hidden != inputs:
            net.conv(hidden, kernel=1).relu()
        net.conv(hidden, kernel, stride, group=hidden).relu().conv(channels, kernel=1)
        if stride == 1 and inputs == channels:
            net.add(start)
    if name == "mobilenet35":
        net.conv(448, kernel=1).relu()
    return net.global_pool().dense(10).model()


def train_option(model: onnx.ModelProto, scheme: Scheme) -> str:
    """`--train` of a scheme; the classifier is trained whole."""
    convs = [n.input for n in model.graph.node if n.op_type == "Conv"]
    (dense,) = (n.input for n in model.graph.node if n.op_type == "Gemm")
    biases = [inputs[2] for inputs in convs[-scheme.biases :]]
    weights = [
        f"*{convs[at][1]}*@{share}:norm" if share < 1 else f"*{convs[at][1]}*" for at, share in scheme.weights.items()
    ]
    return ",".join([*weights, *(f"*{b}*" for b in biases), *(f"*{name}*" for name in dense[1:])])


def prepared(name: str, scheme: str, side: int, folder: Path) -> tuple[Path, TrainingOptions]:
    """The quantised model, which is given codes as TinyEngine's are, and the options of a scheme; `all`: no scheme."""
    model = network(name, side)
    source = folder / f"{name}{side}.onnx"
    onnx.save(model, source)
    train = train_option(model, SCHEMES[name, scheme]) if scheme != "all" else "all"
    options = TrainingOptions(precision="qas", learning_rate=0.01, train=train)
    return given_codes(quantised(source, folder)), options


def given_codes(path: Path) -> Path:
    model = onnx.load(path)
    graph = model.graph
    first = next(n for n in graph.node if n.op_type == "QuantizeLinear" and n.input[0] == graph.input[0].name)
    graph.node.remove(first)
    graph.input[0].name = first.output[0]
    graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT8
    onnx.save(model, path)
    return path


def count(
    network: Literal["mcunet", "mobilenet35"] = "mcunet",
    *,
    scheme: Literal["49kb", "73kb", "99kb", "all"] = "49kb",
    side: Annotated[int, "of the images, in pixels"] = 128,
    board: str = "mps2-an386",
    rows: Annotated[bool, "a line for every operator"] = False,
) -> None:
    with tempfile.TemporaryDirectory(prefix="poetc-sparse-") as scratch:
        source, options = prepared(network, scheme, side, Path(scratch))
        instructions.count(source, 1, board, "separate", rows, options)


def ram(device: str, seconds: Annotated[float, "of search for each scheme"]) -> Rows:
    yield "network, pixels", "scheme", "every tensor kept, B", "least, B"
    with tempfile.TemporaryDirectory(prefix="poetc-sparse-") as scratch:
        for name, side in (("mcunet", 128), ("mobilenet35", 96), ("mobilenet35", 128)):
            for scheme in ("all", *(found for known, found in SCHEMES if known == name)):
                source, options = prepared(name, scheme, side, Path(scratch))
                peak, least = smallest_ram(source, device, 1, seconds, options)
                yield f"{name}, {side}", scheme, f"{peak:,}", f"{least:,}"


if __name__ == "__main__":
    main(count, ram)
