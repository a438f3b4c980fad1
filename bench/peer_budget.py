"""The activation memory budget of `torch.compile`: poetc's knapsack beside PyTorch's own.

    bench/setup_peers budget && build/peers/budget/bin/python bench/peer_budget.py

A line of JSON for each network, budget and solver: the time of the tensors that are recomputed, in PyTorch's own
estimates, and the share of the budget that the saved ones take. All solvers get the items that PyTorch asks about.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import nn
from torch._functorch import config, partitioners
from torch._functorch._activation_checkpointing import knapsack

from poetc.torch import KnapsackSolver

BUDGETS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7)
THEIRS: dict[str, Callable[..., Any]] = {
    "dp": knapsack.dp_knapsack,
    "greedy": knapsack.greedy_knapsack,
    "ilp": knapsack.ilp_knapsack,
}


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
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, 1, 1)
        self.down = nn.ModuleList([Residual(width << k, width << k + 1, 2) for k in range(depth)])
        self.up = nn.ModuleList([Residual(3 * (width << k), width << k, 1) for k in reversed(range(depth))])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = [self.first(x)]
        for block in self.down:
            kept.append(block(kept[-1]))
        x = kept.pop()
        for block in self.up:
            x = block(torch.cat([nn.functional.interpolate(x, scale_factor=2.0), kept.pop()], 1))
        return x


def networks(layers: int) -> Iterator[tuple[str, nn.Module, torch.Tensor]]:
    yield (
        f"GPT, {layers} layers",
        nn.Sequential(*(Attention(64, 4, first=True) for _ in range(layers))),
        torch.randn(2, 64, 64),
    )
    encoder = nn.Sequential(*(Attention(96, 6, first=False) for _ in range(min(layers, 12))))
    yield f"BERT, {min(layers, 12)} layers", encoder, torch.randn(2, 64, 96)
    counts, blocks, inner = (3, 4, 6, 3), [], 16
    for stage, count in enumerate(counts if layers >= 12 else (1, 1)):
        for k in range(count):
            blocks.append(Residual(inner, 64 << stage, 2 if stage and not k else 1))
            inner = 64 << stage
    yield (
        f"ResNet, {len(blocks)} bottlenecks",
        nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), *blocks),
        torch.randn(4, 3, 32, 32),
    )
    yield "U-Net", UNet(16, 3 if layers >= 12 else 1), torch.randn(2, 3, 32, 32)


class Recorder:
    """The items that PyTorch asks about."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[float], list[float], float]] = []
        asked = partitioners._optimize_runtime_with_given_memory

        def recorded(graph: Any, memory: list[float], times: list[float], most: float, *rest: Any) -> Any:
            self.seen.append((memory, times, most))
            return asked(graph, memory, times, most, *rest)

        partitioners._optimize_runtime_with_given_memory = recorded


def rows(name: str, network: nn.Module, x: torch.Tensor, budget: float, recorder: Recorder) -> Iterator[dict[str, Any]]:
    torch._dynamo.reset()
    recorder.seen.clear()
    solver = KnapsackSolver()
    config.activation_memory_budget, config.activation_memory_budget_solver = budget, solver
    plain = network(x)
    found = torch.compile(network, backend="aot_eager_decomp_partition")(x)
    found.sum().backward()
    assert torch.allclose(plain, found, rtol=1e-4, atol=1e-4), f"{name}: another result at budget {budget}"
    for report, (memory, times, most) in zip(solver.reports, recorder.seen, strict=True):
        common = {"network": name, "budget": budget, "items": len(memory), "least": report.least}
        own = {"recomputed": report.recomputed, "used": report.saved_bytes / max(1, report.budget_bytes)}
        yield {**common, "solver": "poetc", **own, "seconds": report.seconds}
        for other, solve in THEIRS.items():
            started = time.perf_counter()
            _, saved, again = solve(memory, times, most)
            seconds = time.perf_counter() - started
            used = sum(memory[i] for i in saved) / most
            yield {
                **common,
                "solver": other,
                "recomputed": sum(times[i] for i in again),
                "used": used,
                "seconds": seconds,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--budgets", type=float, nargs="*", default=BUDGETS)
    options = parser.parse_args()
    torch.manual_seed(0)
    recorder = Recorder()
    for name, network, x in networks(options.layers):
        for budget in options.budgets:
            for row in rows(name, network, x, budget, recorder):
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
