"""PyTorch's side of bench/kernels.py, run by a Python that has torch: `peer_torch.py export NAME BATCH FILE` writes the
model as ONNX, `peer_torch.py run NAME BATCH` reads a number of steps a line and answers with the milliseconds of each.
On one thread (OMP_NUM_THREADS) they are processor time, else those of the clock. `export decoder+lora` has adapters.
"""

from __future__ import annotations

import math
import os
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


def conv_silu(inputs: int, outputs: int, kernel: int, stride: int = 1, group: int = 1) -> list[nn.Module]:
    return [*conv_bn(inputs, outputs, kernel, stride, group), nn.SiLU()]


class InvertedSilu(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        hidden = 2 * inputs
        self.body = nn.Sequential(
            *conv_silu(inputs, hidden, 1), *conv_silu(hidden, hidden, 3, stride, hidden), *conv_bn(hidden, outputs, 1)
        )
        self.skip = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        return x + y if self.skip else y


class Encoder(nn.Module):
    """A layer of a transformer with norms in front, four heads, and a hidden width of twice its width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, tokens, width = x.shape
        parts = self.attention(self.first(x)).chunk(3, -1)
        q, k, v = (t.reshape(n, tokens, 4, width // 4).transpose(1, 2) for t in parts)
        if torch.onnx.is_in_onnx_export():
            mixed = torch.softmax(q @ k.transpose(-1, -2) * (width // 4) ** -0.5, -1) @ v
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.project(mixed.transpose(1, 2).reshape(n, tokens, width))
        return x + self.down(functional.silu(self.up(self.second(x))))


class VitBlock(nn.Module):
    """Patches of 2 x 2: places of the same number in all patches attend to each other."""

    def __init__(self, channels: int, width: int, layers: int) -> None:
        super().__init__()
        self.local = nn.Sequential(*conv_silu(channels, channels, 3), nn.Conv2d(channels, width, 1, bias=False))
        self.layers, self.norm = nn.Sequential(*(Encoder(width) for _ in range(layers))), nn.LayerNorm(width)
        self.back = nn.Sequential(*conv_silu(width, channels, 1))
        self.join = nn.Sequential(*conv_silu(2 * channels, channels, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.local(x)
        n, width, rows, columns = y.shape
        y = y.reshape(n, width, rows // 2, 2, columns // 2, 2).permute(0, 3, 5, 2, 4, 1)
        y = self.norm(self.layers(y.reshape(4 * n, rows * columns // 4, width)))
        y = y.reshape(n, 2, 2, rows // 2, columns // 2, width).permute(0, 5, 3, 1, 4, 2)
        return self.join(torch.cat((x, self.back(y.reshape(n, width, rows, columns))), 1))


class MobileViT(nn.Module):
    """The widths and layers of MobileViT-XXS, for images of 128 x 128."""

    shape, classes = (3, 128, 128), 10

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *conv_silu(3, 16, 3, 2), InvertedSilu(16, 16), InvertedSilu(16, 24, 2), InvertedSilu(24, 24),
            InvertedSilu(24, 24), InvertedSilu(24, 48, 2), VitBlock(48, 64, 2), InvertedSilu(48, 64, 2),
            VitBlock(64, 80, 4), InvertedSilu(64, 80, 2), VitBlock(80, 96, 3), *conv_silu(80, 320, 1),
        )  # fmt: skip
        self.head = nn.Linear(320, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Adapted(nn.Module):
    """A frozen linear layer, with an adapter of rank 8 if `rank` is 8."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False).requires_grad_(False)
        if rank:
            self.lora_a = nn.Parameter(torch.randn(inputs, rank) / rank)
            self.lora_b = nn.Parameter(torch.zeros(rank, outputs))
        self.rank = rank

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.base(x)
        return y + x @ self.lora_a @ self.lora_b if self.rank else y


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.onnx.is_in_onnx_export():
            return functional.rms_norm(x, self.weight.shape, self.weight, 1e-5)
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.weight


class DecoderLayer(nn.Module):
    """Nine heads of 64 numbers, three of keys and values, gated units of 1,536."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.first, self.second = RmsNorm(576), RmsNorm(576)
        self.q, self.k, self.v = Adapted(576, 576, rank), Adapted(576, 192, rank), Adapted(576, 192, rank)
        self.o, self.gate, self.up = Adapted(576, 576, rank), Adapted(576, 1536, rank), Adapted(576, 1536, rank)
        self.down = Adapted(1536, 576, rank)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        q, k, v = (f(y).reshape(1, 128, -1, 64).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = (t * cosine + torch.cat((-t[..., 32:], t[..., :32]), -1) * sine for t in (q, k))
        k, v = (t[:, :, None].expand(1, 3, 3, 128, 64).reshape(1, 9, 128, 64) for t in (k, v))
        if torch.onnx.is_in_onnx_export():
            mixed = torch.softmax(q @ k.transpose(-1, -2) * 0.125 + mask, -1) @ v
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(1, 128, 576))
        y = self.second(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Ten layers of SmolLM2-135M's shape over 128 tokens of 49,152; the base is frozen, adapters of rank 8 learn."""

    shape, classes = (128,), 49152

    def __init__(self, rank: int = 8) -> None:
        super().__init__()
        self.words = nn.Embedding(49152, 576).requires_grad_(False)
        self.layers, self.norm = nn.ModuleList(DecoderLayer(rank) for _ in range(10)), RmsNorm(576)
        turns = torch.arange(128)[:, None] * torch.exp(torch.arange(32) * (-math.log(1e5) / 32))
        self.register_buffer("cosine", torch.cat((turns, turns), 1).cos())
        self.register_buffer("sine", torch.cat((turns, turns), 1).sin())
        self.register_buffer("mask", torch.full((128, 128), -1e9).triu(1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine, self.mask)
        return functional.linear(self.norm(x), self.words.weight).reshape(-1, 49152)


MODELS = {
    "lenet": LeNet, "mobilenetv2": MobileNetV2, "resnet18": ResNet18, "bert": Bert, "mobilevit": MobileViT,
    "decoder": lambda: Decoder(0), "decoder+lora": Decoder,
}  # fmt: skip


def main() -> None:
    before, threads = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, int(os.environ.get("OMP_NUM_THREADS", "1"))
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    command, name, batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
    model = MODELS[name]().train()
    is_text = name.startswith("decoder")
    x = torch.randint(0, model.classes, (batch, 128)) if is_text else torch.randn(batch, *model.shape)
    if command == "export":
        mode = torch.onnx.TrainingMode.TRAINING
        names = {"input_names": ["x"], "output_names": ["y"]}
        torch.onnx.export(
            model, (x,), sys.argv[4], training=mode, do_constant_folding=False, opset_version=16, dynamo=False, **names
        )
        return
    target = torch.randint(0, model.classes, (128 if is_text else batch,))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    clock = time.process_time if threads == 1 else time.perf_counter
    print("ready", flush=True)
    for line in sys.stdin:
        start = clock()
        for _ in range(int(line)):
            optimizer.zero_grad(set_to_none=True)
            functional.cross_entropy(model(x), target).backward()
            optimizer.step()
        elapsed = 1e3 * (clock() - start) / int(line)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(elapsed, used << 10, flush=True)


if __name__ == "__main__":
    main()
