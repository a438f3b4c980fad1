"""Static shapes of the graph's inputs: symbolic dimensions bound by --batch, and a fixed batch replaced by another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from poetc.errors import UsageError

Dimension = int | str  # a length, or the name of a symbolic one ("?" when it has none)


@dataclass(frozen=True, slots=True)
class InputShapes:
    """`shapes` by input name. `old_batch` is set when the file fixes another batch than the one asked for."""

    shapes: dict[str, tuple[int, ...]]
    file_shapes: dict[str, tuple[int, ...]]
    old_batch: int | None


def resolve(inputs: Sequence[onnx.ValueInfoProto], batch: int | None) -> InputShapes:
    """Give every dimension a length. UsageError names the inputs and dimensions that have none."""
    if batch is not None and batch < 1:
        raise UsageError(f"--batch {batch}: the batch must be at least 1")
    declared = {i.name: _dimensions(i) for i in inputs}
    symbols = _batch_symbols(declared)
    bound: dict[str, tuple[Dimension, ...]] = {}
    for name, dims in declared.items():
        bound[name] = tuple(
            batch if batch is not None and (d in symbols if d != "?" else k == 0) and isinstance(d, str) else d
            for k, d in enumerate(dims)
        )
    unknown = {n: [d for d in dims if isinstance(d, str)] for n, dims in bound.items()}
    unknown = {n: dims for n, dims in unknown.items() if dims}
    if unknown:
        raise UsageError(_complaint(unknown, declared, batch))
    file_shapes = {n: tuple(d for d in dims if isinstance(d, int)) for n, dims in bound.items()}
    leading = [dims[0] for dims in declared.values() if dims]
    old = leading[0] if leading else None
    if batch is None or not isinstance(old, int) or old == batch:
        return InputShapes(file_shapes, file_shapes, None)
    shapes = {n: (batch, *s[1:]) if s and s[0] == old else s for n, s in file_shapes.items()}
    return InputShapes(shapes, file_shapes, old)


def _dimensions(info: onnx.ValueInfoProto) -> tuple[Dimension, ...]:
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        raise UsageError(f"input {info.name!r} is not a tensor; only tensors can be trained on")
    if not info.type.tensor_type.HasField("shape"):
        raise UsageError(f"input {info.name!r} has no shape; export the model with static shapes")
    result: list[Dimension] = []
    for dim in info.type.tensor_type.shape.dim:
        if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0:
            result.append(dim.dim_value)
        elif dim.WhichOneof("value") == "dim_value" and dim.dim_value != -1:
            raise UsageError(f"input {info.name!r} has a negative dimension ({dim.dim_value})")
        else:
            # Some exporters write -1 for "any".
            result.append(dim.dim_param or "?")
    return tuple(result)


def _batch_symbols(declared: dict[str, tuple[Dimension, ...]]) -> set[str]:
    """Names of the dimensions that mean the batch: the leading ones of the inputs."""
    return {dims[0] for dims in declared.values() if dims and isinstance(dims[0], str) and dims[0] != "?"}


def _complaint(unknown: dict[str, list[str]], declared: dict[str, tuple[Dimension, ...]], batch: int | None) -> str:
    shown = "; ".join(f"input {n!r} has shape [{', '.join(map(str, declared[n]))}]" for n in unknown)
    only_batch = all(len(dims) == 1 and isinstance(declared[n][0], str) for n, dims in unknown.items())
    if batch is None and only_batch:
        return f"{shown}: the batch is not fixed; pass --batch N"
    names = sorted({d for dims in unknown.values() for d in dims})
    rest = "" if batch is not None else " (--batch N sets the leading one)"
    return f"{shown}: symbolic dimensions {', '.join(names)} have no length{rest}; export the model with static shapes"
