"""Layers: groups run whole, cover every operator once, and their schedules hold for the operators."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from poetc.errors import InfeasibleError, LimitError, UnsupportedProblemError, UsageError
from poetc.scheduling import (
    Compute,
    InPlace,
    OperatorSpec,
    Paging,
    Problem,
    Repetition,
    SolveOptions,
    TensorSpec,
    keep_all,
    verify,
)
from poetc.solvers import available, info, solve
from poetc.solvers.grouping import LEVELS, Grouped, layers
from tests.solvers.chains import chain
from tests.support.problems import training_problem, with_budget

OPTIONS = SolveOptions(time_limit_s=20, group="layer")
FORMULATIONS = sorted(name for name, about in available().items() if about.most_operators)


def network(blocks: int, *, paging: bool = False) -> Problem:
    """Convolution, statistics, activation and running mean in each block, and their gradients and updates."""
    tensors: list[TensorSpec] = []
    operators: list[OperatorSpec] = []

    def tensor(name: str, units: int, **places: str) -> int:
        tensors.append(
            TensorSpec(
                name=name,
                size_bytes=16 * units,
                pageable=paging and not places,
                page_in_pj=units,
                page_out_pj=units,
                **places,  # type: ignore[arg-type]
            )
        )
        return len(tensors) - 1

    def run(kind: str, phase: str, inputs: list[int], outputs: list[int], cost: int = 1, **more: object) -> None:
        name = f"{kind}{len(operators)}"
        operators.append(
            OperatorSpec(
                name=name,
                kind=kind,
                phase=phase,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                time_ns=cost,
                energy_pj=cost,
                **more,  # type: ignore[arg-type]
            )
        )

    weights = [tensor(f"w{k}", 2, initial="ram") for k in range(blocks)]
    means = [tensor(f"m{k}", 1, initial="ram") for k in range(blocks)]
    x = [tensor("x", 4, initial="ram")]
    convolved, stats = [], []
    for k in range(blocks):
        convolved.append(tensor(f"c{k}", 4))
        stats.append(tensor(f"s{k}", 1))
        x.append(tensor(f"x{k + 1}", 4))
        new = tensor(f"m{k}@1", 1, final="ram")
        run("Conv", "forward", [x[k], weights[k]], [convolved[k]], 20, workspace_bytes=16)
        run("BatchNormStats", "forward", [convolved[k]], [stats[k]])
        pair = (InPlace(input=means[k], output=new, required=True),)
        run("BatchNormUpdate", "update", [means[k], stats[k]], [new], in_place=pair, recomputable=False)
        run("BatchNormActivate", "forward", [convolved[k], stats[k]], [x[k + 1]])
    gradient = tensor("g", 4)
    run("Loss", "loss", [x[-1]], [gradient])
    for k in reversed(range(blocks)):
        inner, outer, new = tensor(f"h{k}", 4), tensor(f"g{k}", 4), tensor(f"w{k}@1", 2, final="ram")
        weight_gradient = tensor(f"v{k}", 2)
        run("BatchNormGrad", "backward", [convolved[k], stats[k], gradient], [inner])
        run("ConvGradInput", "backward", [inner, weights[k]], [outer], 20)
        run("ConvGradWeight", "backward", [inner, x[k]], [weight_gradient], 20, workspace_bytes=32)
        pair = (InPlace(input=weights[k], output=new, required=True),)
        run("Sgd", "update", [weights[k], weight_gradient], [new], in_place=pair, recomputable=False)
        gradient = outer
    return Problem(
        name=f"blocks{blocks}",
        operators=tuple(operators),
        tensors=tuple(tensors),
        budget_bytes=1 << 30,
        paging=Paging.SYNC if paging else Paging.NONE,
    )


def test_a_layer_is_a_contraction_with_its_statistics_or_the_run_behind_it() -> None:
    problem = network(2)
    kinds = [[problem.operators[v].kind for v in group] for group in layers(problem)]
    forward = [["Conv", "BatchNormStats"], ["BatchNormActivate"]] * 2
    assert kinds[:6] == [*forward, ["Loss"], ["BatchNormUpdate", "BatchNormUpdate"]]
    weights = ["ConvGradWeight", "Sgd"]
    assert kinds[6:] == [
        ["BatchNormGrad"],
        ["ConvGradInput"],
        [*weights, "BatchNormGrad"],
        ["ConvGradInput"],
        weights,
    ]
    coarse = [[problem.operators[v].kind for v in group] for group in layers(problem, 2)]
    assert coarse[:2] == [["Conv", "BatchNormStats", "BatchNormActivate"]] * 2
    assert len(coarse) < len(kinds)


@pytest.mark.parametrize("level", LEVELS)
def test_every_operator_is_in_one_group_and_the_order_is_one(level: int) -> None:
    for problem in (network(3), *(training_problem(Random(seed), 3) for seed in range(8))):
        groups = layers(problem, level)
        assert sorted(v for group in groups for v in group) == list(range(len(problem.operators)))
        grouped = Grouped(problem, groups)
        coarse = keep_all(dataclasses.replace(grouped.problem, budget_bytes=1 << 40))
        fine = grouped.expanded(coarse)
        trace = verify(dataclasses.replace(problem, budget_bytes=1 << 40), fine)
        assert trace.energy_pj == coarse.proof.objective
        assert trace.peak_bytes <= verify(dataclasses.replace(grouped.problem, budget_bytes=1 << 40), coarse).peak_bytes


@pytest.mark.parametrize("solver", [*FORMULATIONS, "dtr", "chen", "capuchin"])
def test_a_schedule_of_layers_is_one_of_operators(solver: str) -> None:
    problem = with_budget(network(3, paging=solver in ("poet", "capuchin")), 0.75)
    try:
        schedule = solve(problem, solver, OPTIONS)
    except (InfeasibleError, LimitError) as error:
        assert solver not in FORMULATIONS, error
        return
    trace = verify(problem, schedule)
    assert schedule.proof.objective == trace.energy_pj >= schedule.proof.bound
    assert trace.recomputes or trace.page_ins
    if info(solver).proof:
        assert schedule.proof.scope.repetition is Repetition.LAYERS
    groups = {v: group for group in layers(problem) for v in group}
    done = [s.operator for s in schedule.actions if isinstance(s, Compute)]
    at = 0
    while at < len(done):  # whole layers alone
        group = groups[done[at]]
        assert tuple(done[at : at + len(group)]) == group
        at += len(group)


def test_layers_are_taken_where_operators_are_too_many() -> None:
    about = info("checkmate")
    blocks = about.most_operators // 8 + 1
    problem = with_budget(network(blocks), 0.9)
    assert len(problem.operators) > about.most_operators >= len(layers(problem))
    schedule = solve(problem, "checkmate_lp", SolveOptions(time_limit_s=60, group="layer"))
    assert f"in {len(layers(problem))} layers" in schedule.log[0]
    with pytest.raises(UnsupportedProblemError, match="operators make too large a program"):
        solve(problem, "checkmate", SolveOptions(group="none"))
    with pytest.raises(UnsupportedProblemError, match="--group layer is for published methods"):
        solve(problem, "poetc", OPTIONS)
    with pytest.raises(UsageError, match="--group 'x': there are auto, layer, none"):
        SolveOptions(group="x")


@pytest.mark.parametrize("solver", ["vdnn", "vdnn_all", "capuchin", "superneurons", "swapadvisor", "pofo", "poet"])
def test_methods_that_page_hide_their_transfers_behind_compute(solver: str) -> None:
    problem = chain(10, budget_units=8, page=(1, 1))
    tensors = tuple(dataclasses.replace(t, page_in_ns=1, page_out_ns=1) for t in problem.tensors)
    waits = dataclasses.replace(problem, tensors=tensors)
    hides = dataclasses.replace(waits, paging=Paging.DMA)
    trace = verify(hides, solve(hides, solver, SolveOptions(time_limit_s=20)))
    if trace.page_ins:
        moved = trace.page_ins + trace.page_outs
        assert (
            trace.time_ns < sum(o.time_ns * n for o, n in zip(hides.operators, trace.executions, strict=True)) + moved
        )
    else:
        assert solver in ("superneurons", "pofo", "poet"), "recomputation is cheaper"
