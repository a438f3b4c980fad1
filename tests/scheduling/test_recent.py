"""Results that are kept for the last problems."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from poetc.scheduling import Problem, for_recent, remember
from poetc.scheduling._recent import KNOWN
from tests.support.problems import training_problem


@pytest.fixture
def many_switches() -> Iterator[None]:
    """Threads take turns after each few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_the_last_problems_are_known_whatever_their_budget() -> None:
    asked: list[str] = []

    def name(problem: Problem) -> str:
        asked.append(problem.name)
        return problem.name

    recalled, problem = for_recent(name), training_problem(Random(0), 6)
    others = [replace(problem, name=f"{k}") for k in range(KNOWN)]
    assert [recalled(p) for p in (problem, replace(problem, budget_bytes=1), *others[1:], problem)].count("0") == 0
    assert asked.count(problem.name) == 1
    for other in (*others, problem):
        assert recalled(other) == other.name
    assert asked.count(problem.name) == 2, "it was the oldest"


def test_the_first_of_too_many_results_is_forgotten() -> None:
    known = dict[int, str]()
    for k in range(KNOWN + 2):
        assert remember(known, k, f"{k}") == f"{k}"
    assert list(known) == list(range(2, KNOWN + 2))


@pytest.mark.usefixtures("many_switches")
def test_threads_share_what_is_known() -> None:
    problems = [training_problem(Random(k), 6, paging=True) for k in range(2 * KNOWN)]
    recalled, failed = for_recent(lambda problem: problem.tensors), list[BaseException]()

    def ask(seed: int) -> None:
        random = Random(seed)
        try:
            for problem in random.choices(problems, k=1000):
                assert recalled(problem) is problem.tensors
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
