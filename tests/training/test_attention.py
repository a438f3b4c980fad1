"""Attention as one operator: found in the forms that importers leave, with the bits of the operators apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from poetc.graph import Array, DType, Graph, Role, TensorType, TrainingGraph
from poetc.ops import Builder, bind, spec
from poetc.passes import run_standard
from poetc.training import TrainingOptions, _attention, build
from tests.passes.networks import kinds, random_batches, trained
from tests.support.kernels import library, run_kernel, scalar_library, wide_library

TOKENS, SIZE = 100, 16
BY_HEAD = (0, 2, 1, 3)
CAUSAL = np.tri(TOKENS, dtype=bool)
NEAR = CAUSAL & ~np.tri(TOKENS, k=-20, dtype=bool)
LEAST = float(np.finfo(np.float32).min)


@pytest.fixture(autouse=True)
def however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_attention, "LEAST_BYTES", 0)


@dataclass(frozen=True, eq=False)
class Form:
    """One way in which a file has attention."""

    name: str
    seen: Array | None = field(default_factory=lambda: CAUSAL)
    hides: float = -np.inf
    way: str = "add"  # of the mask: "add", "where", "where not"
    heads: int = 2
    times: int = 1  # heads of queries for each head of keys
    padding: str = ""  # a second mask, of an input: "floats" or "bytes"
    cap: float = 0.0
    flat: bool = False  # samples and heads in one axis
    turned_keys: bool = False
    guarded: bool = False  # rows of -infinity, as exporters do it

    def __str__(self) -> str:
        return self.name


FORMS = [
    Form("causal"),
    Form("window, least number", NEAR, LEAST, "where", heads=1),
    Form("hidden ones, three axes", CAUSAL, way="where not", flat=True),
    Form("groups, cap", times=2, cap=3.0, heads=4),
    Form("padding in floats", padding="floats", turned_keys=True),
    Form("padding in bytes", way="where", padding="bytes", guarded=True),
]


class Network:
    """Layers of attention over `x`, the sum of which is the output."""

    def __init__(self) -> None:
        self.draw, self.b, self.inputs = np.random.default_rng(4), Builder(), ["x"]
        self.x = self.b.add_tensor("x", TensorType((2, TOKENS, 2 * SIZE)), Role.INPUT)
        self.sums: list[str] = []

    def constant(self, value: Array) -> str:
        dtype = DType.U8 if value.dtype == np.bool_ else DType.F32
        array = value.astype(dtype.numpy)
        return self.b.add_tensor(self.b.fresh("c"), TensorType(value.shape, dtype), Role.CONSTANT, array)

    def weight(self, *shape: int) -> str:
        value = self.draw.normal(0, 0.3, shape).astype(np.float32)
        return self.b.add_tensor(self.b.fresh("w"), TensorType(shape), Role.PARAMETER, value)

    def heads(self, form: Form, count: int, repeated: int = 1, turned: bool = False) -> str:
        b = self.b
        t = b.emit1("MatMul", [self.x, self.weight(2 * SIZE, count * SIZE)])
        t = b.emit1("Reshape", [t], {"shape": (2, TOKENS, count, SIZE)})
        t = b.emit1("Transpose", [t], {"perm": (0, 2, 3, 1) if turned else BY_HEAD})
        if repeated > 1:
            t = b.emit1("Reshape", [t], {"shape": (2, count, 1, TOKENS, SIZE)})
            t = b.emit1("Expand", [t], {"shape": (2, count, repeated, TOKENS, SIZE)})
            t = b.emit1("Reshape", [t], {"shape": (2, count * repeated, TOKENS, SIZE)})
        return b.emit1("Reshape", [t], {"shape": (2 * count, TOKENS, SIZE)}) if form.flat else t

    def masked(self, form: Form, scores: str) -> str:
        b = self.b
        if form.padding == "floats":
            mask = b.add_tensor("padding", TensorType((2, 1, 1, TOKENS)), Role.INPUT)
            self.inputs.append(mask)
            scores = b.emit1("Add", [mask, scores])
        elif form.padding == "bytes":
            lengths = b.add_tensor("lengths", TensorType((2, 1, 1, 1), DType.I32), Role.INPUT)
            self.inputs.append(lengths)
            places = b.add_tensor(
                "places", TensorType((TOKENS,), DType.I32), Role.CONSTANT, np.arange(TOKENS, dtype=np.int32)
            )
            seen = b.emit1("LessOrEqual", [places, lengths])
            scores = b.emit1("Where", [seen, scores, self.constant(np.array(-np.inf, np.float32))])
        if form.seen is None:
            return scores
        hides = np.array(form.hides, np.float32)
        if form.way == "add":
            return b.emit1("Add", [scores, self.constant(np.where(form.seen, np.float32(0), hides))])
        if form.way == "where":
            return b.emit1("Where", [self.constant(form.seen), scores, self.constant(hides)])
        return b.emit1("Where", [self.constant(~form.seen), self.constant(hides), scores])

    def attend(self, form: Form, *, dropout: bool = False, bias: bool = False, shown: bool = False) -> None:
        b, groups = self.b, form.heads // form.times
        q, k, v = (
            self.heads(form, count, form.heads // count, turned)
            for count, turned in ((form.heads, False), (groups, form.turned_keys), (groups, False))
        )
        scores = b.emit1("MatMul", [q, k], {"trans_b": not form.turned_keys, "alpha": 0.25})
        if form.cap:
            scores = b.emit1("Affine", [scores], {"alpha": 1 / form.cap, "beta": 0.0})
            scores = b.emit1("Affine", [b.emit1("Tanh", [scores])], {"alpha": form.cap, "beta": 0.0})
        if bias:
            scores = b.emit1("Add", [scores, self.weight(form.heads, TOKENS, TOKENS)])
        scores = self.masked(form, scores)
        if form.guarded:
            least, nothing = (self.constant(np.array(x, np.float32)) for x in (-np.inf, 0))
            seen = b.emit1("Greater", [b.emit1("ReduceMax", [scores], {"axes": (3,), "keepdims": True}), least])
            scores = b.emit1("Where", [seen, scores, nothing])
        shares = b.emit1("Softmax", [scores], {"axis": -1})
        if form.guarded:
            shares = b.emit1("Where", [seen, shares, nothing])
        if shown:
            self.sums.append(b.emit1("ReduceMean", [shares], {"axes": (0, 1, 2, 3), "keepdims": False}))
        if dropout:
            shares = b.emit1("DropoutSite", [shares], {"ratio": 0.1})
        y = b.emit1("MatMul", [shares, v])
        if form.flat:
            y = b.emit1("Reshape", [y], {"shape": (2, form.heads, TOKENS, SIZE)})
        y = b.emit1(
            "Reshape", [b.emit1("Transpose", [y], {"perm": BY_HEAD})], {"shape": (2, TOKENS, form.heads * SIZE)}
        )
        self.sums.append(b.emit1("MatMul", [y, self.weight(form.heads * SIZE, 8)]))

    def graph(self) -> Graph:
        y = self.sums[0]
        for other in self.sums[1:]:
            y = self.b.emit1("Add", [y, other])
        return Graph("attention", self.b.tensors, tuple(self.b.operators), tuple(self.inputs), (y,), self.b.values)


def network(forms: Sequence[Form], **options: bool) -> Graph:
    made = Network()
    for form in forms:
        made.attend(form, **options)
    return made.graph()


def step(graph: Graph, *, joined: bool = True, **options: object) -> TrainingGraph:
    _attention.LEAST_BYTES = 0 if joined else 1 << 60
    chosen = TrainingOptions(loss="mse", learning_rate=1e-3, **options)  # type: ignore[arg-type]
    return run_standard(build(graph, chosen))


def weights(made: TrainingGraph, batches: list[dict[str, Array]]) -> tuple[list[float], dict[str, bytes]]:
    """Losses and weights, but no masks, that the emitted C ends with."""
    losses, state = trained(made, batches)
    return losses, {n: value for n, value in state.items() if n.startswith("w")}


def test_every_form_has_the_bits_of_its_operators_apart() -> None:
    graph = network(FORMS)
    apart, joined = (step(graph, joined=j) for j in (False, True))
    found = kinds(joined)
    assert found["Attention"] == found["AttentionGrad"] == len(FORMS)
    assert not {"Softmax", "SoftmaxGrad", "Transpose", "Expand", "Where", "Tanh"} & set(found)
    batches = random_batches(apart, 2, seed=5, below=TOKENS)
    assert weights(joined, batches) == weights(apart, batches)


def test_a_frozen_trunk_joins_whatever_it_sees() -> None:
    graph = network([Form("all keys", None)])
    last = next(op for op in reversed(graph.operators) if op.kind == "MatMul").inputs[1]
    apart, joined = (step(graph, joined=j, train=last) for j in (False, True))
    assert kinds(joined)["Attention"] == 1
    assert not kinds(joined)["AttentionGrad"]
    batches = random_batches(apart, 2, seed=5)
    assert weights(joined, batches) == weights(apart, batches)


@pytest.mark.parametrize(
    ("form", "options"),
    [
        (Form("all keys, more to compute", None), {}),
        (Form("no band", np.random.default_rng(0).random((TOKENS, TOKENS)) < 0.5), {}),
        (Form("shares are read elsewhere"), {"shown": True}),
        (Form("a trained bias"), {"bias": True}),
        (Form("other shares where both hide all", CAUSAL, LEAST, padding="floats"), {}),
        (Form("no fill", CAUSAL, -3.0), {}),
    ],
    ids=str,
)
def test_what_does_not_fit_stays(form: Form, options: dict[str, bool]) -> None:
    found = kinds(step(network([form], **options)))
    assert not found["Attention"]
    assert found["Softmax"] == 1


@pytest.mark.parametrize("second", [-np.inf, LEAST])
def test_two_bands_that_together_hide_all_keys_of_a_query_stay(second: float) -> None:
    """Numbers that are low, not infinite, give such a query shares of keys that one of them hides."""
    ahead, b = np.arange(40) - np.arange(20)[:, None], Builder()
    q, k, v = (b.add_tensor(n, TensorType((1, rows, 8)), Role.INPUT) for n, rows in (("q", 20), ("k", 40), ("v", 40)))
    scores = b.emit1("MatMul", [q, k], {"trans_b": True})
    for n, (seen, hidden) in enumerate(((ahead <= 0, LEAST), (ahead >= 10, second))):
        mask = np.where(seen, np.float32(0), np.float32(hidden))
        scores = b.emit1("Add", [scores, b.add_tensor(f"mask{n}", TensorType(mask.shape), Role.CONSTANT, mask)])
    y = b.emit1("MatMul", [b.emit1("Softmax", [scores], {"axis": -1}), v])
    graph = Graph("attention", b.tensors, tuple(b.operators), (q, k, v), (y,), b.values)
    assert _attention.join_attention(graph) is graph


def test_dropout_of_shares_keeps_them() -> None:
    graph = network([FORMS[0]], dropout=True)
    assert kinds(step(graph))["Attention"] == 1
    dropped = kinds(step(graph, dropout=True))
    assert (dropped["Attention"], dropped["Dropout"]) == (0, 1)


def test_without_fusion_and_below_the_least_size(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = network([FORMS[0]])
    assert not kinds(step(graph, fusion=False))["Attention"]
    monkeypatch.setattr(_attention, "LEAST_BYTES", 2 * 2 * 4 * TOKENS**2 + 1)
    assert not kinds(run_standard(build(graph, TrainingOptions(loss="mse"))))["Attention"]


@pytest.mark.parametrize("form", [FORMS[0], FORMS[3]], ids=str)
def test_any_number_of_queries_at_a_time_has_the_same_bits(form: Form) -> None:
    made = step(network([form]))
    for op in made.operators:
        if not op.kind.startswith("Attention"):
            continue
        kernels = spec(op.kind).kernels(bind(op, made.tensors))
        sizes = [k.workspace_bytes for k in kernels]
        assert sizes == sorted(set(sizes), reverse=True)
        draw = np.random.default_rng(1)
        inputs = [draw.standard_normal(made.tensors[t].shape).astype(np.float32) for t in op.inputs]
        found = {
            tuple(y.tobytes() for y in run_kernel(op.kind, op.attributes, inputs, lib=lib, kernel=k))
            for lib in (library(), scalar_library(), wide_library())
            for k in kernels
        }
        assert len(found) == 1
