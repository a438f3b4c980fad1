"""The chain of reductions: its options have names, and a solution of another run is taken up with them."""

from __future__ import annotations

from dataclasses import replace

from poetc.planning import BestUpdates, Candidate, Importance, Solution, Step, reductions
from poetc.planning.chain import KINDS
from poetc.planning.saved import EncodingSpace
from poetc.scheduling import SolveOptions, keep_all_peak_bytes
from poetc.training import Whole
from tests.planning.test_kernels import case
from tests.support.planning import planner


def test_options_have_names_and_every_choice_has_a_usual_one() -> None:
    problem = case(0)[0]
    importance = Importance(candidates=tuple(Candidate(name, Whole(), 1.0) for name in "ab"))
    updates = BestUpdates(importance, lambda updates: Step(problem))
    offer = EncodingSpace(exact=problem, build=lambda choice: problem, tensors=(), proposals=())
    chain = reductions(
        "auto", {1: problem, 2: problem}, updates, [offer], [{0: problem, 1: problem, 4: problem}], [lambda _: None]
    )
    assert [choice.name for choice in chain] == [
        "updates",
        "micro_batches",
        "threads",
        "saved",
        "streaming",
        "banks",
        "processors",
        "overlap",
        "kernels",
        "state",
    ]
    assert [type(choice) for choice in chain] == list(KINDS)
    for choice in chain:
        problem = choice.usual(problem)
    assert not any(choice.is_open(problem) for choice in reductions("ram"))


def test_a_solution_is_recalled_with_the_choices_that_it_made() -> None:
    kernels = 0
    for seed in range(12):
        problem = replace(case(seed)[0], deadline_ns=None)
        problem = replace(problem, budget_bytes=keep_all_peak_bytes(problem))
        chain = planner("auto", options=SolveOptions(time_limit_s=2.0, work_limit_s=0.2))
        found = chain.solve(problem)
        known = Solution(problem=found.problem, schedule=found.schedule, plan=found.plan)
        recalled = chain.recall(problem, known)
        assert recalled.choices.get("state") == found.choices.get("state"), seed
        if "kernels" in found.choices:
            assert recalled.choices == found.choices and recalled.scope == found.scope, seed
            kernels += 1
    assert kernels > 3
