"""The activation memory budget of `torch.compile`: poetc's knapsack beside PyTorch's own.

    bench/setup_peers peft && build/peers/peft/bin/python bench/peer_budget.py

A line of JSON for each network, budget and solver: the time of the tensors that are recomputed, in PyTorch's own
estimates, and the share of the budget that the saved ones take. All solvers get the items that PyTorch asks about.
A step with each answer runs on the processor: the bytes that are held behind its forward pass, and its peak.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import nn
from torch._functorch import config, partitioners
from torch.profiler import ProfilerActivity, profile, record_function

from poetc.torch import KnapsackSolver

THEIRS = ("dp", "greedy", "ilp")


class Attention(nn.Module):
    """A block of a decoder (norms first) or of an encoder (norms last)."""

    def __init__(self, width: int, heads: int, *, first: bool) -> None:
        super().__init__()
        self.heads, self.first = heads, first
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5, -1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, tokens, width))

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.norms
        if self.first:
            x = x + self.attend(a(x))
            return x + self.feed(b(x))
        x = a(x + self.attend(x))
        return b(x + self.feed(x))


class Residual(nn.Module):
    """A bottleneck of a ResNet."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()

        def conv(a: int, b: int, k: int, s: int = 1) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(a, b, k, s, k // 2, bias=False), nn.BatchNorm2d(b))

        self.body = nn.Sequential(
            conv(inner, outer // 4, 1),
            nn.ReLU(),
            conv(outer // 4, outer // 4, 3, stride),
            nn.ReLU(),
            conv(outer // 4, outer, 1),
        )
        self.skip = conv(inner, outer, 1, stride) if inner != outer or stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.skip(x))


class UNet(nn.Module):
    """Ronneberger's (2015): two convolutions a level without padding, so what is kept is cropped."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()

        def level(inner: int, outer: int) -> nn.Sequential:
            convs = (nn.Conv2d(inner, outer, 3), nn.ReLU(), nn.Conv2d(outer, outer, 3), nn.ReLU())
            return nn.Sequential(*convs)

        widths = [width << k for k in range(depth + 1)]
        self.down = nn.ModuleList([level(a, b) for a, b in pairwise([1, *widths])])
        self.wide = nn.ModuleList([nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1])])
        self.up = nn.ModuleList([level(2 * w, w) for w in reversed(widths[:-1])])
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for k, block in enumerate(self.down):
            x = block(nn.functional.max_pool2d(x, 2) if k else x)
            kept.append(x)
        kept.pop()
        for wide, block in zip(self.wide, self.up, strict=True):
            x, saved = wide(x), kept.pop()
            edge = (saved.shape[2] - x.shape[2]) // 2
            x = block(torch.cat([saved[:, :, edge : edge + x.shape[2], edge : edge + x.shape[3]], x], 1))
        return self.last(x)


class ViT(nn.Module):
    """Dosovitskiy's (2020), patches of 16."""

    def __init__(self, width: int, heads: int, layers: int, side: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (side // 16) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(Attention(width, heads, first=True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


def resnet(counts: Sequence[int], side: int) -> nn.Sequential:
    """He's (2015), with bottlenecks; `side` pixels below 64 have no large stem."""
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    small = (nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    blocks, inner = list[nn.Module](), 64
    for stage, count in enumerate(counts):
        for k in range(count):
            blocks.append(Residual(inner, 256 << stage, 2 if stage and not k else 1))
            inner = 256 << stage
    return nn.Sequential(*(stem if side >= 64 else small), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())


Made = tuple[nn.Module, torch.Tensor]
NETWORKS: dict[str, Callable[[], Made]] = {
    "GPT, 2 layers": lambda: (decoder(64, 4, 2), torch.randn(2, 64, 64)),
    "BERT, 2 layers": lambda: (encoder(96, 6, 2), torch.randn(2, 64, 96)),
    "ResNet, 2 bottlenecks": lambda: (resnet((1, 1), 32), torch.randn(4, 3, 32, 32)),
    "U-Net, 1 level": lambda: (UNet(16, 1), torch.randn(2, 1, 44, 44)),
    "GPT, 32 layers": lambda: (decoder(256, 8, 32), torch.randn(1, 512, 256)),
    "BERT-base, batch 2": lambda: (encoder(768, 12, 12), torch.randn(2, 128, 768)),
    "ResNet-50, batch 4": lambda: (resnet((3, 4, 6, 3), 224), torch.randn(4, 3, 224, 224)),
    "ViT-B, batch 2": lambda: (ViT(768, 12, 12, 224), torch.randn(2, 3, 224, 224)),
    "U-Net, 316 pixels, batch 1": lambda: (UNet(64, 4), torch.randn(1, 1, 316, 316)),
}
SMALL, LARGE = tuple(NETWORKS)[:4], tuple(NETWORKS)[4:]


def decoder(width: int, heads: int, layers: int) -> nn.Sequential:
    return nn.Sequential(*(Attention(width, heads, first=True) for _ in range(layers)))


def encoder(width: int, heads: int, layers: int) -> nn.Sequential:
    return nn.Sequential(*(Attention(width, heads, first=False) for _ in range(layers)))


class Asked:
    """The question that PyTorch asked at last, and answers with their processor time in seconds.

    All solvers answer when poetc is asked. `forced` is an answer that PyTorch gets, whatever its question is.
    """

    def __init__(self) -> None:
        self.forced: tuple[Any, ...] | None = None
        self.memory, self.times, self.most = list[float](), list[float](), 0.0
        self.answers = dict[str, tuple[tuple[Any, ...], float]]()
        asked = partitioners._optimize_runtime_with_given_memory

        def answered(graph: Any, memory: list[float], times: list[float], most: float, *rest: Any) -> Any:
            if self.forced:
                return self.forced
            own = config.activation_memory_budget_solver
            self.memory, self.times, self.most = memory, times, most
            for name in ("poetc", *THEIRS):
                config.activation_memory_budget_solver = own if name == "poetc" else name
                started = time.process_time()
                answer = asked(graph, memory, times, most, *rest)
                self.answers[name] = answer, time.process_time() - started
            config.activation_memory_budget_solver = own
            return self.answers["poetc"][0]

        partitioners._optimize_runtime_with_given_memory = answered


def step(network: nn.Module, x: torch.Tensor, *, compiled: bool) -> tuple[list[torch.Tensor], int, int]:
    """Gradients of a step, the bytes that are held behind its forward pass, and the most at any time.

    Bytes are those of PyTorch's allocator since the step began. The gradients are part of the most.
    """

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return network(x).square().mean()

    network.zero_grad(set_to_none=True)  # gradients of an earlier step stay as they are
    if compiled:
        torch._dynamo.reset()
        loss_of = torch.compile(loss_of, backend="aot_eager_decomp_partition")
        loss_of(x).backward()  # which compiles both passes
        network.zero_grad(set_to_none=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        loss = loss_of(x)
        with record_function("backward begins"):
            pass
        loss.backward()
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    names = [event.name() for event in events]
    of = [event.nbytes() if event.name() == "[memory]" else 0 for event in events]
    held = list(accumulate(of))
    return [p.grad for p in network.parameters()], held[names.index("backward begins")], max(held)


def apart_by(exact: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> float:
    """The norm of the difference of gradients, over theirs. Deep batch norms make much of rounding errors."""
    squares = [(float((a - b).square().sum()), float(a.square().sum())) for a, b in zip(exact, others, strict=True)]
    return math.sqrt(sum(d for d, _ in squares) / sum(s for _, s in squares))


def rows(name: str, budgets: Sequence[float], measured: Sequence[str], asked: Asked) -> Iterator[dict[str, Any]]:
    """Of each budget and solver; `measured`: the solvers that have a step. The same tensors share one."""
    torch.manual_seed(0)
    network, x = NETWORKS[name]()
    exact, everything, highest = step(network, x, compiled=False)
    for budget in budgets:
        config.activation_memory_budget, asked.forced = budget, None
        config.activation_memory_budget_solver = own = KnapsackSolver()
        steps = dict[frozenset[int], tuple[int, ...]]()
        for solver in ("poetc", *(name for name in THEIRS if name in measured)):
            if solver != "poetc":
                asked.forced = asked.answers[solver][0]
                if frozenset(asked.forced[1]) in steps:
                    continue
            gradients, *bytes_ = step(network, x, compiled=True)
            apart = apart_by(exact, gradients)
            assert apart < 0.05, f"{name}: other gradients, by {apart:.2g} of their norm"
            steps[frozenset(asked.answers[solver][0][1])] = tuple(bytes_)
        for solver, ((_, kept, again), seconds) in asked.answers.items():
            saved, peak = steps.get(frozenset(kept), (None, None))
            yield {
                "network": name,
                "budget": budget,
                "solver": solver,
                "tensors": len(asked.times),
                "asked_bytes": own.reports[0].budget_bytes,
                "saved_bytes": saved,
                "eager_saved_bytes": everything,
                "peak_bytes": peak,
                "eager_peak_bytes": highest,
                "recomputed": sum(asked.times[i] for i in again),
                "least": own.reports[0].least,
                "used": sum(asked.memory[i] for i in kept) / asked.most,
                "seconds": seconds,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", default=LARGE)
    parser.add_argument("--budgets", type=float, nargs="*", default=(0.05, 0.15, 0.3))
    parser.add_argument("--measured", nargs="*", default=THEIRS, help="solvers of PyTorch that have a step, too")
    options = parser.parse_args()
    asked = Asked()
    for name in options.networks:
        for row in rows(name, options.budgets, options.measured, asked):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
