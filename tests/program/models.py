"""Small training graphs and problems, made by hand, for tests of everything from lowering to C."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from poetc.devices import load_profile
from poetc.devices.streaming import StreamedAlternatives, streamed_problem
from poetc.graph import DType, Graph, Role, TensorType, TrainingGraph
from poetc.ops import INDICES, Builder, bind, spec, view_roots
from poetc.passes import run_standard
from poetc.program import Program, lower
from poetc.runtime.layout import page_bytes
from poetc.scheduling import (
    Compute,
    Decision,
    InPlace,
    OperatorSpec,
    Paging,
    Problem,
    Schedule,
    Status,
    TensorSpec,
    complete,
    keep_all,
    pack,
    verify,
    verify_plan,
)
from poetc.scheduling import PageIn as PageInAction
from poetc.scheduling import PageOut as PageOutAction
from poetc.training import TrainingOptions, build
from tests.support.moves import wander


def mlp(hidden: int = 20, seed: int = 0) -> Graph:
    """x [4, 2, 3] → view → dense → relu → dense → logits [4, 3]."""
    random = np.random.default_rng(seed)
    b = Builder()

    def parameter(name: str, *shape: int) -> str:
        value = random.standard_normal(shape).astype(np.float32)
        return b.add_tensor(name, TensorType(shape), Role.PARAMETER, value)

    x = b.add_tensor("x", TensorType((4, 2, 3)), Role.INPUT)
    h = b.emit1("Reshape", [x], {"shape": (4, 6)}, hint="flat")
    matmul = {"trans_a": False, "trans_b": True, "alpha": 1.0}
    h = b.emit1("MatMul", [h, parameter("fc1.weight", hidden, 6)], matmul, hint="h")
    h = b.emit1("Relu", [h], hint="a")
    y = b.emit1("MatMul", [h, parameter("fc2.weight", 3, hidden)], matmul, hint="logits")
    return Graph("mlp", b.tensors, tuple(b.operators), ("x",), (y,), b.values)


def words(rows: int = 600, width: int = 24, seed: int = 0) -> Graph:
    """tokens [2, 20] → rows of a table → mean → logits [2, 3]. Rows lie across blocks of the store, and pieces."""
    random = np.random.default_rng(seed)
    b = Builder()

    def parameter(name: str, *shape: int) -> str:
        value = random.standard_normal(shape).astype(np.float32)
        return b.add_tensor(name, TensorType(shape), Role.PARAMETER, value)

    tokens = b.add_tensor("tokens", TensorType((2, 20), DType.I32), Role.INPUT)
    e = b.emit1("Gather", [parameter("table", rows, width), tokens], {"axis": 0}, hint="e")
    m = b.emit1("ReduceMean", [e], {"axes": (1,), "keepdims": False}, hint="m")
    y = b.emit1("MatMul", [m, parameter("fc.weight", width, 3)], {"trans_a": False, "trans_b": False, "alpha": 1.0})
    return Graph("words", b.tensors, tuple(b.operators), ("tokens",), (y,), b.values)


def make_problem(graph: Graph, *, on_store: Sequence[str] = (), block_bytes: int = 64) -> Problem:
    """All in RAM, costs of 1, paging allowed; `on_store`: state, of any version, that lives on the store."""
    roots = view_roots(graph)
    operators = [op for op in graph.operators if not spec(op.kind).is_view]
    used = {roots[t] for op in operators for t in (*op.inputs, *op.outputs)}
    names = [n for n in graph.tensors if n in used]
    index = {n: i for i, n in enumerate(names)}
    training = isinstance(graph, TrainingGraph)
    results = {graph.loss} if isinstance(graph, TrainingGraph) else set(graph.outputs)
    replaced = {op.inputs[i] for op in operators for i, _ in spec(op.kind).must_alias}
    made = {t for op in operators for t in op.outputs}

    def tensor(name: str) -> TensorSpec:
        role = graph.tensors[name].role
        home = "store" if name.partition("@")[0] in on_store else "ram"
        keeps = role.is_state or role is Role.CONSTANT or (not training and role is Role.PARAMETER)
        final = home if (keeps and name not in replaced) or name in results else ""
        size = -(-graph.tensors[name].size_bytes // 16) * 16
        return TensorSpec(
            name=name,
            size_bytes=size,
            initial="" if name in made else home,
            final=final,
            store_bytes=page_bytes(size, block_bytes),
            move_ns=1,
            move_pj=1,
        )

    def operator(op):  # type: ignore[no-untyped-def]
        kind, bound = spec(op.kind), bind(op, graph.tensors)
        pairs = [
            InPlace(input=index[op.inputs[i]], output=index[op.outputs[o]], required=True) for i, o in kind.must_alias
        ]
        for i, o in () if pairs else kind.may_alias(bound):
            if graph.tensors[roots[op.inputs[i]]].role in (Role.ACTIVATION, Role.GRADIENT):
                pairs.append(InPlace(input=index[roots[op.inputs[i]]], output=index[op.outputs[o]]))
        return OperatorSpec(
            name=op.name,
            kind=op.kind,
            phase=op.phase.value,
            inputs=tuple(dict.fromkeys(index[roots[t]] for t in op.inputs)),
            outputs=tuple(index[t] for t in op.outputs),
            time_ns=1,
            energy_pj=1,
            workspace_bytes=-(-kind.kernel(bound).workspace_bytes // 16) * 16,
            recomputable=kind.recomputable,
            in_place=tuple(pairs),
        )

    return Problem(
        name=graph.name,
        operators=tuple(operator(op) for op in operators),
        tensors=tuple(tensor(n) for n in names),
        budget_bytes=1 << 30,
        paging=Paging.SYNC,
        page_buffer_bytes=block_bytes,
    )


@dataclass(frozen=True, slots=True)
class Case:
    graph: TrainingGraph
    problem: Problem

    def tensor(self, name: str) -> int:
        return next(i for i, t in enumerate(self.problem.tensors) if t.name == name)

    def schedule(self, decisions: Sequence[Decision] | None = None) -> Schedule:
        kept = keep_all(self.problem)
        if decisions is None:
            return kept
        cost = sum(isinstance(a, Compute) for a in decisions)
        proof = replace(kept.proof, objective=cost, bound=0, status=Status.FEASIBLE)
        return replace(kept, solver="test", actions=complete(self.problem, decisions), proof=proof)

    def program(self, decisions: Sequence[Decision] | None = None) -> Program:
        schedule = self.schedule(decisions)
        verify(self.problem, schedule)
        return lower(self.graph, self.problem, schedule, pack(self.problem, schedule))

    def wandering(self, seed: int, decisions: Sequence[Decision] | None = None) -> Program:
        """A program whose tensors are moved about."""
        schedule, plan = wander(Random(seed), self.problem, self.schedule(decisions), share=0.9)
        verify(self.problem, schedule)
        verify_plan(self.problem, schedule, plan)
        return lower(self.graph, self.problem, schedule, plan)


def training_case(
    graph: Graph | None = None, optimizer: str = "momentum", *, on_store: Sequence[str] = (), block_bytes: int = 64
) -> Case:
    graph = build(graph or mlp(), TrainingOptions(optimizer=optimizer, learning_rate=0.05))
    return Case(graph, make_problem(graph, on_store=on_store, block_bytes=block_bytes))


def rows_case(graph: Graph | None = None) -> Case:
    """Plain gradient descent of a table on the store, whose rows are read and moved alone, several in a block."""
    step = run_standard(build(graph or words(), TrainingOptions(optimizer="sgd", learning_rate=0.05)))
    problem = make_problem(step, block_bytes=512)
    offer = StreamedAlternatives(step, load_profile("nrf52840"), problem)
    made = {}
    for k in range(len(problem.operators)):
        tables = offer.tables_of(k)
        forms = [n for n, form in enumerate(offer.forms(k, tables)) if form.cut == INDICES] if tables else []
        if forms:
            made[k] = offer.priced(k, tables, min(forms, key=lambda n: offer.forms(k, tables)[n].block))
    assert [op.kind for op in made.values()] == ["Gather", "GatherGradSgd"]
    return Case(step, streamed_problem(problem, made))


def computes(case: Case) -> list[Compute]:
    return [Compute(i) for i in range(len(case.problem.operators))]


def paged_decisions(case: Case, tensor: str) -> list[Decision]:
    """Keep-all, but `tensor` goes to the store when it is made and comes back before each later reader."""
    index = case.tensor(tensor)
    decisions: list[Decision] = []
    made = False
    for i, op in enumerate(case.problem.operators):
        if index in op.inputs and made:
            decisions.append(PageInAction(index))
        decisions.append(Compute(i))
        if index in op.outputs:
            decisions.append(PageOutAction(index))
            made = True
    return decisions


def recomputed_decisions(case: Case, tensor: str) -> list[Decision]:
    """Keep-all, but `tensor` is made again before each reader other than the first."""
    index = case.tensor(tensor)
    maker = next(i for i, op in enumerate(case.problem.operators) if index in op.outputs)
    readers = 0
    decisions: list[Decision] = []
    for i, op in enumerate(case.problem.operators):
        if index in op.inputs:
            readers += 1
            if readers > 1:
                decisions.append(Compute(maker))
        decisions.append(Compute(i))
    return decisions


def state_paged_decisions(case: Case, names: Sequence[str]) -> list[Decision]:
    """State that lives on the store comes in before each reader; the new version goes out when it is made."""
    decisions: list[Decision] = []
    old = {case.tensor(n) for n in names}
    new = {case.tensor(case.graph.updates[n]) for n in names}
    for i, op in enumerate(case.problem.operators):
        decisions += [PageInAction(t) for t in op.inputs if t in old]
        decisions.append(Compute(i))
        decisions += [PageOutAction(t) for t in op.outputs if t in new]
    return decisions


def absent_state_decisions(case: Case, name: str) -> list[Decision]:
    """Keep-all, but state that lives in RAM goes to the store first thing and comes back for its update."""
    index = case.tensor(name)
    decisions: list[Decision] = [PageOutAction(index)]
    for i, op in enumerate(case.problem.operators):
        if index in op.inputs:
            decisions.append(PageInAction(index))
        decisions.append(Compute(i))
    return decisions


def absent_and_paged_decisions(case: Case, state: str, tensor: str) -> list[Decision]:
    """Keep-all, but state that lives in RAM goes to the store first thing, and `tensor` when it is made.

    Both come back for each reader.
    """
    old, paged = case.tensor(state), case.tensor(tensor)
    on_store = {old}
    decisions: list[Decision] = [PageOutAction(old)]
    for i, op in enumerate(case.problem.operators):
        decisions += [PageInAction(t) for t in (old, paged) if t in op.inputs and t in on_store]
        decisions.append(Compute(i))
        if paged in op.outputs:
            decisions.append(PageOutAction(paged))
            on_store.add(paged)
    return decisions


def absent_versions_decisions(case: Case, names: Sequence[str]) -> list[Decision]:
    """Keep-all, but state that lives in RAM is on the store until each reader, and from its update to the end."""
    old = [case.tensor(n) for n in names]
    new = [case.tensor(case.graph.updates[n]) for n in names]
    decisions: list[Decision] = [PageOutAction(t) for t in old]
    for i, op in enumerate(case.problem.operators):
        decisions += [PageInAction(t) for t in op.inputs if t in old]
        decisions.append(Compute(i))
        decisions += [PageOutAction(t) for t in op.outputs if t in new]
    return [*decisions, *(PageInAction(t) for t in new)]
