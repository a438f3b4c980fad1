"""PyTorch's side of bench/kernels.py, run by a Python that has torch: `peer_torch.py export NAME BATCH FILE` writes the
model as ONNX, `peer_torch.py run NAME BATCH` reads a number of steps a line and answers with the milliseconds of each.
"""

from __future__ import annotations

import resource
import sys
import time

import torch
from torch import nn
from torch.nn import functional


class LeNet(nn.Module):
    shape, classes = (1, 28, 28), 10

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.f1, self.f2, self.f3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(torch.relu(self.c1(x)), 2)
        x = functional.max_pool2d(torch.relu(self.c2(x)), 2).flatten(1)
        return self.f3(torch.relu(self.f2(torch.relu(self.f1(x)))))


def conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1, group: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=group, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class Inverted(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        first = [*conv_bn(inputs, hidden, 1), nn.ReLU6()] if expand > 1 else []
        self.body = nn.Sequential(
            *first, *conv_bn(hidden, hidden, 3, stride, hidden), nn.ReLU6(), *conv_bn(hidden, outputs, 1)
        )
        self.skip = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        return x + y if self.skip else y


class MobileNetV2(nn.Module):
    """For 32 x 32 images: the first strides are 1."""

    shape, classes = (3, 32, 32), 10
    stages = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [*conv_bn(3, 32, 3), nn.ReLU6()]
        width = 32
        for expand, outputs, count, stride in self.stages:
            for i in range(count):
                layers.append(Inverted(width, outputs, stride if i == 0 else 1, expand))
                width = outputs
        self.body = nn.Sequential(*layers, *conv_bn(width, 1280, 1), nn.ReLU6())
        self.head = nn.Linear(1280, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Basic(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*conv_bn(inputs, outputs, 3, stride), nn.ReLU(), *conv_bn(outputs, outputs, 3))
        same = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if same else nn.Sequential(*conv_bn(inputs, outputs, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.skip(x))


class ResNet18(nn.Module):
    """For 32 x 32 images: a 3 x 3 stem and no pooling."""

    shape, classes = (3, 32, 32), 10

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [*conv_bn(3, 64, 3), nn.ReLU()]
        width = 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            layers += [Basic(width, outputs, stride), Basic(outputs, outputs, 1)]
            width = outputs
        self.body, self.head = nn.Sequential(*layers), nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Bert(nn.Module):
    """Four layers of width 256 with 4 heads over 128 embedded tokens; classifies the first."""

    shape, classes = (128, 256), 4

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleList(nn.Linear(256, 768) for _ in range(4))
        self.project = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))
        self.up = nn.ModuleList(nn.Linear(256, 1024) for _ in range(4))
        self.down = nn.ModuleList(nn.Linear(1024, 256) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(256) for _ in range(8))
        self.head = nn.Linear(256, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        for i in range(4):
            q, k, v = (t.reshape(n, 128, 4, 64).transpose(1, 2) for t in self.attention[i](x).chunk(3, -1))
            weights = torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1)
            mixed = (weights @ v).transpose(1, 2).reshape(n, 128, 256)
            x = self.norms[2 * i](x + self.project[i](mixed))
            x = self.norms[2 * i + 1](x + self.down[i](functional.gelu(self.up[i](x))))
        return self.head(x[:, 0])


MODELS = {"lenet": LeNet, "mobilenetv2": MobileNetV2, "resnet18": ResNet18, "bert": Bert}


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    command, name, batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
    model = MODELS[name]().train()
    x = torch.randn(batch, *model.shape)
    if command == "export":
        mode = torch.onnx.TrainingMode.TRAINING
        names = {"input_names": ["x"], "output_names": ["y"]}
        torch.onnx.export(
            model, (x,), sys.argv[4], training=mode, do_constant_folding=False, opset_version=16, dynamo=False, **names
        )
        return
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    target = torch.randint(0, model.classes, (batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.process_time()
        for _ in range(int(line)):
            optimizer.zero_grad(set_to_none=True)
            functional.cross_entropy(model(x), target).backward()
            optimizer.step()
        elapsed = 1e3 * (time.process_time() - start) / int(line)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(elapsed, used << 10, flush=True)


if __name__ == "__main__":
    main()
