"""PyTorch's side of bench/fleet.py, run by a Python that has torch.

`peer_fleet.py export FILE` writes the model of Flower's example embedded-devices as ONNX, and `export-smooth FILE` the
same with tanh and average pools. `train` and `train-smooth` read lines "IN OUT RATE DTYPE". IN is an .npz with weights
by name, and batches `x` and `y`. DTYPE is float64, float32, or plain: float32 without oneDNN. They write the trained
weights, the loss and the least `gap` to OUT, and answer with the peak of memory in KiB. The gap is the least difference
at which a ReLU or a max pool changed its choice in some step.
"""

from __future__ import annotations

import resource
import sys
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    """Two convolutions and three linear layers, for images of 28 x 28."""

    def __init__(self, smooth: bool = False) -> None:
        super().__init__()
        self.smooth, self.gaps = smooth, list[float]()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.act, self.pool = (torch.tanh, nn.AvgPool2d(2)) if smooth else (self.relu, nn.MaxPool2d(2))
        self.fc1, self.fc2, self.fc3 = nn.Linear(256, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def relu(self, x: torch.Tensor) -> torch.Tensor:
        self._keep(x.detach().abs())
        return torch.relu(x)

    def max_pool(self, x: torch.Tensor) -> torch.Tensor:
        """The pool; of windows that let something through, the difference of the largest two."""
        parts = x.detach().unfold(2, 2, 2).unfold(3, 2, 2).flatten(-2)
        first, second = parts.topk(2).values.unbind(-1)
        self._keep((first - second)[first > 0])
        return self.pool(x)

    def _keep(self, gaps: torch.Tensor) -> None:
        if gaps.dtype == torch.float64:  # equal operands make equal gradients
            self.gaps.append(float(gaps[gaps > 1e-14].min()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pool = self.pool if self.smooth else self.max_pool
        x = pool(self.act(self.conv1(x)))
        x = pool(self.act(self.conv2(x))).flatten(1)
        return self.fc3(self.act(self.fc2(self.act(self.fc1(x)))))


def train(given: dict[str, np.ndarray], rate: float, dtype: torch.dtype, smooth: bool) -> dict[str, np.ndarray]:
    """One pass over the batches with a new optimizer, as a client of the example does."""
    net = Net(smooth).to(dtype)
    net.load_state_dict({n: torch.from_numpy(given[n]) for n in net.state_dict()})
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    net.train()
    total = 0.0
    for x, y in zip(given["x"], given["y"], strict=True):
        optimizer.zero_grad()
        loss = criterion(net(torch.from_numpy(x).to(dtype)), torch.from_numpy(y).long())
        loss.backward()
        optimizer.step()
        total += loss.item()
    found = {"loss": np.float64(total / len(given["x"])), "gap": np.float64(min(net.gaps, default=np.inf))}
    return {**found, **{n: t.numpy() for n, t in net.state_dict().items()}}


def main() -> None:
    torch.set_num_threads(1)
    job, smooth = sys.argv[1].partition("-")[::2]
    if job == "export":
        torch.manual_seed(0)
        torch.onnx.export(Net(bool(smooth)).eval(), (torch.zeros(32, 1, 28, 28),), sys.argv[2], verbose=False)
        return
    for line in sys.stdin:
        source, target, rate, dtype = line.split()
        with np.load(source) as arrays:
            given = dict(arrays)
        plain = dtype == "plain"
        with torch.backends.mkldnn.flags(enabled=False) if plain else nullcontext():
            found = train(given, float(rate), torch.float32 if plain else getattr(torch, dtype), bool(smooth))
        np.savez(target, **found)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)


if __name__ == "__main__":
    main()
