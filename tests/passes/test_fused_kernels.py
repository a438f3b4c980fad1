"""Kernels of fused operators have the bits of their parts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetc.graph import Attribute
from poetc.kernels.gemm import packing as packed_operands
from poetc.ops import spec
from poetc.ops.batch_norm_activation import ACTIVATIONS
from poetc.ops.convolution import NORM_ACTIVATIONS, ConvGradWeight
from tests.support.kernels import (
    AnyArray,
    Attributes,
    KernelError,
    Library,
    bind_kind,
    library,
    run_kernel,
    scalar_library,
    wide_library,
)
from tests.support.threads import threaded_library

VECTORS = [library, wide_library, scalar_library]
LIMITS: dict[str, dict[str, Attribute]] = {"LeakyRelu": {"alpha": 0.1}, "Clip": {"min": 0.5, "max": 1.5}}
SPECIAL = np.float32([0.0, -0.0, 3.0, -3.0, 6.0, 1e-40, np.inf, -np.inf, np.nan])


def numbers(random: np.random.Generator, *shape: int) -> AnyArray:
    """Normal ones; in a third of the arrays some are special."""
    x = random.normal(0, 2, shape).astype(np.float32)
    return np.where(random.random(shape) < random.choice([0, 0, 0.02]), random.choice(SPECIAL, shape), x)


def bits(x: AnyArray) -> bytes:
    """All NaNs are one: which of two that meet survives is up to the compiler."""
    return np.where(np.isnan(x), np.float32(np.nan), x).tobytes()


def one(kind: str, attributes: Attributes, inputs: list[AnyArray], lib: Library) -> AnyArray:
    return run_kernel(kind, attributes, inputs, lib=lib)[0]


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 300)),
    st.sampled_from(("", *ACTIVATIONS)),
    st.booleans(),
    st.sampled_from(VECTORS),
    st.integers(0, 2**32 - 1),
)
def test_batch_norm_has_the_bits_of_its_parts(
    shape: tuple[int, int, int], activation: str, add: bool, lib: object, seed: int
) -> None:
    assert callable(lib)
    made, random = lib(), np.random.default_rng(seed)
    limits: dict[str, dict[str, Attribute]] = {"LeakyRelu": {"alpha": 0.1}, "Clip": {"min": -0.5, "max": 1.5}}
    own = limits.get(activation, {})
    epsilon = {"epsilon": 1e-3}
    fused = {**epsilon, "activation": activation, **own}
    x, other, gz = numbers(random, *shape), numbers(random, *shape), numbers(random, *shape)
    vectors = [random.normal(0, 1, shape[1]).astype(np.float32) for _ in range(6)]
    mean, var, scale, bias, gscale, gbias = vectors[0], np.abs(vectors[1]), *vectors[2:]
    y = one("BatchNormApply", epsilon, [x, mean, var, scale, bias], made)
    total = one("Add", {}, [y, other], made) if add else y
    z = one(activation, own, [total], made) if activation else total
    more = [other] if add else []
    assert bits(one("BatchNormActivate", fused, [x, mean, var, scale, bias, *more], made)) == bits(z)
    if not activation or add:
        return
    kind = spec(activation)
    saved = z if kind.saves_output else y
    gy = one(f"{activation}Grad", own, [saved, gz], made)
    parts = run_kernel("BatchNormGradParams", epsilon, [x, mean, var, gy], lib=made)
    whole = run_kernel("BatchNormActivateGradParams", fused, [x, mean, var, scale, bias, gz], lib=made)
    assert [bits(p) for p in whole] == [bits(p) for p in parts]
    gx = one("BatchNormGradInput", epsilon, [x, mean, var, scale, gscale, gbias, gy], made)
    inputs = [x, mean, var, scale, bias, gscale, gbias, gz]
    assert bits(one("BatchNormActivateGradInput", fused, inputs, made)) == bits(gx)


LR = np.float32([0.0625 * 1.1])


# (image, outputs, kernel, strides, padding before and after, dilation, group) that bind each kernel that makes x again.
AGAIN: dict[str, list[tuple[tuple[int, ...], int, int, int, tuple[int, int], int, int]]] = {
    "winograd": [((2, 20, 60, 61), 35, 3, 1, (1, 1), 1, 1), ((3, 140, 16, 17), 70, 3, 1, (0, 2), 1, 1)],
    "packed": [
        ((2, 40, 9, 11), 20, 1, 1, (0, 0), 1, 1),
        ((9, 40, 3, 3), 38, 1, 1, (0, 0), 1, 2),
        ((1, 200, 17, 18), 40, 1, 1, (0, 0), 1, 1),
        ((2, 24, 20, 21), 33, 1, 2, (0, 0), 1, 1),
        ((2, 12, 12, 13), 20, 3, 1, (1, 1), 1, 1),
        ((2, 30, 12, 13), 40, 3, 2, (0, 1), 1, 2),
        ((1, 64, 15, 21), 40, 3, 2, (1, 1), 1, 1),
        ((2, 11, 14, 15), 8, 5, 1, (2, 2), 1, 1),
        ((1, 20, 12, 30), 40, 3, 1, (0, 0), 2, 1),
    ],
    "depthwise_grad_weight_norm": [
        ((2, 5, 9, 11), 5, 3, 1, (1, 1), 1, 5),
        ((2, 9, 40, 61), 9, 3, 1, (1, 1), 1, 9),
        ((2, 5, 13, 16), 5, 3, 2, (1, 1), 1, 5),
        ((1, 6, 40, 57), 6, 3, 2, (0, 1), 1, 6),
        ((3, 4, 7, 9), 4, 5, 1, (2, 2), 1, 4),
        ((2, 7, 14, 15), 7, 5, 2, (2, 2), 1, 7),
        ((1, 3, 16, 20), 3, 3, 3, (1, 1), 1, 3),
        ((2, 3, 17, 14), 3, 3, 1, (2, 1), 2, 3),
    ],
}


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([(name, case) for name, cases in AGAIN.items() for case in cases]),
    st.sampled_from(NORM_ACTIVATIONS),
    st.booleans(),
    st.sampled_from(VECTORS),
    st.integers(0, 2**32 - 1),
)
def test_a_gradient_of_weights_makes_what_it_reads_again(
    chosen: tuple[str, tuple[tuple[int, ...], int, int, int, tuple[int, int], int, int]],
    activation: str,
    descends: bool,
    lib: object,
    seed: int,
) -> None:
    """By the bits that the forward pass made; zeros around the image stay zeros."""
    assert callable(lib)
    made, random = lib(), np.random.default_rng(seed)
    name, (shape, outputs, kernel, stride, (before, after), dilation, group) = chosen
    fused: dict[str, Attribute] = {"epsilon": 1e-3, "activation": activation, **LIMITS.get(activation, {})}
    attributes: dict[str, Attribute] = {"strides": (stride, stride), "pads": (before, before, after, after)}
    attributes |= {"dilations": (dilation, dilation), "group": group, "kernel": (kernel, kernel)}
    x, channels = numbers(random, *shape), shape[1]
    size = [(n + before + after - dilation * (kernel - 1) - 1) // stride + 1 for n in shape[2:]]
    gy = numbers(random, shape[0], outputs, *size)
    mean, var, scale, bias = random.normal(0, 1, (4, channels)).astype(np.float32)
    vectors = [mean, np.abs(var), scale, bias]
    z = one("BatchNormActivate", fused, [x, *vectors], made)
    inputs, again = [z, gy], [x, gy, *vectors]
    kind = "ConvGradWeight"
    if descends and "depthwise" not in name and "lean" not in name:
        w = numbers(random, outputs, channels // group, kernel, kernel)
        kind, inputs, again = "ConvGradWeightSgd", [w, *inputs, LR], [w, *again, LR]
    found = spec(kind).kernel(bind_kind(kind, attributes | fused, again)).symbol
    assert found.endswith(name) and "norm" in found
    assert bits(one(kind, attributes | fused, again, made)) == bits(one(kind, attributes, inputs, made))


def test_gradients_of_weights_of_odd_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows, strides, dilations and padding of any size; one group, some, one a channel; in three threads, too."""
    monkeypatch.setattr(packed_operands, "SHARE", 0)
    libraries = [library(), wide_library(), scalar_library(), threaded_library(tmp_path, 3, monkeypatch)]
    random, done = np.random.default_rng(21), Counter[str]()
    while sum(done.values()) < 250:
        kernel, strides, dilations = (random.integers(1, n + 1, 2) for n in (5, 3, 2))
        size, pads = random.integers(1, 24, 2), random.integers(0, 3, 4)
        depth, batch = int(random.integers(1, 20)), int(random.integers(1, 4))
        group = depth if random.random() < 0.4 else int(random.integers(1, 3))
        channels, outputs = (depth, depth) if group == depth else (depth * group, int(random.integers(4, 40)) * group)
        results = (size + pads[:2] + pads[2:] - dilations * (kernel - 1) - 1) // strides + 1
        if results.min() < 1:
            continue
        x, gy = (
            random.normal(0, 2, shape).astype(np.float32)
            for shape in ((batch, channels, *size), (batch, outputs, *results))
        )
        vectors = [random.uniform(0.1, 2, channels).astype(np.float32) for _ in range(4)]
        activation = str(random.choice(NORM_ACTIVATIONS))
        fused: dict[str, Attribute] = {"epsilon": 1e-3, "activation": activation, **LIMITS.get(activation, {})}
        geometry = {"strides": strides, "dilations": dilations, "pads": pads, "kernel": kernel}
        attributes: dict[str, Attribute] = {name: tuple(map(int, n)) for name, n in geometry.items()}
        attributes["group"] = group
        gradient = spec("ConvGradWeight")
        assert isinstance(gradient, ConvGradWeight)
        if not gradient.takes_norm(bind_kind("ConvGradWeight", attributes, [x, gy]), activation):
            continue
        inputs, again = [one("BatchNormActivate", fused, [x, *vectors], library()), gy], [x, gy, *vectors]
        kind, how = "ConvGradWeight", random.choice(["", "Sgd", "Sum"])
        symbol = gradient.kernel(bind_kind(kind, attributes | fused, again)).symbol
        if how and symbol.endswith("packed"):
            w = random.normal(0, 2, (outputs, channels // group, *kernel)).astype(np.float32)
            kind, rate = f"{kind}{how}", LR if how == "Sgd" else np.float32([-1])
            inputs, again = [w, *inputs, rate], [w, *again, rate]
        expected = one(kind, attributes, inputs, library()).tobytes()
        for lib in libraries:
            assert one(kind, attributes | fused, again, lib).tobytes() == expected, (symbol, x.shape, attributes)
        done[f"{kind} by {symbol}"] += 1
    packed = {f"ConvGradWeight{how} by poetc_op_conv_grad_weight_norm_packed" for how in ("", "Sgd", "Sum")}
    assert done.keys() == packed | {"ConvGradWeight by poetc_op_depthwise_grad_weight_norm"}


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(1, 130), st.integers(1, 300), st.integers(1, 140)),
    st.sampled_from(VECTORS),
    st.integers(0, 2**32 - 1),
)
def test_descent_on_a_product_has_the_bits_of_its_parts(sizes: tuple[int, int, int], lib: object, seed: int) -> None:
    assert callable(lib)
    (m, n, k), made, random = sizes, lib(), np.random.default_rng(seed)
    w, a, b = numbers(random, m, n), numbers(random, k, m), numbers(random, k, n)
    attributes = {"trans_a": True, "trans_b": False, "alpha": 1.0}
    expected = one("Sgd", {}, [w, one("MatMul", attributes, [a, b], made), LR], made)
    if k > 64 and not _packs(attributes, [a, b]):
        with pytest.raises(ValueError, match="no gradient"):
            one("MatMulSgd", attributes, [w, a, b, LR], made)
        return
    assert bits(one("MatMulSgd", attributes, [w, a, b, LR], made)) == bits(expected)


def _packs(attributes: Attributes, inputs: list[AnyArray]) -> bool:
    return spec("MatMul").kernel(bind_kind("MatMul", attributes, inputs)).symbol.endswith("_packed")


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([(8, 40, 3, 1), (33, 30, 3, 1), (16, 64, 1, 1), (24, 32, 3, 2), (12, 160, 2, 1), (32, 32, 3, 1)]),
    st.integers(1, 3),
    st.integers(3, 11),
    st.sampled_from(VECTORS),
    st.integers(0, 2**32 - 1),
)
def test_descent_on_a_convolution_has_the_bits_of_its_parts(
    sizes: tuple[int, int, int, int], batch: int, image: int, lib: object, seed: int
) -> None:
    assert callable(lib)
    (outputs, channels, kernel, group), made, random = sizes, lib(), np.random.default_rng(seed)
    attributes: dict[str, Attribute] = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "group": group}
    attributes["kernel"] = (kernel, kernel)
    w = numbers(random, outputs, channels // group, kernel, kernel)
    x, size = numbers(random, batch, channels, image, image), image + 1 - kernel
    gy = numbers(random, batch, outputs, size, size)
    try:
        found = one("ConvGradWeightSgd", attributes, [w, x, gy, LR], made)
    except ValueError:
        kernel_of = spec("ConvGradWeight").kernel(bind_kind("ConvGradWeight", attributes, [x, gy]))
        assert kernel_of.symbol == "poetc_op_conv_grad_weight"
        return
    expected = one("Sgd", {}, [w, one("ConvGradWeight", attributes, [x, gy], made), LR], made)
    assert bits(found) == bits(expected)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(-40, 39), min_size=1, max_size=9),
    st.integers(3, 40),
    st.sampled_from(VECTORS),
    st.integers(0, 2**32 - 1),
)
def test_descent_on_an_embedding_has_the_bits_of_its_parts(
    indices: list[int], width: int, lib: object, seed: int
) -> None:
    assert callable(lib)
    made, random = lib(), np.random.default_rng(seed)
    w, gy = numbers(random, 40, width), numbers(random, len(indices), width)
    attributes: dict[str, Attribute] = {"axis": 0, "shape": (40, width)}
    named = np.int32(indices)
    expected = one("Sgd", {}, [w, one("GatherGrad", attributes, [named, gy], made), LR], made)
    assert bits(one("GatherGradSgd", attributes, [w, named, gy, LR], made)) == bits(expected)


def test_a_bad_index_leaves_the_table_as_it_was() -> None:
    """State is old or new, never a mixture: indices are checked before anything is written."""
    w = np.ones((9, 4), np.float32)
    with pytest.raises(KernelError):
        run_kernel(
            "GatherGradSgd", {"axis": 0, "shape": (9, 4)}, [w, np.int32([1, 9]), np.ones((2, 4), np.float32), LR]
        )
