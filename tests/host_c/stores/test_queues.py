"""A program on several threads: the bits of one, with delays at fences, without data races; and unsafe fences found."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from poetc.emit import emit
from poetc.program import Program, ProgramError, check_queues, lower
from poetc.scheduling import (
    Elsewhere,
    ProcessorSpec,
    Proof,
    Schedule,
    Scope,
    Status,
    complete,
    keep_all_decisions,
    pack,
)
from poetc.solvers.processors import side_by_side
from tests.program.models import Case, training_case

HERE = Path(__file__).parent


def parallel(seed: int, processors: int) -> tuple[Case, Program]:
    """A training step with its operators on random processors, side by side."""
    case, random = training_case(), Random(seed)
    specs = tuple(ProcessorSpec(name=f"p{p}") for p in range(processors))
    operators = tuple(
        replace(
            o,
            time_ns=random.randint(1, 20),
            elsewhere=tuple(
                Elsewhere(processor=p, time_ns=random.randint(1, 20), energy_pj=1) for p in range(1, processors)
            ),
        )
        for o in case.problem.operators
    )
    problem = replace(case.problem, operators=operators, processors=specs)
    placement = tuple(random.randrange(processors) for _ in operators)
    found = side_by_side(problem, complete(case.problem, keep_all_decisions(case.problem)), placement)
    assert found is not None
    proof = Proof(status=Status.FEASIBLE, objective=found[1].energy_pj, bound=0, scope=Scope())
    schedule = Schedule(solver="test", actions=found[0], proof=proof)
    return case, lower(case.graph, problem, schedule, pack(problem, schedule))


def built(folder: Path, case: Case, program: Program, *flags: str) -> Path:
    out = emit([program], case.graph.values, model="model", target="host", out_dir=folder / "src")
    for name in ("queues.c", "fences.h"):
        (out / name).write_text((HERE / name).read_text())
    (x,), target = program.inputs, program.target
    assert target is not None
    places = {"X": x.operand, "TARGET": target.operand}
    defined = [f"-D{k}_OFFSET={o.offset_bytes}u" for k, o in places.items()]
    defined += [f"-D{k}_BYTES={o.type.size_bytes}u" for k, o in places.items()]
    defined.append(f"-DFLASH={'model_constants' if program.flash_bytes else 'NULL'}")
    core = ("poetc.c", "poetc_queues.c", "poetc_math.c")
    sources = [str(p) for p in sorted((out / "runtime").rglob("*.c")) if p.parent.name != "src" or p.name in core]
    sources += ["model.c", "model_data.S", "queues.c"]
    includes = [f"-I{d}" for d in sorted({str(p.parent) for p in out.rglob("*.h")})]
    command = ["gcc", "-std=gnu11", "-O1", "-pthread", "-w", *flags, *defined, *includes, *sources]
    subprocess.run([*command, "-o", str(out / "queues"), "-lm"], check=True, cwd=out)
    return out / "queues"


@pytest.mark.parametrize(
    ("processors", "runs"), [(2, 300), *(pytest.param(p, 10_000, marks=pytest.mark.long) for p in (2, 3))]
)
def test_the_same_bits_with_random_delays(processors: int, runs: int, tmp_path: Path) -> None:
    case, program = parallel(processors, processors)
    assert len(program.queues) == processors
    assert any(any(step.waits) for queue in program.queues for step in queue)
    binary = built(tmp_path, case, program, "-include", "fences.h")
    done = subprocess.run([binary, str(runs)], capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout == f"{runs} runs, the same bits\n"


@pytest.mark.long
def test_no_data_races(tmp_path: Path) -> None:
    case, program = parallel(5, 2)
    binary = built(tmp_path, case, program, "-fsanitize=thread", "-g")
    done = subprocess.run([binary, "20"], capture_output=True, text=True, check=False, timeout=100)
    assert done.stderr == ""
    assert done.stdout == "20 runs, the same bits\n"


def test_a_fence_that_is_left_out_is_found() -> None:
    _, program = parallel(5, 2)
    found = 0
    for q, queue in enumerate(program.queues):
        for n, step in enumerate(queue):
            if any(step.waits):
                without = (*queue[:n], replace(step, waits=(0, 0)), *queue[n + 1 :])
                queues = (*program.queues[:q], without, *program.queues[q + 1 :])
                with pytest.raises(ProgramError, match="may overtake"):
                    check_queues(program, queues)
                found += 1
    assert found > 2
