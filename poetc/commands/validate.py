"""`poetc validate`: the emitted C run on this machine, beside the interpreter, keep-all and a reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from poetc import artifact, measure
from poetc.commands.options import COMPARED_STEPS
from poetc.commands.programs import (
    exact_program,
    graph_of,
    keep_all_program,
    numerics_of,
    program_of_history,
    switches_of,
    training_program,
    values_of,
)
from poetc.errors import CheckFailed, UsageError
from poetc.events import Progress, silent
from poetc.files import read_arrays
from poetc.graph import Array
from poetc.measure import Validation

SHOWN = 4  # failures of switches in a message


@dataclass(frozen=True, slots=True)
class Checked:
    """A validation as `poetc validate` answers it. Peaks are of the RAM that a budget counts."""

    document: Mapping[str, Any]
    problems: tuple[str, ...]

    def require(self) -> None:
        """Raise CheckFailed if something does not hold."""
        if self.problems:
            raise CheckFailed("; ".join(self.problems), details=self.document)


def validate(
    directory: Path, reference: Path | None = None, progress: Progress = silent, *, steps: int = COMPARED_STEPS.default
) -> Checked:
    """Compile and run `steps` steps of the emitted C on this machine, and compare."""
    solved = artifact.read(directory, filed=True)  # the arena holds the weights, too
    expected = None if reference is None else _read_reference(reference)
    progress("lowering")
    training, kept = training_program(solved), keep_all_program(solved)
    graph = graph_of(solved)
    result: Validation = measure.validate(
        training,
        kept,
        graph.values,
        reference=expected,
        source=f"--reference {reference}",
        zero_gradients=graph.zero_gradients,
        steps=steps,
        exact=exact_program(solved),
        numerics=numerics_of(solved),
        progress=progress,
    )
    problems = result.problems()
    base_bytes = solved.problem.base_bytes
    document = {
        **result.to_json(),
        "passed": not problems,
        "processors": max(1, len(training.queues)),
        "peak_predicted_bytes": base_bytes + result.peak_predicted_bytes,
        "peak_measured_bytes": base_bytes + result.peak_measured_bytes,
    }
    return Checked(document, problems)


def validate_switches(directory: Path, most: int | None = None, progress: Progress = silent) -> Checked:
    """Take every switch of a bundle on this machine, and make 10,000 random requests; compare bits and peaks.

    `most`: the most switches that are taken, and as many requests.
    """
    solved = artifact.read(directory, filed=True)
    if not solved.others:
        raise UsageError(f"{directory}: not a bundle, there are no switches in it; run poetc bundle")
    progress("lowering")
    bundle = switches_of(solved)[0]
    progress("compiling and running")
    result = measure.validate_bundle(
        bundle,
        values_of(solved),
        most=most,
        numerics=numerics_of(solved),
        requests=measure.REQUESTS if most is None else min(most, measure.REQUESTS),
        reference=partial(program_of_history, solved) if solved.other_graphs else None,
    )
    problems = result.failures[:SHOWN]
    if len(result.failures) > SHOWN:
        problems += (f"and {len(result.failures) - SHOWN} more",)
    return Checked({**result.to_json(), "passed": not result.failures}, problems)


def _read_reference(path: Path) -> dict[str, Array]:
    return read_arrays(path, "; docs/reference/formats.md lists the arrays of a reference")
