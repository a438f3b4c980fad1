"""Inputs that are made up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from poetc.graph import Array, Attribute, TensorType


@dataclass(frozen=True, slots=True)
class Use:
    """An operator that reads tensors: by which names, and of which type the first is."""

    kind: str
    attributes: Mapping[str, Attribute]
    inputs: Sequence[str]
    outputs: Sequence[str]
    first: TensorType


# The attribute with the length of the axis that the indices go along.
_LENGTHS = {"LinearCrossEntropy": "classes", "GatherCoded": "rows"}


def labels_of(use: Use) -> str:
    """The operand that may be classes or indices."""
    if use.kind == "GatherCoded":
        return use.inputs[-1]
    if use.kind != "LinearCrossEntropy":
        return use.inputs[1]
    form = str(use.attributes.get("form", ""))
    codes = form.startswith("int") + bool(use.attributes.get("has_zeros"))
    return use.inputs[2 + codes + bool(use.attributes.get("has_bias"))]


def sample(types: Mapping[str, TensorType], uses: Iterable[Use], seed: int) -> dict[str, Array]:
    """A sample of each of `types`: normal floats, and integers.

    Integers are in range wherever one of `uses` takes them for an index.
    """
    random, uses = np.random.Generator(np.random.PCG64(seed)), list(uses)
    inputs: dict[str, Array] = {}
    for name, type in types.items():
        if type.dtype.numpy == np.float32:
            inputs[name] = random.standard_normal(type.shape).astype(np.float32)
        else:
            inputs[name] = random.integers(0, _index_limit(uses, name), type.shape).astype(type.dtype.numpy)
    return inputs


def _index_limit(uses: Iterable[Use], tensor: str) -> int:
    """One more than the largest index that is in range wherever `tensor`, or a slice of it, is used as one."""
    limits = [2]
    slices = {tensor}  # a micro-batch reads its part
    for use in uses:
        if use.kind == "Slice" and use.inputs[0] in slices:
            slices.add(use.outputs[0])
        if len(use.inputs) >= 2 and labels_of(use) in slices:
            if isinstance(classes := use.attributes.get(_LENGTHS.get(use.kind, "")), int):
                limits.append(classes)
                continue
            if use.kind.startswith("GatherND"):
                limits.append(min(use.first.shape))
                continue
            axis = use.attributes.get("axis", 1 if use.kind.startswith("CrossEntropy") else 0)
            if use.kind.startswith(("CrossEntropy", "Ctc", "Gather")) and isinstance(axis, int) and use.first.shape:
                limits.append(use.first.shape[axis])
    return min(limits[1:], default=2)
