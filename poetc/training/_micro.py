"""Micro-batches: the model at a part of the batch, and how each part reads the inputs of the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from poetc.errors import UsageError
from poetc.graph import Attribute, DType, Filed, Fill, Graph, Role, TensorType, Value
from poetc.ops import Builder


@dataclass(frozen=True, slots=True)
class Cut:
    """A tensor of the whole batch and the axis along which its micro-batches lie one after the other."""

    axis: int
    size: int  # of a micro-batch

    def take(self, b: Builder, tensor: str, index: int, name: str) -> str:
        """Emit the copy of micro-batch `index` of `tensor`."""
        shape = list(b.type(tensor).shape)
        starts = [0] * len(shape)
        starts[self.axis], shape[self.axis] = index * self.size, self.size
        return b.emit("Slice", [tensor], {"starts": tuple(starts), "sizes": tuple(shape)}, outputs=[name])[0]


def divisors(batch: int) -> list[int]:
    return [n for n in range(1, batch + 1) if batch % n == 0]


def micro_batch_of(whole: Graph, count: int) -> int:
    """Rows of a micro-batch. UsageError where the batch cannot be split into `count`."""
    batch = whole.batch
    if batch is None:
        raise UsageError(f"--micro-batches {count}: {whole.name} has no input with a batch axis")
    if batch % count:
        allowed = ", ".join(map(str, divisors(batch)))
        raise UsageError(f"--micro-batches {count}: does not divide the batch of {batch}; choose from {allowed}")
    return batch // count


def cut_of(name: str, whole: TensorType, part: TensorType, count: int) -> Cut | None:
    """How `part` lies in `whole`; None if they are the same. UsageError for anything but one axis, `count` times."""
    if whole == part:
        return None
    if len(whole.shape) == len(part.shape) and whole.dtype is part.dtype:
        axes = [k for k, (n, m) in enumerate(zip(whole.shape, part.shape, strict=True)) if n != m]
        if len(axes) == 1 and whole.shape[axes[0]] == count * part.shape[axes[0]]:
            return Cut(axes[0], part.shape[axes[0]])
    raise UsageError(
        f"--micro-batches {count}: {name!r} is {list(whole.shape)} for the whole batch and {list(part.shape)} for a"
        " part of it; only a batch that lies along one axis can be split"
    )


def check_state(whole: Graph, part: Graph, count: int) -> None:
    """Parameters and statistics must not depend on the batch."""
    for name, tensor in whole.tensors.items():
        if tensor.role in (Role.PARAMETER, Role.STATISTIC):
            other = part.tensors.get(name)
            if other is None or other.type != tensor.type:
                raise UsageError(
                    f"--micro-batches {count}: {name!r} has another shape for a part of the batch; it cannot be split"
                )


def at_batch(whole: Graph, other: Graph) -> Graph:
    """`other`, which is `whole` at another batch, with constants apart from those of `whole`.

    UsageError where a program of `other` cannot run on the weights of `whole`.
    """
    if whole.batch is None:
        raise UsageError(f"{whole.name} has no input with a batch axis")
    for name, tensor in whole.tensors.items():
        kept = tensor.role in (Role.PARAMETER, Role.STATISTIC) and name in other.tensors
        if kept and other.tensors[name].type != tensor.type:
            raise UsageError(f"{whole.name}: {name!r} has another shape at this batch")
    for name in whole.outputs:
        shape = whole.tensors[name].shape
        if shape and name in other.tensors and other.tensors[name].shape == shape:
            raise UsageError(
                f"{whole.name} holds its batch in a constant: output {name!r} is {list(shape)} all the same"
            )
    return apart_from(whole, other, "infer")


def apart_from(whole: Graph, part: Graph, label: str = "part") -> Graph:
    """`part` with another name for every constant that differs from the one of that name in `whole`.

    The program may hold both, one for training and one for inference."""
    names = {
        name: f"{name}~{label}"
        for name, tensor in part.tensors.items()
        if tensor.role is Role.CONSTANT
        and (name not in whole.tensors or tensor != whole.tensors[name] or not _same(part, whole, name))
    }
    return renamed(part, names)


def _same(a: Graph, b: Graph, name: str) -> bool:
    x, y = a.values.get(name), b.values.get(name)
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return np.array_equal(x, y)
    if isinstance(x, Filed) and isinstance(y, Filed):
        return x.read == y.read
    return isinstance(x, Fill | None) and isinstance(y, Fill | None) and x == y


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The same graph with other names for some tensors."""
    return replace(
        graph,
        tensors={
            names.get(n, n): replace(t, name=names.get(n, n)) if n in names else t for n, t in graph.tensors.items()
        },
        operators=tuple(
            replace(
                op,
                inputs=tuple(names.get(t, t) for t in op.inputs),
                outputs=tuple(names.get(t, t) for t in op.outputs),
            )
            for op in graph.operators
        ),
        inputs=tuple(names.get(t, t) for t in graph.inputs),
        outputs=tuple(names.get(t, t) for t in graph.outputs),
        values={names.get(n, n): v for n, v in graph.values.items()},
    )


class Weights:
    """The weight of each micro-batch's loss in the mean over the whole batch: scalars, made or constant.

    All parts have the same size, so it is 1 / count, unless targets are ignored or classes are weighted. Then it is the
    part's share of the weights of the whole batch's targets: a mean of means would weigh them differently.
    """

    def __init__(self, b: Builder, count: int, target: str, attributes: Mapping[str, Attribute]) -> None:
        ignored, weights = attributes.get("ignore_index"), attributes.get("class_weights", ())
        self._b = b
        self._constant = self._total = self._table = ""
        if ignored is None and not weights:
            self._constant = self._scalar("micro_batch_weight", 1.0 / count)
            return
        self._index = self._class("ignore_index", -(2**31) if ignored is None else int(str(ignored)))
        if weights:
            table = np.array(weights, np.float32)
            self._table = b.add_tensor(b.fresh("class_weights"), TensorType(table.shape), Role.CONSTANT, table)
            self._zero = self._class("class_0", 0)
            self._total = self._counted(target, "targets_counted")
        else:
            counted = self._counted(target, "targets_counted")
            self._total = b.emit1("Maximum", [counted, self._scalar("one", 1.0)], hint="targets_counted.total")

    def _class(self, hint: str, index: int) -> str:
        b = self._b
        return b.add_tensor(b.fresh(hint), TensorType((1,), DType.I32), Role.CONSTANT, np.array([index], np.int32))

    def _scalar(self, hint: str, value: float) -> str:
        b = self._b
        array: Value = np.array(value, np.float32)
        return b.add_tensor(b.fresh(hint), TensorType(()), Role.CONSTANT, array)

    def _counted(self, target: str, hint: str) -> str:
        """How many targets are not ignored, or the sum of their weights."""
        b, shape = self._b, self._b.type(target).shape
        if self._table:
            is_ignored = b.emit1("Equal", [target, self._index])
            weights = b.emit1("Gather", [self._table, b.emit1("Where", [is_ignored, self._zero, target])], {"axis": 0})
            kept = b.emit1("MaskNot", [is_ignored, weights])
            return b.emit1("ReduceSum", [kept], {"axes": tuple(range(len(shape))), "keepdims": False}, hint=hint)
        ignored = b.emit1("Cast", [b.emit1("Equal", [target, self._index])], {"to": "f32"})
        total = b.emit1("ReduceSum", [ignored], {"axes": tuple(range(len(shape))), "keepdims": False})
        return b.emit1("Affine", [total], {"alpha": -1.0, "beta": float(b.type(target).elements)}, hint=hint)

    def of(self, target: str) -> str:
        """The weight of the micro-batch with this target."""
        if self._constant:
            return self._constant
        kind = "DivOrZero" if self._table else "Div"
        return self._b.emit1(kind, [self._counted(target, f"{target}.counted"), self._total], hint=f"{target}.weight")
