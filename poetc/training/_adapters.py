"""Adapters beside frozen weights: y = x·W becomes x·W + scale · (dropout(x)·Aᵀ)·Bᵀ, as the package peft computes it.

DoRA (Liu et al., 2024) scales each output of that sum by m / ‖W + scale · B · A‖, the norm that of the output's row.
Numbers m are trained and start as the norms of W. As in peft, no gradient flows through the norm.

In a k x k convolution to r channels, A is a k x k convolution and B a 1 x 1 one. A starts as `torch.nn.Linear` does
(Kaiming uniform with a = √5, which is uniform in ± 1 / √fan_in), B at zero: the model begins as it was.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from poetc.errors import UsageError
from poetc.graph import Array, Attribute, Filed, Fill, Graph, Operator, Role, TensorType, Value, materialize
from poetc.ops import Builder, view_roots
from poetc.training._layers import Layer, adapter_names, layers_of, magnitude_name
from poetc.training._updates import Adapter, Updates

DETACHED = "detached"  # attribute of an operator: no gradient flows through it
_SQUARES = ".squared_norms"  # the end of the name of a constant beside a weight
SITE = "adapter"  # attribute of a DropoutSite: dropout there needs no --dropout


def with_adapters(graph: Graph, updates: Updates) -> Graph:
    """The model with the adapters of `updates`; itself where there are none. Its function is unchanged."""
    return _Attaching(graph, updates).run() if updates.adapters else graph


class _Attaching:
    def __init__(self, graph: Graph, updates: Updates) -> None:
        self.graph, self.adapters, self.seed = graph, updates.adapters, updates.seed
        self.layers, self.roots = layers_of(graph), view_roots(graph)
        self.names = adapter_names(graph, self.adapters)
        self.b = Builder()
        self.squares: dict[str, str] = {}  # by weight: the squares of its rows' norms
        self.shares: dict[str, str] = {}  # by weight: magnitudes over norms

    def run(self) -> Graph:
        b, graph = self.b, self.graph
        for name, tensor in graph.tensors.items():
            b.fresh(name)
            if tensor.role is not Role.ACTIVATION:
                b.add_tensor(name, tensor.type, tensor.role, graph.values.get(name))
        places = {op.name: layer for n in self.adapters for layer in [self.layers[n]] for op in layer.operators}
        for weight, adapter in self.adapters.items():
            self._declare(self.layers[weight], adapter)
        for op in graph.operators:
            b.source = op.source
            layer = places.get(op.name)
            if layer is None:
                b.emit(op.kind, op.inputs, op.attributes, outputs=op.outputs)
            else:
                self._attach(op, layer.weight, self.adapters[layer.weight])
        return replace(
            graph,
            tensors=b.tensors,
            operators=tuple(b.operators),
            values=b.values,
            notes=(*graph.notes, self._note()),
        )

    def _declare(self, layer: Layer, adapter: Adapter) -> None:
        """A [rank, inputs, kernel...] and B [outputs, rank, 1...], in the rank of the weight."""
        a, b = self.names[layer.weight]
        shape = self.graph.tensors[layer.weight].shape
        taps = () if len(shape) == 2 else shape[2:]
        of_a = (adapter.rank, layer.inputs, *taps)
        bound = 1 / math.sqrt(layer.terms)
        self.b.add_tensor(a, TensorType(of_a), Role.PARAMETER, _uniform(of_a, bound, f"{self.seed}:{a}"))
        of_b = (layer.outputs, adapter.rank, *(1 for _ in taps))
        self.b.add_tensor(b, TensorType(of_b), Role.PARAMETER, Fill("zeros"))
        if adapter.magnitudes:
            weight, of_m = layer.weight, TensorType((layer.outputs,))
            norms = _Norms(self.graph.values[weight], self.graph.tensors[weight].type, layer)
            self.b.add_tensor(magnitude_name((a, b)), of_m, Role.PARAMETER, norms.value(squared=False))
            name = self.b.fresh(weight + _SQUARES)
            self.squares[weight] = self.b.add_tensor(name, of_m, Role.CONSTANT, norms.value(squared=True))

    def _attach(self, op: Operator, weight: str, adapter: Adapter) -> None:
        b, (name_a, name_b), x, y = self.b, self.names[weight], op.inputs[0], op.outputs[0]
        stem = name_a.removesuffix(".lora_A.weight")
        read = op.inputs[:2] if adapter.magnitudes else op.inputs  # a bias is not scaled
        frozen = b.emit(op.kind, read, op.attributes, outputs=[b.fresh(f"{y}.frozen")])[0]
        if adapter.dropout:
            x = b.emit1("DropoutSite", [x], {"ratio": adapter.dropout, SITE: True}, hint=f"{stem}.lora_dropout")
        if op.kind == "MatMul":
            first: dict[str, Attribute] = {"trans_a": bool(op.attributes.get("trans_a", False)), "trans_b": True}
            second: dict[str, Attribute] = {"trans_a": False, "trans_b": True}
        else:
            seen = self.graph.tensors[op.inputs[1]].shape
            name_a, name_b = self._seen(name_a, seen), self._seen(name_b, seen)
            first = dict(op.attributes)
            second = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1}
        low = b.emit1(op.kind, [x, name_a], first, hint=f"{stem}.lora_A")
        if adapter.scale != 1:  # of the smaller tensor
            low = b.emit1("Affine", [low], {"alpha": adapter.scale, "beta": 0.0}, hint=f"{stem}.lora_scaled")
        high = b.emit1(op.kind, [low, name_b], second, hint=f"{stem}.lora_B")
        if not adapter.magnitudes:
            b.emit("Add", [frozen, high], outputs=[y])
            return
        total, biases = b.emit1("Add", [frozen, high], hint=f"{stem}.lora_sum"), op.inputs[2:]
        if weight not in self.shares:
            self.shares[weight] = self._share(op, weight, adapter)
        scaled = [b.fresh(f"{y}.scaled")] if biases else [y]
        total = b.emit("Mul", [total, self.shares[weight]], outputs=scaled)[0]
        if biases:
            b.emit("Add", [total, *biases], outputs=[y])

    def _share(self, op: Operator, weight: str, adapter: Adapter) -> str:
        """m / ‖W + s·B·A‖ by output. Its square is ‖W‖² + Bᵀ ∘ (2s·A·W + s²·A·Aᵀ·Bᵀ), summed over the ranks."""
        b, s, (a, second) = self.b, adapter.scale, self.names[weight]
        stem = a.removesuffix(".lora_A.weight")

        def product(x: str, y: str, across: bool) -> str:
            return b.emit1("MatMul", [x, y], {"trans_a": False, "trans_b": across}, hint=f"{stem}.norm_product")

        cross = product(a, op.inputs[1], bool(op.attributes.get("trans_b", False)))
        own = product(product(a, a, True), second, True)
        terms = [
            b.emit1("Affine", [term], {"alpha": factor, "beta": 0.0}, hint=f"{stem}.norm_term")
            for term, factor in ((cross, 2 * s), (own, s * s))
        ]
        turned = b.emit1("Transpose", [second], {"perm": (1, 0)}, hint=f"{stem}.lora_B_turned")
        inner = b.emit1("Mul", [b.emit1("Add", terms), turned], hint=f"{stem}.norm_inner")
        moved = b.emit1("ReduceSum", [inner], {"axes": (0,), "keepdims": False}, hint=f"{stem}.norm_moved")
        norm = b.emit1("Sqrt", [b.emit1("Add", [moved, self.squares[weight]])], {DETACHED: True}, hint=f"{stem}.norm")
        return b.emit1("Div", [magnitude_name((a, second)), norm], hint=f"{stem}.lora_share")

    def _seen(self, factor: str, shape: tuple[int, ...]) -> str:
        """A factor as the convolution reads it: that of one dimension has a height of 1."""
        own = self.b.type(factor).shape
        if len(own) == len(shape):
            return factor
        return self.b.emit1("Reshape", [factor], {"shape": (*own[:2], 1, *own[2:])})

    def _note(self) -> str:
        ranks = sorted({a.rank for a in self.adapters.values()})
        factors = [n for pair in self.names.values() for n in (*pair, magnitude_name(pair))]
        count = sum(self.b.type(n).elements for n in factors if n in self.b.tensors)
        rest = [n for n in self.layers if n not in self.adapters]
        without = f"; without one: {', '.join(rest[:5])}{', ...' * (len(rest) > 5)}" if rest else ""
        return (
            f"adapters of rank {', '.join(map(str, ranks))} with {count:,} numbers beside {len(self.adapters)} frozen"
            f" weights{without}"
        )


def _uniform(shape: tuple[int, ...], bound: float, key: str) -> Array:
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little")
    random = np.random.Generator(np.random.PCG64(seed))
    return np.asarray(random.uniform(-bound, bound, shape), np.float32)


def _norms(weight: Array, layer: Layer) -> Array:
    """The norms of the rows of a matrix that make one output each, in float64."""
    return np.asarray(np.linalg.norm(np.asarray(weight, np.float64), axis=layer.axis))


def _squares(layer: Layer, weight: Value, type: TensorType) -> Array:
    """The squares of `_norms` of a layer's weight; UsageError where float32 has 0 or inf for one."""
    squares = _norms(materialize(weight, type), layer) ** 2
    limits = np.finfo(np.float32)
    fits = (squares >= limits.tiny) & (squares <= limits.max)
    if not fits.all():
        where = int(np.argmin(fits))
        raise UsageError(
            f"--lora: dora divides by the norm of the weights of each output; that of output {where} of"
            f" {layer.weight!r} is {math.sqrt(squares[where]):.3g}; name other weights, or leave dora out"
        )
    return squares


@dataclass(frozen=True)
class _Norms:
    """The constants of DoRA beside a frozen weight. Those of random numbers are computed when they are read.

    Drawing hundreds of millions of numbers takes longer than a first schedule. Norms of weights in a file are computed
    at once, since one of them may be 0.
    """

    weight: Value
    type: TensorType
    layer: Layer

    def value(self, *, squared: bool) -> Value:
        is_random = isinstance(self.weight, Fill) and self.weight.kind in ("normal", "uniform")
        read = _ReadNorms(self, squared)
        return Filed(read) if is_random else read()

    @cached_property
    def squares(self) -> Array:
        return _squares(self.layer, self.weight, self.type)


@dataclass(frozen=True)
class _ReadNorms:
    """Norms, or their squares. Those of equal random weights are equal without being drawn."""

    norms: _Norms
    squared: bool

    def __call__(self) -> Array:
        squares = self.norms.squares
        return np.asarray(squares if self.squared else np.sqrt(squares), np.float32)


def squares_of_norms(adapted: Graph, values: Mapping[str, Value]) -> dict[str, Array]:
    """The constants of DoRA beside those frozen weights that `values` has anew. `adapted`: with adapters."""
    squares = {n: n.removesuffix(_SQUARES) for n in adapted.values if n.endswith(_SQUARES)}
    layers = layers_of(adapted) if squares else {}
    anew = {n: w for n, w in squares.items() if w in values and w in layers and n not in values}
    return {n: np.asarray(_squares(layers[w], values[w], adapted.tensors[w].type), np.float32) for n, w in anew.items()}


def untrained_magnitudes(adapted: Graph) -> frozenset[str]:
    """Magnitudes beside a factor B of zeros: they are the norms of the frozen weight. `adapted`: with adapters."""
    result = set[str]()
    for pair in adapter_names(adapted, layers_of(adapted)).values():
        name, b = magnitude_name(pair), pair[1]
        if name in adapted.values and not materialize(adapted.values[b], adapted.tensors[b].type).any():
            result.add(name)
    return frozenset(result)


def merged(graph: Graph, updates: Updates, values: Mapping[str, Value]) -> Graph:
    """The model `graph`, without adapters, in which each weight W is W + scale · B · A, with the magnitudes of DoRA.

    `values` holds those of its tensors, and the arrays of the factors, by name; the graph's stand for missing ones. The
    sum is made in float64 and rounded once. Where operators without the adapter read W too, its products read a tensor
    of their own, which `untied_by_merging` names.
    """
    layers, names = layers_of(graph), adapter_names(graph, updates.adapters)
    untied = untied_by_merging(graph, updates)
    result = {n: values.get(n, v) for n, v in graph.values.items()}
    tensors, operators = dict(graph.tensors), {op.name: op for op in graph.operators}
    for weight, adapter in updates.adapters.items():
        layer, type = layers[weight], graph.tensors[weight].type
        a, b = (np.asarray(values[n], np.float64) for n in names[weight])
        delta = adapter.scale * (b.reshape(layer.outputs, -1) @ a.reshape(adapter.rank, -1))
        delta = delta.T if layer.axis == 0 else delta
        total = materialize(result[weight], type) + delta.reshape(type.shape)
        if adapter.magnitudes:
            magnitudes = np.asarray(values[magnitude_name(names[weight])], np.float64)
            total = total * np.expand_dims(magnitudes / _norms(total, layer), layer.axis)
        own = untied.get(weight, weight)
        result[own] = np.asarray(total, np.float32)
        tensors[own] = replace(tensors[weight], name=own)
        for op in layer.operators if own != weight else ():
            operators[op.name] = replace(op, inputs=(op.inputs[0], own, *op.inputs[2:]))
    return replace(graph, tensors=tensors, operators=tuple(operators.values()), values=result)


def untied_by_merging(graph: Graph, updates: Updates) -> dict[str, str]:
    """Weights that operators without the adapter read too: the name of the tensor that the products get in its place.

    A weight that a product reads in another shape than it has stays tied.
    """
    layers, names = layers_of(graph), dict[str, str]()
    for weight in updates.adapters:
        products = {op.name for op in layers[weight].operators}
        reading = [op for op in graph.operators if weight in op.inputs]
        as_it_is = all(op.inputs[1] == weight for op in layers[weight].operators)
        if as_it_is and any(op.name not in products for op in reading):
            name, number = f"{weight}.merged", 1
            while name in graph.tensors or name in names.values():
                number += 1
                name = f"{weight}.merged{number}"
            names[weight] = name
    return names
