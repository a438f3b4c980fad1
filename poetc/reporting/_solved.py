"""The subject of a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from poetc.artifact import Artifact
from poetc.graph import Graph
from poetc.scheduling import Trace, verify
from poetc.scheduling.problem import Problem
from poetc.scheduling.schedule import MemoryPlan, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """A solved problem with its replay.

    `graph` is None when it was solved from a Problem alone. `summary` holds the answer of `solve --json`; the report
    uses the fields that are there. `other_traces`: of a bundle, the replays of the plans for smaller budgets.
    """

    problem: Problem
    schedule: Schedule
    trace: Trace
    plan: MemoryPlan
    graph: Graph | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    other_traces: tuple[Trace, ...] = ()

    @property
    def compute_once_pj(self) -> int:
        """Every operator once, with no operand streamed."""
        return int(self.summary.get("compute_once_pj", self.problem.compute_once_pj))

    @property
    def compute_once_ns(self) -> int:
        return int(self.summary.get("compute_once_ns", self.problem.compute_once_ns))

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> Solved:
        """Replays the schedules; ScheduleError if one does not hold."""
        return cls(
            problem=artifact.problem,
            schedule=artifact.schedule,
            trace=verify(artifact.problem, artifact.schedule),
            plan=artifact.plan,
            graph=artifact.graph,
            summary=artifact.summary,
            other_traces=tuple(verify(problem, schedule) for problem, schedule, _ in artifact.others),
        )
