"""What the tables cannot say of convolution, matmul, norms and losses: accuracy on long sums, batch norm as a whole,
errors, the graphs that gradients emit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from poetc.graph import Attribute, Operator, Phase, Role
from poetc.ops import Builder, spec
from tests.support.kernels import KernelError, evaluate, run_kernel, scalar_library, tensor_type, wide_library

Inputs = Sequence[tuple[int, ...] | np.ndarray]


def arrays(inputs: Inputs) -> list[np.ndarray]:
    random = np.random.default_rng(11)
    return [random.standard_normal(x).astype(np.float32) if isinstance(x, tuple) else x for x in inputs]


def relative_error(kind: str, attributes: dict[str, Attribute], inputs: Inputs) -> float:
    """Of the C kernel against `evaluate` in float64: the largest difference over the largest value."""
    given = arrays(inputs)
    exact = evaluate(kind, attributes, [x.astype(np.float64) if x.dtype == np.float32 else x for x in given])
    results = run_kernel(kind, attributes, given)
    pairs = [(y, e) for y, e in zip(results, exact, strict=True) if y.dtype == np.float32]
    return max(float(np.abs(y - e).max() / np.abs(e).max()) for y, e in pairs)


FAR = (1000 + np.random.default_rng(1).standard_normal((8, 2, 40, 40))).astype(np.float32)
ONE = np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("kind", "attributes", "inputs"),
    [
        ("Conv", {"pads": (1, 1, 1, 1)}, [(1, 256, 5, 6), (4, 256, 3, 3)]),
        ("ConvGradInput", {"pads": (1, 1, 1, 1), "input_size": (5, 6)}, [(1, 256, 5, 6), (256, 4, 3, 3)]),
        ("ConvGradWeight", {"kernel": (3, 3)}, [(8, 1, 102, 102), (8, 1, 100, 100)]),
        ("ConvGradWeight", {"kernel": (1, 1)}, [(4, 1, 150, 160), (4, 5, 150, 160)]),
        ("MatMul", {}, [(3, 20000), (20000, 5)]),
        ("MatMul", {"trans_b": True}, [(3, 20000), (5, 20000)]),
        ("BatchNormStats", {}, [FAR]),
        ("BatchNormGradParams", {"epsilon": 1e-5}, [(8, 2, 100, 100), (2,), ONE, (8, 2, 100, 100)]),
        ("LayerNorm", {"axis": 1, "epsilon": 1e-5}, [(2, 20000), (20000,)]),
        ("LayerNormGradParams", {"axis": 1}, [(20000, 3), (20000, 1), (20000, 1), (20000, 3)]),
        (
            "GroupNormGradInput",
            {"groups": 1},
            [(1, 2, 99, 99), (1, 1), np.ones((1, 1), np.float32), (2,), (1, 2, 99, 99)],
        ),
        ("AveragePool", {"kernel": (100, 100)}, [(1, 2, 100, 100)]),
        ("MeanSquaredError", {}, [(50000,), (50000,)]),
        ("CrossEntropy", {"axis": 1}, [(2000, 10), np.arange(2000, dtype=np.int32) % 10]),
        ("Softmax", {"axis": 1}, [(2, 20000)]),
    ],
)
def test_long_sums_stay_accurate(kind: str, attributes: dict[str, Attribute], inputs: Inputs) -> None:
    assert relative_error(kind, attributes, inputs) < 2e-6


def test_variance_far_from_zero() -> None:
    """Mean 1000, variance 1: the sum of squares minus the squared mean would have no correct digit."""
    _, var = run_kernel("BatchNormStats", {}, [FAR])
    np.testing.assert_allclose(var, FAR.astype(np.float64).var(axis=(0, 2, 3)), rtol=1e-6)


def test_a_small_loss_keeps_its_digits() -> None:
    logits = np.float32([[18.0, 0.0, 1.0]])
    (loss,) = run_kernel("CrossEntropy", {"axis": 1}, [logits, np.int32([0])])
    assert float(loss) == pytest.approx(np.log1p(np.exp(-18.0) + np.exp(-17.0)), rel=1e-6)


def test_vector_and_scalar_targets_agree_bit_for_bit() -> None:
    """The four-lane type as SIMD and as four scalars, which is what a Cortex-M gets."""
    scalar = scalar_library()
    pads: dict[str, Attribute] = {"pads": (1, 1, 1, 1)}
    calls: list[tuple[str, dict[str, Attribute], Inputs]] = [
        ("Conv", pads, [(2, 6, 9, 11), (7, 6, 3, 3), (7,)]),
        ("ConvGradInput", {**pads, "strides": (2, 2), "input_size": (9, 11)}, [(2, 7, 5, 6), (7, 6, 3, 3)]),
        ("ConvGradWeight", {**pads, "kernel": (3, 3)}, [(2, 6, 9, 11), (2, 7, 9, 11)]),
        ("Conv", {**pads, "group": 6}, [(2, 6, 9, 11), (6, 1, 3, 3)]),
        ("MatMul", {}, [(7, 90), (90, 9)]),
        ("MatMul", {"trans_b": True}, [(7, 90), (9, 90)]),
        ("MatMul", {"trans_a": True, "trans_b": True}, [(90, 7), (9, 90)]),
        ("BatchNormStats", {}, [(3, 4, 9, 11)]),
        ("Softmax", {"axis": 1}, [(5, 150)]),
        ("SoftmaxGrad", {"axis": 1}, [(5, 150), (5, 150)]),
        ("LayerNorm", {"axis": -1, "epsilon": 1e-5}, [(3, 1100), (1100,), (1100,)]),
        ("LayerNormGradInput", {"axis": -1}, [(3, 150), (3,), (3,), (150,), (3, 150)]),
        ("ReduceSum", {"axes": (0,), "keepdims": False}, [(150, 37)]),
        ("ReduceSum", {"axes": (0, 2), "keepdims": False}, [(3, 5, 150)]),
    ]
    for kind, attributes, inputs in calls:
        given = arrays(inputs)
        expected = run_kernel(kind, attributes, given)
        actual = run_kernel(kind, attributes, given, lib=scalar)
        assert [y.tobytes() for y in actual] == [y.tobytes() for y in expected], kind


SPECIAL = [0.0, -0.0, 1e-45, 1e-39, -1e-6, 6e-5, 0.625, 0.92, 3.95, 9.5, 18, 89, 88.9, 104, 105, 1e30, np.inf]


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [*((k, {}) for k in ("Exp", "Erf", "Tanh", "Sigmoid", "Silu", "Gelu")), ("Gelu", {"approximate": "tanh"})],
)
def test_functions_on_vectors_have_the_bits_of_scalars(kind: str, attributes: dict[str, Attribute]) -> None:
    """All arguments that take another branch, and many that do not; the ends of a row are scalars on every target."""
    special = np.float32(SPECIAL)
    dense = np.linspace(-20, 20, 40001, dtype=np.float32)
    x = np.concatenate([special, -special, dense, np.linspace(-110, 95, 4001, dtype=np.float32)])
    gy = np.cos(np.resize(dense, x.size))
    scalar = scalar_library()
    for lib in (None, wide_library()):
        for name, inputs in ((kind, [x]), (f"{kind}Grad", [x, gy])):
            (expected,) = run_kernel(name, attributes, inputs, lib=scalar)
            (actual,) = run_kernel(name, attributes, inputs, lib=lib)
            same = (actual.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(actual) & np.isnan(expected))
            assert same.all(), (name, x[~same][:5], actual[~same][:5], expected[~same][:5])


def test_tiling_does_not_change_a_pixel() -> None:
    """A convolution's output does not depend on where in the row, or in which channel block, it lies."""
    x, w = arrays([(1, 2, 5, 15), (6, 2, 3, 3)])
    (whole,) = run_kernel("Conv", {}, [x, w])
    (part,) = run_kernel("Conv", {}, [np.ascontiguousarray(x[..., 2:12]), np.ascontiguousarray(w[1:4])])
    assert whole[:, 1:4, :, 2:10].tobytes() == part.tobytes()


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_gradient_as_a_whole(training: bool) -> None:
    """Finite differences in float64 through statistics and application together."""
    random = np.random.default_rng(3)
    x, scale, bias = random.standard_normal((3, 2, 4)), random.standard_normal(2), random.standard_normal(2)
    frozen = (random.standard_normal(2), random.uniform(0.5, 2, 2))
    weight = random.standard_normal(x.shape)
    attributes: dict[str, Attribute] = {"epsilon": 1e-3, "training": training}

    def loss(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> float:
        mean, var = evaluate("BatchNormStats", {}, [x]) if training else frozen
        return float((evaluate("BatchNormApply", attributes, [x, mean, var, scale, bias])[0] * weight).sum())

    mean, var = evaluate("BatchNormStats", {}, [x]) if training else frozen
    values = {"x": x, "mean": mean, "var": var, "scale": scale, "bias": bias, "gy": weight}
    b, apply = builder("BatchNormApply", attributes, [x, mean, var, scale, bias], ["x", "mean", "var", "scale", "bias"])
    b.add_tensor("gy", tensor_type(weight), Role.GRADIENT)
    gradients = spec("BatchNormApply").gradient(b, apply, ["gy"], [True, False, False, True, True])
    assert gradients[1] is None and gradients[2] is None
    run(b, values)
    for name, gradient in zip(("x", "scale", "bias"), (gradients[0], gradients[3], gradients[4]), strict=True):
        assert gradient is not None
        arguments = {"x": x, "scale": scale, "bias": bias}
        for index in np.ndindex(arguments[name].shape):
            sides = []
            for sign in (1, -1):
                moved = {k: v.copy() for k, v in arguments.items()}
                moved[name][index] += sign * 1e-5
                sides.append(loss(**moved))
            assert values[gradient][index] == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-6, abs=1e-7)


def builder(
    kind: str, attributes: dict[str, Attribute], inputs: Sequence[np.ndarray], names: Sequence[str]
) -> tuple[Builder, Operator]:
    """A graph of one operator, then set up for its backward operators (which are all that `operators` holds)."""
    b = Builder()
    for name, x in zip(names, inputs, strict=True):
        b.add_tensor(name, tensor_type(x), Role.INPUT)
    b.emit(kind, names, attributes, hint="y")
    forward = b.operators.pop()
    b.phase, b.role = Phase.BACKWARD, Role.GRADIENT
    return b, forward


def run(b: Builder, values: dict[str, np.ndarray]) -> None:
    for op in b.operators:
        values.update(zip(op.outputs, evaluate(op.kind, op.attributes, [values[t] for t in op.inputs]), strict=True))


def test_a_weight_under_a_batch_has_one_product_as_gradient() -> None:
    """[B, T, K] x [K, N]: no [B, K, N] is made and summed."""
    given = arrays([(2, 3, 4), (4, 5)])
    b, forward = builder("MatMul", {}, given, ["a", "w"])
    b.add_tensor("gy", tensor_type(np.zeros((2, 3, 5), np.float32)), Role.GRADIENT)
    gradients = spec("MatMul").gradient(b, forward, ["gy"], [False, True])
    assert [op.kind for op in b.operators] == ["Reshape", "Reshape", "MatMul"]
    assert gradients[0] is None and gradients[1] is not None and b.type(gradients[1]).shape == (4, 5)


@pytest.mark.parametrize(
    ("kind", "shapes", "kinds"),
    [
        ("Conv", [(1, 2, 5, 5), (3, 2, 3, 3), (3,)], ["ConvGradWeight", "ReduceSum"]),
        ("LayerNorm", [(2, 3), (3,), (3,)], ["LayerNormGradParams"]),
    ],
)
def test_nothing_is_emitted_for_a_gradient_not_needed(kind: str, shapes: Inputs, kinds: list[str]) -> None:
    given = arrays(shapes)
    b, forward = builder(kind, {"axis": 1, "epsilon": 1e-5} if kind == "LayerNorm" else {}, given, ["x", "w", "b"])
    b.add_tensor("gy", b.type(forward.outputs[0]), Role.GRADIENT)
    flow = ["gy", *[None] * (len(forward.outputs) - 1)]
    assert spec(kind).gradient(b, forward, flow, [False, True, True])[0] is None
    assert [op.kind for op in b.operators] == kinds


@pytest.mark.parametrize("kind", ["CrossEntropy", "SoftCrossEntropy", "MeanSquaredError", "Huber"])
def test_the_root_loss_needs_no_upstream_gradient(kind: str) -> None:
    logits, soft = arrays([(4, 3), (4, 3)])
    target = np.int32([0, 2, 1, 1]) if kind == "CrossEntropy" else soft
    attributes: dict[str, Attribute] = {"axis": 1} if "Entropy" in kind else {}
    b, forward = builder(kind, attributes, [logits, target], ["x", "t"])
    root = spec(kind).gradient(b, forward, [None], [True, False])
    b.add_tensor("g", b.type(forward.outputs[0]), Role.GRADIENT)
    given = spec(kind).gradient(b, forward, ["g"], [True, False])
    values = {"x": logits, "t": target, "g": np.float32(1.0)}
    run(b, values)
    assert root[0] and given[0] and root[0] != given[0]
    np.testing.assert_array_equal(values[root[0]], values[given[0]])


@pytest.mark.parametrize("kind", ["CrossEntropy", "CrossEntropyGrad"])
@pytest.mark.parametrize("index", [-1, 3, 2**31 - 1])
def test_a_class_outside_the_logits_is_refused(kind: str, index: int) -> None:
    inputs = [*arrays([(2, 3)]), np.int32([0, index])]
    with pytest.raises(KernelError) as caught:
        run_kernel(kind, {"axis": 1}, inputs)
    assert caught.value.code == -34
    with pytest.raises(ValueError, match="class index"):
        evaluate(kind, {"axis": 1}, inputs)


def test_max_pool_passes_nan_on() -> None:
    x = np.float32([[[[1, 2, 3, 4], [5, np.nan, 7, 8]]]])
    actual = run_kernel("MaxPool", {"kernel": (2, 2), "strides": (2, 2)}, [x])
    expected = evaluate("MaxPool", {"kernel": (2, 2), "strides": (2, 2)}, [x])
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, e)
    assert np.isnan(actual[0][0, 0, 0, 0])


@pytest.mark.parametrize(("kernel", "dtype"), [((15, 17), "uint8"), ((16, 16), "int32")])
def test_max_pool_keeps_a_byte_where_it_can(kernel: tuple[int, int], dtype: str) -> None:
    _, where = evaluate("MaxPool", {"kernel": kernel}, arrays([(1, 1, 20, 20)]))
    assert where.dtype == dtype


@pytest.mark.parametrize(
    ("kind", "attributes", "shapes", "message"),
    [
        ("Conv", {}, [(1, 3, 5, 5), (4, 2, 3, 3)], "weight's shape"),
        ("Conv", {"group": 2}, [(1, 3, 5, 5), (4, 1, 3, 3)], "groups"),
        ("Conv", {}, [(1, 3, 5), (4, 3, 3, 3)], "N, C, H, W"),
        ("Conv", {}, [(1, 3, 2, 5), (4, 3, 3, 3)], "larger than the padded input"),
        ("Conv", {"strides": (0, 1)}, [(1, 3, 5, 5), (4, 3, 3, 3)], "strides"),
        ("Conv", {"pads": (-1, 0, 0, 0)}, [(1, 3, 5, 5), (4, 3, 3, 3)], "pads"),
        ("Conv", {}, [(1, 3, 5, 5), (4, 3, 3, 3), (3,)], "bias"),
        ("ConvGradInput", {"input_size": (9, 9)}, [(1, 4, 3, 3), (4, 3, 3, 3)], "does not belong"),
        ("ConvGradWeight", {"kernel": (2, 2)}, [(1, 3, 5, 5), (1, 4, 3, 3)], "does not belong"),
        ("ConvTranspose", {"output_padding": (-1, 0)}, [(1, 3, 5, 5), (3, 2, 3, 3)], "output_padding"),
        ("ConvTranspose", {"pads": (9, 9, 9, 9)}, [(1, 3, 5, 5), (3, 2, 3, 3)], "leave nothing"),
        ("MatMul", {}, [(2, 3), (4, 5)], "inner sizes"),
        ("MatMul", {}, [(3,), (3, 5)], "rank 2"),
        ("MatMul", {}, [(2, 3), (3, 5), (2,)], "bias"),
        ("MaxPool", {"kernel": (2, 2), "pads": (2, 0, 0, 0)}, [(1, 1, 4, 4)], "no pixel"),
        ("MaxPoolGrad", {"kernel": (2, 2), "input_size": (9, 9)}, [(1, 1, 4, 4), (1, 1, 4, 4)], "does not belong"),
        ("BatchNormStats", {}, [(3,)], "N, C"),
        ("BatchNormApply", {"epsilon": 0.1}, [(2, 3), (3,), (3,), (3,), (2,)], "vector"),
        ("LayerNorm", {"axis": 1}, [(2, 3), (2,)], "normalised axes"),
        ("GroupNorm", {"groups": 4}, [(2, 6, 3), (6,), (6,)], "channel groups"),
        ("Softmax", {"axis": 2}, [(2, 3)], "axis 2"),
        ("CrossEntropy", {"axis": 1}, [(2, 3), (2,)], "i32"),
        ("MeanSquaredError", {}, [(2, 3), (3, 2)], "target"),
        ("Sgd", {}, [(3,), (4,), (1,)], "differ"),
        ("Sgd", {}, [(3,), (3,), (2,)], "one element"),
        ("Momentum", {}, [(3,), (3,), (3,)], "takes 4 inputs"),
    ],
)
def test_what_does_not_fit_is_refused(
    kind: str, attributes: dict[str, Attribute], shapes: Inputs, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(kind, attributes, arrays(shapes))


@pytest.mark.parametrize("place", [0, 1023, 1024])
def test_no_part_of_the_classes_hides_a_logit_that_is_no_number(place: int) -> None:
    """Class 1024 is a part of its own, whose sum over the others is empty."""
    logits = np.zeros((1, 1025), np.float32)
    logits[0, place] = np.nan
    (loss,) = run_kernel("CrossEntropy", {"axis": 1}, [logits, np.array([5], np.int32)])
    assert np.isnan(loss)
