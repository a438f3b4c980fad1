"""Static shapes of the inputs: symbolic dimensions get lengths, and another batch may take the place of a fixed one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from poetc.errors import UsageError, shortened

Dimension = int | str  # a length, or the name of a symbolic one ("?" when it has none)
_MOST = 2**31 - 1
_SHOWN = 12  # names in a message


@dataclass(frozen=True, slots=True)
class Sizes:
    """The lengths that are given to dimensions of the inputs.

    `batch`: of the leading ones. `dims`: by symbolic name. `shapes`: of whole inputs, by name. `rows`: in place of the
    batch, whichever of the others fixed it; for a part of the batch, or a prediction. `constants`: the values that
    inputs are bound to.
    """

    batch: int | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    rows: int | None = None
    constants: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(
        cls,
        batch: int | None,
        dims: Sequence[str] = (),
        shapes: Sequence[str] = (),
        rows: int | None = None,
        constants: Sequence[str] = (),
    ) -> Sizes:
        """From NAME=N for each dimension, NAME=N,N,... for each shape and NAME=VALUE for each constant.

        UsageError for anything else.
        """
        lengths, whole, bound = dict[str, int](), dict[str, tuple[int, ...]](), dict[str, int]()
        for text in dims:
            name, (length, *rest) = _parsed("--dim", text, "NAME=N")
            if rest:
                raise UsageError(f"--dim {shortened(text, 80)!r}: write NAME=N; --shape takes several numbers")
            if lengths.setdefault(name, length) != length:
                raise UsageError(f"--dim: {shortened(name, 80)!r} has two lengths, {lengths[name]} and {length}")
        for text in shapes:
            name, shape = _parsed("--shape", text, "INPUT=N,N,...")
            if whole.setdefault(name, shape) != shape:
                raise UsageError(f"--shape: {shortened(name, 80)!r} has two shapes")
        for text in constants:
            name, _, number = text.rpartition("=")
            if not name or not re.fullmatch(r"-?[0-9]{1,19}", number):
                raise UsageError(f"--constant {shortened(text, 80)!r}: write NAME=VALUE with a whole number")
            if bound.setdefault(name, int(number)) != int(number):
                raise UsageError(f"--constant: {shortened(name, 80)!r} has two values, {bound[name]} and {number}")
        return cls(batch, lengths, whole, rows, bound)


def _parsed(option: str, text: str, form: str) -> tuple[str, tuple[int, ...]]:
    name, equals, numbers = text.rpartition("=")
    parts = numbers.split(",")
    if not (equals and name and all(p.isascii() and p.isdecimal() and 1 <= int(p[:11]) <= _MOST for p in parts)):
        raise UsageError(f"{option} {shortened(text, 80)!r}: write {form} with whole numbers from 1")
    return name, tuple(int(p) for p in parts)


@dataclass(frozen=True, slots=True)
class InputShapes:
    """`shapes` by input name. Where the file fixes another batch than the one asked for, both are set."""

    shapes: dict[str, tuple[int, ...]]
    file_shapes: dict[str, tuple[int, ...]]
    old_batch: int | None = None
    new_batch: int | None = None


def resolve(inputs: Sequence[onnx.ValueInfoProto], sizes: Sizes) -> InputShapes:
    """Give every dimension a length. UsageError names the inputs and dimensions that have none, or two."""
    if sizes.batch is not None and sizes.batch < 1:
        raise UsageError(f"--batch {sizes.batch}: the batch must be at least 1")
    bound = _Binding({i.name: _dimensions(i) for i in inputs})
    for name, length in sizes.dims.items():
        bound.dimension(name, length)
    for name, shape in sizes.shapes.items():
        bound.shape(name, shape)
    if sizes.batch is not None:
        bound.batch(sizes.batch)
    if sizes.rows is not None:
        bound.rows(sizes.rows)
    shapes = bound.shapes(sizes)
    wanted = sizes.batch if sizes.rows is None else sizes.rows
    old = next((dims[0] for dims in bound.declared.values() if dims), None)
    if wanted is None or not isinstance(old, int) or old == wanted:
        return InputShapes(shapes, shapes)
    changed = {n: (wanted, *s[1:]) if s and s[0] == old else s for n, s in shapes.items()}
    return InputShapes(changed, shapes, old, wanted)


class _Binding:
    """The lengths of symbolic dimensions as they become known, each with the option that gave it."""

    def __init__(self, declared: dict[str, tuple[Dimension, ...]]) -> None:
        self.declared = declared
        # Of a named dimension; one without a name is known by its input and axis.
        self.lengths: dict[Dimension | tuple[str, int], int] = {}
        self.said: dict[Dimension | tuple[str, int], str] = {}

    def _key(self, name: str, axis: int) -> Dimension | tuple[str, int]:
        d = self.declared[name][axis]
        return (name, axis) if d == "?" else d

    @property
    def leading(self) -> list[Dimension | tuple[str, int]]:
        """The symbolic dimensions that mean the batch: the leading ones of the inputs."""
        keys = [self._key(n, 0) for n, dims in self.declared.items() if dims and isinstance(dims[0], str)]
        return list(dict.fromkeys(keys))

    def _bind(self, key: Dimension | tuple[str, int], length: int, option: str) -> None:
        before = self.lengths.setdefault(key, length)
        if before != length:
            which = f"axis {key[1]} of input {key[0]!r}" if isinstance(key, tuple) else f"dimension {key!r}"
            raise UsageError(f"{option}: {which} would be {length}, but {self.said[key]} makes it {before}")
        self.said.setdefault(key, option)

    def dimension(self, name: str, length: int) -> None:
        names = sorted({d for dims in self.declared.values() for d in dims if isinstance(d, str) and d != "?"})
        if name not in names:
            has = f"has {_listed(names)}" if names else "has none"
            raise UsageError(f"--dim {name}={length}: no input has a symbolic dimension of that name; the model {has}")
        self._bind(name, length, f"--dim {name}={length}")

    def shape(self, name: str, shape: tuple[int, ...]) -> None:
        option = f"--shape {name}={','.join(map(str, shape))}"
        dims = self.declared.get(name)
        if dims is None:
            raise UsageError(f"{option}: the model has no input of that name; it has {_listed(list(self.declared))}")
        if len(dims) != len(shape):
            raise UsageError(f"{option}: the file has shape {_shown(dims)} there")
        for axis, (d, length) in enumerate(zip(dims, shape, strict=True)):
            if isinstance(d, str):
                self._bind(self._key(name, axis), length, option)
            elif d != length:
                remedy = f"; --batch {length} changes a batch" if axis == 0 else ""
                raise UsageError(f"{option}: the file fixes axis {axis} at {d} (shape {_shown(dims)}){remedy}")

    def batch(self, batch: int) -> None:
        """--batch: of the leading dimensions that have no length of their own."""
        leading = self.leading
        opened = [key for key in leading if key not in self.lengths]
        for key in opened or [key for key in leading if batch not in map(self.lengths.get, leading)]:
            self._bind(key, batch, f"--batch {batch}")

    def rows(self, rows: int) -> None:
        """Another batch: every leading dimension that is as long as the first one."""
        leading = self.leading
        old = next((self.lengths[key] for key in leading if key in self.lengths), None)
        for key in leading:
            if self.lengths.get(key) == old:
                self.lengths[key] = rows

    def shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        """Every input's. UsageError for dimensions without a length."""
        result, unknown = dict[str, tuple[int, ...]](), dict[str, list[str]]()
        for name, dims in self.declared.items():
            extents = [d if isinstance(d, int) else self.lengths.get(self._key(name, k)) for k, d in enumerate(dims)]
            result[name] = tuple(length or 0 for length in extents)
            missing = [str(d) for d, length in zip(dims, extents, strict=True) if length is None]
            if missing:
                unknown[name] = missing
        if unknown:
            raise UsageError(self._complaint(unknown, sizes))
        return result

    def _complaint(self, unknown: Mapping[str, Sequence[str]], sizes: Sizes) -> str:
        shown = "; ".join(f"input {n!r} has shape {_shown(self.declared[n])}" for n in unknown)
        has_batch = sizes.batch is not None or sizes.rows is not None
        if not has_batch and all(list(d) == [self.declared[n][0]] for n, d in unknown.items()):
            return f"{shown}: the batch is not fixed; pass --batch N"
        names = sorted({d for dims in unknown.values() for d in dims})
        ways = [f"--dim {d}=N" for d in names if d != "?"][:3]
        if "?" in names:
            name = next(n for n, dims in unknown.items() if "?" in dims)
            ways.append(f"--shape {name}={','.join('N' for _ in self.declared[name])}")
        leads = any(self.declared[n][0] in d for n, d in unknown.items())
        rest = " (--batch N sets the leading one)" if leads and not has_batch else ""
        plural = "dimension {} has" if len(names) == 1 else "dimensions {} have"
        return f"{shown}: symbolic {plural.format(', '.join(names))} no length{rest}; pass {' '.join(ways)}"


def _shown(dims: Sequence[Dimension]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")


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
