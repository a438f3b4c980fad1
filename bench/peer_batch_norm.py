"""PyTorch's half of bench/batch_norm.py: an ONNX file with folded norms as a module, with norms put back or without.

    PYTHON -m bench.peer_batch_norm random OUT.onnx
    PYTHON -m bench.peer_batch_norm mobilenet DIGITS8X8.npz MNIST.npz OUT [--epochs N] [--size PIXELS]
    PYTHON -m bench.peer_batch_norm train MODEL.onnx TRAIN.npz TEST.npz folded|restored|own RATE EPOCHS BATCH SEEDS

PYTHON is build/peers/opinfo/bin/python, which `bench/setup_peers opinfo` makes. `random` writes a fresh convolutional
network by PyTorch's default exporter, which folds its norms. Beside it lie OUT.norms.onnx, the same network with its
norms, and its weights in OUT.pt.

`mobilenet` writes the same three files of MobileNetV2 x 0.35 to the folder OUT. The network has learnt the UCI digits
(x of N x 8 x 8 up to 16, and y) as coloured pictures of varying place and size. `tune.npz` holds MNIST (N x 28 x 28 up
to 255) as such pictures: train_x, train_y (1000) and test_x, test_y (500), in 0..255, channels first.

`train` prints accuracy after the last epoch, %, and the loss of validation, a line a seed. `restored` has norms behind
every convolution, with the statistics of the first 256 samples. `own` is the network of MODEL.pt, with its own norms.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn
from torch.nn import functional

from bench._command import main

MEASURED = 256  # samples
# Expansion, channels at width 1, blocks, stride: table 2 of Sandler et al., MobileNetV2 (CVPR 2018).
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
WIDTH, LAST, LEARNT = 0.35, 1280, 32  # of MobileNetV2; rows of a batch while it learns


def random_network() -> nn.Module:
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    inputs = 3
    for k, outputs in enumerate((16, 16, 32, 32, 32, 64, 64, 64)):
        layers += [*convolution(inputs, outputs, 3, 2 if k in (2, 5) else 1), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10)))


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


def mobilenet_network() -> nn.Module:
    last = channels(32 * WIDTH)
    layers: list[nn.Module] = [*convolution(3, last, 3, 2), nn.ReLU6()]
    for expansion, width, blocks, stride in STAGES:
        for k in range(blocks):
            layers.append(Block(last, channels(width * WIDTH), stride if k == 0 else 1, expansion))
            last = channels(width * WIDTH)
    layers += [*convolution(last, LAST, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(LAST, 10)]
    return nn.Sequential(*layers)


def pictures(x: torch.Tensor, size: int) -> torch.Tensor:
    """[N, H, W] in 0..1 -> [N, 3, size, size], each in colours, at a place and of a size of its own."""
    count = len(x)
    scale = 1.0 + 0.5 * torch.rand(count)  # of the picture beside the digit
    shift = (torch.rand(count, 2) - 0.5) * 0.3
    angle = (torch.rand(count) - 0.5) * 0.5
    turn = torch.stack((torch.cos(angle), -torch.sin(angle), torch.sin(angle), torch.cos(angle)), 1).reshape(-1, 2, 2)
    place = torch.cat((turn * scale[:, None, None], shift[:, :, None]), 2)
    grid = functional.affine_grid(place, [count, 1, size, size], align_corners=False)
    digit = functional.grid_sample(x[:, None], grid, align_corners=False)
    ink, paper = torch.rand(count, 3, 1, 1) * 0.4 + 0.6, torch.rand(count, 3, 1, 1) * 0.4
    return digit * ink + (1 - digit) * paper


class Module(nn.Module):
    """A file of convolutions, dense layers, pools and their like, run node by node."""

    def __init__(self, path: Path, *, restored: bool) -> None:
        super().__init__()
        graph = onnx.load(path).graph
        self.input, self.output = graph.input[0].name, graph.output[0].name
        self.held = {t.name: torch.tensor(numpy_helper.to_array(t)) for t in graph.initializer}
        self.nodes = []
        for node in graph.node:
            if node.op_type != "DequantizeLinear":
                self.nodes.append(node)
                continue
            q, scale, zero = (self.held[i] for i in node.input)
            axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
            along = [-1 if k == axis and scale.numel() > 1 else 1 for k in range(q.ndim)]
            self.held[node.output[0]] = (q.float() - zero.float().reshape(along)) * scale.reshape(along)
        self.norms, self.weights = nn.ModuleDict(), nn.ParameterDict()
        for k, node in enumerate(self.nodes):
            if node.op_type in ("Conv", "Gemm", "MatMul", "Add"):
                for name in node.input[1:] if node.op_type != "Add" else node.input:
                    if name in self.held and self.held[name].numel() > 1:
                        self.weights[self.key(name)] = nn.Parameter(self.held[name].float())
            if restored and node.op_type == "Conv":
                self.norms[str(k)] = nn.BatchNorm2d(len(self.held[node.input[1]]))
        self.seen: dict[str, list[torch.Tensor]] = {}

    @staticmethod
    def key(name: str) -> str:
        return "".join(x if x.isalnum() else "_" for x in name)

    def value(self, values: dict[str, torch.Tensor], name: str) -> torch.Tensor:
        if name in values:
            return values[name]
        key = self.key(name)
        return self.weights[key] if key in self.weights else self.held[name]

    def forward(self, x: torch.Tensor, measuring: bool = False) -> torch.Tensor:
        values = {self.input: x}
        for k, node in enumerate(self.nodes):
            result = self.run(node, [self.value(values, i) if i else None for i in node.input])
            if str(k) in self.norms:
                if measuring:
                    self.seen.setdefault(str(k), []).append(result.detach())
                else:
                    result = self.norms[str(k)](result)
            values[node.output[0]] = result
        return values[self.output]

    def run(self, node: onnx.NodeProto, given: list[Any]) -> torch.Tensor:
        a = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        kind, x = node.op_type, given[0] if given else torch.empty(0)
        if kind == "Conv":
            top, left, bottom, right = a.get("pads", [0] * 4)
            x = functional.pad(x, (left, right, top, bottom))
            return functional.conv2d(x, *given[1:], stride=a.get("strides", 1), groups=a.get("group", 1))
        if kind == "Constant":
            return torch.tensor(numpy_helper.to_array(a["value"]))
        if kind == "Clip":
            return x.clamp(float(given[1]), float(given[2]))
        if kind == "Relu":
            return functional.relu(x)
        if kind == "Add":
            return x + given[1]
        if kind == "MatMul":
            return x @ given[1]
        if kind == "Gemm":
            return functional.linear(x, given[1] if a.get("transB") else given[1].T, given[2])
        if kind == "Transpose":
            return x.permute(a["perm"])
        if kind == "Reshape":
            return x.reshape([len(x), *given[1].tolist()[1:]])
        if kind == "Flatten":
            return x.flatten(1)
        if kind in ("GlobalAveragePool", "ReduceMean"):
            return x.mean((2, 3), keepdim=bool(a.get("keepdims", 1)))
        if kind == "AveragePool":
            return functional.avg_pool2d(x, a["kernel_shape"], a.get("strides", 1))
        if kind == "Softmax":
            return torch.log_softmax(x, -1)  # of which the cross-entropy is that of the scores
        raise NotImplementedError(kind)

    def measure(self, x: torch.Tensor) -> None:
        """Give the norms the statistics of their layers' outputs."""
        with torch.no_grad():
            self(x, measuring=True)
            for number, parts in self.seen.items():
                y, norm = torch.cat(parts), self.norms[number]
                mean, variance = y.mean((0, 2, 3)), y.var((0, 2, 3), unbiased=False)
                norm.running_mean.copy_(mean)
                norm.running_var.copy_(variance)
                norm.weight.copy_((variance + norm.eps).sqrt())
                norm.bias.copy_(mean)
        self.seen = {}


def judged(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Accuracy in per cent, and the loss."""
    module.eval()
    with torch.no_grad():
        scores = torch.cat([module(part) for part in x.split(64)])
    return 100 * float((scores.argmax(1) == y).float().mean()), float(functional.cross_entropy(scores, y))


def train(
    model: Path,
    training: Path,
    test: Path,
    form: Literal["folded", "restored", "own"],
    rate: float,
    epochs: int,
    batch: int,
    seeds: int,
) -> None:
    torch.set_num_threads(1)
    (x, y), shown = ((torch.tensor(d["x"]), torch.tensor(d["y"]).long()) for d in map(np.load, (training, test)))
    for seed in range(seeds):
        torch.manual_seed(seed)
        if form == "own":
            module = mobilenet_network() if model.stem == "mobilenet" else random_network()
            module.load_state_dict(torch.load(model.with_suffix(".pt"), weights_only=True))
        else:
            module = Module(model, restored=form == "restored")
        if isinstance(module, Module) and form == "restored":
            module.measure(x[torch.randperm(len(x))[:MEASURED]])
        optimizer = torch.optim.SGD(module.parameters(), rate, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(x) // batch * epochs)
        for _ in range(epochs):
            module.train()
            for rows in torch.randperm(len(x)).split(batch):
                optimizer.zero_grad()
                functional.cross_entropy(module(x[rows]), y[rows]).backward()
                optimizer.step()
                schedule.step()
        print(*judged(module, *shown), flush=True)


def random(out: Path) -> None:
    network, shown = random_network().eval(), torch.zeros(2, 3, 32, 32)
    for path, is_folded in ((out, True), (out.with_suffix(".norms.onnx"), False)):
        torch.onnx.export(
            network, (shown,), path, dynamo=True, external_data=False, input_names=["x"], optimize=is_folded
        )
    torch.save(network.state_dict(), out.with_suffix(".pt"))


def mobilenet(digits: Path, mnist: Path, out: Path, *, epochs: int = 8, size: int = 96) -> None:
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with np.load(mnist) as arrays:
        tuned = (pictures(torch.from_numpy(arrays["x"].astype(np.float32) / 255), size) * 255).round().byte().numpy()
        labels = arrays["y"].astype(np.int64)
    parts = {"train_x": tuned[:1000], "train_y": labels[:1000], "test_x": tuned[-500:], "test_y": labels[-500:]}
    np.savez_compressed(out / "tune.npz", **parts)
    with np.load(digits) as arrays:
        x, y = torch.from_numpy(arrays["x"].astype(np.float32) / 16), torch.from_numpy(arrays["y"].astype(np.int64))
    model = mobilenet_network().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    steps = epochs * (len(x) // LEARNT)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(LEARNT):
            if len(rows) == LEARNT:
                optimizer.zero_grad()
                functional.cross_entropy(model(pictures(x[rows], size)), y[rows]).backward()
                optimizer.step()
                schedule.step()
    shown = torch.from_numpy(parts["test_x"]).float() / 255
    print(f"{judged(model, shown, torch.from_numpy(parts['test_y']))[0]:.1f} % of the pictures of MNIST before tuning")
    options: dict[str, Any] = {"dynamo": False, "opset_version": 17, "input_names": ["x"], "output_names": ["logits"]}
    options["dynamic_axes"] = {"x": {0: "n"}, "logits": {0: "n"}}
    torch.onnx.export(model, (shown[:1],), out / "mobilenet.onnx", **options)
    options |= {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
    torch.onnx.export(model, (shown[:1],), out / "mobilenet.norms.onnx", **options)
    torch.save(model.state_dict(), out / "mobilenet.pt")


if __name__ == "__main__":
    main(random, mobilenet, train)
