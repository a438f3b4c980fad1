"""Make mobilenet.onnx and data: MobileNetV2 x 0.35 at 96 x 96, trained on one set of digits, to be tuned on another.

    python bench/peer_mobilenet.py DIGITS8X8.npz MNIST.npz OUT [--epochs N] [--size PIXELS]

The network learns the UCI digits (arrays x of N x 8 x 8 up to 16, and y) as coloured pictures of varying place and
size. Batch norms are folded into the convolutions; mobilenet.norms.onnx and mobilenet.pt keep them. `tune.npz` holds
MNIST (N x 28 x 28 up to 255) as pictures of the same size: train_x, train_y (1000) and test_x, test_y (500), in 0..255,
channels first. Needs torch and onnx.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

# Expansion, channels at width 1, blocks, stride: table 2 of Sandler et al., MobileNetV2 (CVPR 2018).
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
WIDTH, LAST, BATCH = 0.35, 1280, 32


def channels(count: float) -> int:
    """The next multiple of 8, which is not below 90 % of `count`."""
    rounded = max(8, int(count + 4) // 8 * 8)
    return rounded + 8 * (rounded < 0.9 * count)


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(outputs)]


class Block(nn.Module):
    """The inverted residual."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        layers = [] if expansion == 1 else [*convolution(inputs, wide, 1), nn.ReLU6()]
        layers += [*convolution(wide, wide, 3, stride, wide), nn.ReLU6(), *convolution(wide, outputs, 1)]
        self.layers = nn.Sequential(*layers)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x) if self.is_residual else self.layers(x)


def network(classes: int = 10) -> nn.Module:
    last = channels(32 * WIDTH)
    layers: list[nn.Module] = [*convolution(3, last, 3, 2), nn.ReLU6()]
    for expansion, width, blocks, stride in STAGES:
        for k in range(blocks):
            layers.append(Block(last, channels(width * WIDTH), stride if k == 0 else 1, expansion))
            last = channels(width * WIDTH)
    layers += [*convolution(last, LAST, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(LAST, classes)]
    return nn.Sequential(*layers)


def pictures(x: torch.Tensor, size: int) -> torch.Tensor:
    """[N, H, W] in 0..1 -> [N, 3, size, size], each in colours, at a place and of a size of its own."""
    count = len(x)
    scale = 1.0 + 0.5 * torch.rand(count)  # of the picture beside the digit
    shift = (torch.rand(count, 2) - 0.5) * 0.3
    angle = (torch.rand(count) - 0.5) * 0.5
    turn = torch.stack((torch.cos(angle), -torch.sin(angle), torch.sin(angle), torch.cos(angle)), 1).reshape(-1, 2, 2)
    grid = functional.affine_grid(
        torch.cat((turn * scale[:, None, None], shift[:, :, None]), 2), [count, 1, size, size], align_corners=False
    )
    digit = functional.grid_sample(x[:, None], grid, align_corners=False)
    ink, paper = torch.rand(count, 3, 1, 1) * 0.4 + 0.6, torch.rand(count, 3, 1, 1) * 0.4
    return digit * ink + (1 - digit) * paper


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("digits", type=Path)
    parser.add_argument("mnist", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--size", type=int, default=96)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data, mnist = np.load(given.digits), np.load(given.mnist)

    tune = torch.from_numpy(mnist["x"].astype(np.float32) / 255)
    with torch.no_grad():
        tuned = (pictures(tune, given.size) * 255).round().byte().numpy()
    labels = mnist["y"].astype(np.int64)
    arrays = {"train_x": tuned[:1000], "train_y": labels[:1000], "test_x": tuned[-500:], "test_y": labels[-500:]}
    np.savez_compressed(given.out / "tune.npz", **arrays)

    x, y = torch.from_numpy(data["x"].astype(np.float32) / 16), torch.from_numpy(data["y"].astype(np.int64))
    model = network().train()
    steps = given.epochs * (len(x) // BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
    for epoch in range(given.epochs):
        hits = count = 0
        for rows in torch.randperm(len(x)).split(BATCH):
            if len(rows) < BATCH:
                continue
            logits = model(pictures(x[rows], given.size))
            loss = functional.cross_entropy(logits, y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            hits, count = hits + int((logits.argmax(1) == y[rows]).sum()), count + BATCH
        print(f"epoch {epoch + 1}: {hits / count:.1%} of the digits that it learns", flush=True)
    model.eval()
    with torch.no_grad():
        shown = torch.from_numpy(arrays["test_x"]).float() / 255
        right = sum(int((model(part).argmax(1) == q).sum()) for part, q in _parts(shown, arrays["test_y"]))
    print(f"{right / len(shown):.1%} of the pictures of MNIST before tuning")
    options = {"dynamo": False, "opset_version": 17, "input_names": ["x"], "output_names": ["logits"]}
    options["dynamic_axes"] = {"x": {0: "n"}, "logits": {0: "n"}}
    torch.onnx.export(model, (shown[:1],), given.out / "mobilenet.onnx", **options)
    options |= {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
    torch.onnx.export(model, (shown[:1],), given.out / "mobilenet.norms.onnx", **options)
    torch.save(model.state_dict(), given.out / "mobilenet.pt")


def _parts(x: torch.Tensor, y: np.ndarray) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(x.split(100), torch.from_numpy(y).split(100), strict=True))


if __name__ == "__main__":
    main()
