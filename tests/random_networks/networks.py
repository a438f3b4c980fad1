"""A whole random network, and the recipe that trains it."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from numpy.random import RandomState
from torch import Tensor, nn

from tests.random_networks.blocks import IMAGE, PLANE, SEQUENCE, VECTOR, Apply, Maker
from tests.random_networks.recipe import Recipe, draw_options

FAMILIES = (*["image"] * 6, *["sequence"] * 5, *["tokens"] * 4, *["signal"] * 2, "volume", "vector")
EXPORTERS = ("dynamo", "dynamo", "dynamo_raw", "dynamo_train", "legacy", "legacy_preserve", "legacy_train")
ELEMENTWISE = ("mse", "l1", "huber", "bce")


class Network(nn.Module):
    """Embedding if any, layers one after the other, a head; the head may use the embedding's own table."""

    def __init__(self, embedding: nn.Module | None, body: nn.Sequential, head: nn.Module | None) -> None:
        super().__init__()
        self.embedding, self.body = embedding, body
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        x = self.body(x)
        return x if self.head is None else self.head(x)


def draw(seed: int) -> tuple[Network, Recipe]:
    """The network of a seed, in training mode."""
    random = RandomState(seed)
    torch.manual_seed(seed)
    maker = Maker(random, batch=int((1, 2, 2, 3, 4)[random.randint(5)]))
    pick, chance = maker.pick, maker.chance
    family = pick(*FAMILIES)
    vocabulary = 0
    match family:
        case "image":
            maker.shape, kinds = (pick(1, 2, 3), pick(5, 6, 8), pick(5, 7, 8)), IMAGE
        case "signal":
            maker.shape, kinds = (pick(1, 2, 3), pick(9, 12, 16)), PLANE
        case "volume":
            maker.shape, kinds = (pick(1, 2), 4, pick(4, 5), 5), PLANE
        case "vector":
            maker.shape, kinds = (pick(5, 8),), VECTOR
        case "sequence":
            maker.shape, kinds = (pick(3, 5, 6), pick(3, 4, 6)), SEQUENCE
        case _:
            vocabulary = pick(7, 11)
            maker.shape, kinds = (pick(4, 5, 6),), SEQUENCE
    input_shape = (maker.batch, *maker.shape)
    embedding: nn.Module | None = None
    if family == "tokens":
        width = pick(4, 6, 8)
        embedding = nn.Embedding(vocabulary, width)  # `padding_idx` is not in an ONNX file
        maker.shape = (*maker.shape, width)
    layers, keeping = list[nn.Module](), list[int]()  # `keeping`: places of layers that leave the shape as it is
    for _ in range(random.randint(2, 6)):
        before = maker.shape
        layers.append(maker.layer(kinds))
        if maker.shape == before and any(True for _ in layers[-1].parameters()):
            keeping.append(len(layers) - 1)
    if family in ("image", "signal") and chance(0.2) and len(maker.shape) > 1:
        layers.append(maker.to_sequence())
        layers += [maker.layer(SEQUENCE) for _ in range(random.randint(1, 3))]
    head, loss, classes, class_axis = _head(maker, layers, embedding, vocabulary)
    body = nn.Sequential(*layers)
    network = Network(embedding, body, head)
    _settle_numbers(network, random, fresh=chance(0.5))
    own = RandomState(seed + 1_000_000)  # so that the other networks stay as they are without it
    if keeping and own.rand() < 0.15:
        place = keeping[own.randint(len(keeping))]
        body.insert(place, copy.deepcopy(body[place]))  # as nn.TransformerEncoder copies its layer
    has_batch_norm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in network.modules())
    options = draw_options(random, loss, has_batch_norm=has_batch_norm, batch=maker.batch)
    output_shape = (maker.batch, *maker.shape)
    without = output_shape[:class_axis] + output_shape[class_axis + 1 :]
    exporter = pick(*EXPORTERS)
    if options.get("batch_norm") == "frozen":
        exporter = exporter.replace("train", "raw" if "dynamo" in exporter else "preserve")  # which moves statistics
    recipe = Recipe(
        seed=seed,
        family=family,
        layers=_described(network),
        exporter=exporter,
        batch=maker.batch,
        steps=4,
        input_shape=tuple(int(n) for n in input_shape),
        vocabulary=int(vocabulary),
        target_shape=without if loss == "cross-entropy" else output_shape,
        classes=classes,
        class_axis=class_axis,
        device=pick("host", "stm32f746", "rpi4"),
        budget_percent=int(pick(40, 60, 80, 110)),
        numerics=pick("separate", "separate", "fused"),
        options=options,
    )
    set_mode(network, recipe)
    return network, recipe


def _head(
    maker: Maker, layers: list[nn.Module], embedding: nn.Module | None, vocabulary: int
) -> tuple[nn.Module | None, str, int, int]:
    """The last layer, the loss, the number of classes (0: none) and their axis."""
    pick, chance = maker.pick, maker.chance
    if isinstance(embedding, nn.Embedding) and len(maker.shape) == 2 and chance(0.7):
        width = embedding.embedding_dim
        if maker.shape[-1] != width:
            layers.append(nn.Linear(maker.shape[-1], width))
        head = nn.Linear(width, vocabulary, bias=chance(0.5))
        if chance(0.7):
            head.weight = embedding.weight
        maker.shape = (maker.shape[0], vocabulary)
        return head, "cross-entropy", vocabulary, 2
    if len(maker.shape) == 3 and maker.shape[0] > 1 and chance(0.25):
        return None, "cross-entropy", maker.shape[0], 1  # a class for each pixel
    if chance(0.2):
        return None, pick(*ELEMENTWISE), 0, 1
    layers.append(maker.to_vector())
    classes = pick(3, 4, 5)
    head = nn.Linear(maker.shape[0], classes)
    maker.shape = (classes,)
    loss = pick("cross-entropy", "cross-entropy", "cross-entropy", "soft-cross-entropy", *ELEMENTWISE)
    return head, loss, classes if "cross-entropy" in loss else 0, 1


def _settle_numbers(network: nn.Module, random: RandomState, fresh: bool) -> None:
    """Weights as PyTorch starts them (`fresh`) or as after some training, none of them zero. In either case of few
    different numbers in a tensor, so that a file of them packs well."""
    with torch.no_grad():
        for name, tensor in [*network.named_parameters(), *network.named_buffers()]:
            if not tensor.is_floating_point() or not (isinstance(tensor, nn.Parameter) or "running" in name):
                continue
            if not fresh:
                noise = torch.from_numpy(random.standard_normal(tuple(tensor.shape)).astype(np.float32))
                shift = 0.2 * noise
                tensor += shift.abs() if "running_var" in name else shift
            largest = float(tensor.abs().max())
            if tensor.numel() > 16 and largest > 0:
                step = largest / (23 + random.rand())
                rounded = torch.round(tensor / step) * step
                tensor.copy_(torch.where(rounded == 0, tensor.sign() * step / 2, rounded))


def set_mode(network: nn.Module, recipe: Recipe) -> None:
    """Training mode; batch norms frozen where the recipe says so."""
    network.train()
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and recipe.options.get("batch_norm") == "frozen":
            module.eval()


def _described(network: nn.Module) -> str:
    """The layers in one line."""

    def words(module: nn.Module) -> str:
        name = type(module).__name__
        if isinstance(module, Apply):
            return module.name
        inner = [words(child) for child in module.children() if not isinstance(child, nn.ParameterList)]
        extra = module.extra_repr()
        if isinstance(module, nn.Sequential):
            return "[" + ", ".join(inner) + "]"
        return f"{name}({', '.join(x for x in (extra, *inner) if x)})"

    return words(network)


def parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """Those that are trained, each once."""
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


def elements(network: nn.Module) -> int:
    return sum(math.prod(p.shape) for p in parameters(network).values())
