"""Adapters for llama.cpp (a GGUF file) and for onnxruntime (an .onnx_adapter, with the model that takes it).

GGUF: convert_lora_to_gguf.py of llama.cpp. A weight NAME has the factors NAME.lora_a [rank, inputs] and NAME.lora_b
[outputs, rank]. All share one alpha. onnxruntime: its class AdapterFormat; names are those of graph inputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from poetc import training
from poetc.artifact import Artifact
from poetc.commands.adapter_files import updates_of
from poetc.commands.gguf import MODULES, order_of_rows
from poetc.commands.weights import model_of
from poetc.errors import UnsupportedModelError, UsageError
from poetc.graph import Array, Graph, materialize
from poetc.training import Adapter, Updates

_MODULE = re.compile(r"model\.layers\.(\d+)\.(.+)")
_PRODUCTS = ("MatMul", "MatMulNBits")
_STORED = re.compile(r"\.integers(\.\d+)?$")


def gguf_bytes(solved: Artifact, values: Mapping[str, Array], model: Path) -> bytes:
    """The adapters as a GGUF file. `values`: by the graph's names; those that training starts from are the others.

    UnsupportedModelError where `model`, the ONNX file, was not made by `poetc import-gguf`.
    """
    graph, updates = model_of(solved), updates_of(solved)
    told = _told(model)
    if "architecture" not in told:
        raise UnsupportedModelError(
            f"{model}: was not made by poetc import-gguf, so llama.cpp's names are not known; write --adapter, and"
            " convert it with llama.cpp's convert_lora_to_gguf.py"
        )
    whole = [*updates.whole, *updates.channels]
    if whole:
        raise UnsupportedModelError(f"--gguf-adapter: {whole[0]!r} is trained whole, which no GGUF adapter can hold")
    turned = {"attn_q": int(told["heads"]), "attn_k": int(told["groups"])} if told["architecture"] == "llama" else {}
    names = {module: kind for kind, module in MODULES.items()}
    tensors: dict[str, Array] = {}
    alpha = max(a.scale * a.rank for a in updates.adapters.values())
    for module, adapter, a, b in _factors(graph, updates, values):
        place = _MODULE.fullmatch(module)
        kind = names.get(place[2]) if place else None
        if place is None or kind is None:
            raise UnsupportedModelError(f"--gguf-adapter: llama.cpp has no name for the module {module!r}")
        b = b * np.float32(adapter.scale * adapter.rank / alpha)
        if kind in turned:
            order = order_of_rows(turned[kind], int(told["size"]))
            b = b[np.argsort(order)]
        stem = f"blk.{place[1]}.{kind}.weight"
        tensors |= {f"{stem}.lora_a": a, f"{stem}.lora_b": b}
    return _written(told["architecture"], alpha, tensors)


def _written(architecture: str, alpha: float, tensors: Mapping[str, Array]) -> bytes:
    try:
        from gguf import GGUFWriter
    except ImportError:
        raise UsageError("--gguf-adapter needs the package gguf: pip install '.[text]' in the clone") from None
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "adapter.gguf"
        writer = GGUFWriter(str(path), architecture)
        writer.add_type("adapter")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", alpha)
        for name, array in tensors.items():
            writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def onnx_adapter_bytes(solved: Artifact, values: Mapping[str, Array]) -> bytes:
    """The adapters as onnxruntime's RunOptions.add_active_adapter takes them; the scale is in the second factors."""
    try:
        import onnxruntime
    except ImportError:
        raise UsageError("--onnx-adapter needs the package onnxruntime: pip install onnxruntime") from None
    graph, updates = model_of(solved), updates_of(solved)
    parameters = {}
    for module, adapter, a, b in _factors(graph, updates, values):
        first, second = np.ascontiguousarray(a.T), np.ascontiguousarray(b.T * np.float32(adapter.scale))
        for name, array in zip(_inputs_of(module), (first, second), strict=True):
            parameters[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array)
    container = onnxruntime.AdapterFormat()
    container.set_parameters(parameters)
    container.set_adapter_version(1)
    container.set_model_version(1)
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "adapter.onnx_adapter"
        container.export_adapter(str(path))
        return path.read_bytes()


def base_bytes(solved: Artifact, model: Path) -> bytes:
    """The ONNX file `model` with an input for each factor, which is 0 where no adapter is active.

    UnsupportedModelError where a weight is read by other nodes than products.
    """
    graph, updates = model_of(solved), updates_of(solved)
    proto = onnx.load(str(model))
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in proto.graph.node:
        if node.op_type in _PRODUCTS:
            readers.setdefault(node.input[1], []).append(node)
    added: dict[int, list[onnx.NodeProto]] = {}
    layers = training.layers_of(graph)
    for weight, (module, adapter) in _modules(graph, updates).items():
        origin = graph.origins.get(weight)
        stored = _STORED.sub("", origin.tensor if origin is not None else weight)
        nodes, layer = readers.get(stored, []), layers[weight]
        if not nodes or len(graph.tensors[weight].shape) != 2:
            raise UnsupportedModelError(
                f"--adapter-base: {stored!r} is read by no MatMul and no MatMulNBits of {model}"
            )
        first, second = _inputs_of(module)
        for name, shape in ((first, (layer.inputs, adapter.rank)), (second, (adapter.rank, layer.outputs))):
            proto.graph.initializer.append(numpy_helper.from_array(np.zeros(shape, np.float32), name))
            axes = [shape[0], f"{module}.rank"] if name == first else [f"{module}.rank", shape[1]]
            proto.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, axes))
        for node in nodes:
            result, frozen = node.output[0], f"{node.output[0]}.frozen"
            low, high = f"{result}.lora_A", f"{result}.lora_B"
            node.output[0] = frozen
            added[id(node)] = [
                helper.make_node("MatMul", [node.input[0], first], [low], low),
                helper.make_node("MatMul", [low, second], [high], high),
                helper.make_node("Add", [frozen, high], [result], f"{result}.lora"),
            ]
    nodes = [each for node in proto.graph.node for each in (node, *added.get(id(node), ()))]
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(kept)
    return bytes(proto.SerializeToString())


def _inputs_of(module: str) -> tuple[str, str]:
    return f"{module}.lora_A.weight", f"{module}.lora_B.weight"


def _modules(graph: Graph, updates: Updates) -> dict[str, tuple[str, Adapter]]:
    """The module and the adapter beside each weight. UnsupportedModelError for one with magnitudes."""
    if any(a.magnitudes for a in updates.adapters.values()):
        raise UnsupportedModelError("no such file holds magnitudes of dora: write --adapter, or the merged model")
    names = training.adapter_names(graph, updates.adapters)
    return {w: (names[w][0].removesuffix(".lora_A.weight"), a) for w, a in updates.adapters.items()}


def _factors(
    graph: Graph, updates: Updates, values: Mapping[str, Array]
) -> Iterator[tuple[str, Adapter, Array, Array]]:
    """Module, adapter, A [rank, inputs] and B [outputs, rank]. UnsupportedModelError for a convolution."""
    names = training.adapter_names(graph, updates.adapters)
    for weight, (module, adapter) in _modules(graph, updates).items():
        pair = []
        for name in names[weight]:
            held = values.get(name)
            array = materialize(graph.values[name], graph.tensors[name].type) if held is None else np.asarray(held)
            if array.ndim != 2:
                raise UnsupportedModelError(f"{module!r}: only adapters of products have this format, not convolutions")
            pair.append(np.asarray(array, np.float32))
        yield module, adapter, pair[0], pair[1]


def comes_from_gguf(model: Path) -> bool:
    """Whether `poetc import-gguf` made the ONNX file."""
    return "architecture" in _told(model)


def _told(model: Path) -> dict[str, str]:
    """The fields that `poetc import-gguf` writes into an ONNX file."""
    proto = onnx.load(str(model), load_external_data=False)
    return {p.key.removeprefix("gguf."): p.value for p in proto.metadata_props if p.key.startswith("gguf.")}
