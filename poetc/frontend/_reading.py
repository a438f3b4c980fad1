"""Bytes on disk → ONNX protobuf, and ONNX tensors → numpy, with every way that can go wrong told in one line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped,unused-ignore]
from onnx import numpy_helper

from poetc.errors import UnsupportedModelError, UsageError
from poetc.files import read_file
from poetc.frontend._classical import with_layers
from poetc.graph import Array

# No tensor of a board's model comes near this; a file that claims more is broken or hostile.
LARGEST_TENSOR_BYTES = 2**40
MOST_ELEMENTS = 2**31 - 1  # of a tensor
LARGEST_MODEL_BYTES = 2**31 - 1  # The largest file that protobuf can read; larger models have external data.
# The largest value that the importer holds if it is computed at import time.
LARGEST_FOLDED_BYTES = 2**28
# Characters. C has to hold the name, and names derived from it, in a string, which C99 lets be 4,095 long.
LONGEST_NAME = 2_000
# Nodes that a file's functions may become, and bytes of the constants in them.
MOST_INLINED_NODES = 30_000

_Key = tuple[str, str, str]  # of a function: domain, name, overload


def read_model(path: Path) -> onnx.ModelProto:
    """The model with its functions inlined. UsageError names the file when it is not a readable ONNX model."""
    return inlined(parse_model(path), path)


def parse_model(path: Path) -> onnx.ModelProto:
    """The model as the file has it, but for linear models of ai.onnx.ml. UsageError as `read_model`."""
    try:
        data = read_file(path, LARGEST_MODEL_BYTES)
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else (error.strerror or str(error)).lower()
        raise UsageError(f"{path}: {reason}; give the path of an ONNX model") from None
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError):  # the second: protobuf in Python alone, as old releases are
        raise UsageError(f"{path}: not an ONNX model, or cut off ({len(data)} bytes could not be decoded)") from None
    if not model.HasField("graph") or not model.graph.output:
        raise UsageError(f"{path}: not an ONNX model: it holds no graph with outputs")
    _refuse_undecodable_text(model, path)
    with_layers(model)
    return model


def inlined(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """The model without functions of its own; itself where there are none. UsageError names `path`."""
    if not model.functions:
        return model
    from onnx import inliner

    _refuse_expansion(model, path)
    try:
        return inliner.inline_local_functions(model)
    except Exception as error:
        # The inliner is C++ and raises bare RuntimeErrors for anything from recursion to missing functions.
        raise UsageError(f"{path}: its functions cannot be inlined: {one_line(error)}") from None


def _refuse_expansion(model: onnx.ModelProto, path: Path) -> None:
    """UsageError where inlining would make too many nodes or bytes: two calls a level double at every level.

    Counted a function at a time, the callees first. A cycle is left for the inliner to find.
    """
    bodies = {(f.domain, f.name, f.overload): list(_all_nodes(f.node)) for f in model.functions}
    sizes: dict[_Key, tuple[int, int]] = {}  # nodes and bytes once it is inlined
    opened: set[_Key] = set()
    stack = list(bodies)
    while stack:
        key = stack[-1]
        pending = [] if key in opened else [c for n in bodies[key] if (c := _key(n)) in bodies and c not in opened]
        opened.add(key)
        if pending:
            stack += pending
            continue
        if key not in sizes:
            sizes[key] = _inlined_size(bodies[key], sizes)
        stack.pop()
    count, size_bytes = _inlined_size(_all_nodes(model.graph.node), sizes)
    if count > MOST_INLINED_NODES:
        raise UsageError(f"{path}: its functions stand for {_many(count)} nodes, more than {MOST_INLINED_NODES:,}")
    if size_bytes > 2 * LARGEST_FOLDED_BYTES:
        raise UsageError(f"{path}: its functions stand for {_many(size_bytes)} bytes of nodes")


def _key(node: onnx.NodeProto) -> _Key:
    return node.domain, node.op_type, node.overload


def _inlined_size(nodes: Iterable[onnx.NodeProto], sizes: Mapping[_Key, tuple[int, int]]) -> tuple[int, int]:
    """The number of nodes, and their bytes, when every call is replaced by its function."""
    count = size_bytes = 0
    for n in nodes:
        own = sizes.get(_key(n), (1, n.ByteSize()))
        count, size_bytes = count + own[0], size_bytes + own[1]
    return count, size_bytes


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """With those of the graphs that they hold."""
    for n in nodes:
        yield n
        yield from (inner for graph in subgraphs([n]) for inner in graph.node)


def subgraphs(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    """The graphs that nodes hold, such as the branches of an If, and those in them."""
    for n in nodes:
        for a in n.attribute:
            for graph in (*([a.g] if a.HasField("g") else []), *a.graphs):
                yield graph
                yield from subgraphs(graph.node)


def _many(number: int) -> str:
    return f"{number:,}" if number < 10**15 else f"10^{len(str(number)) - 1}"


def _refuse_undecodable_text(model: onnx.ModelProto, path: Path) -> None:
    """protobuf hands out bytes where text is not UTF-8: no name may be that."""
    graph = model.graph
    texts: list[object] = [o.domain for o in model.opset_import]
    for node in (*graph.node, *(n for f in model.functions for n in f.node)):
        texts += [node.op_type, node.domain, node.name, *node.input, *node.output, *(a.name for a in node.attribute)]
    for info in (*graph.input, *graph.output):
        texts += [info.name, *(d.dim_param for d in info.type.tensor_type.shape.dim)]
    for tensor in graph.initializer:
        texts += [tensor.name, *(t for e in tensor.external_data for t in (e.key, e.value))]
    for text in texts:
        if not isinstance(text, str):
            raise UsageError(f"{path}: not an ONNX model, or damaged: a name in it is not text")
        if len(text) > LONGEST_NAME:
            raise UsageError(f"{path}: a name in it has {len(text):,} characters, more than {LONGEST_NAME:,}")


def one_line(error: BaseException) -> str:
    """An exception's text on one line, for a message."""
    text = " ".join(str(error).split())
    return text[:300] or type(error).__name__


def check_size(what: str, shape: tuple[int, ...], itemsize_bytes: int) -> None:
    """UsageError when `shape` is impossible, UnsupportedModelError when kernels cannot count its elements.

    Where it is too large, `details` has its `elements`.
    """
    if any(d < 0 for d in shape):
        raise UsageError(f"{what} has a negative dimension: {list(shape)}")
    elements = math.prod(shape)
    details = {"elements": elements}
    if elements * itemsize_bytes > LARGEST_TENSOR_BYTES:
        raise UsageError(f"{what} is impossibly large: {list(shape)}", details=details)
    if elements > MOST_ELEMENTS:
        message = f"{what} has {elements:,} elements; kernels count to 2^31 - 1"
        raise UnsupportedModelError(message, details=details)


def tensor_dtype(tensor: onnx.TensorProto) -> np.dtype[np.generic]:
    """numpy's element type of an ONNX tensor. UsageError for types that no operator here can use."""
    return element_dtype(tensor.data_type, f"tensor {tensor.name!r}")


def element_dtype(data_type: int, what: str) -> np.dtype[np.generic]:
    refused = (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING, onnx.TensorProto.COMPLEX64)
    if data_type in (*refused, onnx.TensorProto.COMPLEX128):
        name = onnx.TensorProto.DataType.Name(data_type)
        raise UsageError(f"{what} has element type {name}, which cannot be trained")
    try:
        dtype: np.dtype[np.generic] = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(data_type))
        return dtype
    except KeyError:
        raise UsageError(f"{what} has an unknown element type ({data_type})") from None


def is_float(dtype: np.dtype[np.generic]) -> bool:
    """Floating point of any width, the 16 and 8 bit extension types included."""
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name) or dtype.name == "bfloat16"


def widened(array: Array) -> Array:
    """Floats of 16 bits as f32, in which all is computed; other arrays as they are."""
    return array.astype(np.float32) if is_float(array.dtype) and array.dtype.itemsize == 2 else array


def read_tensor(tensor: onnx.TensorProto, folder: Path) -> Array | None:
    """The values of a tensor; None where they are external data whose file does not exist."""
    dtype = tensor_dtype(tensor)
    shape = tuple(int(d) for d in tensor.dims)
    check_size(f"tensor {tensor.name!r}", shape, dtype.itemsize)
    if is_external(tensor):
        return _read_external(tensor, dtype, shape, folder)
    try:
        return np.asarray(numpy_helper.to_array(tensor)).reshape(shape)
    except (ValueError, TypeError, OverflowError, KeyError) as error:
        raise UsageError(f"tensor {tensor.name!r} does not hold the data its shape says: {one_line(error)}") from None


def external_location(tensor: onnx.TensorProto) -> str:
    """The file that holds a tensor's data, as the model names it."""
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def is_external(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def stored_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The initializers, and the tensors in attributes, those of subgraphs and functions included."""
    yield from model.graph.initializer
    for node in _all_nodes((*model.graph.node, *(n for f in model.functions for n in f.node))):
        for a in node.attribute:
            if a.HasField("t"):
                yield a.t
            for graph in (*([a.g] if a.HasField("g") else []), *a.graphs):
                yield from graph.initializer


def external_files(path: Path) -> tuple[Path, ...]:
    """The files beside a model that hold its external data, as far as they are there.

    Raises the errors of `read_model`.
    """
    names = {external_location(t) for t in stored_tensors(read_model(path)) if is_external(t)}
    files = [_beside(path.parent, name) for name in sorted(names)]
    return tuple(file for file in files if file is not None and file.is_file())


def _beside(folder: Path, location: str) -> Path | None:
    """The file at a location. None where a path cannot be so: a model must not read files outside of its own folder."""
    try:
        file = (folder / location).resolve()
        file.stat()  # `is_file` is False for such a name from Python 3.14 on
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError):  # too long, or with a zero byte
        return None
    return file if location and file.is_relative_to(folder.resolve()) else None


def _read_external(
    tensor: onnx.TensorProto, dtype: np.dtype[np.generic], shape: tuple[int, ...], folder: Path
) -> Array | None:
    where = {entry.key: entry.value for entry in tensor.external_data}
    location = external_location(tensor)
    try:
        offset = int(where.get("offset", "0"))
    except ValueError:
        offset = -1
    file = _beside(folder, location)
    if file is None or offset < 0:
        raise UsageError(f"tensor {tensor.name!r} has an invalid external location {location!r}")
    if not file.is_file():
        return None
    needed = math.prod(shape) * dtype.itemsize
    if file.stat().st_size < offset + needed:
        raise UsageError(f"{file} is cut off: tensor {tensor.name!r} needs {needed} bytes at offset {offset}")
    if not needed:
        return np.zeros(shape, dtype)
    return np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=shape)
