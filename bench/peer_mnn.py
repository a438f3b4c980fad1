"""MNN's side of bench/kernels.py: `peer_mnn.py run NAME BATCH` works as peer_torch.py does; the same networks, but
for BERT, whose layer norm has no gradient there."""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

import MNN.expr as mnn
import numpy as np
from MNN import nn, optim


def conv(
    inputs: int, outputs: int, kernel: int, stride: int = 1, pad: int = 0, group: int = 1, bias: bool = True
) -> Any:
    steps, pads = [stride, stride], [pad, pad]
    mode = mnn.Padding_Mode.CAFFE  # with any other, pads are ignored without a word
    return nn.conv(inputs, outputs, [kernel, kernel], steps, pads, [1, 1], group > 1, bool(bias), mode)


class Net(nn.Module):
    """Modules must be attributes: those in a list would silently stay as they are."""

    shape: tuple[int, ...] = (3, 32, 32)

    def add(self, *modules: Any) -> list[str]:
        names = []
        for module in modules:
            names.append(f"m{len(self._children)}")
            setattr(self, names[-1], module)
        return names

    def __call__(self, x: Any) -> Any:
        return self.forward(x)

    def conv_bn(self, inputs: int, outputs: int, kernel: int, stride: int = 1, group: int = 1) -> list[str]:
        layer = conv(inputs, outputs, kernel, stride, kernel // 2, group, 0)
        return self.add(layer, nn.batch_norm(outputs))

    def run(self, names: list[str], x: Any) -> Any:
        for name in names:
            x = getattr(self, name)(x)
        return x


def flat(x: Any) -> Any:
    return mnn.reshape(mnn.convert(x, mnn.NCHW), [0, -1])


class LeNet(Net):
    shape = (1, 28, 28)

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = conv(1, 6, 5, pad=2), conv(6, 16, 5)
        self.f1, self.f2, self.f3 = nn.linear(400, 120), nn.linear(120, 84), nn.linear(84, 10)

    def forward(self, x: Any) -> Any:
        x = mnn.max_pool(mnn.relu(self.c1(x)), [2, 2], [2, 2])
        x = flat(mnn.max_pool(mnn.relu(self.c2(x)), [2, 2], [2, 2]))
        return self.f3(mnn.relu(self.f2(mnn.relu(self.f1(x)))))


class MobileNetV2(Net):
    stages = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))

    def __init__(self) -> None:
        super().__init__()
        self.stem, width = self.conv_bn(3, 32, 3), 32
        self.blocks = []
        for expand, outputs, count, stride in self.stages:
            for i in range(count):
                hidden, step = width * expand, stride if i == 0 else 1
                first = self.conv_bn(width, hidden, 1) if expand > 1 else []
                middle, last = self.conv_bn(hidden, hidden, 3, step, hidden), self.conv_bn(hidden, outputs, 1)
                self.blocks.append((first, middle, last, step == 1 and width == outputs))
                width = outputs
        self.top = self.conv_bn(width, 1280, 1)
        self.head = nn.linear(1280, 10)

    def forward(self, x: Any) -> Any:
        x = mnn.relu6(self.run(self.stem, x))
        for first, middle, last, skip in self.blocks:
            y = mnn.relu6(self.run(first, x)) if first else x
            y = self.run(last, mnn.relu6(self.run(middle, y)))
            x = x + y if skip else y
        x = mnn.relu6(self.run(self.top, x))
        return self.head(flat(mnn.avg_pool(x, x.shape[2:], [1, 1])))


class ResNet18(Net):
    def __init__(self) -> None:
        super().__init__()
        self.stem, width = self.conv_bn(3, 64, 3), 64
        self.blocks = []
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            for step, inputs in ((stride, width), (1, outputs)):
                skip = [] if step == 1 and inputs == outputs else self.conv_bn(inputs, outputs, 1, step)
                block = self.conv_bn(inputs, outputs, 3, step), self.conv_bn(outputs, outputs, 3), skip
                self.blocks.append(block)
            width = outputs
        self.head = nn.linear(512, 10)

    def forward(self, x: Any) -> Any:
        x = mnn.relu(self.run(self.stem, x))
        for first, second, skip in self.blocks:
            y = self.run(second, mnn.relu(self.run(first, x)))
            x = mnn.relu(y + (self.run(skip, x) if skip else x))
        return self.head(flat(mnn.avg_pool(x, x.shape[2:], [1, 1])))


MODELS = {"lenet": LeNet, "mobilenetv2": MobileNetV2, "resnet18": ResNet18}


def main() -> None:
    name, batch = sys.argv[2], int(sys.argv[3])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    mnn.lazy_eval(True)  # without it no parameter moves, without a word
    model = MODELS[name]()
    model.train(True)
    optimizer = optim.SGD(model, 1e-4, 0.0, 0.0)
    random = np.random.default_rng(0)
    image = random.standard_normal((batch, *model.shape)).astype(np.float32)
    target = random.integers(0, 10, batch).astype(np.int32)

    def step() -> None:
        # Nothing may be read before the step: it would leave all parameters as they are, without a word.
        x, wanted = mnn.placeholder(list(image.shape), mnn.NCHW), mnn.placeholder([batch, 10], mnn.NCHW)
        x.write(image)
        wanted.write(np.eye(10, dtype=np.float32)[target])
        loss = nn.loss.cross_entropy(mnn.softmax(model(mnn.convert(x, mnn.NC4HW4)), 1), wanted)
        if not optimizer.step(loss):
            raise SystemExit("MNN does not learn")

    step()
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.process_time()
        for _ in range(int(line)):
            step()
        elapsed = 1e3 * (time.process_time() - start) / int(line)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(elapsed, used << 10, flush=True)


main()
