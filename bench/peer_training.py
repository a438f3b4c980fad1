"""PyTorch's side of bench/training.py, run by a Python that has torch.

`peer_training.py export NAME FILE [BATCH]` writes a model with seeded weights as ONNX. `peer_training.py run NAME
BATCHES OUT` trains the same model and writes the loss of every step: in 32 bits, in 64 bits, and in 64 bits from
weights that differ by up to half a unit of the last place of 32 bits. `memory` and `shape` are for bench/memory.py.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from memory import peak_bytes
from peer_torch import MODELS as LARGER
from peer_torch import Basic, Inverted, MobileNetV2, conv_bn
from torch import nn
from torch.nn import functional


class DsCnn(nn.Module):
    """Depthwise separable convolutions, as in MLPerf Tiny's keyword spotting."""

    shape = (1, 28, 28)

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [*conv_bn(1, 32, 5, 2), nn.ReLU()]
        for _ in range(3):
            layers += [*conv_bn(32, 32, 3, 1, 32), nn.ReLU(), *conv_bn(32, 32, 1), nn.ReLU()]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


class ResNet8(nn.Module):
    """As in MLPerf Tiny's image classification."""

    shape = (3, 32, 32)

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*conv_bn(3, 16, 3), nn.ReLU(), Basic(16, 16, 1), Basic(16, 32, 2), Basic(32, 64, 2))
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


class MobileNetV2Small(nn.Module):
    """MobileNetV2 of width .35 for 32 x 32 images: channels in multiples of 8, and 1280 before the head."""

    shape = (3, 32, 32)

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [*conv_bn(3, 16, 3), nn.ReLU6()]
        width = 16
        for expand, outputs, count, stride in MobileNetV2.stages:
            narrow = max(8, int(outputs * 0.35 + 4) // 8 * 8)
            for i in range(count):
                layers.append(Inverted(width, narrow, stride if i == 0 else 1, expand))
                width = narrow
        self.body = nn.Sequential(*layers, *conv_bn(width, 1280, 1), nn.ReLU6())
        self.head = nn.Linear(1280, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


class NanoGpt(nn.Module):
    """Two layers of width 64 with 4 heads over 32 characters; the head is the embedding, transposed."""

    shape, layers, width, heads, context, characters = (32,), 2, 64, 4, 32, 128

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(self.characters, self.width), nn.Embedding(self.context, self.width)
        self.attention = nn.ModuleList(nn.Linear(self.width, 3 * self.width) for _ in range(self.layers))
        self.project = nn.ModuleList(nn.Linear(self.width, self.width) for _ in range(self.layers))
        self.up = nn.ModuleList(nn.Linear(self.width, 4 * self.width) for _ in range(self.layers))
        self.down = nn.ModuleList(nn.Linear(4 * self.width, self.width) for _ in range(self.layers))
        self.norms = nn.ModuleList(nn.LayerNorm(self.width) for _ in range(2 * self.layers + 1))
        self.register_buffer("future", torch.triu(torch.full((self.context, self.context), -1e9), 1))
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (-1, self.context, self.heads, self.width // self.heads)
        h = self.embed(x) + self.place.weight
        for i in range(self.layers):
            q, k, v = (t.reshape(shape).transpose(1, 2) for t in self.attention[i](self.norms[2 * i](h)).chunk(3, -1))
            weights = torch.softmax(q @ k.transpose(-1, -2) * shape[-1] ** -0.5 + self.future, -1)
            h = h + self.project[i]((weights @ v).transpose(1, 2).reshape(-1, self.context, self.width))
            h = h + self.down[i](functional.gelu(self.up[i](self.norms[2 * i + 1](h))))
        return self.norms[-1](h) @ self.embed.weight.T


class Gru(nn.Module):
    """Reads a digit as a sequence of its 8 rows, and classifies by the last state."""

    shape = (8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.GRU(8, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)[0][:, -1])


MODELS = {
    **LARGER,
    "ds_cnn": DsCnn,
    "resnet8": ResNet8,
    "mobilenetv2_035": MobileNetV2Small,
    "nanogpt": NanoGpt,
    "gru": Gru,
}


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]()


def export(name: str, path: str, batch: str = "") -> None:
    """With a batch that is left open, if none is given."""
    model = make(name).train()
    dtype = torch.int64 if name == "nanogpt" else torch.float32
    torch.onnx.export(
        model,
        (torch.zeros(int(batch or 2), *MODELS[name].shape, dtype=dtype),),
        path,
        input_names=["x"],
        output_names=["logits"],
        dynamic_axes=None if batch else {"x": {0: "n"}, "logits": {0: "n"}},
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        opset_version=16 if batch else 17,  # 16: onnxruntime-training has no gradient of LayerNormalization
        dynamo=False,
    )


def optimizer(name: str, model: nn.Module, rate: float) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(model.parameters(), lr=rate)
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9 if name == "momentum" else 0.0)


def run(name: str, batches: str, out: str) -> None:
    torch.set_num_threads(1)
    data = np.load(batches)
    losses = {}
    for run, dtype in (("f32", torch.float32), ("f64", torch.float64), ("f64_moved", torch.float64)):
        model = make(name).to(dtype).train()
        if run == "f64_moved":
            with torch.no_grad():
                for p in model.parameters():
                    p *= 1 + 2.0**-24 * (2 * torch.rand_like(p) - 1)
        update = optimizer(str(data["optimizer"]), model, float(data["rate"]))
        steps = len(data["x"])
        schedule = None
        if str(data["schedule"]) == "cosine":
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(update, steps)
        found = []
        clip_norm = float(data["clip_norm"])
        for values, classes in zip(data["x"], data["target"], strict=True):
            update.zero_grad()
            x, target = torch.from_numpy(values), torch.from_numpy(classes).long()
            logits = model(x.to(dtype) if x.is_floating_point() else x)
            loss = functional.cross_entropy(logits.flatten(0, -2), target.flatten())
            loss.backward()
            if clip_norm:
                nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            update.step()
            if schedule is not None:
                schedule.step()
            found.append(float(loss.detach()))
        losses[run] = np.array(found)
    np.savez(out, **losses)


def memory(name: str, data: str, batch: str) -> None:
    """Train with SGD on all of the data; print the peaks of resident memory at the end and after imports, in bytes."""
    before = peak_bytes()
    torch.set_num_threads(1)
    arrays, rows = np.load(data), int(batch)
    x, target = arrays["x"], torch.from_numpy(arrays["target"]).long()
    model = make(name).train()
    update = torch.optim.SGD(model.parameters(), lr=0.01)
    for first in range(0, len(x), rows):
        update.zero_grad(set_to_none=True)
        logits = model(torch.from_numpy(x[first : first + rows]))
        functional.cross_entropy(logits, target[first : first + rows]).backward()
        update.step()
    print(peak_bytes(), before)


def shape(name: str) -> None:
    print(*MODELS[name].shape)


if __name__ == "__main__":
    {"export": export, "run": run, "memory": memory, "shape": shape}[sys.argv[1]](*sys.argv[2:])
