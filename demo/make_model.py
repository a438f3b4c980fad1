"""Make digits.onnx: a small CNN trained in PyTorch on the first 1000 of the UCI handwritten digits.

    python demo/make_model.py DIGITS_NPZ

Needs `pip install torch onnx numpy`, which nothing else here does: the result is shipped. BatchNorm is kept as it is
(no folding into the convolutions), because training needs it; the batch is symbolic. DIGITS_NPZ as in make_data.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

FIRST_NEW = 1000
EPOCHS = 40


def block(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]


def network() -> nn.Module:
    """[n, 1, 8, 8] in 0 .. 1 -> [n, 10] logits; 20 k parameters."""
    return nn.Sequential(
        *block(1, 16),
        *block(16, 16),
        *block(16, 16),
        nn.MaxPool2d(2),
        *block(16, 32),
        *block(32, 32),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = np.load(sys.argv[1])
    x = torch.from_numpy(digits["x"].astype(np.float32) / 16).reshape(-1, 1, 8, 8)[:FIRST_NEW]
    y = torch.from_numpy(digits["y"].astype(np.int64))[:FIRST_NEW]

    model = network().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for epoch in range(EPOCHS):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * (1 - epoch / EPOCHS)
        hits = 0
        for rows in torch.randperm(FIRST_NEW).split(40):
            logits = model(x[rows])
            loss = nn.functional.cross_entropy(logits, y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hits += int((logits.argmax(1) == y[rows]).sum())
        print(f"epoch {epoch + 1}: {hits / FIRST_NEW:.1%} of its own training digits")

    torch.onnx.export(
        model.eval(),
        (x[:1],),
        str(Path(__file__).with_name("digits.onnx")),
        dynamo=False,
        opset_version=17,
        input_names=["image"],
        output_names=["logits"],
        dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
        training=torch.onnx.TrainingMode.PRESERVE,
        do_constant_folding=False,
    )


if __name__ == "__main__":
    main()
