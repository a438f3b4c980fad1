"""Batch normalisation with the element-wise operators behind it, in one kernel: y = f(batch norm of x [+ other]).

The fusion pass makes these; no importer does, and they are never differentiated. The gradient computes the input of f
again, from x, which the batch norm's gradient reads anyway. So neither that input nor y need be kept for it. Every
element is computed by the operations of the separate kinds in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from poetc.graph import Attribute, TensorType
from poetc.kernels import Kernel
from poetc.kernels.operators.parameters import Planes, SummedPlanes
from poetc.ops._bound import Bound
from poetc.ops._elementwise import Differentiable, snake
from poetc.ops._registry import Work, register, spec
from poetc.ops.batch_norm import OfChannels, planes_of

ACTIVATIONS = ("Relu", "LeakyRelu", "Clip", "HardSwish", "Silu")  # those of kernels/operators/batch_norm_activation.c


class _Fused(OfChannels):
    """`activation` is a kind of ACTIVATIONS, or "" for none; its attributes and the batch norm's stand beside it."""

    def activation(self, op: Bound) -> Differentiable | None:
        kind = op.get_str("activation")
        if not kind:
            return None
        if kind not in ACTIVATIONS:
            raise ValueError(f"{self.kind}: activation must be one of {', '.join(ACTIVATIONS)}, not {kind!r}")
        function = spec(kind)
        assert isinstance(function, Differentiable)
        return function

    def apply(self, op: Bound, inputs: Sequence[Any]) -> Any:
        """The output of the batch norm."""
        return spec("BatchNormApply").evaluate(_only(op, range(5)), inputs[:5])[0]

    def slopes(self, op: Bound, inputs: Sequence[Any], gz: Any) -> Any:
        """The gradient of the batch norm's output."""
        activation = self.activation(op)
        assert activation is not None
        # A rectifier's input and output have the same sign, and lie on the same side of a limit.
        return activation.derivative(self.apply(op, inputs), *activation.values(op)) * gz

    def call(self, op: Bound, suffix: str, parameters: Planes) -> Kernel:
        activation = self.activation(op)
        name = snake(activation.kind) if activation else "same"
        floats = (op.get_float("epsilon"), *(activation.values(op) if activation else ()))
        return Kernel(f"poetc_op_batch_norm_{name}{suffix}", parameters, floats)


def _only(op: Bound, inputs: Sequence[int]) -> Bound:
    return replace(op, inputs=tuple(op.inputs[i] for i in inputs))


@register
class BatchNormActivate(_Fused):
    summary = "f(BatchNormApply(x, mean, var, scale, bias) [+ other]); epsilon, activation f (a kind, or none)"
    cost_like = "BatchNormApply"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        self.activation(op)
        if len(op.inputs) not in (5, 6) or op.inputs[5:] not in ((), op.inputs[:1]):
            raise ValueError(f"{self.kind} needs (x, mean, var, scale, bias) and perhaps a tensor like x")
        return spec("BatchNormApply").infer(_only(op, range(5)))

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        y = self.apply(op, inputs)
        if len(inputs) > 5:
            y = y + inputs[5]
        activation = self.activation(op)
        return (y if activation is None else activation.evaluate(op, [y])[0],)

    def work(self, op: Bound) -> Work:
        activation = self.activation(op)
        each = 3 + (len(op.inputs) > 5) + (activation.flops if activation else 0)
        return Work(flops=each * op.outputs[0].elements)

    def kernel(self, op: Bound) -> Kernel:
        p = planes_of(op.inputs[0])
        return self.call(op, "", SummedPlanes(p.batch, p.channels, p.pixels, len(op.inputs) > 5))

    def may_alias(self, op: Bound) -> tuple[tuple[int, int], ...]:
        return ((0, 0), (5, 0)) if len(op.inputs) > 5 else ((0, 0),)


@register
class BatchNormActivateGradParams(_Fused):
    summary = "Gradients of the scale and bias of BatchNormActivate from (x, mean, var, scale, bias, gz)"
    cost_like = "BatchNormGradParams"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        self.activation(op)
        return spec("BatchNormGradParams").infer(_only(op, (0, 1, 2, 5)))

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        gy = self.slopes(op, inputs, inputs[5])
        return spec("BatchNormGradParams").evaluate(_only(op, (0, 1, 2, 5)), [*inputs[:3], gy])

    def work(self, op: Bound) -> Work:
        return _with_slopes(spec("BatchNormGradParams").work(_only(op, (0, 1, 2, 5))), op)

    def kernel(self, op: Bound) -> Kernel:
        return self.call(op, "_grad_params", planes_of(op.inputs[0]))


@register
class BatchNormActivateGradInput(_Fused):
    summary = (
        "Gradient of BatchNormActivate in x (batch statistics) from (x, mean, var, scale, bias, gscale, gbias, gz)"
    )
    cost_like = "BatchNormGradInput"
    aliases = ((7, 0), (0, 0))

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        self.activation(op)
        return spec("BatchNormGradInput").infer(_only(op, (0, 1, 2, 3, 5, 6, 7)))

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        gy = self.slopes(op, inputs, inputs[7])
        parts = [*inputs[:4], *inputs[5:7], gy]
        return spec("BatchNormGradInput").evaluate(_only(op, (0, 1, 2, 3, 5, 6, 7)), parts)

    def work(self, op: Bound) -> Work:
        return _with_slopes(spec("BatchNormGradInput").work(op), op)

    def kernel(self, op: Bound) -> Kernel:
        return self.call(op, "_grad_input", planes_of(op.inputs[0]))


def _with_slopes(work: Work, op: Bound) -> Work:
    """Beside `work`: the batch norm again, and the activation's slope."""
    activation = spec(op.get_str("activation"))
    assert isinstance(activation, Differentiable)
    return replace(work, flops=work.flops + (3 + activation.gradient_flops) * op.inputs[0].elements)


def parameters(attributes: Mapping[str, Attribute], activation: str) -> dict[str, Attribute]:
    """The attributes of `activation` that its kernel reads, of all those given."""
    kind = spec(activation)
    assert isinstance(kind, Differentiable)
    return {name: attributes[name] for name, _ in kind.parameters if name in attributes}
