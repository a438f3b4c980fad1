"""Placement of state: the steps of one placement with another one."""

from __future__ import annotations

import math
from typing import Any

from poetc.scheduling import InPlace, OperatorSpec, Paging, Problem, SolveOptions, TensorSpec, movable_state, on_store
from poetc.solvers import PlacementSearch
from poetc.solvers.model import Model
from poetc.solvers.poetc.search.race import Race

OPTIONS = SolveOptions(time_limit_s=60)


def test_an_old_version_is_read_from_the_store_alone() -> None:
    """A schedule that makes a tensor from it again after its update has no like with that state in RAM."""

    def tensor(name: str, initial: Any = "", final: Any = "") -> TensorSpec:
        return TensorSpec(name=name, size_bytes=64, initial=initial, final=final, page_in_pj=1, page_out_pj=1)

    def operator(inputs: tuple[int, ...], output: int, **more: Any) -> OperatorSpec:
        return OperatorSpec(name=f"to {output}", inputs=inputs, outputs=(output,), time_ns=1, energy_pj=1, **more)

    update = InPlace(input=0, output=1, required=True)
    problem = Problem(
        name="old version",
        tensors=(tensor("w", "ram"), tensor("w@1", final="ram"), *map(tensor, "ab"), tensor("y", final="ram")),
        operators=(
            operator((0,), 2),
            operator((2,), 3),
            operator((0, 3), 1, recomputable=False, in_place=(update,)),
            operator((2, 1), 4),
        ),
        budget_bytes=256,
        paging=Paging.SYNC,
    )
    assert movable_state(problem) == ((0, 1),)
    model, search = Model(problem), PlacementSearch(problem, OPTIONS, math.inf, None)
    n, m = model.n_ops, model.n_tensors
    stored, in_ram = frozenset({0}), frozenset[int]()
    for again, is_offered in (([n, 0], False), ([], True)):
        search._codes[stored], search.raced = [n, 0, 1, 2, n + m + 1, *again, 3], {stored: 9.0}
        race = Race(on_store(problem, in_ram), 0, math.inf)
        search._offer_steps_of_best(in_ram, race)
        assert (race.incumbent is not None) == is_offered
