"""What the tables of cases cannot say: what is refused, what is saved, and properties of the random numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from poetc.graph import Attribute, DType, Operator, Role, TensorType
from poetc.ops import Bound, Builder, collapse, spec
from poetc.ops.random import philox
from tests.support.kernels import AnyArray, KernelError, evaluate, run_kernel

F, I, U = DType.F32, DType.I32, DType.U8

REFUSED: list[tuple[str, list[TensorType], dict[str, Attribute]]] = [
    ("Reshape", [TensorType((2, 3))], {"shape": (4,)}),
    ("Relu", [TensorType((2,), I)], {}),
    ("ReluGrad", [TensorType((2,)), TensorType((3,))], {}),
    ("Elu", [TensorType((2,))], {"alpha": -1.0}),
    ("Gelu", [TensorType((2,))], {"approximate": "fast"}),
    ("Not", [TensorType((2,))], {}),
    ("Add", [TensorType((2, 3)), TensorType((2,))], {}),
    ("Add", [TensorType((2,)), TensorType((2,), I)], {}),
    ("Where", [TensorType((2,)), TensorType((2,)), TensorType((2,))], {}),
    ("ReduceSum", [TensorType((2, 3))], {"axes": (2,)}),
    ("ReduceMax", [TensorType((2, 0))], {"axes": (1,)}),
    ("ReduceMaxGrad", [TensorType((2, 3)), TensorType((2, 1)), TensorType((2,))], {"axes": (1,)}),
    ("ArgMax", [TensorType((2, 3))], {"axis": 2}),
    ("Transpose", [TensorType((2, 3))], {"perm": (0, 0)}),
    ("Slice", [TensorType((4,))], {"starts": (2,), "sizes": (3,)}),
    ("Slice", [TensorType((4,))], {"starts": (0,), "sizes": (2,), "steps": (0,)}),
    ("SliceGrad", [TensorType((3,))], {"starts": (0,), "sizes": (2,), "shape": (4,)}),
    ("Concat", [TensorType((2, 3)), TensorType((3, 3))], {"axis": 1}),
    ("Concat", [], {"axis": 1}),
    ("Split", [TensorType((4,))], {"axis": 0, "sizes": (1, 2)}),
    ("Expand", [TensorType((3,))], {"shape": (2,)}),
    ("Tile", [TensorType((3,))], {"repeats": (1, 2)}),
    ("Cast", [TensorType((3,))], {"to": "f64"}),
    ("CumSum", [TensorType((3,))], {"axis": 1}),
    ("Pad", [TensorType((3,))], {"pads": (3, 0), "mode": "reflect"}),
    ("Pad", [TensorType((3,))], {"pads": (-1, 0)}),
    ("Pad", [TensorType((3,))], {"pads": (1, 0), "mode": "mirror"}),
    ("Gather", [TensorType((3,)), TensorType((2,))], {"axis": 0}),
    ("GatherGrad", [TensorType((2,), I), TensorType((3,))], {"axis": 0, "shape": (5,)}),
    ("GatherElements", [TensorType((3, 2)), TensorType((3,), I)], {"axis": 0}),
    ("GatherND", [TensorType((3,)), TensorType((2, 2), I)], {}),
    ("Resize", [TensorType((1, 1, 2, 2))], {"sizes": (4, 4), "mode": "cubic"}),
    ("Resize", [TensorType((2, 2))], {"sizes": (4, 4)}),
    ("Dropout", [TensorType((3,)), TensorType((), I)], {"ratio": 1.0, "seed": 0}),
    ("Dropout", [TensorType((3,)), TensorType((), F)], {"ratio": 0.5, "seed": 0}),
    ("Dropout", [TensorType((3,)), TensorType((2,), I)], {"ratio": 0.5, "seed": 0}),
    ("DropoutSite", [TensorType((3,))], {"ratio": 1.0}),
]


@pytest.mark.parametrize(("kind", "inputs", "attributes"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_types_that_do_not_fit_are_refused(
    kind: str, inputs: list[TensorType], attributes: Mapping[str, Attribute]
) -> None:
    with pytest.raises(ValueError, match=r"."):
        spec(kind).infer(Bound(attributes, tuple(inputs)))


OUT_OF_RANGE: list[tuple[str, list[AnyArray], dict[str, Attribute]]] = [
    ("Gather", [np.ones((3, 2), np.float32), np.int32([0, 3])], {"axis": 0}),
    ("GatherGrad", [np.int32([0, -4]), np.ones((2, 2), np.float32)], {"axis": 0, "shape": (3, 2)}),
    ("GatherElements", [np.ones((3, 2), np.float32), np.int32([[2, 3]])], {"axis": 0}),
    ("GatherElementsGrad", [np.int32([[2, 3]]), np.ones((1, 2), np.float32)], {"axis": 0, "shape": (3, 2)}),
    ("GatherND", [np.ones((3, 2), np.float32), np.int32([[2, 2]])], {}),
    ("GatherNDGrad", [np.int32([[3, 0]]), np.ones(1, np.float32)], {"shape": (3, 2)}),
]


@pytest.mark.parametrize(("kind", "inputs", "attributes"), OUT_OF_RANGE, ids=lambda x: x if isinstance(x, str) else "")
def test_indices_out_of_range(kind: str, inputs: list[AnyArray], attributes: dict[str, Attribute]) -> None:
    with pytest.raises(KernelError) as error:
        run_kernel(kind, attributes, inputs)
    assert error.value.code == -34  # POETC_ERANGE
    with pytest.raises(IndexError):
        evaluate(kind, attributes, inputs)


@pytest.mark.parametrize(
    ("kind", "attributes", "saved"),
    [
        *(
            (kind, {}, "y")
            for kind in ("Relu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Elu", "Clip", "Softplus", "LeakyRelu")
        ),
        ("LeakyRelu", {"alpha": -0.1}, "x"),
        *((kind, {}, "x") for kind in ("Gelu", "Silu", "HardSwish", "Log", "Abs")),
        *((kind, {}, None) for kind in ("Neg", "Affine")),
    ],
)
def test_gradients_read_no_more_than_they_need(kind: str, attributes: dict[str, Attribute], saved: str | None) -> None:
    b = Builder()
    b.add_tensor("x", TensorType((3,)), Role.INPUT)
    b.emit(kind, ["x"], attributes, outputs=["y"])
    b.add_tensor("gy", TensorType((3,)), Role.GRADIENT)
    forward: Operator = b.operators[0]
    spec(kind).gradient(b, forward, ["gy"], [True])
    read = {t for op in b.operators[1:] for t in op.inputs} & {"x", "y"}
    assert read == ({saved} if saved else set())


def test_nothing_is_emitted_for_what_is_not_needed() -> None:
    b = Builder()
    for name in ("a", "b"):
        b.add_tensor(name, TensorType((3,)), Role.INPUT)
    b.emit("Mul", ["a", "b"], outputs=["y"])
    b.add_tensor("gy", TensorType((3,)), Role.GRADIENT)
    assert list(spec("Mul").gradient(b, b.operators[0], ["gy"], [False, False])) == [None, None]
    assert len(b.operators) == 1
    gradients = spec("Mul").gradient(b, b.operators[0], ["gy"], [False, True])
    assert gradients[0] is None
    assert [op.inputs for op in b.operators[1:]] == [("gy", "a")]


def test_walks_are_as_short_as_can_be() -> None:
    assert collapse((2, 3, 4), (12, 4, 1), (12, 4, 1)) == ((24,), ((1,), (1,)))
    assert collapse((2, 3, 4, 5), (60, 20, 5, 1), (0, 1, 0, 0)) == ((2, 3, 20), ((60, 20, 1), (0, 1, 0)))
    assert collapse((1, 1), (1, 1)) == ((1,), ((0,),))
    assert collapse((2, 0, 3), (0, 3, 1)) == ((0,), ((0,),))


@pytest.mark.parametrize("kind", ["Add", "Relu", "Concat", "Expand", "Slice"])
def test_empty_tensors(kind: str) -> None:
    empty = np.zeros((2, 0, 3), np.float32)
    attributes: dict[str, Attribute] = {"axis": 1, "shape": (2, 0, 3), "starts": (0, 0, 0), "sizes": (2, 0, 3)}
    inputs = [empty, empty] if kind in ("Add", "Concat") else [empty]
    assert [y.size for y in run_kernel(kind, attributes, inputs)] == [0]


def test_random_words_are_uniform_and_differ_with_seed_and_step() -> None:
    n = 100_000
    streams = [philox(n, seed, step) / 2.0**32 for seed, step in ((0, 0), (0, 1), (1, 0), (2**31, 7))]
    for u in streams:
        assert abs(u.mean() - 0.5) < 0.005
        assert abs(u.var() - 1 / 12) < 0.002
        assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.015
    for i, u in enumerate(streams):
        for v in streams[:i]:
            assert abs(np.corrcoef(u, v)[0, 1]) < 0.015


def test_dropout_keeps_the_expectation_and_draws_anew_each_step() -> None:
    x = np.ones(50_000, np.float32)
    first, again, later = (
        run_kernel("Dropout", {"ratio": 0.3, "seed": 5}, [x, np.asarray(step, np.int32)])[0] for step in (1, 1, 2)
    )
    assert abs(first.mean() - 1) < 0.02
    assert first.tobytes() == again.tobytes()
    assert (first != later).mean() > 0.3


def test_softmax_of_nothing_but_minus_infinity_is_zero() -> None:
    x = np.float32([[-np.inf, -np.inf], [1, -np.inf]])
    for results in (evaluate("Softmax", {"axis": 1}, [x]), run_kernel("Softmax", {"axis": 1}, [x])):
        np.testing.assert_array_equal(results[0], np.float32([[0, 0], [1, 0]]))


@pytest.mark.parametrize(("rows", "kind"), [(1, "Reshape"), (2, "ReduceSum")])
def test_the_gradient_of_a_bias_of_one_row_is_a_view(rows: int, kind: str) -> None:
    b = Builder()
    for name, shape in (("x", (1, rows, 3)), ("w", (3, 4)), ("bias", (4,)), ("gy", (1, rows, 4))):
        b.add_tensor(name, TensorType(shape), Role.INPUT)
    b.emit("MatMul", ["x", "w", "bias"])
    gradients = spec("MatMul").gradient(b, b.operators[0], ["gy"], [False, False, True])
    assert [op.kind for op in b.operators[1:]] == [kind]
    assert b.type(gradients[2] or "").shape == (4,)
