"""The proofs of two schedules, in sentences."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from poetc.commands.locking._diff import _proof_words
from poetc.scheduling import keep_all
from tests.support.problems import training_problem


@pytest.mark.parametrize(
    ("bound", "sentences"),
    [
        (98_000_500, []),  # the same text
        (97_000_000, ["The proven gap rose from 2.0 % to 3.0 %."]),
        (99_500_000, ["The proven gap fell from 2.0 % to 0.5 %."]),
    ],
)
def test_gaps_that_read_alike_have_not_changed(bound: int, sentences: list[str]) -> None:
    schedule = keep_all(training_problem(Random(0), 6))
    a, b = (
        replace(schedule, proof=replace(schedule.proof, objective=100_000_000, bound=n)) for n in (98_000_000, bound)
    )
    assert list(_proof_words(a, b)) == sentences
