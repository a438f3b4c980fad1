"""What tests of exports and imports share: solved models, their compiled programs, onnxruntime's answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from poetc import measure
from poetc.artifact import Artifact
from poetc.commands import programs
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.commands.solve import solve
from poetc.graph import Array
from poetc.program import sample_inputs
from poetc.scheduling.schedule import SolveOptions
from poetc.training import TrainingOptions
from tests.frontend.support import normal

DIGITS = Path(__file__).resolve().parents[2] / "demo" / "digits.onnx"
QUICK = SolveOptions(time_limit_s=5.0, gap=1.0)


def solved_of(
    path: Path, batch: int | None = None, budget: str = "100%", infer_batch: int | None = None, **options: Any
) -> Artifact:
    training = TrainingOptions(learning_rate=0.01, **options)
    request = ModelRequest(source=path, batch=batch, device="host", training=training, infer_batch=infer_batch)
    return solve(SolveRequest(model=request, budget=budget, options=QUICK))


def trained(solved: Artifact, folder: Path, steps: int = 3) -> tuple[dict[str, Array], dict[str, Array]]:
    """The state after some steps of the compiled program, which is also saved to `folder`; what `infer` says then."""
    training = programs.training_program(solved)
    emitted = [training, *programs.inference_programs(solved, training)]
    assert solved.graph is not None and solved.inference is not None
    values = {**solved.inference.values, **solved.graph.values}
    name = solved.inference.name.removesuffix(".onnx")
    library = measure.compile_library(emitted, values, folder / "built", model=name, cflags="-O1")
    with measure.HostModel(library, emitted, values, model=name) as host:
        for step in range(steps):
            host.run(sample_inputs(training, step))
        host.save(folder)
        state = {name: host.state(name) for name in host.state_names()}
        host.select(emitted[1])
        host.run(sample(solved))
        return state, {name: host.output(name) for name in solved.inference.outputs}


def sample(solved: Artifact) -> dict[str, Array]:
    assert solved.inference is not None
    return {name: normal(*solved.inference.tensors[name].shape, seed=7) for name in solved.inference.inputs}


def answers(path: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """What onnxruntime computes with the file."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def assert_as_inferred(path: Path, solved: Artifact, expected: Mapping[str, Array]) -> None:
    found = answers(path, sample(solved))
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5, err_msg=name)
