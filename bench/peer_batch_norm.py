"""PyTorch's half of bench/batch_norm.py: an ONNX file with folded norms as a module, with norms put back or without.

    python bench/peer_batch_norm.py random OUT.onnx
    python bench/peer_batch_norm.py train MODEL.onnx TRAIN.npz TEST.npz folded|restored|own RATE EPOCHS BATCH SEEDS

`random` writes a fresh convolutional network by PyTorch's default exporter, which folds its norms. Beside it lie
OUT.norms.onnx, the same network with its norms, and its weights in OUT.pt. `train` prints accuracy before and after,
%, and the loss of validation, a line a seed. `restored` has norms behind every convolution, with the statistics of the
first 256 samples. `own` is the network of OUT.pt, with the norms that it was made with. Needs torch and onnx.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import peer_mobilenet
import torch
from onnx import helper, numpy_helper
from torch import nn
from torch.nn import functional

MEASURED = 256  # samples


def random_network() -> nn.Module:
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    inputs = 3
    for k, outputs in enumerate((16, 16, 32, 32, 32, 64, 64, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, 2 if k in (2, 5) else 1, 1, bias=False)]
        layers += [nn.BatchNorm2d(outputs), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


class Module(nn.Module):
    """A file of convolutions, dense layers, pools and their like, run node by node."""

    def __init__(self, path: Path, *, restored: bool) -> None:
        super().__init__()
        graph = onnx.load(path).graph
        self.nodes, self.output = list(graph.node), graph.output[0].name
        self.input = next(i.name for i in graph.input)
        self.held = {t.name: torch.tensor(numpy_helper.to_array(t)) for t in graph.initializer}
        self.norms, self.weights = nn.ModuleDict(), nn.ParameterDict()
        for node in self.nodes:
            if node.op_type == "DequantizeLinear":
                q, scale, zero = (self.held[i] for i in node.input)
                axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
                along = [-1 if k == axis and scale.numel() > 1 else 1 for k in range(q.ndim)]
                real = (q.float() - zero.float().reshape(along)) * scale.reshape(along)
                self.held[node.output[0]] = real
        for k, node in enumerate(self.nodes):
            if node.op_type in ("Conv", "Gemm", "MatMul", "Add"):
                for name in node.input[1:] if node.op_type != "Add" else node.input:
                    if name in self.held and self.held[name].numel() > 1:
                        self.weights[self.key(name)] = nn.Parameter(self.held[name].float())
            if restored and node.op_type == "Conv":
                self.norms[str(k)] = nn.BatchNorm2d(len(self.held[node.input[1]]))
        self.nodes = [n for n in self.nodes if n.op_type != "DequantizeLinear"]
        self.numbers = [k for k, n in enumerate(graph.node) if n.op_type != "DequantizeLinear"]
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
        for number, node in zip(self.numbers, self.nodes, strict=True):
            given = [self.value(values, i) if i else None for i in node.input]
            result = self.run(node, given)
            if str(number) in self.norms:
                if measuring:
                    self.seen.setdefault(str(number), []).append(result.detach())
                else:
                    result = self.norms[str(number)](result)
            values[node.output[0]] = result
        return values[self.output]

    def run(self, node: onnx.NodeProto, given: list[torch.Tensor]) -> torch.Tensor:
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


def accuracy(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    module.eval()
    with torch.no_grad():
        scores = torch.cat([module(part) for part in x.split(64)])
    return 100 * float((scores.argmax(1) == y).float().mean()), float(functional.cross_entropy(scores, y))


def train(model: Path, files: list[str], form: str, rate: float, epochs: int, batch: int, seed: int) -> None:
    torch.manual_seed(seed)
    (x, y), (test_x, test_y) = ((torch.tensor(d["x"]), torch.tensor(d["y"]).long()) for d in map(np.load, files))
    if form == "own":
        module = peer_mobilenet.network() if model.stem == "mobilenet" else nn.Sequential(random_network())
        module.load_state_dict(torch.load(model.with_suffix(".pt"), weights_only=True))
    else:
        module = Module(model, restored=form == "restored")
    if isinstance(module, Module) and form == "restored":
        module.measure(x[torch.randperm(len(x))[:MEASURED]])
    before, _ = accuracy(module, test_x, test_y)
    optimizer = torch.optim.SGD(module.parameters(), rate, momentum=0.9)
    steps = len(x) // batch * epochs
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        module.train()
        for rows in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            functional.cross_entropy(module(x[rows]), y[rows]).backward()
            optimizer.step()
            schedule.step()
    print(before, *accuracy(module, test_x, test_y), flush=True)


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1] == "random":
        out, network, shown = Path(sys.argv[2]), nn.Sequential(random_network()).eval(), torch.zeros(2, 3, 32, 32)
        torch.onnx.export(network, (shown,), out, dynamo=True, external_data=False, input_names=["x"])
        with_norms = out.with_suffix(".norms.onnx")
        torch.onnx.export(
            network, (shown,), with_norms, dynamo=True, external_data=False, input_names=["x"], optimize=False
        )
        torch.save(network.state_dict(), out.with_suffix(".pt"))
        return
    model, *files, form, rate, epochs, batch, seeds = sys.argv[2:]
    for seed in range(int(seeds)):
        train(Path(model), files, form, float(rate), int(epochs), int(batch), seed)


if __name__ == "__main__":
    main()
