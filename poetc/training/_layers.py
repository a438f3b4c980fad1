"""Weights of products: which operators read each, and which parts of it can be trained."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from poetc.graph import Graph, Operator, Role
from poetc.ops import view_roots

PRODUCTS = ("MatMul", "Conv", "QLinearConv")  # of (input, weight, ...)
# The end of a stored name: of codes, and of the builder of onnxruntime-genai, which calls each product a module.
_END = re.compile(r"(?P<builder>\.MatMul(NBits)?)?\.q?weight(_Q\d\w*)?(\.integers(\.\d+)?)?$")
_MAGNITUDE = "lora_magnitude_vector"
_ADAPTER = re.compile(rf"(.*\.)?(lora_[AB](\.[^.]+)?(\.weight)?|{_MAGNITUDE})")


@dataclass(frozen=True, slots=True)
class Layer:
    """A weight and the operators that multiply by it.

    `inputs`: its input channels, along `axis` of the weight; `terms`: inputs times the taps of a kernel. `no_adapter`,
    `no_share`: why it takes none, as the end of a sentence that begins with its name; "" where it does.
    """

    weight: str
    operators: tuple[Operator, ...]
    inputs: int
    outputs: int
    terms: int
    axis: int
    no_adapter: str = ""
    no_share: str = ""

    @property
    def smaller_side(self) -> int:
        return min(self.outputs, self.terms)


def is_adapter(name: str) -> bool:
    """Whether a parameter has a name that peft gives to the factors of an adapter, or to its magnitudes."""
    return _ADAPTER.fullmatch(name) is not None


def module_of(graph: Graph, weight: str) -> str:
    """The PyTorch module that a weight belongs to, as far as its name or the file says."""
    origin = graph.origins.get(weight)
    if origin is not None and origin.module:
        return origin.module
    name = weight if origin is None else origin.tensor
    ending = _END.search(name)
    if ending is None:
        return name
    stem = name[: ending.start()]
    return stem.replace(".attn.", ".self_attn.") if ending["builder"] else stem


def adapter_names(graph: Graph, weights: Iterable[str]) -> dict[str, tuple[str, str]]:
    """The names of the factors A and B beside each weight: MODULE.lora_A.weight, MODULE.lora_B.weight.

    Weights that the file gives one module to have their own names in place of it.
    """
    shared = Counter(module_of(graph, n) for n in layers_of(graph))
    result = {}
    for weight in weights:
        module = module_of(graph, weight)
        stem = module if shared[module] == 1 else _END.sub("", weight)
        result[weight] = f"{stem}.lora_A.weight", f"{stem}.lora_B.weight"
    return result


def magnitude_name(factors: tuple[str, str]) -> str:
    """The name of the magnitudes [outputs] beside two factors, as peft saves them."""
    return factors[0].removesuffix("lora_A.weight") + _MAGNITUDE


def layers_of(graph: Graph) -> dict[str, Layer]:
    """Every parameter that a product multiplies by, in the order of the operators; no factor of an adapter."""
    roots = view_roots(graph)
    uses: dict[str, list[Operator]] = {}
    for op in graph.operators:
        if op.kind in PRODUCTS:
            for tensor in op.inputs[:2]:
                root = roots[tensor]
                if graph.tensors[root].role is Role.PARAMETER and not is_adapter(root):
                    uses.setdefault(root, []).append(op)
    readers = Counter(t for op in graph.operators for t in op.inputs)
    layers = {}
    for weight, operators in uses.items():
        layer = _layer(graph, roots, weight, operators, readers)
        if layer is not None:
            layers[weight] = layer
    return layers


def _layer(
    graph: Graph, roots: dict[str, str], weight: str, operators: list[Operator], readers: Counter[str]
) -> Layer | None:
    op, shape = operators[0], graph.tensors[weight].shape
    seen = graph.tensors[op.inputs[1]].shape
    why = ""
    if any(roots[o.inputs[1]] != weight for o in operators) or len(seen) < 2:
        return None  # on the left of a product it is no layer's weight
    if any(o.attributes.get("alpha", 1.0) != 1.0 for o in operators):
        why = "is multiplied by a number too (alpha)"
    if len({(o.kind, o.attributes.get("trans_b", False), graph.tensors[o.inputs[1]].shape) for o in operators}) > 1:
        why = "is read in several forms"
    if op.kind == "MatMul":
        across = bool(op.attributes.get("trans_b", False))
        inputs, outputs = seen[-2:][:: -1 if across else 1]
        if math.prod(seen[:-2]) != 1 or len(shape) != 2:
            why = why or f"has shape {list(shape)}, not that of a matrix"
        share = why or ("is transposed with its input" if op.attributes.get("trans_a") else "")
        terms, axis = inputs, int(across)
    else:
        group = int(str(op.attributes.get("group", 1)))
        outputs, inputs, terms, axis = seen[0], seen[1], math.prod(seen[1:]), 1
        if shape[:2] != seen[:2]:
            why = why or f"has shape {list(shape)}, not that of a convolution"
        if group != 1:
            why = why or f"belongs to a convolution of {group} groups"
        share = why
    if op.inputs[1] != weight:
        share = share or "is read in another shape than it has"
    if len(operators) > 1 or readers[weight] > 1:
        share = share or "is read by several operators"
    return Layer(weight, tuple(operators), inputs, outputs, terms, axis, why, share)
