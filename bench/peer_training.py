"""PyTorch's side of bench/training.py, run by a Python that has torch.

`peer_training.py export NAME FILE` writes a model with seeded weights as ONNX. `peer_training.py run NAME BATCHES OUT`
trains the same model and writes the loss of every step, in 32 and in 64 bits.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from peer_torch import Basic, LeNet, conv_bn
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


MODELS = {"lenet": LeNet, "ds_cnn": DsCnn, "resnet8": ResNet8}


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]()


def export(name: str, path: str) -> None:
    model = make(name).train()
    torch.onnx.export(
        model,
        (torch.zeros(2, *MODELS[name].shape),),
        path,
        input_names=["x"],
        output_names=["logits"],
        dynamic_axes={"x": {0: "n"}, "logits": {0: "n"}},
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        opset_version=17,
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
    for bits, dtype in (("f32", torch.float32), ("f64", torch.float64)):
        model = make(name).to(dtype).train()
        update = optimizer(str(data["optimizer"]), model, float(data["rate"]))
        steps = len(data["x"])
        schedule = None
        if str(data["schedule"]) == "cosine":
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(update, steps)
        found = []
        for x, target in zip(data["x"], data["target"], strict=True):
            update.zero_grad()
            loss = functional.cross_entropy(model(torch.from_numpy(x).to(dtype)), torch.from_numpy(target).long())
            loss.backward()
            update.step()
            if schedule is not None:
                schedule.step()
            found.append(float(loss.detach()))
        losses[bits] = np.array(found)
    np.savez(out, **losses)


if __name__ == "__main__":
    {"export": export, "run": run}[sys.argv[1]](*sys.argv[2:])
