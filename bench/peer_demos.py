"""PyTorch's side of bench/demos.py, run by a Python that has torch and transformers.

`peer_demos.py NAME FOLDER` writes `model.onnx` as the demo exports it, `task.json` with the names of trained
parameters, `batches.npz` and `losses.npz`: of every step in 32 bits, in 64 bits, and in 64 bits with onnxruntime's
formula of AdamW. The architectures are those of the demos, with seeded weights and in small sizes.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from peer_torch import MobileNetV2
from torch import nn
from torch.nn import functional

# transformers would take bench/kernels.py for a package of its own.
sys.path.remove(str(Path(__file__).resolve().parent))
import transformers

STEPS, ROWS, RATE = 20, 4, 1e-3
Arrays = dict[str, np.ndarray]


class OrtAdamW(torch.optim.Optimizer):
    """AdamW as onnxruntime's optimizer graph has it: epsilon is added before the correction of the bias."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__(parameters, {})
        self.steps = 0

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        self.steps += 1
        rate = RATE * (1 - 0.999**self.steps) ** 0.5 / (1 - 0.9**self.steps)
        for p in self.param_groups[0]["params"]:
            if p.grad is None:
                continue
            state = self.state[p]
            if not state:
                state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
            state["m"].lerp_(p.grad, 0.1)
            state["v"].lerp_(p.grad**2, 0.001)
            p -= rate * state["m"] / (state["v"].sqrt() + 1e-6)


@dataclass(frozen=True)
class Demo:
    make: Callable[[], nn.Module]
    inputs: Callable[[np.random.Generator], Arrays]
    target: Callable[[np.random.Generator], np.ndarray]
    opset: int
    training: bool = False  # exported and trained in training mode
    trained: str = ""  # the beginning of the names of parameters that are trained


class UNet(nn.Module):
    """Two levels with a bilinear `Resize` between them."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.head = nn.Sequential(nn.Conv2d(24, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down(x)
        return self.head(torch.cat([first, self.up(self.deep(first))], 1))


class Logits(nn.Module):
    """The output `logits` of a model of the package transformers, by the names of its inputs: [rows, classes]."""

    def __init__(self, body: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.body, self.names = body, names

    def forward(self, *arrays: torch.Tensor) -> torch.Tensor:
        logits = self.body(**dict(zip(self.names, arrays, strict=True))).logits
        return logits.flatten(0, -2)  # of each token, where there are several


def mnist() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 10))


BLOCK = 16


def in_blocks(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of 4 bits [N, K], and the scale of each block [N, K / BLOCK, 1]; 8 stands for zero."""
    blocks = weight.reshape(len(weight), -1, BLOCK)
    scales = np.abs(blocks).max(-1, keepdims=True) / 7
    return (np.rint(blocks / scales) + 8).astype(np.uint8).reshape(weight.shape), scales


def few_bits() -> nn.Module:
    """A perceptron whose first matrix has numbers that fit in blocks of 4 bits."""
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    with torch.no_grad():
        q, scales = in_blocks(model[0].weight.numpy())
        numbers = (q.reshape(32, -1, BLOCK).astype(np.float32) - 8) * scales
        model[0].weight.copy_(torch.from_numpy(numbers.reshape(32, 64)))
    return model


def pack(path: Path) -> None:
    """Turn the first layer of few_bits() into a `MatMulNBits`, as onnxruntime's quantizer does."""
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load(path)
    graph, old = model.graph, model.graph.node[0]
    stored = {t.name: t for t in graph.initializer}
    q, scales = in_blocks(numpy_helper.to_array(stored[old.input[1]]))
    graph.initializer.remove(stored[old.input[1]])
    packed = (q[:, 0::2] | q[:, 1::2] << 4).reshape(32, -1, BLOCK // 2)
    graph.initializer.append(numpy_helper.from_array(packed, old.input[1]))
    graph.initializer.append(numpy_helper.from_array(scales.reshape(-1), "scales"))
    sizes = {"K": 64, "N": 32, "bits": 4, "block_size": BLOCK}
    names = [old.input[0], old.input[1], "scales"]
    product = helper.make_node("MatMulNBits", names, ["product"], domain="com.microsoft", **sizes)
    added = helper.make_node("Add", ["product", old.input[2]], [old.output[0]])
    nodes = [product, added, *list(graph.node)[1:]]
    del graph.node[:]
    graph.node.extend(nodes)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, path)


def mobilenetv2() -> nn.Module:
    model = MobileNetV2()
    model.head = nn.Linear(1280, 4)
    return model.eval()


def mobilevit() -> nn.Module:
    widths = {"hidden_sizes": [64, 80, 96], "neck_hidden_sizes": [16, 16, 24, 48, 64, 80, 320], "expand_ratio": 2.0}
    config = transformers.MobileViTConfig(num_labels=7, hidden_dropout_prob=0.0, classifier_dropout_prob=0.0, **widths)
    return Logits(transformers.MobileViTForImageClassification(config), ("pixel_values",))


def mobilebert() -> nn.Module:
    sizes = {"num_hidden_layers": 2, "vocab_size": 500, "hidden_dropout_prob": 0.0}
    config = transformers.MobileBertConfig(**sizes, attn_implementation="eager")
    names = ("input_ids", "attention_mask", "token_type_ids")
    return Logits(transformers.MobileBertForMaskedLM(config), names)


def distilbert() -> nn.Module:
    sizes = {
        "vocab_size": 500,
        "max_position_embeddings": 64,
        "n_layers": 2,
        "n_heads": 4,
        "dim": 64,
        "hidden_dim": 256,
    }
    none = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    config = transformers.DistilBertConfig(**sizes, **none, num_labels=3, attn_implementation="eager")
    return Logits(transformers.DistilBertForSequenceClassification(config), ("input_ids", "attention_mask"))


def wav2vec2() -> nn.Module:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    rest = {"conv_dim": [32] * 7, "classifier_proj_size": 32, "num_labels": 2, "num_conv_pos_embeddings": 16}
    parts = ("hidden", "activation", "attention", "feat_proj", "final")
    config = transformers.Wav2Vec2Config(
        **sizes,
        **rest,
        **{f"{part}_dropout": 0.0 for part in parts},
        layerdrop=0.0,
        num_conv_pos_embedding_groups=4,
        apply_spec_augment=False,
        attn_implementation="eager",
    )
    return Logits(transformers.Wav2Vec2ForSequenceClassification(config), ("input_values",)).eval()


def normal(name: str, *shape: int) -> Callable[[np.random.Generator], Arrays]:
    return lambda random: {name: random.standard_normal((ROWS, *shape)).astype(np.float32)}


def tokens(random: np.random.Generator, types: bool = False) -> Arrays:
    lengths = random.integers(8, 33, (ROWS, 1))
    arrays = {
        "input_ids": random.integers(5, 500, (ROWS, 32)),
        "attention_mask": (np.arange(32) < lengths).astype(np.int64),
    }
    return arrays | ({"token_type_ids": np.zeros((ROWS, 32), np.int64)} if types else {})


def classes(count: int, *shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda random: random.integers(0, count, shape or ROWS)


DEMOS = {
    "mnist": Demo(mnist, normal("x", 784), classes(10), 14),
    "mobilenetv2": Demo(mobilenetv2, normal("input", 3, 32, 32), classes(4), 17, trained="head."),
    "mobilevit": Demo(mobilevit, normal("pixel_values", 3, 64, 64), classes(7), 12, True, "body.classifier."),
    "mobilebert": Demo(mobilebert, lambda random: tokens(random, True), classes(500, ROWS * 32), 15, True),
    "wav2vec2": Demo(wav2vec2, normal("input_values", 8000), classes(2), 16, trained="body.classifier."),
    "distilbert_16": Demo(distilbert, tokens, classes(3), 16, True),
    "distilbert_17": Demo(distilbert, tokens, classes(3), 17, True),
    "few_bits": Demo(few_bits, normal("x", 64), classes(10), 16),
    "unet": Demo(UNet, normal("x", 3, 16, 16), classes(4, ROWS, 16, 16), 16),
}


def losses_of(demo: Demo, model: nn.Module, batches: list[Arrays], dtype: torch.dtype, ort: bool) -> np.ndarray:
    """The loss of every step, each before its update."""
    model = copy.deepcopy(model).to(dtype).train(demo.training)
    trained = [p for name, p in model.named_parameters() if name.startswith(demo.trained)]
    update = OrtAdamW(trained) if ort else torch.optim.AdamW(trained, lr=RATE, eps=1e-6, weight_decay=0.0)
    found = []
    for batch in batches:
        *inputs, target = (torch.from_numpy(array) for array in batch.values())
        logits = model(*(x.to(dtype) if x.is_floating_point() else x for x in inputs))
        loss = functional.cross_entropy(logits, target)
        update.zero_grad()
        loss.backward()
        update.step()
        found.append(float(loss.detach()))
    return np.array(found)


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    demo, random = DEMOS[name], np.random.default_rng(0)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = demo.make()
    batches = [demo.inputs(random) | {"target": demo.target(random)} for _ in range(STEPS)]
    inputs = [n for n in batches[0] if n != "target"]
    torch.onnx.export(
        copy.deepcopy(model),
        tuple(torch.from_numpy(batches[0][n]) for n in inputs),
        folder / "model.onnx",
        input_names=inputs,
        output_names=["logits"],
        opset_version=demo.opset,
        training=torch.onnx.TrainingMode.TRAINING if demo.training else torch.onnx.TrainingMode.EVAL,
        do_constant_folding=not demo.training,
        dynamo=False,
    )
    if name == "few_bits":
        pack(folder / "model.onnx")
    trained = [n for n, _ in model.named_parameters() if n.startswith(demo.trained)]
    count = sum(p.numel() for p in model.parameters())
    task = {"all": not demo.trained, "trained": trained, "rate": RATE, "parameters": count}
    (folder / "task.json").write_text(json.dumps(task))
    np.savez(folder / "batches.npz", **{n: np.stack([b[n] for b in batches]) for n in batches[0]})
    runs = {"f32": (torch.float32, False), "f64": (torch.float64, False), "f64_ort": (torch.float64, True)}
    np.savez(folder / "losses.npz", **{run: losses_of(demo, model, batches, *how) for run, how in runs.items()})


if __name__ == "__main__":
    main()
