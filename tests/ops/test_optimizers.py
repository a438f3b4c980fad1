"""Ten steps of every optimizer in C against PyTorch's formulas, written out here in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from poetc.graph import Attribute
from poetc.ops import registry, spec
from poetc.ops.optimizers import OfUpdatingSteps
from tests.support.kernels import KernelError, run_kernel

STEPS = 10
LR = 0.03
Vector = np.ndarray
Reference = Callable[[Vector, list[Vector]], Vector]


def sgd(decay: float) -> Reference:
    def run(w: Vector, grads: list[Vector]) -> Vector:
        for g in grads:
            w = w - LR * (g + decay * w)
        return w

    return run


def momentum(mu: float, nesterov: bool, decay: float) -> Reference:
    def run(w: Vector, grads: list[Vector]) -> Vector:
        buffer = None
        for g in grads:
            d = g + decay * w
            buffer = d if buffer is None else mu * buffer + d
            w = w - LR * (d + mu * buffer if nesterov else buffer)
        return w

    return run


def adam(b1: float, b2: float, eps: float, decay: float, decoupled: bool) -> Reference:
    def run(w: Vector, grads: list[Vector]) -> Vector:
        m, v = np.zeros_like(w), np.zeros_like(w)
        for t, g in enumerate(grads, 1):
            if decoupled:
                w = w * (1 - LR * decay)
            else:
                g = g + decay * w
            m = b1 * m + (1 - b1) * g
            v = b2 * v + (1 - b2) * g * g
            denominator = np.sqrt(v) / math.sqrt(1 - b2**t) + eps
            w = w - LR / (1 - b1**t) * m / denominator
        return w

    return run


def adagrad(eps: float, decay: float) -> Reference:
    def run(w: Vector, grads: list[Vector]) -> Vector:
        total = np.zeros_like(w)
        for g in grads:
            d = g + decay * w
            total = total + d * d
            w = w - LR * d / (np.sqrt(total) + eps)
        return w

    return run


def rms_prop(alpha: float, eps: float, mu: float = 0, decay: float = 0, *, centered: bool = False) -> Reference:
    def run(w: Vector, grads: list[Vector]) -> Vector:
        s, mean, v = np.zeros_like(w), np.zeros_like(w), np.zeros_like(w)
        for g in grads:
            d = g + decay * w
            s = alpha * s + (1 - alpha) * d * d
            mean = alpha * mean + (1 - alpha) * d
            v = mu * v + d / (np.sqrt(s - mean * mean * centered) + eps)
            w = w - LR * v
        return w

    return run


def lion(b1: float, b2: float, decay: float) -> Reference:
    """Algorithm 2 of Chen et al. 2023; PyTorch has none."""

    def run(w: Vector, grads: list[Vector]) -> Vector:
        m = np.zeros_like(w)
        for g in grads:
            w = w - LR * (np.sign(b1 * m + (1 - b1) * g) + decay * w)
            m = b2 * m + (1 - b2) * g
        return w

    return run


def nadam(b1: float, b2: float, eps: float, momentum_decay: float, decay: float) -> Reference:
    def run(w: Vector, grads: list[Vector]) -> Vector:
        m, v, product = np.zeros_like(w), np.zeros_like(w), 1.0
        for t, g in enumerate(grads, 1):
            now, following = (b1 * (1 - 0.5 * 0.96 ** (n * momentum_decay)) for n in (t, t + 1))
            product *= now
            d = g + decay * w
            m = b1 * m + (1 - b1) * d
            v = b2 * v + (1 - b2) * d * d
            denominator = np.sqrt(v / (1 - b2**t)) + eps
            w = w - LR * (1 - now) / (1 - product) * d / denominator
            w = w - LR * following / (1 - product * following) * m / denominator
        return w

    return run


@pytest.mark.parametrize(
    ("kind", "attributes", "reference"),
    [
        ("Sgd", {}, sgd(0)),
        ("Sgd", {"weight_decay": 0.2}, sgd(0.2)),
        ("Momentum", {"momentum": 0.9}, momentum(0.9, False, 0)),
        ("Momentum", {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1}, momentum(0.8, True, 0.1)),
        ("Adam", {}, adam(0.9, 0.999, 1e-8, 0, False)),
        ("Adam", {"weight_decay": 0.1}, adam(0.9, 0.999, 1e-8, 0.1, False)),
        (
            "Adam",
            {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3, "weight_decay": 0.1, "decoupled": True},
            adam(0.8, 0.95, 1e-3, 0.1, True),
        ),
        ("Adagrad", {}, adagrad(1e-10, 0)),
        ("Adagrad", {"weight_decay": 0.1}, adagrad(1e-10, 0.1)),
        ("RmsProp", {}, rms_prop(0.99, 1e-8)),
        ("RmsPropCentered", {"alpha": 0.9, "weight_decay": 0.1}, rms_prop(0.9, 1e-8, 0, 0.1, centered=True)),
        ("RmsPropMomentum", {"momentum": 0.9, "epsilon": 1e-3}, rms_prop(0.99, 1e-3, 0.9)),
        ("RmsPropCenteredMomentum", {"alpha": 0.8, "momentum": 0.5}, rms_prop(0.8, 1e-8, 0.5, centered=True)),
        ("Lion", {}, lion(0.9, 0.99, 0)),
        ("Lion", {"beta1": 0.8, "beta2": 0.95, "weight_decay": 0.1}, lion(0.8, 0.95, 0.1)),
        ("Nadam", {}, nadam(0.9, 0.999, 1e-8, 4e-3, 0)),
        (
            "Nadam",
            {"beta1": 0.8, "beta2": 0.95, "momentum_decay": 0.1, "weight_decay": 0.1},
            nadam(0.8, 0.95, 1e-8, 0.1, 0.1),
        ),
    ],
)
def test_ten_steps(kind: str, attributes: dict[str, Attribute], reference: Reference) -> None:
    random = np.random.default_rng(5)
    start = random.standard_normal(33).astype(np.float32)
    grads = [random.standard_normal(33).astype(np.float32) for _ in range(STEPS)]
    count = len(spec(kind).must_alias)
    state = [start, *[np.zeros(33, np.float32) for _ in range(count - 1)]]
    step, product = np.zeros(1, np.int32), np.ones(1, np.float32)
    schedule = {name: value for name, value in attributes.items() if name in ("beta1", "momentum_decay")}
    for g in grads:
        (step,) = run_kernel("StepCount", {}, [step])
        (product,) = run_kernel("NadamSchedule", schedule, [product, step])
        extra = {"Adam": [step], "Nadam": [step, product]}.get(kind, [])
        state = list(run_kernel(kind, attributes, [*state, g, np.float32([LR]), *extra]))
    expected = reference(start.astype(np.float64), [g.astype(np.float64) for g in grads])
    moved = np.abs(expected - start).max()
    assert np.abs(state[0] - expected).max() < 2e-6 * moved
    assert step[0] == STEPS


@pytest.mark.parametrize("step", [1, 2, 5, 100, 10_000, 1_000_000])
def test_bias_correction_keeps_its_precision(step: int) -> None:
    """With m = 0 and g = 1 the first moment is 1 - beta1, the second 1 - beta2: the update shows both corrections."""
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    w, _, _ = run_kernel("Adam", {"epsilon": 0.0}, [zero, zero, zero, one, one, np.int32([step])])
    expected = -(0.1 / (1 - 0.9**step)) / math.sqrt(0.001 / (1 - 0.999**step))
    assert abs(float(w[0]) / expected - 1) < 5e-7


def test_a_step_before_the_first_is_refused() -> None:
    one = np.ones(1, np.float32)
    with pytest.raises(KernelError) as caught:
        run_kernel("Adam", {}, [one, one, one, one, one, np.int32([0])])
    assert caught.value.code == -34


def test_the_step_counter_does_not_overflow() -> None:
    assert run_kernel("StepCount", {}, [np.int32([2**31 - 1])])[0][0] == 2**31 - 1


@pytest.mark.parametrize(
    "kind", [kind for kind in registry() if isinstance(spec(kind), OfUpdatingSteps) or kind == "BatchNormUpdate"]
)
def test_updates_run_once_and_in_place(kind: str) -> None:
    assert not spec(kind).recomputable
    assert spec(kind).must_alias


@pytest.mark.parametrize("shape", [(33,), (5, 7), (2, 3, 4, 3)])
def test_ten_steps_of_adafactor(shape: tuple[int, ...]) -> None:
    """PyTorch's formulas, which keep the sums of rows and columns as norms."""
    random = np.random.default_rng(5)
    start = random.standard_normal(shape).astype(np.float32)
    states = [shape] if len(shape) == 1 else [shape[:-1], (*shape[:-2], shape[-1])]
    kind = "AdafactorVector" if len(shape) == 1 else "Adafactor"
    state = [start, *(np.zeros(s, np.float32) for s in states)]
    w, epsilon, decay = start.astype(np.float64), np.finfo(np.float32).eps, 0.1
    means = [np.zeros(s) for s in states]
    for step in range(1, STEPS + 1):
        g = random.standard_normal(shape).astype(np.float32)
        inputs = [*state, g, np.float32([LR]), np.int32([step])]
        state = list(run_kernel(kind, {"weight_decay": decay}, inputs))
        g, fresh = g.astype(np.float64), step**-0.8
        alpha = max(1e-3, np.linalg.norm(w) / math.sqrt(w.size)) * min(LR, 1 / math.sqrt(step))
        w = w * (1 - LR * decay)
        if len(shape) == 1:
            means = [(1 - fresh) * means[0] + fresh * g * g]
            estimate = means[0]
        else:
            rows, columns = (np.linalg.norm(g, axis=a) ** 2 / g.shape[a] for a in (-1, -2))
            means = [(1 - fresh) * old + fresh * now for old, now in zip(means, (rows, columns), strict=True)]
            estimate = np.einsum("...i,...j->...ij", *means)
            estimate /= np.maximum(means[0].mean(-1), epsilon)[..., None, None]
        update = g / np.sqrt(np.maximum(estimate, epsilon**2))
        w = w - alpha / max(1.0, np.linalg.norm(update) / math.sqrt(update.size)) * update
    assert np.abs(state[0] - w).max() < 3e-6 * np.abs(w - start).max()
