"""How near a schedule is proven to be, and what ended the search, in words."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

from poetc.devices import format_cost
from poetc.reporting import html, status_words
from poetc.reporting import proof as proof_words
from poetc.scheduling import DEFAULT_GAP
from tests.reporting.test_reports import example


def test_a_status_in_words_says_how_near_and_what_ended_the_search() -> None:
    words = functools.partial(status_words, least="9.6 J")
    assert words("optimal", 0.0, 0.001) == "optimal"
    stopped = "gap 0.096 %: no schedule takes less than 9.6 J, stopped at the default gap; --gap 0 proves on"
    assert words("feasible", 0.00095012, DEFAULT_GAP) == stopped, "rounded up: no claim narrower than its proof"
    assert words("feasible", 0.04, 0.05).endswith("stopped at the gap of 5.0 %; --gap 0 proves on")
    assert words("feasible", 0.04, 0.07).endswith("stopped at the gap of 7.0 % that was asked for")
    assert words("feasible", 0.04, one_core_of=4) == "gap 4.0 %: no schedule on one core takes less than 9.6 J"
    assert words("feasible", 0.04, is_everything=False).startswith("gap 4.0 %: no schedule of its class takes")
    within = "gap 4.01 %: no schedule takes less than 9.6 J"
    assert words("feasible", 0.0401) == within
    assert words("limit", 0.0401, 0.001) == f"{within}, stopped by the time limit"
    by_work = f"{within}, stopped by the work limit; a longer --time-limit allows more"
    assert {words(s, 0.0401, 0.001, stopped_by="work limit") for s in ("limit", "feasible")} == {by_work}
    limit = replace(example(), summary={"stopped_by": "work limit"})
    assert "stopped at its work limit" in proof_words(limit) and by_work[-40:] in html(limit)
    solved = replace(example(), summary={"asked_gap": DEFAULT_GAP})
    close = replace(solved.schedule.proof, bound=math.ceil(solved.schedule.proof.objective * (1 - DEFAULT_GAP)))
    solved = replace(solved, schedule=replace(solved.schedule, proof=close))
    assert "The search stopped at the default gap; --gap 0 proves on." in proof_words(solved)
    least = format_cost(solved.problem.objective, solved.schedule.proof.bound)
    assert f"gap 0.1 %: no schedule of its class takes less than {least}, stopped at the default gap" in html(solved)
