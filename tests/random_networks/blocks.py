"""Random PyTorch modules. A `Maker` draws layers one after the other and knows the shape that each leaves behind.

Shapes are without the batch: an image is (channels, height, width), a signal (channels, length), a sequence
(length, features), a vector (features,).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from numpy.random import RandomState
from torch import Tensor, nn
from torch.nn import functional

from tests.random_networks.attention import Attend, ManualAttention, Packed

Shape = tuple[int, ...]


class Apply(nn.Module):
    """A function without parameters, as a layer."""

    def __init__(self, name: str, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.name, self.function = name, function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def extra_repr(self) -> str:
        return self.name


class Residual(nn.Module):
    def __init__(self, body: nn.Module, gain: str) -> None:
        super().__init__()
        self.body = body
        self.gain = nn.Parameter(torch.tensor(0.7)) if gain == "scalar" else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return x + (y if self.gain is None else self.gain * y)


class Dense(nn.Module):
    """The input beside the result, along the channels."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, hidden: int, act: nn.Module) -> None:
        super().__init__()
        self.down, self.up, self.act = nn.Conv2d(channels, hidden, 1), nn.Conv2d(hidden, channels, 1), act

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(self.act(self.down(x.mean((2, 3), keepdim=True)))))


class Recurrent(nn.Module):
    """LSTM, GRU or RNN over a sequence. `state`: none | zeros | learned."""

    def __init__(self, kind: str, features: int, hidden: int, state: str, batch: int, **options: Any) -> None:
        super().__init__()
        self.kind, self.state, self.batch = kind, state, batch
        self.cell = getattr(nn, kind)(features, hidden, batch_first=True, **options)
        tracks = options["num_layers"] * (2 if options["bidirectional"] else 1)
        self.shape = (tracks, batch, hidden)
        if state == "learned":
            self.first = nn.Parameter(torch.randn(tracks, 1, hidden) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        if self.state == "none":
            return self.cell(x)[0]  # type: ignore[no-any-return]
        h = x.new_zeros(self.shape) if self.state == "zeros" else self.first.expand(self.shape).contiguous()
        return self.cell(x, (h, torch.zeros_like(h)) if self.kind == "LSTM" else h)[0]  # type: ignore[no-any-return]


class Cells(nn.Module):
    """A cell in a Python loop, from a state of zeros."""

    def __init__(self, kind: str, features: int, hidden: int, batch: int) -> None:
        super().__init__()
        self.kind, self.hidden, self.batch = kind, hidden, batch
        self.cell = getattr(nn, f"{kind}Cell")(features, hidden)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(self.batch, self.hidden)
        c, found = torch.zeros_like(h), []
        for t in range(x.shape[1]):
            if self.kind == "LSTM":
                h, c = self.cell(x[:, t], (h, c))
            else:
                h = self.cell(x[:, t], h)
            found.append(h)
        return torch.stack(found, 1)


class Elman(nn.Module):
    """An RNN written by hand: both biases are parameters of their own, the state starts at zero."""

    def __init__(self, features: int, hidden: int, batch: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(hidden, hidden), nn.Linear(features, hidden)
        self.hidden, self.batch = hidden, batch

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(self.batch, self.hidden, dtype=x.dtype)
        found = []
        for t in range(x.shape[1]):
            h = torch.tanh(self.outer(x[:, t]) + self.inner(h))
            found.append(h)
        return torch.stack(found, 1)


class Einsum(nn.Module):
    def __init__(self, equation: str, *shapes: Shape) -> None:
        super().__init__()
        self.equation = equation
        self.factors = nn.ParameterList([nn.Parameter(torch.randn(s) / math.sqrt(s[0])) for s in shapes])

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum(self.equation, x, *self.factors)

    def extra_repr(self) -> str:
        return self.equation


class Position(nn.Module):
    """A position's vector is added: learned (from zeros, as many start it), or a table of sines."""

    def __init__(self, length: int, width: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        angle = torch.arange(length)[:, None] / 100 ** (torch.arange(0, width, 2) / width)
        table = torch.stack([angle.sin(), angle.cos()], -1).reshape(length, -1)[:, :width]
        if kind == "sines":
            self.register_buffer("table", table)
        else:
            first = torch.zeros(1, length, width) if kind == "zeros" else torch.randn(1, length, width) * 0.2
            self.table = nn.Parameter(first)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table


class Scale(nn.Module):
    """A factor a feature: LayerScale, from equal numbers."""

    def __init__(self, width: int, start: float, rank: int, axis: int) -> None:
        super().__init__()
        shape = [1] * rank
        shape[axis] = width
        self.factor = nn.Parameter(torch.full(shape, start))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Gate(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.value(x) * torch.sigmoid(self.gate(x))


class LowRank(nn.Module):
    """A weight that is a product of two parameters."""

    def __init__(self, features: int, rank: int, out: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(out, rank) / math.sqrt(rank))
        self.b = nn.Parameter(torch.randn(rank, features) / math.sqrt(features))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.a @ self.b)


class Twice(nn.Module):
    """One layer applied two times: its weight is shared."""

    def __init__(self, body: nn.Module, act: nn.Module) -> None:
        super().__init__()
        self.body, self.act = body, act

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.act(self.body(x)))  # type: ignore[no-any-return]


class Pooled(nn.Module):
    """Positions weighed by a softmax of learned scores, then added up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(width) / math.sqrt(width))

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(x @ self.query, 1)
        return torch.einsum("bt,btd->bd", weights, x)


ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, lambda: nn.GELU("tanh"), nn.SiLU, nn.Mish,
    nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Softsign, nn.PReLU, nn.LogSigmoid,
    nn.Tanhshrink, nn.Softshrink, nn.Hardshrink, lambda: nn.Threshold(0.1, -0.2),
)  # fmt: skip


class Maker:
    """Draws layers; `shape` is that of what they have made so far."""

    def __init__(self, random: RandomState, batch: int) -> None:
        self.random, self.batch = random, batch
        self.shape: Shape = ()

    # --- drawing ---

    def pick(self, *of: Any) -> Any:
        return of[self.random.randint(len(of))]

    def chance(self, share: float) -> bool:
        return bool(self.random.rand() < share)

    def act(self) -> nn.Module:
        made = self.pick(*ACTIVATIONS)()
        assert isinstance(made, nn.Module)
        return made

    def divisor(self, of: int, most: int = 99) -> int:
        return int(self.pick(*[d for d in range(1, min(of, most) + 1) if of % d == 0]))

    def _settle(self, layer: nn.Module) -> nn.Module:
        """Note the shape that the layer leaves."""
        mode = layer.training
        with torch.no_grad():
            result = layer.eval()(torch.zeros(self.batch, *self.shape))
        layer.train(mode)
        if min(result.shape) < 1 or result[0].numel() > 1500:
            raise ValueError("too small or too large")
        self.shape = tuple(result.shape[1:])
        return layer

    def layer(self, kinds: Sequence[str]) -> nn.Module:
        """One that fits the shape; what does not is drawn again."""
        for _ in range(50):
            kind = self.pick(*kinds)
            try:
                return self._settle(getattr(self, kind)())
            except (ValueError, RuntimeError, AssertionError):
                continue
        return self._settle(nn.Identity())

    # --- images and signals ---

    def _rank(self) -> int:
        return len(self.shape) - 1

    def _each(self, *of: int) -> tuple[int, ...]:
        return tuple(int(self.pick(*of)) for _ in range(self._rank()))

    def convolution(self) -> nn.Module:
        c, kernel = self.shape[0], self._each(1, 2, 3, 3)
        groups = self.divisor(c) if self.chance(0.4) else 1
        out = groups * int(self.pick(1, 2, 3)) if groups > 1 else int(self.pick(2, 3, 4, 6))
        made = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[self._rank() - 1]
        return made(
            c, out, kernel, stride=self._each(1, 1, 2), padding=self._each(0, 1, 1), dilation=self._each(1, 1, 1, 2),
            groups=groups, bias=self.chance(0.7),
            padding_mode=self.pick("zeros", "zeros", "zeros", "reflect", "replicate", "circular"),
        )  # fmt: skip

    def depthwise(self) -> nn.Module:
        c, rank = self.shape[0], self._rank()
        made = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
        spatial = made(c, c, 3, padding=1, stride=self._each(1, 2), groups=c, bias=False)
        return nn.Sequential(spatial, made(c, int(self.pick(2, 4, 6)), 1))

    def transposed(self) -> nn.Module:
        c, stride = self.shape[0], self._each(1, 2)
        groups = self.divisor(c, 2)
        made = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[self._rank() - 1]
        extra = tuple(int(self.random.randint(s)) for s in stride)
        return made(
            c, groups * int(self.pick(1, 2)), self._each(2, 3), stride=stride, padding=self._each(0, 1),
            output_padding=extra, groups=groups, bias=self.chance(0.7),
        )  # fmt: skip

    def batch_norm(self) -> nn.Module:
        made = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[self._rank() - 1]
        if self.batch * math.prod(self.shape[1:]) < 2:
            raise ValueError
        return made(self.shape[0], momentum=self.pick(0.1, 0.3), eps=self.pick(1e-5, 1e-3))

    def normed(self) -> nn.Module:
        """Convolution, batch norm, activation."""
        c = self.shape[0]
        made = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[self._rank() - 1]
        out = int(self.pick(3, 4, 6))
        convolution = made(c, out, 3, padding=1, stride=self._each(1, 2), bias=self.chance(0.4))
        before, self.shape = self.shape, (out, *self.shape[1:])
        norm = self.pick(self.batch_norm, self.batch_norm, self.group_norm, self.instance_norm)()
        self.shape = before
        return nn.Sequential(convolution, norm, self.act())

    def group_norm(self) -> nn.Module:
        if self.shape[0] < 2:
            raise ValueError
        return nn.GroupNorm(self.divisor(self.shape[0]), self.shape[0], eps=self.pick(1e-5, 1e-3))

    def instance_norm(self) -> nn.Module:
        if math.prod(self.shape[1:]) < 2:
            raise ValueError
        made = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[self._rank() - 1]
        return made(self.shape[0], affine=self.chance(0.6))

    def plane_norm(self) -> nn.Module:
        return nn.LayerNorm(self.shape, elementwise_affine=self.chance(0.8))

    def response_norm(self) -> nn.Module:
        return nn.LocalResponseNorm(int(self.pick(2, 3, 5)), alpha=0.05, beta=0.6, k=1.3)

    def activation(self) -> nn.Module:
        if self.chance(0.15):
            return nn.PReLU(self.shape[0], init=0.2) if len(self.shape) > 1 else nn.PReLU(init=0.2)
        return self.act()

    def max_pool(self) -> nn.Module:
        made = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[self._rank() - 1]
        return made(self._each(2, 3), stride=self._each(1, 2), padding=self.pick(0, 0, 1), ceil_mode=self.chance(0.3))

    def average_pool(self) -> nn.Module:
        made = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)[self._rank() - 1]
        return made(
            int(self.pick(2, 3)), stride=int(self.pick(1, 2)), padding=self.pick(0, 0, 1),
            ceil_mode=self.chance(0.3), count_include_pad=self.chance(0.5),
        )  # fmt: skip

    def adaptive_pool(self) -> nn.Module:
        names = ("AdaptiveAvgPool", "AdaptiveMaxPool")
        made = getattr(nn, f"{self.pick(*names)}{self._rank()}d")
        return made(tuple(self.divisor(n) for n in self.shape[1:]))  # type: ignore[no-any-return]

    def resize(self) -> nn.Module:
        modes = {1: ("nearest", "linear"), 2: ("nearest", "bilinear", "bicubic", "nearest-exact"), 3: ("nearest",)}
        mode = self.pick(*modes[self._rank()])
        options: dict[str, Any] = {} if "nearest" in mode else {"align_corners": self.chance(0.5)}
        if self.chance(0.5):
            scale = float(self.pick(0.5, 1.5, 2.0))
            return Apply(
                f"resize {mode} x {scale}",
                lambda x: functional.interpolate(x, scale_factor=scale, mode=mode, **options),
            )
        size = self._each(3, 4, 5, 7)
        return Apply(f"resize {mode} to {size}", lambda x: functional.interpolate(x, size=size, mode=mode, **options))

    def shuffle(self) -> nn.Module:
        return nn.PixelUnshuffle(2) if self.chance(0.5) else nn.PixelShuffle(2)

    def padding(self) -> nn.Module:
        pads = tuple(int(self.random.randint(0, 3)) for _ in range(2 * self._rank()))
        mode = self.pick("constant", "reflect", "replicate", "circular")
        return Apply(f"pad {mode} {pads}", lambda x: functional.pad(x, pads, mode=mode))

    def squeeze_excite(self) -> nn.Module:
        return SqueezeExcite(self.shape[0], int(self.pick(1, 2, 3)), self.act())

    def around(self) -> nn.Module:
        """A convolution with what comes behind it, beside the input."""
        c, rank = self.shape[0], self._rank()
        made = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
        body = nn.Sequential(made(c, c, 3, padding=1), self.pick(self.batch_norm, self.group_norm)(), self.act())
        return Dense(body) if self.chance(0.3) else Residual(body, self.pick("", "", "scalar"))

    def gated_channels(self) -> nn.Module:
        return nn.GLU(1)

    def channel_scale(self) -> nn.Module:
        return Scale(self.shape[0], self.pick(1.0, 0.1), len(self.shape) + 1, 1)

    def halves(self) -> nn.Module:
        return Apply("halves swapped", lambda x: torch.cat(x.chunk(2, 1)[::-1], 1))

    # --- sequences ---

    def linear(self) -> nn.Module:
        return nn.Linear(self.shape[-1], int(self.pick(4, 6, 8)), bias=self.chance(0.8))

    def layer_norm(self) -> nn.Module:
        return nn.LayerNorm(self.shape[-1], bias=self.chance(0.8), elementwise_affine=self.chance(0.9))

    def rms_norm(self) -> nn.Module:
        return nn.RMSNorm(self.shape[-1], eps=1e-5)

    def _heads(self) -> int:
        return self.divisor(self.shape[-1], 4)

    def manual_attention(self) -> nn.Module:
        t, d = self.shape
        mask = self.pick("none", "causal", "filled", "additive")
        return self._attending(ManualAttention(t, d, self._heads(), mask, bias=self.chance(0.7)))

    def module_attention(self) -> nn.Module:
        t, d = self.shape
        mask = self.pick("none", "causal", "additive")
        return self._attending(Packed(t, d, self._heads(), mask, self.random, bias=self.chance(0.8)))

    def fused_attention(self) -> nn.Module:
        t, d = self.shape
        mask = self.pick("none", "causal", "boolean", "additive")
        return self._attending(Attend(t, d, self._heads(), mask, self.random))

    def _attending(self, attention: nn.Module) -> nn.Module:
        if self.chance(0.6):
            return Residual(nn.Sequential(nn.LayerNorm(self.shape[-1]), attention), "")
        return attention

    def encoder(self) -> nn.Module:
        d = self.shape[-1]
        return nn.TransformerEncoderLayer(
            d, self._heads(), dim_feedforward=int(self.pick(6, 9)), dropout=0.0, batch_first=True,
            activation=self.pick("relu", "gelu"), norm_first=self.chance(0.5),
        )  # fmt: skip

    def recurrent(self) -> nn.Module:
        kind = self.pick("LSTM", "GRU", "RNN")
        options: dict[str, Any] = {
            "num_layers": int(self.pick(1, 1, 2)), "bidirectional": self.chance(0.3), "bias": self.chance(0.85)
        }  # fmt: skip
        if kind == "RNN":
            options["nonlinearity"] = self.pick("tanh", "relu")
        state = self.pick("none", "zeros", "learned")
        return Recurrent(kind, self.shape[-1], int(self.pick(3, 4, 5)), state, self.batch, **options)

    def cells(self) -> nn.Module:
        return Cells(self.pick("LSTM", "GRU", "RNN"), self.shape[-1], int(self.pick(3, 4)), self.batch)

    def elman(self) -> nn.Module:
        return Elman(self.shape[-1], int(self.pick(3, 4)), self.batch)

    def einsum(self) -> nn.Module:
        t, d = self.shape
        e = int(self.pick(4, 6))
        return self.pick(
            lambda: Einsum("btd,de->bte", (d, e)),
            lambda: Einsum("btd,st->bsd", (t + 1, t)),
            lambda: Einsum("btd,dk,ke->bte", (d, 3), (3, e)),
            lambda: Einsum("btd,td->btd", (t, d)),
        )()  # type: ignore[no-any-return]

    def position(self) -> nn.Module:
        return Position(*self.shape, self.pick("zeros", "learned", "sines"))

    def feature_scale(self) -> nn.Module:
        return Scale(self.shape[-1], self.pick(1.0, 0.1), len(self.shape) + 1, -1)

    def gate(self) -> nn.Module:
        return Gate(self.shape[-1])

    def low_rank(self) -> nn.Module:
        return LowRank(self.shape[-1], 2, int(self.pick(4, 6)))

    def twice(self) -> nn.Module:
        return Twice(nn.Linear(self.shape[-1], self.shape[-1]), self.act())

    def feed_forward(self) -> nn.Module:
        d = self.shape[-1]
        hidden = int(self.pick(6, 9))
        body = nn.Sequential(nn.Linear(d, hidden), self.act(), nn.Linear(hidden, d))
        return Residual(body, self.pick("", "", "scalar"))

    def softmax(self) -> nn.Module:
        return self.pick(nn.Softmax, nn.LogSoftmax)(-1)  # type: ignore[no-any-return]

    def along_time(self) -> nn.Module:
        """A convolution over the sequence."""
        d, causal = self.shape[-1], self.chance(0.5)
        convolution = nn.Conv1d(d, int(self.pick(3, 4)), 3, padding=0 if causal else 1)
        first = Apply("causal pad", lambda x: functional.pad(x.transpose(1, 2), (2, 0)))
        second = Apply("transpose", lambda x: x.transpose(1, 2))
        return nn.Sequential(first if causal else second, convolution, second)

    def mixing(self) -> nn.Module:
        """A linear layer across the positions."""
        t = self.shape[0]
        turn = Apply("transpose", lambda x: x.transpose(1, 2))
        return Residual(nn.Sequential(turn, nn.Linear(t, t), self.act(), turn), "")

    def vector_norm(self) -> nn.Module:
        if self.batch < 2:
            raise ValueError
        return nn.BatchNorm1d(self.shape[0])

    # --- from one shape to another ---

    def to_vector(self) -> nn.Module:
        if len(self.shape) == 1:
            return nn.Identity()
        ways: list[Callable[[], nn.Module]] = [lambda: nn.Flatten(1)] * (2 if math.prod(self.shape) < 60 else 0)
        if len(self.shape) == 2 and self.chance(0.7):
            width = self.shape[-1]
            ways += [
                lambda: Apply("mean over time", lambda x: x.mean(1)),
                lambda: Apply("last step", lambda x: x[:, -1]),
                lambda: Apply("largest over time", lambda x: x.amax(1)),
                lambda: Pooled(width),
            ]
        else:
            axes = tuple(range(2, len(self.shape) + 1))
            ways += [lambda: Apply("mean over the plane", lambda x: x.mean(axes))]
        return self._settle(self.pick(*ways)())

    def to_sequence(self) -> nn.Module:
        return self._settle(Apply("plane to sequence", lambda x: x.flatten(2).transpose(1, 2)))


PLANE = (
    "convolution", "convolution", "convolution", "depthwise", "transposed", "batch_norm", "normed", "normed",
    "group_norm", "instance_norm", "plane_norm", "response_norm", "activation", "activation", "max_pool",
    "average_pool", "adaptive_pool", "resize", "padding", "around", "around", "gated_channels", "channel_scale",
    "halves",
)  # fmt: skip
IMAGE = (*PLANE, "shuffle", "squeeze_excite")
SEQUENCE = (
    "linear", "layer_norm", "rms_norm", "manual_attention", "manual_attention", "module_attention", "module_attention",
    "fused_attention", "encoder", "recurrent", "recurrent", "recurrent", "cells", "elman", "einsum", "position",
    "feature_scale", "gate", "low_rank", "twice", "feed_forward", "activation", "softmax", "along_time", "mixing",
)  # fmt: skip
VECTOR = ("linear", "layer_norm", "rms_norm", "vector_norm", "activation", "gate", "low_rank", "twice", "feed_forward")
