"""PyTorch's half of bench/opinfo.py: samples of its own test suite as ONNX files, with gradients in double precision.

    build/peers/opinfo/bin/python bench/peer_opinfo.py FOLDER [--samples N] [--part operators|modules] [--only WORD]

OpInfo lists every operator with sample inputs, ModuleInfo every module. A sample becomes a module with parameters of
its own: a factor for each element of its first operand ("input"), or of every float operand ("all"). FOLDER gets
NAME.onnx, NAME.npz (inputs, target, the output in float32, loss and gradients in float64) and a line in
exported.jsonl, so that a second run goes on where the first one ended.
"""

from __future__ import annotations

import argparse
import copy
import functools
import gc
import json
import logging
import signal
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Callable  # noqa: UP035

import numpy as np
import onnx
import torch
import torch._ops
from torch._export import utils as _utils
from torch.onnx._internal.exporter._registration import ONNXRegistry
from torch.utils._pytree import tree_flatten, tree_unflatten

SECONDS_EACH = 90
LARGEST = 20_000  # elements of an operand


class Scaled(torch.nn.Module):
    """`function` of one input, with operands scaled by parameters."""

    def __init__(self, function: Any, leaves: list[Any], structure: Any, *, every: bool) -> None:
        super().__init__()
        self.function, self.structure, self.count = function, structure, len(leaves)
        self.plain: dict[int, Any] = {}
        draw = torch.Generator().manual_seed(5)
        floats = [k for k, leaf in enumerate(leaves) if is_float(leaf)]
        self.first = floats[0]
        self.scaled = floats if every else floats[:1]
        for k, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor):
                self.plain[k] = leaf
            elif k != self.first:
                self.register_buffer(f"operand{k}", leaf.detach().clone())
        for k in self.scaled:
            factor = 1 + 0.1 * (torch.rand(leaves[k].shape, generator=draw) - 0.5)
            self.register_parameter(f"p{k}", torch.nn.Parameter(factor.to(leaves[k].dtype)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        leaves = []
        for k in range(self.count):
            leaf = self.plain[k] if k in self.plain else x if k == self.first else getattr(self, f"operand{k}")
            leaves.append(leaf * getattr(self, f"p{k}") if k in self.scaled else leaf)
        args, kwargs = tree_unflatten(leaves, self.structure)
        return first_float(self.function(*args, **kwargs))


def is_float(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float32 and leaf.numel() > 0


def first_float(result: Any) -> torch.Tensor:
    for leaf in tree_flatten(result)[0]:
        if isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.float32, torch.float64) and leaf.numel():
            return leaf
    raise LookupError("no float output")


class FirstOutput(torch.nn.Module):
    """A module of PyTorch with a scaled input, its first float output alone; arguments but the first are buffers."""

    def __init__(self, module: torch.nn.Module, leaves: list[Any], structure: Any) -> None:
        super().__init__()
        self.module, self.structure, self.leaves = module, structure, leaves
        self.first = next(k for k, leaf in enumerate(leaves) if is_float(leaf))
        shape = leaves[self.first].shape
        self.scale = torch.nn.Parameter(1 + 0.1 * (torch.rand(shape, generator=torch.Generator().manual_seed(5)) - 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        leaves = [x * self.scale if k == self.first else leaf for k, leaf in enumerate(self.leaves)]
        args, kwargs = tree_unflatten([v.to(x.dtype) if is_float(v) else v for v in leaves], self.structure)
        return first_float(self.module(*args, **kwargs))


def signature(leaves: list[Any]) -> str:
    """Shapes and arguments: samples with the same ones differ in their numbers alone."""
    return str([(tuple(v.shape), v.dtype) if isinstance(v, torch.Tensor) else v for v in leaves])


def chosen(drawn: Iterable[list[Any]], k: int, samples: int) -> int:
    """Which of the drawn samples is number `k` of `samples`: of different signatures, from the first to the last.

    Samples with an operand of no elements are left out.
    """
    firsts: dict[str, int] = {}
    for position, leaves in enumerate(drawn):
        sizes = [v.numel() for v in leaves if isinstance(v, torch.Tensor)]
        if any(map(is_float, leaves)) and all(sizes) and sum(sizes) <= LARGEST:
            firsts.setdefault(signature(leaves), position)
    positions = list(firsts.values())
    if k >= len(positions):
        raise LookupError("no further sample")
    return positions[round(k * (len(positions) - 1) / max(samples - 1, 1))]


def operators(samples: int, only: str) -> Iterator[tuple[str, Any]]:
    """(name, a function that makes the module and its input) of each sample of each operator with a gradient."""
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}".rstrip(".")
        if only not in name or torch.float32 not in op.supported_backward_dtypes("cpu") or not op.supports_autograd:
            continue
        for every in (False, True):
            for k in range(samples):
                yield f"{name}-{'all' if every else 'input'}-{k}", (op, k, every)


def sampled(op: Any, k: int, samples: int, *, every: bool) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(7)
    drawn = [
        tree_flatten(((sample.input, *sample.args), sample.kwargs))
        for sample in op.sample_inputs("cpu", torch.float32, requires_grad=False)
    ]
    leaves, structure = drawn[chosen((leaves for leaves, _ in drawn), k, samples)]
    if every and sum(map(is_float, leaves)) < 2:
        raise LookupError("one operand")
    module = Scaled(op.op, leaves, structure, every=every)
    return module, next(v for v in leaves if is_float(v)).detach().clone()


def modules(samples: int, only: str) -> Iterator[tuple[str, Any]]:
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        for training in (False, True):
            for k in range(samples):
                name = f"{info.name}-{'train' if training else 'eval'}-{k}"
                if only in name:
                    yield name, (info, k, training)


def module_of(info: Any, k: int, samples: int, *, training: bool) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(7)
    drawn = [
        (given.constructor_input, *tree_flatten((given.forward_input.args, given.forward_input.kwargs)))
        for given in info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=False, training=training
        )
    ]
    kinds = ([*leaves, str(build.args), str(build.kwargs)] for build, leaves, _ in drawn)
    build, leaves, structure = drawn[chosen(kinds, k, samples)]
    module = info.module_cls(*build.args, **build.kwargs)
    x = next(v for v in leaves if is_float(v)).detach()
    if any(isinstance(p, torch.nn.UninitializedParameter) for p in module.parameters()):
        module(x)
    return FirstOutput(module, leaves, structure).train(training), x


def reference(module: torch.nn.Module, x: torch.Tensor) -> dict[str, np.ndarray]:
    with torch.no_grad():
        output = copy.deepcopy(module)(x)
    twice = copy.deepcopy(module).double()
    twice.requires_grad_(True)
    torch.manual_seed(3)
    made = twice(x.double())
    target = torch.randn(made.shape).float()
    loss = ((made - target.double()) ** 2).mean()
    names = [n for n, _ in twice.named_parameters()]
    gradients = torch.autograd.grad(loss, [p for _, p in twice.named_parameters()], allow_unused=True)
    held = {"x": x.numpy(), "t": target.numpy(), "y": output.numpy(), "loss": loss.detach().numpy()}
    return held | {f"g:{n}": g.numpy() for n, g in zip(names, gradients, strict=True) if g is not None}


def export(name: str, made: tuple[torch.nn.Module, torch.Tensor], folder: Path) -> dict[str, str]:
    module, x = made
    try:
        held = reference(module, x)
        torch.manual_seed(11)
        with torch.no_grad():
            if not torch.equal(copy.deepcopy(module)(x), torch.from_numpy(held["y"])):
                return {"end": "no reference", "why": "it draws random numbers"}
    except (RuntimeError, LookupError, TypeError, ValueError, NotImplementedError) as error:
        return {"end": "no reference", "why": str(error)[:200]}
    if not all(np.isfinite(a).all() for k, a in held.items() if k.startswith(("g:", "loss"))):
        return {"end": "no reference", "why": "PyTorch's own loss or gradient is not finite"}
    if not any(k.startswith("g:") and np.any(a) for k, a in held.items()):
        return {"end": "no reference", "why": "no gradient"}
    try:
        options = {"dynamo": True, "verbose": False, "external_data": False}
        path = folder / f"{name}.onnx"
        torch.onnx.export(module, (x,), path, **options)
        # The exporter's optimizer computes what depends on parameters alone, which are then not in the file.
        if not {n for n, _ in module.named_parameters()} <= {t.name for t in onnx.load(path).graph.initializer}:
            torch.onnx.export(module, (x,), path, **options, optimize=False)
    except Exception as error:
        return {"end": "not exportable", "why": f"{type(error).__name__}: {error}"[:200]}
    np.savez(folder / f"{name}.npz", **held)
    return {"end": "exported", "why": ""}


def too_long(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS_EACH} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=2, help="of an entry, from its first to its last")
    parser.add_argument("--part", choices=("operators", "modules"), help="one of the two lists")
    parser.add_argument("--only", default="", help="names with this in them")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, too_long)
    # The exporter reads its tables of operators anew for each file, which takes most of the time.
    ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))
    _utils._materialize_cpp_cia_ops = functools.cache(_utils._materialize_cpp_cia_ops)
    torch._ops.Callable = Callable  # the one of typing keeps what collections.abc makes anew 10,000 times an export
    gc.freeze()
    options.folder.mkdir(parents=True, exist_ok=True)
    record = options.folder / "exported.jsonl"
    done = {json.loads(line)["case"] for line in record.read_text().splitlines()} if record.exists() else set()
    cases: list[Any] = []
    if options.part != "modules":
        cases += [(n, c, sampled) for n, c in operators(options.samples, options.only)]
    if options.part != "operators":
        cases += [(n, c, module_of) for n, c in modules(options.samples, options.only)]
    for name, (info, k, how), make in cases:
        name = name.replace("/", "_")
        if name in done:
            continue
        signal.alarm(SECONDS_EACH)
        try:
            word = "every" if make is sampled else "training"
            end = export(name, make(info, k, options.samples, **{word: how}), options.folder)
        except LookupError as error:
            end = {"end": "no sample", "why": str(error)}
        except Exception as error:
            end = {"end": "no sample", "why": f"{type(error).__name__}: {error}"[:200]}
        signal.alarm(0)
        with record.open("a") as file:
            file.write(json.dumps({"case": name, **end}) + "\n")


if __name__ == "__main__":
    main()
