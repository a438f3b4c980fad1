"""PyTorch's side of bench/fleet.py, run by a Python that has torch.

`peer_fleet.py export FILE` writes the model of Flower's example embedded-devices as ONNX. `peer_fleet.py train` reads
lines "IN OUT RATE DTYPE". IN is an .npz with weights by name, and batches `x` and `y`. It writes the trained weights
and the loss to OUT, and answers with the peak of its memory in KiB.
"""

from __future__ import annotations

import resource
import sys

import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    """Two convolutions and three linear layers, for images of 28 x 28."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.pool = nn.MaxPool2d(2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(256, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x))).flatten(1)
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


def train(given: dict[str, np.ndarray], rate: float, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """One pass over the batches with a new optimizer, as a client of the example does."""
    net = Net().to(dtype)
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
    return {"loss": np.float64(total / len(given["x"])), **{n: t.numpy() for n, t in net.state_dict().items()}}


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1] == "export":
        torch.manual_seed(0)
        torch.onnx.export(Net().eval(), (torch.zeros(32, 1, 28, 28),), sys.argv[2], verbose=False)
        return
    for line in sys.stdin:
        source, target, rate, dtype = line.split()
        with np.load(source) as arrays:
            given = dict(arrays)
        np.savez(target, **train(given, float(rate), getattr(torch, dtype)))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)


if __name__ == "__main__":
    main()
