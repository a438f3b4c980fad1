"""Adapters as the Python package peft keeps them: a .safetensors file of the factors, adapter_config.json beside it.

The factors have the names base_model.model.MODULE.lora_A.weight and lora_B.weight. Parameters that were trained besides
belong to `modules_to_save`: all weights and running statistics of their modules are in the file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from poetc import training
from poetc.artifact import Artifact
from poetc.commands.programs import graph_of
from poetc.commands.weights import file_name, model_of, safetensors_bytes, some
from poetc.errors import UnsupportedModelError, UsageError
from poetc.files import read_file
from poetc.graph import Array, Graph, Role, materialize
from poetc.training import Adapter, Updates

CONFIG = "adapter_config.json"
PREFIX = "base_model.model."
_TOLERANCE = 1e-6  # of a scale


def lora_of(solved: Artifact) -> tuple[str, tuple[str, ...]]:
    """`--train` and `--lora`, as far as they made adapters."""
    recorded = solved.summary.get("source") or {}
    return str(recorded.get("train", "all")), tuple(recorded.get("lora", ()))


def updates_of(solved: Artifact) -> Updates:
    """The trained updates of the model, whose graph has its adapters. UsageError where it has none."""
    train, lora = lora_of(solved)
    if not lora:
        raise UsageError("--adapter: solved without adapters; solve with --lora RANK, or write the model with -o")
    return training.select_updates(model_of(solved), train, lora)


def adapter_bytes(solved: Artifact, values: Mapping[str, Array]) -> tuple[bytes, bytes]:
    """The .safetensors file and adapter_config.json.

    `values`: by the graph's names; the graph's own values stand for missing ones.

    UnsupportedModelError names parameters that a file of adapters cannot hold.
    """
    graph, updates = model_of(solved), updates_of(solved)
    arrays = {}
    for key, (name, turned) in peft_names(graph, updates).items():
        held = values.get(name)
        array = materialize(graph.values[name], graph.tensors[name].type) if held is None else np.asarray(held)
        arrays[key] = array.T if turned else array
    config = json.dumps(_config(graph, updates), indent=2) + "\n"
    return safetensors_bytes(dict(sorted(arrays.items()))), config.encode()


def peft_names(graph: Graph, updates: Updates) -> dict[str, tuple[str, bool]]:
    """The tensor of the graph by its name in peft, and whether peft has it transposed."""
    pairs = training.adapter_names(graph, updates.adapters)
    names = {PREFIX + name: (name, False) for pair in pairs.values() for name in pair}
    own = (training.magnitude_name(pairs[w]) for w, a in updates.adapters.items() if a.magnitudes)
    names |= {PREFIX + name: (name, False) for name in own}
    adapted, layers = {_module(pair[0]) for pair in pairs.values()}, training.layers_of(graph)
    saved = {n: _placed(graph, layers, n) for n in sorted(updates.whole | frozenset(updates.channels))}
    homeless = [n for n, place in saved.items() if place is None or place[0] in adapted]
    if homeless:
        raise UnsupportedModelError(
            f"--adapter: {some(homeless)}: trained besides the adapters, but of no module of its own that peft could"
            " save; write the model with -o"
        )
    modules = {place[0] for place in saved.values() if place is not None}
    for name, tensor in graph.tensors.items():
        if tensor.role in (Role.PARAMETER, Role.STATISTIC) and name in graph.values:
            place = _placed(graph, layers, name)
            if place is not None and place[0] in modules:
                names[f"{PREFIX}{place[0]}.{place[1]}"] = name, place[2]
    return names


def read_adapter(solved: Artifact, path: Path, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays of a file of peft by the graph's names; `arrays` itself where it is none.

    UsageError where adapter_config.json beside `path` gives the adapters another scale.
    """
    if not arrays or not all(name.startswith(PREFIX) for name in arrays):
        return dict(arrays)
    updates, graph = updates_of(solved), model_of(solved)
    names = peft_names(graph, updates)
    for module, adapter in _by_module(graph, updates).items():
        scale = _scale_beside(path, module, adapter.rank)
        if scale is not None and abs(scale - adapter.scale) > _TOLERANCE * adapter.scale:
            raise UsageError(
                f"{path}: {CONFIG} beside it scales the adapter of {module} by {scale:g}, the solved one by"
                f" {adapter.scale:g}; solve with --lora {adapter.rank}:alpha={scale * adapter.rank:g}"
            )
    by_name = {}
    for key, array in arrays.items():
        name, turned = names.get(key, (key, False))
        by_name[name] = np.asarray(array).T if turned else array
    step = graph_of(solved)
    return {n: a for n, a in by_name.items() if n in step.updates or n not in graph.values}


def _module(factor: str) -> str:
    return factor.removesuffix(".lora_A.weight")


def _by_module(graph: Graph, updates: Updates) -> dict[str, Adapter]:
    names = training.adapter_names(graph, updates.adapters)
    return {_module(names[n][0]): adapter for n, adapter in updates.adapters.items()}


def _placed(graph: Graph, layers: Mapping[str, training.Layer], name: str) -> tuple[str, str, bool] | None:
    """The module of a weight or a statistic, its name within it, and whether PyTorch has it transposed.

    None where the file does not say which module has it.
    """
    origin, layer = graph.origins.get(name), layers.get(name)
    if origin is not None and origin.module:
        # Under an exporter's name: the weight of a product, which exporters transpose.
        if layer is None:
            return None
        return origin.module, "weight", layer.axis == 0
    module, dot, last = file_name(graph, name).rpartition(".")
    return (module, last, False) if dot else None


def _config(graph: Graph, updates: Updates) -> dict[str, Any]:
    """The content of peft's LoraConfig; a module whose rank or alpha is another is in a pattern."""
    modules = _by_module(graph, updates)
    rank = Counter(a.rank for a in modules.values()).most_common(1)[0][0]
    alpha = Counter(a.alpha for a in modules.values()).most_common(1)[0][0]
    dropout, stable = {a.dropout for a in modules.values()}, {a.stable for a in modules.values()}
    magnitudes = {a.magnitudes for a in modules.values()}
    if len(magnitudes) > 1:
        raise UnsupportedModelError("--adapter: peft has DoRA for all adapters or none; give :dora to each --lora")
    if len(stable) > 1:
        raise UnsupportedModelError("--adapter: peft has rsLoRA for all adapters or none; give :rslora to each --lora")
    saved = {_module_of(key) for key in peft_names(graph, updates) if ".lora_" not in key}
    return {
        "alpha_pattern": {m: a.alpha for m, a in sorted(modules.items()) if a.alpha != alpha},
        "base_model_name_or_path": None,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": alpha,
        "lora_dropout": max(dropout),
        "modules_to_save": sorted(saved) or None,
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": {m: a.rank for m, a in sorted(modules.items()) if a.rank != rank},
        "target_modules": sorted(modules),
        "task_type": None,
        "use_dora": magnitudes.pop(),
        "use_rslora": stable.pop(),
    }


def _module_of(key: str) -> str:
    return key.removeprefix(PREFIX).rpartition(".")[0]


def _scale_beside(path: Path, module: str, rank: int) -> float | None:
    """The scale that adapter_config.json gives a module; None where there is no such file."""
    config_path = path.parent / CONFIG
    if not config_path.is_file():
        return None
    try:
        config = json.loads(read_file(config_path))
        alpha = float(config.get("alpha_pattern", {}).get(module, config["lora_alpha"]))
        return alpha / (rank**0.5 if config.get("use_rslora") else rank)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{config_path}: not a configuration of peft's LoRA") from None
