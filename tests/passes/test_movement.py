"""What products read and write where it lies: which operators vanish, that memory does not grow, that bits stay."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetc.graph import Attribute, Graph, Role, TensorType
from poetc.kernels.gemm import packing as packed_operands
from poetc.ops import Builder, contiguous_strides, view_steps
from poetc.passes import _movement, check_graph, read_in_place, run_standard
from poetc.scheduling import keep_all_peak_bytes
from poetc.training import TrainingOptions, build
from tests.passes.networks import attention, gained, kinds, random_batches, steps, trained
from tests.program.models import make_problem
from tests.support.kernels import AnyArray, library, run_kernel, scalar_library, wide_library

PROJECTIONS = ("apart", "split", "slices", "turned")
FUSED = "-O2 -march=native -DPOETC_FUSED"


@pytest.mark.parametrize("projections", PROJECTIONS)
def test_attention_moves_nothing(projections: str) -> None:
    """All six products take steps. What joins the gradients of queries, keys and values stays; turned, they are turned
    back as a whole.
    """
    without, step = steps(attention(projections))
    check_graph(step)
    moved = kinds(without)
    assert moved["Transpose"] == (2 + 2 if projections == "turned" else 8)
    found = kinds(step)
    assert found["MatMulOfViews"] == 6
    assert found["Transpose"] == (1 if projections == "turned" else 0)
    assert found["Concat"] == (0 if projections == "apart" else 1)
    assert not {"Split", "Slice", "SliceGrad"} & found.keys()
    assert keep_all_peak_bytes(make_problem(step)) <= keep_all_peak_bytes(make_problem(without))


def test_without_fusion_nothing_is_read_in_place() -> None:
    step = build(attention("split"), TrainingOptions(fusion=False))
    assert read_in_place(step) is step


def test_no_product_needs_more_than_the_operator_that_needs_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of the scores, of queries, keys and values as one tensor: more than the gradient of the softmax. What
    is as large as before is still read in place.
    """
    found = gained(attention("split", tokens=70, size=18))
    assert (found.get("Split", 0), found["Transpose"], found["MatMulOfViews"]) == (0, -8, 6)
    monkeypatch.setattr(_movement, "most_bytes", lambda graph: 0)
    assert "MatMulOfViews" not in gained(attention("split"))


def cut(also: str) -> Graph:
    """A product whose first columns another one reads; `also`: what reads the whole too."""
    random = np.random.default_rng(12)
    b = Builder()

    def product(x: str, name: str, outputs: int) -> str:
        shape = (b.type(x).shape[-1], outputs)
        value = random.normal(0, 0.3, shape).astype(np.float32)
        return b.emit1("MatMul", [x, b.add_tensor(name, TensorType(shape), Role.PARAMETER, value)])

    x = b.add_tensor("x", TensorType((48, 20)), Role.INPUT)
    whole = product(x, "w", 40)
    first = product(whole, "u", 32) if also == "product" else ""
    part = b.emit1("Slice", [whole], {"starts": (0, 4), "sizes": (48, 10), "steps": (1, 1)})
    y = product(part, "v", 32)
    if first:
        y = b.emit1("Add", [y, first])
    elif also == "sum":
        y = b.emit1("Add", [y, b.emit1("Neg", [b.emit1("Slice", [whole], {"starts": (0, 8), "sizes": (48, 32)})])])
    elif also == "tanh":
        y = b.emit1("Add", [y, product(b.emit1("Tanh", [part]), "t", 32)])
    return Graph("cut", b.tensors, tuple(b.operators), ("x",), (y,), b.values)


@pytest.mark.parametrize(("also", "goes"), [("", False), ("product", True), ("sum", False), ("tanh", False)])
def test_a_slice_goes_only_where_its_source_is_kept_anyway(also: str, goes: bool) -> None:
    """Else the source, four times as large, would be kept for the gradient of v. Not if somebody reads the slice."""
    found = gained(cut(also))
    assert (found.get("Slice", 0), found.get("MatMulOfViews", 0)) == ((-1, 2) if goes else (0, 0))


def test_rows_that_would_fall_apart_are_transposed() -> None:
    """A dense layer on what is transposed: one product of all rows, not one a sample that packs the weights again."""
    b = Builder()
    x = b.add_tensor("x", TensorType((12, 3, 20)), Role.INPUT)
    for name in ("first", "second"):
        weight = np.ones((b.type(x).shape[-1], 32), np.float32)
        x = b.emit1("MatMul", [x, b.add_tensor(name, TensorType(weight.shape), Role.PARAMETER, weight)])
        x = b.emit1("Transpose", [x], {"perm": (1, 0, 2)})
    found = gained(Graph("turned", b.tensors, tuple(b.operators), ("x",), (x,), b.values))
    assert not {"MatMulOfViews", "Transpose"} & found.keys()


def test_products_that_pack_nothing_stay_as_they_are() -> None:
    assert "MatMulOfViews" not in gained(attention("split", tokens=4, size=3))


@pytest.mark.parametrize(("projections", "cflags"), [*((p, "-O2") for p in PROJECTIONS), ("slices", FUSED)])
def test_a_step_keeps_its_bits(projections: str, cflags: str) -> None:
    without, step = steps(attention(projections, tokens=70, size=40), learning_rate=0.1, loss="mse")
    assert kinds(step)["MatMulOfViews"] == 6
    batches = random_batches(without, 2, seed=3)
    assert trained(step, batches, cflags) == trained(without, batches, cflags)


def test_micro_batches_keep_their_bits() -> None:
    options = [TrainingOptions(loss="mse", micro_batches=2, fusion=fusion) for fusion in (False, True)]
    whole, part = attention("slices", batch=4), attention("slices")
    without, step = (run_standard(build(whole, chosen, part)) for chosen in options)
    assert kinds(step)["MatMulOfViews"] == 12
    batches = random_batches(without, 2, seed=3)
    assert trained(step, batches) == trained(without, batches)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_steps_of_a_view(shape: list[int], random: object) -> None:
    """Of a permuted, sliced array under another shape: those that numpy finds, none where it copies."""
    draw = np.random.default_rng(random.randrange(2**32))  # type: ignore[attr-defined]
    whole = np.arange(math.prod(shape) * 2 ** len(shape)).reshape([2 * n for n in shape])
    x = whole[tuple(slice(0, n * s, s) for n, s in zip(shape, draw.integers(1, 3, len(shape)), strict=True))]
    x = x.transpose(draw.permutation(len(shape)))
    factors = [p for n in x.shape for p in ([2, 2] if n == 4 else [n])]
    new_shape: list[int] = [1]
    for factor in factors:
        if draw.random() < 0.5:
            new_shape.append(factor)
        else:
            new_shape[-1] *= factor
    found = view_steps(x.shape, tuple(s // 8 for s in x.strides), tuple(new_shape))
    again = x.reshape(new_shape)
    assert (found is not None) == np.shares_memory(again, whole)
    if found is not None:
        steps_of = tuple(s // 8 for s, n in zip(again.strides, new_shape, strict=True) if n > 1)
        assert tuple(s for s, n in zip(found, new_shape, strict=True) if n > 1) == steps_of


def lay_out(
    random: np.random.Generator, x: AnyArray, contiguous: tuple[int, ...], room: int
) -> tuple[AnyArray, tuple[int, ...]]:
    """`x` within a larger tensor, in any order of axes whose last is one of `contiguous`, and the view that it is."""
    last = int(random.choice(contiguous))
    order = [int(axis) for axis in random.permutation(x.ndim) if axis != last] + [last]
    stored = x.transpose(order)
    before = random.integers(0, room + 1, x.ndim)
    whole = np.pad(stored, [(int(n), int(random.integers(0, room + 1))) for n in before])
    own = contiguous_strides(whole.shape)
    start = sum(int(n) * step for n, step in zip(before, own, strict=True))
    return np.ascontiguousarray(whole), (start, *(own[order.index(axis)] for axis in range(x.ndim)))


@settings(max_examples=80, deadline=None)
@given(
    st.tuples(st.integers(9, 70), st.integers(1, 80), st.integers(1, 140)),
    st.booleans(),
    st.sampled_from([1.0, 0.3]),
    st.sampled_from([library, wide_library, scalar_library]),
    st.integers(0, 2**32 - 1),
)
def test_products_of_views_have_the_bits_of_products(
    sizes: tuple[int, int, int], has_bias: bool, alpha: float, lib: object, seed: int
) -> None:
    assert callable(lib)
    (m, n, k), made, random = sizes, lib(), np.random.default_rng(seed)
    share, packed_operands.SHARE = packed_operands.SHARE, 0
    try:
        a, b = (random.normal(0, 1, (2, 3, *shape)).astype(np.float32) for shape in ((m, k), (k, n)))
        bias = [random.normal(0, 1, n).astype(np.float32)] if has_bias else []
        (expected,) = run_kernel("MatMul", {"alpha": alpha}, [a, b, *bias], lib=made)
        stored_a, view_a = lay_out(random, a, (2, 3), 3)
        stored_b, view_b = lay_out(random, b, (2, 3), 3)
        stored_y, view_y = lay_out(random, expected, (3,), 0)
        attributes: dict[str, Attribute] = {"a": view_a, "b": view_b, "y": view_y, "alpha": alpha, "terms": min(k, 64)}
        attributes |= {"sizes": (2, 3, m, n, k), "shape": stored_y.shape}
        (found,) = run_kernel("MatMulOfViews", attributes, [stored_a, stored_b, *bias], lib=made)
        assert found.tobytes() == stored_y.tobytes()
    finally:
        packed_operands.SHARE = share
