"""Whose gradient is right? PyTorch's first gradient of random networks, beside finite differences in float64.

    python -m tests.random_networks.finite_differences SEED ...

prints for each seed the largest difference over up to five elements of each parameter, relative to the largest
gradient: as PyTorch computes it, and with gradients whose elements lie in order (see `reference.order_gradients`).
"""

from __future__ import annotations

import copy
import sys

import numpy as np
import torch
from torch import Tensor, nn

from tests.random_networks import reference
from tests.random_networks.networks import draw, parameters, set_mode
from tests.random_networks.recipe import Recipe

STEP = 1e-6
ELEMENTS = 5


def _loss(model: nn.Module, recipe: Recipe) -> Tensor:
    x, target = (torch.from_numpy(a) for a in recipe.batch_of(0))
    x, target = (t.double() if t.is_floating_point() else t for t in (x, target))
    return reference.loss_of(model, x, target, recipe)


def gradients(network: nn.Module, recipe: Recipe, *, ordered: bool) -> dict[str, Tensor]:
    """PyTorch's, by parameter, of the first step."""
    model = copy.deepcopy(network).double()
    set_mode(model, recipe)
    if ordered:
        reference.order_gradients(model)
    _loss(model, recipe).backward()  # type: ignore[no-untyped-call]
    return {name: p.grad for name, p in parameters(model).items() if p.grad is not None}


def distances(seed: int) -> tuple[float, float]:
    """From finite differences: of PyTorch's gradient, and of that from ordered gradients."""
    network, recipe = draw(seed)
    both = [gradients(network, recipe, ordered=ordered) for ordered in (False, True)]
    scale = max(float(g.abs().max()) for g in both[1].values())
    model = copy.deepcopy(network).double()
    random, worst = np.random.RandomState(seed), [0.0, 0.0]
    with torch.no_grad():
        for name, parameter in parameters(model).items():
            flat = parameter.view(-1)
            for i in random.permutation(flat.numel())[:ELEMENTS] if name in both[1] else ():
                held, losses = float(flat[i]), []
                for value in (held + STEP, held - STEP):
                    set_mode(model, recipe)
                    flat[i] = value
                    losses.append(_loss(model, recipe).item())
                flat[i] = held
                slope = (losses[0] - losses[1]) / (2 * STEP)
                for k, found in enumerate(both):
                    worst[k] = max(worst[k], abs(slope - float(found[name].reshape(-1)[i])) / scale)
    return worst[0], worst[1]


if __name__ == "__main__":
    for each in sys.argv[1:]:
        plain, ordered = distances(int(each))
        print(f"seed {each}: PyTorch {plain:.1e}, with gradients in order {ordered:.1e}")
