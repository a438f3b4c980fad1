"""Inputs that are made up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from poetc.graph import Array, TensorType
from poetc.ops._indices import Use
from poetc.ops._registry import spec


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
    most = []
    slices = {tensor}  # a micro-batch reads its part
    for use in uses:
        if use.kind == "Slice" and use.inputs[0] in slices:
            slices.add(use.outputs[0])
        indices = spec(use.kind).indices(use)
        if indices is not None and indices.operand in slices:
            most.append(indices.most)
    return min(most, default=1) + 1
