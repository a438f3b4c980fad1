"""MNN's side of `bench/language_models.py peers`: `peer_mnn_decoder.py NAME TOKENS` works as peer_language_models.py
does. Frozen matrices are f32. AdamW is not there: Adam it is. The words' vectors are looked up outside, as frozen ones.

Functions of MNN.expr cast what they take, and a cast has no gradient there, without a word; these here do not cast.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import _mnncengine._expr as f
import MNN.expr as mnn
import numpy as np
from MNN import nn, optim

RANK, WORDS, BASE, EPSILON = 8, 49152, 1e5, 1e-5
SHAPES = {"SmolLM2-135M": (576, 1536, 30, 9, 3), "SmolLM2-360M": (960, 2560, 32, 15, 5)}


def constant(array: Any) -> Any:
    array = np.ascontiguousarray(array, np.float32)
    made = mnn.placeholder(list(array.shape), mnn.NCHW)
    made.write(array)
    made.fix_as_const()
    return made


class Decoder(nn.Module):
    """A Llama; rank 8 beside each matrix of its blocks."""

    def __init__(self, shape: tuple[int, ...], words: int, tokens: int, draw: Any) -> None:
        super().__init__()
        self.shape, self.tokens = shape, tokens
        width, inner, layers, heads, groups = shape
        size = width // heads
        self.outputs = (("q", width, width), ("k", width, groups * size), ("v", width, groups * size))
        self.outputs += (("o", width, width), ("gate", width, inner), ("up", width, inner), ("down", inner, width))
        self.table = draw(words, width)
        self.frozen = {"head": constant(self.table)}
        for layer in range(layers):
            for name, inputs, outputs in self.outputs:
                at = f"{name}{layer}"
                self.frozen[at] = constant(draw(outputs, inputs))
                self.add(f"a_{at}", draw(RANK, inputs))
                self.add(f"b_{at}", np.zeros((outputs, RANK), np.float32))
        places = np.outer(np.arange(tokens), BASE ** (-np.arange(0, size, 2) / size))
        angles = np.concatenate([places, places], 1)[:, None]
        self.frozen["cosine"], self.frozen["sine"] = constant(np.cos(angles)), constant(np.sin(angles))
        hidden = np.triu(np.full((tokens, tokens), -1e9), 1)
        self.frozen["mask"] = constant(np.tile(hidden, (heads // groups, 1))[None])
        self.frozen["small"], self.frozen["scale"] = constant([[EPSILON]]), constant([[[size**-0.5]]])

    def add(self, name: str, array: Any) -> None:
        made = constant(array)
        made.fix_as_trainable()
        setattr(self, name, made)

    def __call__(self, x: Any) -> Any:
        return self.forward(x)

    def product(self, x: Any, name: str) -> Any:
        low = f.matmul(x, getattr(self, f"a_{name}"), False, True)
        return f.matmul(x, self.frozen[name], False, True) + f.matmul(low, getattr(self, f"b_{name}"), False, True)

    def norm(self, x: Any) -> Any:
        return x * f.rsqrt(f.reduce_mean(f.square(x), [-1], True) + self.frozen["small"])

    def turned(self, x: Any, heads: int) -> Any:
        """[heads, tokens, size], turned by the place of each token."""
        x = mnn.reshape(x, [self.tokens, heads, -1])
        half = self.shape[0] // self.shape[3] // 2
        first, second = mnn.split(x, [half, half], -1)
        x = x * self.frozen["cosine"] + mnn.concat([f.negative(second), first], -1) * self.frozen["sine"]
        return mnn.transpose(x, [1, 0, 2])

    def attention(self, x: Any, layer: int) -> Any:
        width, _, _, heads, groups = self.shape
        q = self.turned(self.product(x, f"q{layer}"), heads)
        k = self.turned(self.product(x, f"k{layer}"), groups)
        v = mnn.transpose(mnn.reshape(self.product(x, f"v{layer}"), [self.tokens, groups, -1]), [1, 0, 2])
        q = mnn.reshape(q, [groups, heads // groups * self.tokens, -1])
        scores = f.matmul(q, k, False, True) * self.frozen["scale"] + self.frozen["mask"]
        found = mnn.reshape(f.matmul(f.softmax(scores, -1), v, False, False), [heads, self.tokens, -1])
        return self.product(mnn.reshape(mnn.transpose(found, [1, 0, 2]), [self.tokens, width]), f"o{layer}")

    def forward(self, x: Any) -> Any:
        for layer in range(self.shape[2]):
            x = x + self.attention(self.norm(x), layer)
            y = self.norm(x)
            gate = self.product(y, f"gate{layer}")
            x = x + self.product(gate * f.sigmoid(gate) * self.product(y, f"up{layer}"), f"down{layer}")
        return f.matmul(self.norm(x), self.frozen["head"], False, True)


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) << 10


def loss_of(model: Decoder, ids: Any) -> Any:
    target = np.zeros((model.tokens, len(model.table)), np.float32)
    target[np.arange(model.tokens), ids[1:]] = 1
    x, wanted = (mnn.placeholder([model.tokens, width], mnn.NCHW) for width in (model.shape[0], len(model.table)))
    x.write(model.table[ids[:-1]])
    wanted.write(target)
    return nn.loss.cross_entropy(f.softmax(model(x), 1), wanted)


def main() -> None:
    name, tokens = sys.argv[1], int(sys.argv[2])
    random = np.random.default_rng(0)
    mnn.set_thread_number(int(os.environ.get("OMP_NUM_THREADS", "1")))
    mnn.lazy_eval(True)  # without it no parameter moves, without a word
    model = Decoder(SHAPES[name], WORDS, tokens, lambda *s: random.uniform(-0.03, 0.03, s).astype(np.float32))
    model.train(True)
    optimizer = optim.ADAM(model, 1e-4)
    ids = random.integers(0, WORDS, tokens + 1)
    print("ready", flush=True)
    for _ in sys.stdin:
        wall, busy = time.perf_counter(), time.process_time()
        # A loss that is read before the step leaves all parameters as they are, without a word.
        if not optimizer.step(loss := loss_of(model, ids)):
            raise SystemExit("MNN does not learn")
        busy, wall = time.process_time() - busy, time.perf_counter() - wall
        print(1e3 * busy, float(np.array(loss.read()).sum()), peak_bytes(), 1e3 * wall, flush=True)


if __name__ == "__main__":
    main()
