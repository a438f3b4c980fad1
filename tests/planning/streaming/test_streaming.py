"""Streamed operands, from the choice to the C: a network whose largest weight is several times the budget."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import poetc
from poetc.commands.requests import ModelRequest, SolveRequest, streams_of, training_graph
from poetc.commands.solve import solve
from poetc.devices import build_problem, load_profile
from poetc.devices.streaming import StreamedAlternatives
from poetc.errors import InfeasibleError, LimitError
from poetc.planning import MicroBatches, plain, streamed_operators
from poetc.planning import streaming as planning_streaming
from poetc.planning.chain import reductions
from poetc.planning.kernels import with_least_workspace
from poetc.planning.planner import Planner
from poetc.planning.solution import cost_of_computing_once
from poetc.planning.state import everything_on_store
from poetc.planning.streamed_operators import within
from poetc.planning.streaming import Streaming
from poetc.scheduling import (
    Compute,
    MemoryPlan,
    OperatorSpec,
    Problem,
    Schedule,
    ScheduleError,
    Status,
    problem_from_json,
    problem_to_json,
    stored_state,
    trace_of,
    validate_problem,
    verify,
)
from poetc.scheduling.schedule import SolveOptions
from poetc.scheduling.scope import ANY
from poetc.solvers import lower_bound_bytes
from poetc.training import TrainingOptions
from tests.support.streamed import dense

DEVICE, BUDGET = "nrf52840", 48_000
DEMO = Path(__file__).parents[3] / "demo"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two convolutions and two dense layers at batch 1; weights of 147, 131 and 2 kB."""
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((0.1 * random.standard_normal(shape)).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("Flatten", ["r2"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["d"], transB=1),
        helper.make_node("Relu", ["d"], ["r3"]),
        helper.make_node("MatMul", ["r3", "w4"], ["y"]),
    ]
    weights = [
        *(weight("w1", 32, 2, 3, 3), weight("b1", 32), weight("w2", 128, 32, 3, 3), weight("b2", 128)),
        *(weight("w3", 64, 512), weight("b3", 64), weight("w4", 64, 7)),
    ]
    graph = helper.make_graph(
        nodes,
        "streamed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 7])],
        weights,
    )
    path = tmp_path_factory.mktemp("model") / "streamed.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def planned(model: Path, optimizer: str = "sgd", budget: int = BUDGET) -> tuple[Problem, Planner, Streaming]:
    _, step = training_graph(ModelRequest(source=model, device=DEVICE, training=TrainingOptions(optimizer=optimizer)))
    profile = load_profile(DEVICE)
    chain = reductions("auto", streams=streams_of(step, profile=profile))
    streaming = next(r for r in chain if isinstance(r, Streaming))
    planner = Planner(options=SolveOptions(time_limit_s=10, gap=0.05), reductions=chain)
    return build_problem(step, profile, budget_bytes=budget), planner, streaming


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_weights_larger_than_the_budget_are_trained(model: Path, optimizer: str) -> None:
    """The same bits as keep-all, the measured peak to the byte, and predictions within the budget too."""
    loaded = poetc.load(model, training=TrainingOptions(optimizer=optimizer))
    solution = loaded.solve(device=DEVICE, budget=BUDGET, gap=0.05, time_limit_s=15)
    problem = solution.problem
    streamed = [op for op in problem.operators if op.cut]
    assert {"Conv", "ConvGradInput", "MatMul"} <= {op.kind for op in streamed}
    assert any(op.replaces for op in streamed), "an update is streamed"
    sizes = {t.name: t.size_bytes for t in problem.tensors if t.initial == "store"}
    assert max(sizes.values()) > 2 * BUDGET and solution.summary["peak_bytes"] <= BUDGET
    assert problem_from_json(problem_to_json(problem)) == problem
    found = solution.validate()  # raises CheckFailed
    assert found["bit_identical_to_keep_all"] and found["peak_measured_bytes"] == found["peak_predicted_bytes"]
    assert any("predictions are scheduled too" in note for note in solution.summary["notes"])


@pytest.mark.parametrize(
    "options",
    [{"micro_batches": 4}, {"micro_batches": 2, "optimizer": "adam"}, {"accumulate": 3, "optimizer": "momentum"}],
)
@pytest.mark.long_but("options2")
def test_sums_of_gradients_larger_than_the_budget(tmp_path: Path, options: dict[str, Any]) -> None:
    """Over parts of a batch, or over several steps: versions of a sum on the store, the bits of keep-all."""
    loaded = poetc.load(dense(tmp_path / "dense.onnx"), batch=4, training=TrainingOptions(**options))
    solution = loaded.solve(device=DEVICE, budget=30_000, gap=0.05, time_limit_s=8)
    streamed = {op.kind for op in solution.problem.operators if op.writes_store}
    assert streamed & {"MatMulSum", "Accumulate"}, streamed
    assert max(t.store_bytes or 0 for t in solution.problem.tensors if not t.size_bytes) > 4 * 30_000
    found = solution.validate(steps=4)  # raises CheckFailed
    assert found["bit_identical_to_keep_all"] and found["peak_measured_bytes"] == found["peak_predicted_bytes"]


def test_nothing_streams_where_nothing_needs_to(model: Path) -> None:
    """The same schedule as without the choice, and a bound that says what it leaves out."""
    problem, planner, _ = planned(model, budget=250_000)
    found = planner.solve(problem)
    assert not any(op.cut for op in found.problem.operators) and found.choices["streaming"] == ()
    plain = replace(planner, reductions=reductions("auto")).solve(problem)
    assert (found.schedule.actions, found.problem, found.plan) == (plain.schedule.actions, plain.problem, plain.plan)
    assert found.proof.scope.choice("streaming") in ((), ANY) and found.proof.bound == plain.proof.bound


def test_floors(model: Path) -> None:
    problem, planner, streaming = planned(model)
    resident = replace(planner, reductions=reductions("auto")).lower_bound_bytes(problem)
    fixed, least = streaming.floor(problem), planner.lower_bound_bytes(problem)
    assert resident > 150_000 and least < 35_000 and least == planner.lower_bound_bytes(fixed)
    assert planner.lower_bound_bytes(replace(problem, budget_bytes=resident)) == resident
    validate_problem(fixed)
    with pytest.raises(
        (InfeasibleError, LimitError), match=f"without streaming no schedule needs less than {resident}"
    ) as failed:
        planner.solve(replace(problem, budget_bytes=15_000))
    assert f"(no schedule with these streamed operands needs less than {least})" in str(failed.value)  # others may


def test_with_the_least_ram_blocks_are_as_large_as_fits(model: Path) -> None:
    """All that the floor streams, in the cheapest blocks that keep within the same RAM, each of them a choice."""
    problem, planner, streaming = planned(model)
    least = planner.lower_bound_bytes(problem)
    tight = replace(problem, budget_bytes=least)
    floor = streaming.floor(tight)
    proposed = [streaming.fix(tight, choice) for choice in streaming.propose(tight, None)]
    (wide,) = (
        p for p in proposed if p != floor and [op.inputs for op in p.operators] == [op.inputs for op in floor.operators]
    )
    assert planner.inner.lower_bound_bytes(wide) <= least
    assert cost_of_computing_once(wide) < 0.8 * cost_of_computing_once(floor)
    larger = [(a, b) for a, b in zip(floor.operators, wide.operators, strict=True) if a != b]
    assert larger and all(b.is_streamed and b.energy_pj < a.energy_pj for a, b in larger)


def test_windows_that_take_more_than_they_save_set_no_floor(tmp_path: Path) -> None:
    """The error of a budget that is too small names what works without them."""
    random = np.random.default_rng(0)
    shapes = {"w1": (16, 4), "b1": (16,), "w2": (3, 16), "b2": (3,)}
    held = [numpy_helper.from_array(random.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["a"], transB=1),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Gemm", ["b", "w2", "b2"], ["y"], transB=1),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [8, 4]), ("y", [8, 3]))]
    graph = helper.make_graph(nodes, "small", ends[:1], ends[1:], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "small.onnx")
    problem, planner, streaming = planned(tmp_path / "small.onnx", budget=1 << 20)
    resident = planner.lower_bound_bytes(problem)
    assert planner.lower_bound_bytes(streaming.floor(problem)) == resident
    with pytest.raises((InfeasibleError, LimitError)) as failed:
        planner.solve(replace(problem, budget_bytes=resident - 500))
    assert f"with these options, needs less than {resident})" in str(failed.value)
    assert "streamed" not in str(failed.value)


def test_a_choice_is_found_again_in_its_problem(model: Path) -> None:
    problem, _, streaming = planned(model, "momentum")
    choices = [c for c in streaming.propose(problem, None) if c]
    assert len(choices) > 1
    for choice in choices:
        fixed = streaming.fix(problem, choice)
        assert streaming.chosen(problem, fixed) == choice
        for op, whole in zip(fixed.operators, problem.operators, strict=True):
            assert op.time_ns >= whole.time_ns and op.energy_pj >= whole.energy_pj, "the bound of computing once holds"
    with pytest.raises(ScheduleError, match="has no alternative 999"):
        streaming.fix(problem, (choices[0][0], 999, *choices[0][2:]))


def test_the_checker_wants_what_is_read_on_the_store(model: Path) -> None:
    problem, planner, _ = planned(model, "momentum")
    found = planner.solve(problem)
    trace = verify(found.problem, found.schedule)
    written = found.problem.written_by_operators
    footprints = sum(found.problem.tensors[t].footprint_bytes for t in written)
    assert trace.written_bytes >= footprints > 100_000
    reader, made = next((k, t) for k, op in enumerate(found.problem.operators) for t in op.reads_store if t in written)
    maker = next(k for k, op in enumerate(found.problem.operators) if made in op.writes_store)
    name = found.problem.operators[reader].name
    actions = tuple(s for s in found.schedule.actions if not (isinstance(s, Compute) and s.operator == maker))
    with pytest.raises(
        ScheduleError, match=f"{name!r} reads {found.problem.tensors[made].name!r}".replace("(", ".").replace(")", ".")
    ):
        trace_of(found.problem, replace(found.schedule, actions=actions))
    small = replace(found.problem, store_capacity_bytes=footprints)
    with pytest.raises(ScheduleError, match="the store would hold"):
        trace_of(small, found.schedule)
    assert {found.problem.tensors[chain[-1]].name for chain in stored_state(found.problem)} >= {
        found.problem.tensors[t].name for t in written if found.problem.tensors[t].final == "store"
    }


def test_versions_of_a_sum_are_on_the_store_together(tmp_path: Path) -> None:
    """The gradient of a weight that three products use: all of the chain of sums is on the store alone, or none."""
    values = np.random.default_rng(0).standard_normal((96, 96)).astype(np.float32)
    weight = numpy_helper.from_array(values, "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["b"]),
        helper.make_node("Relu", ["b"], ["s"]),
        helper.make_node("MatMul", ["s", "w"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 96]) for name in "xy"]
    graph = helper.make_graph(nodes, "tied", ends[:1], ends[1:], [weight])
    path = tmp_path / "tied.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    problem, planner, streaming = planned(path, "adam")
    chain = {i for op in problem.operators for p in op.in_place if p.required for i in (p.input, p.output)}
    sums = {t for t in chain if not (problem.tensors[t].initial or problem.tensors[t].final)}
    assert len(sums) > 2, "the gradient is summed in place"
    fixed = streaming.floor(problem)
    assert sums <= {t for op in fixed.operators for t in op.writes_store}
    assert (planner.search_ram(fixed, 0.3).result.ram_bytes or 0) < 96 * 96 * 4
    for share in (0.5, 0.8):
        for choice in streaming.propose(replace(problem, budget_bytes=int(share * 96 * 96 * 4 * 5)), None):
            written = {t for op in streaming.fix(problem, choice).operators for t in op.writes_store}
            assert sums <= written or not sums & written


def test_streamed_state_is_found_after_a_load(model: Path) -> None:
    """Its version is then no longer the number of steps: a step before it is taken back, and one more comes."""
    solution = poetc.load(model, training=TrainingOptions(optimizer="momentum")).solve(
        device=DEVICE, budget=BUDGET, gap=0.9, time_limit_s=3
    )
    assert any(op.replaces for op in solution.problem.operators), "an update is streamed"
    batch = np.ones((1, 2, 4, 4), np.float32), np.array([3], np.int32)
    with solution.trainer() as session:
        losses = [session.step(*batch)]
        state = session.state_dict()
        losses += [session.step(*batch) for _ in range(2)]
        session.load_state_dict(state)
        assert [session.step(*batch) for _ in range(2)] == losses[1:]


def test_state_whose_transfer_takes_too_long_is_streamed_by_all_or_in_ram(model: Path) -> None:
    """An operator without blocks of 1 ms would wait for all of `w2`, 32 ms. Those of 3 ms are smaller than usual."""
    request = SolveRequest(
        model=ModelRequest(source=model, device=DEVICE),
        budget="200kB",
        longest_piece="15ms",
        options=SolveOptions(time_limit_s=1, gap=0.9),
    )
    found = solve(request)
    assert any(op.reads_store for op in found.problem.operators)
    assert found.summary["longest_piece"]["time_ns"] <= 15e6
    assert solve(replace(request, longest_piece="3ms")).summary["longest_piece"]["time_ns"] <= 3e6
    with pytest.raises((InfeasibleError, LimitError), match=r"200000 bytes|--longest-piece 1"):
        solve(replace(request, longest_piece="1ms"))


def deep_model(path: Path, layers: int) -> Path:
    """Equal layers, whose names alone differ."""
    values = np.random.default_rng(0).standard_normal((layers, 64, 64)).astype(np.float32)
    weights = [numpy_helper.from_array(0.1 * v, f"w{n}") for n, v in enumerate(values)]
    nodes = []
    for n in range(layers):
        nodes.append(helper.make_node("MatMul", [f"x{n}", f"w{n}"], [f"h{n}"]))
        nodes.append(helper.make_node("Relu", [f"h{n}"], [f"x{n + 1}"]))
    ends = [helper.make_tensor_value_info(f"x{n}", TensorProto.FLOAT, [2, 64]) for n in (0, layers)]
    graph = helper.make_graph(nodes, "deep", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def test_equal_layers_are_decided_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More layers are no more work, and the choice is that of each operator for itself."""
    asked: list[int] = []
    best = streamed_operators._best

    def counted(offer: StreamedAlternatives, k: int, *others: object) -> OperatorSpec | None:
        asked.append(k)
        return best(offer, k, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(streamed_operators, "_best", counted)
    counts = []
    for layers in (5, 9):
        problem, _, streaming = planned(deep_model(tmp_path / f"{layers}.onnx", layers))
        offer = streaming._offer(problem)
        assert offer is not None
        asked.clear()
        for limit in (0, 12_000):
            made = within(offer, limit)
            counts.append(len(asked))
            monkeypatch.setattr(StreamedAlternatives, "alike", lambda self, k: (k,))
            assert within(offer, limit) == made and len(asked) > 2 * counts[-1], "each for itself"
            monkeypatch.undo()
            monkeypatch.setattr(streamed_operators, "_best", counted)
            asked.clear()
    assert counts[:2] == counts[2:]


def test_a_floor_looks_at_a_concatenation_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its operands go to the store at once, not one after the other: DenseNet has many."""
    count = 6
    nodes = [helper.make_node("MatMul", ["x", f"w{k}"], [f"h{k}"]) for k in range(count)]
    nodes += [helper.make_node("ReduceSum", [f"h{k}", "axes"], [f"r{k}"], keepdims=0) for k in range(count)]
    nodes += [
        helper.make_node("Concat", [f"r{k}" for k in range(count)], ["c"], axis=1),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("ReduceMean", ["r"], ["y"], axes=[2], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "concatenated",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 16, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4 * count])],
        [numpy_helper.from_array(np.full((64, 64), k + 1, np.float32), f"w{k}") for k in range(count)]
        + [numpy_helper.from_array(np.array([2]), "axes")],
    )
    path = tmp_path / "concatenated.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    problem, _, streaming = planned(path)
    offer = streaming._offer(problem)
    assert offer is not None
    once, looks = streamed_operators._once, list[str]()
    monkeypatch.setattr(
        streamed_operators, "_once", lambda o, k, *how: looks.append(problem.operators[k].kind) or once(o, k, *how)
    )
    made = within(offer, 0)
    (concat,) = (op for op in made.values() if op.kind == "Concat")
    assert len(concat.reads_store) == count and concat.writes_store
    assert looks.count("Concat") <= 2


def test_alternatives_differ_in_their_workspace_alone(model: Path) -> None:
    """As far as RAM is concerned: so the least is found without making each of them."""
    problem, _, streaming = planned(model)
    offer = streaming._offer(problem)
    assert offer is not None
    compared = 0
    for k, op in enumerate(problem.operators):
        operands = dict.fromkeys((*op.inputs, *op.outputs))
        for streamed in (frozenset(some) for n in (1, 2, 3) for some in itertools.combinations(operands, n)):
            made, sizes = offer.alternatives(k, streamed), offer.workspaces(k, streamed)
            assert len(made) == len(sizes)
            besides = {
                streamed_operators.needs_bytes(problem, f, streamed) - size for f, size in zip(made, sizes, strict=True)
            }
            assert len(besides) <= 1
            compared += len(made) > 1
    assert compared > 20


def test_a_bound_is_one_for_the_other_way_of_using_cores(model: Path) -> None:
    """The main processor alone streams the same operands for more energy; side by side nothing can be streamed."""
    request = SolveRequest(
        model=ModelRequest(source=model, device="rpi4"), budget="150kB", options=SolveOptions(time_limit_s=6, gap=0.01)
    )
    found = solve(request)
    proof = found.schedule.proof
    assert any(op.is_streamed for op in found.problem.operators)
    assert any(note.startswith("cores: ") for note in found.summary["notes"]), "threads are a way"
    assert proof.gap() < 0.01


def test_a_deadline_is_compared_with_the_cheapest_streams(model: Path) -> None:
    """Not with those of the smallest blocks, which take many times as long."""
    request = SolveRequest(
        model=ModelRequest(source=model, device="rpi4"),
        budget="150kB",
        processors="main",
        options=SolveOptions(time_limit_s=6, gap=0.05),
    )
    taken_ns = solve(request).summary["time_ns"]
    with pytest.raises((InfeasibleError, LimitError), match=r"every operator once, .* takes") as refused:
        solve(replace(request, deadline="1ms"))
    needed = re.search(r"windows, takes ([\d.]+) ms", str(refused.value))
    assert needed is not None, refused.value
    assert float(needed[1]) * 1e6 <= 1.001 * taken_ns  # four digits, rounded up


def test_the_cheapest_streams_get_the_rest_of_the_work(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the work that the limit allows is done, where the gap stays open."""
    problem, planner, _ = planned(model)
    planner = planner.part(30.0, work_limit_s=1.0, gap=0.0)
    spent: list[tuple[Problem, float]] = []
    solve = plain.solve_and_pack

    def counted(asked: Problem, means: Planner) -> tuple[Schedule, MemoryPlan]:
        spent.append((asked, means.options.work_limit_s))
        schedule, plan = solve(asked, means)
        proof = replace(schedule.proof, status=Status.FEASIBLE, bound=schedule.proof.bound // 2)
        return replace(schedule, proof=proof), plan

    monkeypatch.setattr(plain, "solve_and_pack", counted)
    solution = planner.solve(problem)
    assert sum(op.is_streamed for op in solution.problem.operators)
    asked, most = max(spent, key=lambda pair: pair[1])
    assert most == pytest.approx(0.6) and asked.operators == solution.problem.operators
    assert spent[0][1] <= 0.2, "the first of several"


def test_a_quick_solve_takes_the_streams_of_the_cheapest_first_schedule(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is solved once, where others would be solved as well, and for as little."""
    problem, planner, _ = planned(model)
    asked, solve = list[Problem](), plain.solve_and_pack

    def noted(problem: Problem, means: Planner) -> tuple[Schedule, MemoryPlan]:
        asked.append(problem)
        schedule, plan = solve(problem, means)
        proof = replace(schedule.proof, status=Status.FEASIBLE, bound=schedule.proof.bound // 2)
        return replace(schedule, proof=proof), plan

    monkeypatch.setattr(plain, "solve_and_pack", noted)
    found = {}
    for is_quick in (True, False):
        asked.clear()
        found[is_quick] = planner.part(30.0, work_limit_s=1.0, gap=0.0, is_quick=is_quick).solve(problem)
        assert (len(asked) == 1) is is_quick
    assert found[False].cost <= found[True].cost < 1.1 * found[False].cost


def test_a_budget_is_called_too_small_for_an_operator_that_no_streams_help(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every set of its operands is looked at. Without that proof the floor says what was found, and no more."""
    problem, planner, streaming = planned(model)
    floor = streaming.floor(problem)
    least = planner.lower_bound_bytes(floor)
    assert not streaming.proves_too_small(replace(problem, budget_bytes=least))
    tight = replace(problem, budget_bytes=least - problem.page_buffer_bytes - 16)  # nothing need be paged as a whole
    assert streaming.proves_too_small(tight)
    for choice in streaming.propose(problem, None):
        streamed = streaming.fix(problem, choice)
        assert planner.lower_bound_bytes(streamed) > tight.budget_bytes, "nor does any proposal fit"
    with pytest.raises(InfeasibleError, match=f"no schedule fits in {tight.budget_bytes} bytes"):
        planner.solve(tight)
    monkeypatch.setattr(planning_streaming, "STREAMING", replace(planning_streaming.STREAMING, proofs=0))
    with pytest.raises(LimitError, match=f"no schedule was found for {tight.budget_bytes} bytes"):
        planner.solve(tight)


def test_an_output_in_the_place_of_an_input_takes_no_room(tmp_path: Path) -> None:
    """The gradient of 1,000 logits is made in their place: a budget for one of both is not called too small."""
    weight = (0.1 * np.random.default_rng(0).standard_normal((4, 1000))).astype(np.float32)
    ends = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, c]) for n, c in (("x", 4), ("y", 1000)))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "wide", *([e] for e in ends), [numpy_helper.from_array(weight, "w")])
    path = tmp_path / "wide.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    problem, planner, streaming = planned(path, budget=56_000)
    logits = next(t.size_bytes for t in problem.tensors if t.name == "y")
    assert 2 * logits > problem.budget_bytes and planner.solve(problem).plan.arena_bytes < 2 * logits
    assert not streaming.proves_too_small(problem)


def test_a_number_of_parts_without_that_proof_may_still_be_cheaper(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bound is one of the answer's."""
    problem, planner, streaming = planned(model)
    least = planner.lower_bound_bytes(streaming.floor(problem))
    roomy = replace(problem, budget_bytes=10 * least, name="roomy")

    def tried() -> dict[int, tuple[str, int]]:
        numbers = MicroBatches({1: replace(problem, budget_bytes=least - 1000), 2: roomy})
        chain = (numbers, *planner.reductions)
        solution = replace(planner, reductions=chain).part(5.0, gap=0.5).solve(roomy)
        assert solution.proof.bound <= min(t.least for t in solution.results if t.outcome != "does not fit")
        return {t.count: (t.outcome, t.least) for t in solution.results}

    assert tried()[1][0] == "does not fit"
    monkeypatch.setattr(planning_streaming, "STREAMING", replace(planning_streaming.STREAMING, proofs=0))
    assert tried()[1][0] == "nothing found"


def test_no_operator_of_a_transformer_has_to_have_all_of_its_operands_in_ram(tmp_path: Path) -> None:
    """Products of heads, softmax, norms and their gradients run in blocks: a whole activation takes more."""
    path = tmp_path / "transformer.onnx"
    subprocess.run([sys.executable, DEMO / "make_transformer.py", path], check=True)
    step = training_graph(ModelRequest(source=path, batch=16, device=DEVICE))[1]
    problem = build_problem(step, load_profile(DEVICE), budget_bytes=0)
    streaming = Streaming(streams_of(step, profile=load_profile(DEVICE)))
    floor = lower_bound_bytes(with_least_workspace(everything_on_store(streaming.floor(problem))))
    assert floor < max(t.size_bytes for t in problem.tensors if not t.initial)
