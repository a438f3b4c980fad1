"""Optimizer updates. State goes in and out in place and an update runs exactly once in a step.

`lr` is an f32 tensor of one element. `step` is an i32 tensor of one element with the number of the current step, 1 in
the first. Conventions are PyTorch's: weight decay is added to the gradient. If `decoupled` (AdamW, Loshchilov and
Hutter 2019), it takes lr · weight_decay of the weight. Lion's weight decay is always decoupled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from poetc.graph import DType, TensorType
from poetc.ops._bound import Bound
from poetc.ops._cuts import Cut, flat
from poetc.ops._registry import OpSpec, Work, register, spec
from poetc.ops.gather import gather_layout
from poetc.ops.kernels import Kernel
from poetc.ops.kernels.rows import Elements


@dataclass(frozen=True, slots=True)
class _Nesterov(Elements):
    is_nesterov: bool


@dataclass(frozen=True, slots=True)
class _Decoupled(Elements):
    is_decoupled: bool


@dataclass(frozen=True, slots=True)
class _RmsProp(Elements):
    is_centered: bool
    has_velocity: bool


class Update(OpSpec):
    """Inputs: `states` tensors of one shape, the gradient in that shape, then `scalars` tensors of one element."""

    recomputable = False
    states = 1
    scalars = 1
    flops = 2  # an element

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if len(op.inputs) != self.states + 1 + self.scalars:
            raise ValueError(f"{self.kind} takes {self.states + 1 + self.scalars} inputs, not {len(op.inputs)}")
        shapes = [t.shape for t in op.inputs[: self.states + 1]]
        if any(shape != shapes[0] for shape in shapes):
            raise ValueError(f"{self.kind}: the shapes of weight, state and gradient differ: {shapes}")
        if any(t.elements != 1 for t in op.inputs[self.states + 1 :]):
            raise ValueError(f"{self.kind}: the learning rate and the step have one element")
        return op.inputs[: self.states]

    def work(self, op: Bound) -> Work:
        return Work(flops=self.flops * op.inputs[0].elements)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """Each element by itself."""
        return (flat(op, self.states + 1),)


def _decayed(op: Bound, w: Any, g: Any) -> Any:
    decay = op.get_float("weight_decay")
    return g + w.dtype.type(decay) * w if decay else g


@register
class Sgd(Update):
    kind = "Sgd"
    summary = "w - lr · g in place from (w, g, lr); weight_decay"
    must_alias = ((0, 0),)

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, g, lr = inputs
        return (w - lr.reshape(()) * _decayed(op, w, g),)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_sgd", Elements(op.inputs[0].elements), (op.get_float("weight_decay"),))


@register
class SgdSlices(OpSpec):
    kind = "SgdSlices"
    summary = "Sgd of the slices of w along `axis` that the indices name, from (w, indices, g, lr); weight_decay"
    recomputable = False
    must_alias = ((0, 0),)
    cost_like: ClassVar[str] = "Sgd"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if len(op.inputs) != 4 or op.inputs[3].elements != 1:
            raise ValueError(f"{self.kind} takes the weight, indices, the gradient and the learning rate")
        return spec("PutSlices").infer(Bound(op.attributes, op.inputs[:3]))

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, indices, g, lr = inputs
        (part,) = spec("Gather").evaluate(Bound(op.attributes, op.inputs[:2], (op.inputs[2],)), [w, indices])
        moved = part - lr.reshape(()) * _decayed(op, part, g)
        return spec("PutSlices").evaluate(Bound(op.attributes, op.inputs[:3], (op.inputs[0],)), [w, indices, moved])

    def work(self, op: Bound) -> Work:
        g = op.inputs[2]
        return Work(flops=2 * g.elements, bytes_moved=3 * g.size_bytes + op.inputs[1].size_bytes)

    def kernel(self, op: Bound) -> Kernel:
        slices = gather_layout(op, op.inputs[0], op.inputs[1])
        return Kernel("poetc_op_sgd_slices", slices, (op.get_float("weight_decay"),))


@register
class Momentum(Update):
    kind = "Momentum"
    summary = "v = momentum · v + g, w -= lr · v in place from (w, v, g, lr); momentum, nesterov, weight_decay"
    must_alias = ((0, 0), (1, 1))
    states = 2
    flops = 4

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, v, g, lr = inputs
        momentum = w.dtype.type(op.get_float("momentum"))
        g = _decayed(op, w, g)
        v = momentum * v + g
        return w - lr.reshape(()) * (g + momentum * v if op.get_int("nesterov") else v), v

    def kernel(self, op: Bound) -> Kernel:
        parameters = _Nesterov(op.inputs[0].elements, bool(op.get_int("nesterov")))
        return Kernel("poetc_op_momentum", parameters, (op.get_float("momentum"), op.get_float("weight_decay")))


def _check_step(step: TensorType) -> None:
    if step.dtype is not DType.I32:
        raise ValueError(f"the step is i32, not {step.dtype}")


@register
class Adam(Update):
    """Kingma and Ba 2015, epsilon outside the corrected root: w -= lr · m̂ / (sqrt(v̂) + epsilon)."""

    kind = "Adam"
    summary = "Adam in place from (w, m, v, g, lr, step); beta1, beta2, epsilon, weight_decay, decoupled (AdamW)"
    must_alias = ((0, 0), (1, 1), (2, 2))
    states = 3
    scalars = 2
    flops = 30

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        result = super().infer(op)
        _check_step(op.inputs[5])
        return result

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, m, v, g, lr, step = inputs
        real, t = w.dtype.type, int(step.reshape(()))
        beta1, beta2 = op.get_float("beta1", 0.9), op.get_float("beta2", 0.999)
        lr = lr.reshape(())
        if not op.get_int("decoupled"):
            g = _decayed(op, w, g)
        elif op.get_float("weight_decay"):
            w = w - lr * real(op.get_float("weight_decay")) * w
        m = real(beta1) * m + real(1 - beta1) * g
        v = real(beta2) * v + real(1 - beta2) * np.square(g)
        root = np.sqrt(v / real(1 - beta2**t)) + real(op.get_float("epsilon", 1e-8))
        return w - lr / real(1 - beta1**t) * m / root, m, v

    def kernel(self, op: Bound) -> Kernel:
        """1 - beta is passed beside beta: in f32 it cannot be recovered from it to full precision."""
        beta1, beta2 = op.get_float("beta1", 0.9), op.get_float("beta2", 0.999)
        epsilon, decay = op.get_float("epsilon", 1e-8), op.get_float("weight_decay")
        parameters = _Decoupled(op.inputs[0].elements, bool(op.get_int("decoupled")))
        return Kernel("poetc_op_adam", parameters, (beta1, 1 - beta1, beta2, 1 - beta2, epsilon, decay))


@register
class Adagrad(Update):
    """Duchi et al. 2011: h accumulates squared gradients."""

    kind = "Adagrad"
    summary = "h += g², w -= lr · g / (sqrt(h) + epsilon) in place from (w, h, g, lr); epsilon, weight_decay"
    must_alias = ((0, 0), (1, 1))
    states = 2
    flops = 24

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, h, g, lr = inputs
        g = _decayed(op, w, g)
        h = h + np.square(g)
        return w - lr.reshape(()) * g / (np.sqrt(h) + w.dtype.type(op.get_float("epsilon", 1e-10))), h

    def kernel(self, op: Bound) -> Kernel:
        floats = (op.get_float("epsilon", 1e-10), op.get_float("weight_decay"))
        return Kernel("poetc_op_adagrad", Elements(op.inputs[0].elements), floats)


class _MeanSquare(Update):
    """RMSProp as PyTorch has it (Tieleman and Hinton 2012; centered: Graves 2013, eq. 38), epsilon outside the root.

    States after w: s, the mean square; m, the mean gradient, if `centered`; v, the velocity, with `velocity`. A
    variance that rounding makes negative counts as zero (PyTorch takes its root).
    """

    centered: ClassVar[bool] = False
    velocity: ClassVar[bool] = False
    cost_like = "Adam"
    flops = 26

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, s, *more, g, lr = inputs
        real, alpha = w.dtype.type, op.get_float("alpha", 0.99)
        g = _decayed(op, w, g)
        s = real(alpha) * s + real(1 - alpha) * np.square(g)
        states, variance = [s], s
        if self.centered:
            mean = real(alpha) * more[0] + real(1 - alpha) * g
            variance = np.maximum(s - np.square(mean), 0)
            states.append(mean)
        move = g / (np.sqrt(variance) + real(op.get_float("epsilon", 1e-8)))
        if self.velocity:
            move = real(op.get_float("momentum")) * more[-1] + move
            states.append(move)
        return (w - lr.reshape(()) * move, *states)

    def kernel(self, op: Bound) -> Kernel:
        alpha, epsilon = op.get_float("alpha", 0.99), op.get_float("epsilon", 1e-8)
        floats = (alpha, 1 - alpha, epsilon, op.get_float("momentum"), op.get_float("weight_decay"))
        parameters = _RmsProp(op.inputs[0].elements, self.centered, self.velocity)
        return Kernel("poetc_op_rms_prop", parameters, floats)


@register
class RmsProp(_MeanSquare):
    kind = "RmsProp"
    summary = "RMSProp in place from (w, s, g, lr); alpha, epsilon, weight_decay"
    must_alias = ((0, 0), (1, 1))
    states = 2


@register
class RmsPropCentered(_MeanSquare):
    kind = "RmsPropCentered"
    summary = "RMSProp by the variance, in place from (w, s, m, g, lr); alpha, epsilon, weight_decay"
    must_alias = ((0, 0), (1, 1), (2, 2))
    states = 3
    centered = True


@register
class RmsPropMomentum(_MeanSquare):
    kind = "RmsPropMomentum"
    summary = "RMSProp with momentum in place from (w, s, v, g, lr); alpha, epsilon, momentum, weight_decay"
    must_alias = ((0, 0), (1, 1), (2, 2))
    states = 3
    velocity = True


@register
class RmsPropCenteredMomentum(_MeanSquare):
    kind = "RmsPropCenteredMomentum"
    summary = "RMSProp by the variance, with momentum, from (w, s, m, v, g, lr); alpha, epsilon, momentum, weight_decay"
    must_alias = ((0, 0), (1, 1), (2, 2), (3, 3))
    states = 4
    centered = velocity = True


@register
class Lion(Update):
    """Chen et al. 2023, algorithm 2: the weight moves by the sign of a blend of the mean gradient and the gradient."""

    kind = "Lion"
    summary = "w -= lr · (sign(beta1 · m + (1 - beta1) · g) + weight_decay · w), m follows g by beta2; (w, m, g, lr)"
    must_alias = ((0, 0), (1, 1))
    states = 2
    flops = 9
    cost_like = "Momentum"

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, m, g, lr = inputs
        real, lr = w.dtype.type, lr.reshape(())
        beta1, beta2 = op.get_float("beta1", 0.9), op.get_float("beta2", 0.99)
        move = np.sign(real(beta1) * m + real(1 - beta1) * g)
        kept = w - lr * real(op.get_float("weight_decay")) * w
        return kept - lr * move, real(beta2) * m + real(1 - beta2) * g

    def kernel(self, op: Bound) -> Kernel:
        beta1, beta2 = op.get_float("beta1", 0.9), op.get_float("beta2", 0.99)
        floats = (beta1, 1 - beta1, beta2, 1 - beta2, op.get_float("weight_decay"))
        return Kernel("poetc_op_lion", Elements(op.inputs[0].elements), floats)


def _momentum_exponent(op: Bound) -> float:
    """The exponent of e in the schedule of NAdam's momentum, a step: 0.96^(step · momentum_decay) as a power of e."""
    return op.get_float("momentum_decay", 4e-3) * math.log(0.96)


def _momentum_at(op: Bound, step: int) -> float:
    return op.get_float("beta1", 0.9) * (1 - 0.5 * math.exp(step * _momentum_exponent(op)))


@register
class Nadam(Update):
    """Dozat 2016, algorithm 2, as PyTorch has it: Adam with Nesterov's momentum, which grows from step to step.

    `product` is that of the momentums up to this step, which NadamSchedule makes.
    """

    kind = "Nadam"
    summary = "NAdam in place from (w, m, v, g, lr, step, product); beta1, beta2, epsilon, momentum_decay, weight_decay"
    must_alias = ((0, 0), (1, 1), (2, 2))
    states = 3
    scalars = 3
    flops = 34
    cost_like = "Adam"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        result = super().infer(op)
        _check_step(op.inputs[5])
        return result

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        w, m, v, g, lr, step, product = inputs
        real, t = w.dtype.type, int(step.reshape(()))
        beta1, beta2 = op.get_float("beta1", 0.9), op.get_float("beta2", 0.999)
        lr, product = lr.reshape(()), product.reshape(())
        now, following = real(_momentum_at(op, t)), real(_momentum_at(op, t + 1))
        g = _decayed(op, w, g)
        m = real(beta1) * m + real(1 - beta1) * g
        v = real(beta2) * v + real(1 - beta2) * np.square(g)
        root = np.sqrt(v / real(1 - beta2**t)) + real(op.get_float("epsilon", 1e-8))
        move = lr * (1 - now) / (1 - product) * g + lr * following / (1 - product * following) * m
        return w - move / root, m, v

    def kernel(self, op: Bound) -> Kernel:
        beta1, beta2 = op.get_float("beta1", 0.9), op.get_float("beta2", 0.999)
        epsilon, decay = op.get_float("epsilon", 1e-8), op.get_float("weight_decay")
        floats = (beta1, 1 - beta1, beta2, 1 - beta2, epsilon, decay, _momentum_exponent(op))
        return Kernel("poetc_op_nadam", Elements(op.inputs[0].elements), floats)


@register
class NadamSchedule(OpSpec):
    kind = "NadamSchedule"
    summary = "The product of NAdam's momentums, in place from (product, step): of this step too; beta1, momentum_decay"
    recomputable = False
    must_alias = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if op.inputs[0].elements != 1 or op.inputs[1].elements != 1:
            raise ValueError("the product and the step have one element")
        _check_step(op.inputs[1])
        return op.inputs[:1]

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        product, step = inputs
        return (product * product.dtype.type(_momentum_at(op, int(step.reshape(())))),)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_nadam_schedule", floats=(op.get_float("beta1", 0.9), _momentum_exponent(op)))


@register
class StepCount(OpSpec):
    kind = "StepCount"
    summary = "step + 1 in place, i32: the number of the step now running"
    recomputable = False
    must_alias = ((0, 0),)

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if op.inputs[0].elements != 1 or op.inputs[0].dtype is not DType.I32:
            raise ValueError("the step is one i32")
        return op.inputs

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return (inputs[0] + inputs[0].dtype.type(1),)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("poetc_op_step_count")
