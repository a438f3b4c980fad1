"""Graph + profile → Problem, with operator kinds of the test's own so that every rule can be seen alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pytest

import poetc.ops._registry as ops_registry
from poetc.devices import DeviceProfile, build_problem, building, flash_needed_bytes, load_profile
from poetc.errors import UsageError
from poetc.graph import DType, Fill, Graph, Operator, Phase, Role, Tensor, TensorType, TrainingGraph
from poetc.ops import Bound, Kernel, OpSpec, Work, registry
from poetc.runtime.layout import align
from poetc.scheduling import Paging, TensorSpec, keep_all, verify


class Fake(OpSpec):
    macs = 0
    flops = 0
    workspace_bytes = 0
    aliases: tuple[tuple[int, int], ...] = ()

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        return (op.inputs[0],)

    def work(self, op: Bound) -> Work:
        return Work(macs=self.macs, flops=self.flops)

    def kernel(self, op: Bound) -> Kernel:
        return Kernel("fake", workspace_bytes=self.workspace_bytes)

    def may_alias(self, op: Bound) -> tuple[tuple[int, int], ...]:
        return self.aliases


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def kind(name: str, **fields: object) -> OpSpec:
        return type(name, (Fake,), {"kind": name, **fields})()  # type: ignore[no-any-return]

    real = dict(registry())
    fakes: Sequence[OpSpec] = (
        kind("TestDense", macs=1_000_000, workspace_bytes=20),
        kind("TestMap", flops=16, aliases=((0, 0),)),
        kind("TestSum", flops=16, aliases=((0, 0), (1, 0))),
        kind("TestUpdate", flops=16, recomputable=False, must_alias=((0, 0),), aliases=((1, 0),)),
    )
    monkeypatch.setattr(ops_registry, "_REGISTRY", real | {f.kind: f for f in fakes})
    yield


def graph(
    given: dict[str, Role],
    operators: Sequence[tuple[str, Sequence[str], Sequence[str], Phase]],
    shapes: dict[str, TensorType] | None = None,
    **training: object,
) -> Graph:
    """Tensors are f32 of 5 elements (20 bytes, 32 aligned) unless `shapes` says otherwise."""
    types = shapes or {}
    tensors = {n: Tensor(n, types.get(n, TensorType((5,))), r) for n, r in given.items()}
    made = []
    for i, (kind, inputs, outputs, phase) in enumerate(operators):
        attributes = {"shape": types[outputs[0]].shape} if kind == "Reshape" else {}
        made.append(Operator(f"{kind}{i}", kind, tuple(inputs), tuple(outputs), attributes, phase))
        for o in outputs:
            role = Role.GRADIENT if phase is Phase.BACKWARD else Role.ACTIVATION
            role = tensors[inputs[0]].role if phase is Phase.UPDATE else role
            tensors[o] = Tensor(o, types.get(o, TensorType((5,))), role)
    inputs = tuple(n for n, r in given.items() if r in (Role.INPUT, Role.TARGET))
    values = {n: Fill("zeros") for n, r in given.items() if r not in (Role.INPUT, Role.TARGET)}
    base = {"name": "g", "tensors": tensors, "operators": tuple(made), "inputs": inputs, "values": values}
    if training:
        return TrainingGraph(outputs=(training["loss"],), **base, **training)  # type: ignore[arg-type]
    return Graph(outputs=(operators[-1][2][0],), **base)  # type: ignore[arg-type]


def step() -> Graph:
    """x → dense(w) → map → loss; backward; w updated twice, a constant mask, a parameter that nothing updates."""
    f, b, u = Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE
    given = {
        "x": Role.INPUT, "w": Role.PARAMETER, "mask": Role.CONSTANT, "rate": Role.OPTIMIZER_STATE, "idle": Role.INPUT,
    }  # fmt: skip
    operators = [
        ("TestDense", ["x", "w"], ["h"], f),
        ("TestSum", ["h", "mask"], ["a"], f),
        ("TestMap", ["a"], ["loss"], Phase.LOSS),
        ("TestSum", ["a", "loss"], ["ga"], b),
        ("TestDense", ["ga", "x"], ["gw"], b),
        ("TestUpdate", ["w", "gw", "rate"], ["w@1"], u),
        ("TestUpdate", ["w@1", "gw", "rate"], ["w@2"], u),
    ]
    return graph(given, operators, loss="loss", target="", gradients={"w": "gw"}, updates={"w": "w@2"})


def board(name: str = "stm32f746") -> DeviceProfile:
    return load_profile(name)


def tensor(problem_tensors: Sequence[TensorSpec], name: str) -> TensorSpec:
    return next(t for t in problem_tensors if t.name == name)


def test_places_and_sizes() -> None:
    problem = build_problem(step(), board("rpi4"), budget_bytes=5)
    places = {t.name: (t.initial, t.final) for t in problem.tensors}
    assert places == {
        "x": ("ram", ""),
        "w": ("ram", ""),  # replaced by w@1
        "mask": ("ram", "ram"),  # rpi4 reads nothing in place from flash
        "rate": ("ram", "ram"),
        "h": ("", ""),
        "a": ("", ""),
        "loss": ("", "ram"),
        "ga": ("", ""),
        "gw": ("", ""),
        "w@1": ("", ""),
        "w@2": ("", "ram"),
    }  # and no "idle", which nothing reads
    assert {t.size_bytes for t in problem.tensors} == {32}
    assert [o.name for o in problem.operators] == [o.name for o in step().operators]
    assert [o.phase for o in problem.operators][2:5] == ["loss", "backward", "backward"]
    assert (problem.budget_bytes, problem.base_bytes, problem.device) == (5, 96 + 16384, "rpi4")


def test_constants_in_flash_have_no_tensor() -> None:
    problem = build_problem(step(), board(), budget_bytes=0)
    assert "mask" not in {t.name for t in problem.tensors}
    names = [t.name for t in problem.tensors]
    assert problem.operators[1].inputs == (names.index("h"),)
    assert flash_needed_bytes(step(), board()) == 3 * 20  # w, rate, mask
    assert flash_needed_bytes(step(), board("rpi4")) == 2 * 20


def test_weights_are_constants_where_nothing_is_trained() -> None:
    forward = graph({"x": Role.INPUT, "w": Role.PARAMETER}, [("TestDense", ["x", "w"], ["y"], Phase.FORWARD)])
    places = {t.name: (t.initial, t.final) for t in build_problem(forward, board(), budget_bytes=0).tensors}
    assert places == {"x": ("ram", ""), "y": ("", "ram")}
    assert "w" in {t.name for t in build_problem(forward, board("rpi4"), budget_bytes=0).tensors}


def test_version_chain_is_required_in_place_and_executed_once() -> None:
    problem = build_problem(step(), board(), budget_bytes=0)
    names = [t.name for t in problem.tensors]
    for operator, old, new in ((5, "w", "w@1"), (6, "w@1", "w@2")):
        (pair,) = problem.operators[operator].in_place
        assert (names[pair.input], names[pair.output], pair.required) == (old, new, True)
        assert not problem.operators[operator].recomputable
    assert problem.operators[0].recomputable


def test_the_problem_can_be_executed() -> None:
    problem = build_problem(step(), board(), budget_bytes=10**6)
    trace = verify(problem, keep_all(problem))
    assert trace.recomputes == 0
    assert trace.energy_pj == problem.compute_once_pj


def in_place_names(g: Graph, operator: int, device: str = "rpi4") -> list[tuple[str, str]]:
    problem = build_problem(g, board(device), budget_bytes=0)
    return [
        (problem.tensors[p.input].name, problem.tensors[p.output].name) for p in problem.operators[operator].in_place
    ]


def test_optional_in_place_pairs() -> None:
    f = Phase.FORWARD
    given = {"x": Role.INPUT, "w": Role.PARAMETER, "c": Role.CONSTANT}
    assert in_place_names(graph(given, [("TestMap", ["x"], ["y"], f)]), 0) == [("x", "y")]
    assert in_place_names(graph(given, [("TestMap", ["c"], ["y"], f)]), 0) == []  # a constant must survive
    assert in_place_names(graph(given, [("TestMap", ["c"], ["y"], f)]), 0, "stm32f746") == []
    assert in_place_names(graph(given, [("TestMap", ["w"], ["y"], f)]), 0) == []  # so must state
    assert in_place_names(graph(given, [("TestSum", ["x", "x"], ["y"], f)]), 0) == []  # read through both operands
    assert in_place_names(graph(given, [("TestSum", ["x", "w"], ["y"], f)]), 0) == [("x", "y")]
    smaller = {"y": TensorType((40,), DType.U8)}
    assert in_place_names(graph(given, [("TestMap", ["x"], ["y"], f)], smaller), 0) == []


def test_views_share_their_roots_storage() -> None:
    f = Phase.FORWARD
    shapes = {"x": TensorType((2, 6)), "v": TensorType((12,)), "y": TensorType((12,))}
    operators = [("Reshape", ["x"], ["v"], f), ("TestMap", ["v"], ["y"], f)]
    problem = build_problem(graph({"x": Role.INPUT}, operators, shapes), board(), budget_bytes=0)
    assert [o.name for o in problem.operators] == ["TestMap1"]
    assert [t.name for t in problem.tensors] == ["x", "y"]
    assert problem.operators[0].inputs == (0,)
    assert in_place_names(graph({"x": Role.INPUT}, operators, shapes), 0) == [("x", "y")]
    through_view = [("Reshape", ["x"], ["v"], f), ("TestSum", ["v", "x"], ["y"], f)]
    assert in_place_names(graph({"x": Role.INPUT}, through_view, shapes), 0) == []


def test_costs_follow_the_roofline() -> None:
    profile = board()
    problem = build_problem(step(), profile, budget_bytes=0)
    dense = problem.operators[0]
    overhead = profile.compute.operator_overhead_ns.value
    assert dense.time_ns == round(overhead + 1e6 * 1e9 / profile.compute.contraction_mac_per_s.value)
    assert dense.energy_pj == round(dense.time_ns * profile.power.active_w.value * 1000)
    assert dense.workspace_bytes == 32  # 20, aligned
    copied = 2 * 20 * 1e9 / profile.compute.memory_bytes_per_s.value
    arithmetic = 16 * 1e9 / profile.compute.elementwise_flop_per_s.value
    assert problem.operators[2].time_ns == round(overhead + max(copied, arithmetic))


def test_page_costs_are_whole_blocks_with_the_trailer() -> None:
    profile = board()
    store = profile.stores["sd"]
    shapes = {"x": TensorType((124,)), "y": TensorType((125,))}  # 496 + 16 = one block; 512 (aligned) + 16: two
    g = graph({"x": Role.INPUT}, [("TestMap", ["x"], ["y"], Phase.FORWARD)], shapes)
    problem = build_problem(g, profile, budget_bytes=0)
    for name, blocks in (("x", 1), ("y", 2)):
        t = tensor(problem.tensors, name)
        assert t.page_in_ns == round(store.read_latency_ns.value + blocks * 512e9 / store.read_bytes_per_s.value)
        watts = store.read_w.value + profile.power.idle_w.value
        assert t.page_in_pj == round(t.page_in_ns * watts * 1000)
        assert t.store_bytes == t.footprint_bytes == blocks * 512
    assert problem.paging is Paging.SYNC
    assert (problem.page_buffer_bytes, problem.store_capacity_bytes) == (512, 4_000_000_000)


def test_paging_can_be_refused_or_chosen() -> None:
    problem = build_problem(step(), board(), budget_bytes=0, paging=Paging.NONE)
    assert (problem.paging, problem.page_buffer_bytes) == (Paging.NONE, 0)
    assert not any(t.pageable or t.page_out_ns for t in problem.tensors)
    cached, card = (build_problem(step(), board("rpi4"), budget_bytes=0, store=s) for s in ("sd-cached", "sd"))
    assert cached.tensors[0].page_out_ns < card.tensors[0].page_out_ns
    with pytest.raises(UsageError, match="no store 'sdd'; did you mean 'sd'"):
        build_problem(step(), board("rpi4"), budget_bytes=0, store="sdd")
    with pytest.raises(UsageError, match="cannot transfer while"):
        build_problem(step(), board("nrf52840"), budget_bytes=0, paging=Paging.DMA)


def test_efficiency_and_measured_loops(tmp_path: object) -> None:
    from poetc.devices.profile import Quantity, Source

    def q(value: float) -> Quantity:
        return Quantity(value=value, source=Source(kind="measured", text="here"))

    profile = board()
    plain = build_problem(step(), profile, budget_bytes=0)
    compute = msgspec.structs.replace(
        profile.compute,
        operator_overhead_ns=q(0),
        efficiency={"TestDense": q(0.5)},
        loop_ns={"TestMap": {"call": q(7), "flop": q(2), "byte": q(1)}},
    )
    tuned = build_problem(step(), msgspec.structs.replace(profile, compute=compute), budget_bytes=0)
    overhead = profile.compute.operator_overhead_ns.value
    assert tuned.operators[0].time_ns == pytest.approx(2 * (plain.operators[0].time_ns - overhead), abs=2)
    assert tuned.operators[2].time_ns == 7 + 2 * 16 + 40
    wrong = msgspec.structs.replace(compute, efficiency={"TestDens": q(0.5)})
    with pytest.raises(UsageError, match="no operator kind 'TestDens'; did you mean 'TestDense'"):
        build_problem(step(), msgspec.structs.replace(profile, compute=wrong), budget_bytes=0)
    wrong = msgspec.structs.replace(compute, loop_ns={"gemmm": {"call": q(1)}})
    with pytest.raises(UsageError, match="no operator kind 'gemmm'; did you mean 'gemm'"):
        build_problem(step(), msgspec.structs.replace(profile, compute=wrong), budget_bytes=0)


def test_steps_of_a_model_share_the_prices_of_their_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = board()
    first = build_problem(step(), profile, budget_bytes=0)
    assert build_problem(step(), msgspec.structs.replace(profile, name="another"), budget_bytes=0).operators == (
        first.operators
    )

    def priced_again(*_: object) -> None:
        raise AssertionError("priced again")

    monkeypatch.setattr(building, "features_of", priced_again)
    assert build_problem(step(), profile, budget_bytes=0) == first
    with pytest.raises(AssertionError, match="priced again"):
        build_problem(step(), msgspec.structs.replace(profile, name="a third"), budget_bytes=0)


def test_alignment() -> None:
    assert [align(n) for n in (0, 1, 16, 17)] == [0, 16, 16, 32]
