"""PyTorch's side: the export, and the same training in float32 and float64."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.random_networks.networks import parameters, set_mode
from tests.random_networks.recipe import Array, Recipe
from tests.random_networks.training import Trained

torch.set_num_threads(1)  # tiny networks: threads would only wait for each other
OPSET = {"dynamo": 20, "legacy": 17}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def export(network: nn.Module, recipe: Recipe) -> onnx.ModelProto:
    """The ONNX file that one of the exporters makes. Raises what the exporter raises."""
    model = copy.deepcopy(network)
    set_mode(model, recipe)
    exporter, _, how = recipe.exporter.partition("_")
    if how != "train":
        model.eval()
    x = torch.from_numpy(recipe.batch_of(0)[0])
    names: dict[str, Any] = {"input_names": ["input"], "output_names": ["output"], "opset_version": OPSET[exporter]}
    with _quiet():
        if exporter == "dynamo":
            program = torch.onnx.export(model, (x,), None, dynamo=True, optimize=how != "raw", verbose=False, **names)
            assert program is not None
            made = program.model_proto
        else:
            mode = torch.onnx.TrainingMode
            buffer = io.BytesIO()
            training = {"": mode.EVAL, "preserve": mode.PRESERVE, "train": mode.TRAINING}[how]
            torch.onnx.export(
                model, (x,), buffer, dynamo=False, training=training, do_constant_folding=not how, **names
            )  # fmt: skip
            made = onnx.load_from_string(buffer.getvalue())
    return _cleaned(made)


def _cleaned(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without stack traces, which hold the paths of a machine, and without declared types of values in between."""
    del model.graph.value_info[:]
    for item in (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.initializer, model.graph):
        kept = [p for p in item.metadata_props if "stack_trace" not in p.key]
        pairs = [(p.key, p.value) for p in kept]
        del item.metadata_props[:]
        for key, value in pairs:
            item.metadata_props.add(key=key, value=value)
        item.doc_string = ""
    return model


def output(network: nn.Module, recipe: Recipe) -> Array:
    """The module's output of the first batch, in the mode of its export."""
    model = copy.deepcopy(network)
    set_mode(model, recipe)
    if not recipe.exporter.endswith("_train"):
        model.eval()
    with torch.no_grad():
        return np.asarray(model(torch.from_numpy(recipe.batch_of(0)[0])).numpy())


def train(network: nn.Module, recipe: Recipe, dtype: torch.dtype) -> Trained:
    """The steps of the recipe; names are those of the module."""
    model = copy.deepcopy(network).to(dtype)
    set_mode(model, recipe)
    optimizer = _optimizer(model, recipe)
    losses: list[float] = []
    gradients: dict[str, Array] = {}
    order_gradients(model)
    norms = [_Watched(m) for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for number in range(recipe.steps):
        x, target = (torch.from_numpy(a) for a in recipe.batch_of(number))
        x, target = (t.to(dtype) if t.is_floating_point() else t for t in (x, target))
        optimizer.zero_grad()
        loss = loss_of(model, x, target, recipe)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        if not number:
            found = {name: p.grad for name, p in parameters(model).items()}
            gradients = {name: g.numpy().astype(np.float64) for name, g in found.items() if g is not None}
        optimizer.step()
        for norm in norms:
            norm.use_biased_variance()
    state = {name: p.detach().numpy().astype(np.float64) for name, p in parameters(model).items()}
    state |= {n: b.numpy().astype(np.float64) for n, b in model.named_buffers() if "running_" in n}
    return Trained(losses, gradients, state)


def order_gradients(model: nn.Module) -> None:
    """Give batch and instance norms gradients whose elements lie in order.

    Where the channels of an incoming gradient vary fastest, PyTorch 2.13 computes on a processor another gradient than
    finite differences do: `finite_differences.py` shows it.
    """

    def ordered(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient.contiguous())

    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.register_forward_hook(ordered)


class _Watched:
    """A batch norm whose running variance moves by the batch's variance over n, as ONNX says, not over n - 1."""

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm) -> None:
        self.norm, self.count = norm, 0
        self.before = self._variance()
        norm.register_forward_pre_hook(self._count)

    def _variance(self) -> Tensor:
        assert self.norm.running_var is not None
        return self.norm.running_var.detach().clone()

    def _count(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.count = inputs[0].numel() // inputs[0].shape[1]

    def use_biased_variance(self) -> None:
        if not self.norm.training:
            return
        assert self.norm.running_var is not None and self.norm.momentum is not None
        kept = (1 - self.norm.momentum) * self.before
        self.norm.running_var.copy_(kept + (self._variance() - kept) * ((self.count - 1) / self.count))
        self.before = self._variance()


def loss_of(model: nn.Module, x: Tensor, target: Tensor, recipe: Recipe) -> Tensor:
    o, output = recipe.options, model(x)
    match o["loss"]:
        case "cross-entropy" | "soft-cross-entropy":
            # No axes are moved: with a gradient whose channels vary fastest, PyTorch 2.13's instance norm of a single
            # image gives another gradient than finite differences do.
            smoothing, ignored = o.get("label_smoothing", 0.0), o.get("ignore_index", -100)
            if recipe.class_axis > 1:
                output, target = output.reshape(-1, output.shape[-1]), target.reshape(-1, *target.shape[2:])
            return functional.cross_entropy(output, target, label_smoothing=smoothing, ignore_index=ignored)
        case "mse":
            return functional.mse_loss(output, target)
        case "l1":
            return functional.l1_loss(output, target)
        case "huber":
            return functional.huber_loss(output, target, delta=o.get("huber_delta", 1.0))
        case _ if isinstance(list(model.modules())[-1], nn.Sigmoid):  # which joins the loss in poetc
            return functional.binary_cross_entropy(output, target)
        case _:
            return functional.binary_cross_entropy_with_logits(output, target)


def _optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    t = recipe.training
    trained = list(parameters(model).values())
    match t.optimizer:
        case "sgd" | "momentum":
            momentum = t.momentum if t.optimizer == "momentum" else 0.0
            return torch.optim.SGD(trained, t.learning_rate, momentum, weight_decay=t.weight_decay)
        case _:
            kind = torch.optim.Adam if t.optimizer == "adam" else torch.optim.AdamW
            betas = t.beta1, t.beta2
            return kind(trained, t.learning_rate, betas, t.epsilon, weight_decay=t.weight_decay)
