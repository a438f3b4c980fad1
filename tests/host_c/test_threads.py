"""Kernels in several threads: the bits of one thread, whatever the number."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from poetc.emit import emit
from poetc.graph import Attribute
from poetc.measure import HostModel, compile_library
from poetc.program import Interpreter, sample_inputs
from poetc.scheduling import Action
from tests.ops.test_cases import KERNEL_CASES
from tests.program.models import Case, mlp, paged_decisions, recomputed_decisions, training_case
from tests.support.kernels import RUNTIME, compiler, library, uniform
from tests.support.kernels import Case as Row
from tests.support.threads import results, threaded_library, with_threads

NORM: dict[str, Attribute] = {"epsilon": 1e-5, "activation": "Relu"}
VECTORS = {n: ((n,), uniform((n,), 0.5, 1.5), (n,), (n,)) for n in (40, 70)}  # mean, variance, scale, bias
LARGE = [  # what the tables' operands are too small for: every thread has something to do
    Row(kind, inputs, attributes)
    for kind, inputs, attributes in (
        ("Conv", ((2, 24, 9, 10), (40, 24, 3, 3), (40,)), {"pads": (1, 1, 1, 1)}),
        ("Conv", ((1, 70, 9, 7), (70, 70, 1, 1)), {}),
        ("Conv", ((1, 8, 21, 33), (20, 8, 3, 3)), {"pads": (1, 1, 1, 1)}),
        ("Conv", ((1, 40, 3, 3), (150, 40, 3, 3)), {"pads": (1, 1, 1, 1)}),
        ("ConvGradInput", ((1, 70, 9, 7), (70, 70, 1, 1)), {"input_size": (9, 7)}),
        ("ConvGradInput", ((2, 24, 9, 10), (24, 40, 3, 3)), {"input_size": (9, 10), "pads": (1, 1, 1, 1)}),
        ("ConvGradWeight", ((1, 70, 9, 7), (1, 40, 9, 7)), {"kernel": (1, 1)}),
        ("ConvGradWeight", ((2, 40, 9, 10), (2, 24, 9, 10)), {"kernel": (3, 3), "pads": (1, 1, 1, 1)}),
        ("ConvGradWeight", ((1, 70, 9, 7), (1, 40, 9, 7), *VECTORS[70]), {"kernel": (1, 1), **NORM}),
        (
            "ConvGradWeight",
            ((2, 40, 9, 10), (2, 24, 9, 10), *VECTORS[40]),
            {"kernel": (3, 3), "pads": (1, 1, 1, 1), **NORM},
        ),
        (
            "ConvGradWeight",
            ((1, 70, 9, 7), (1, 70, 9, 7), *VECTORS[70]),
            {"kernel": (3, 3), "pads": (1, 1, 1, 1), "group": 70, **NORM},
        ),
        ("MatMul", ((70, 90), (90, 200)), {}),
        ("MatMul", ((200, 90), (33, 90)), {"trans_b": True}),
        ("MatMul", ((6, 40, 90), (6, 90, 50)), {}),
        ("MatMul", ((90, 70), (90, 200)), {"trans_a": True, "alpha": 0.5}),
        (
            "MatMulOfViews",  # of batches; of columns
            ((6, 40, 270), (6, 50, 90)),
            {
                "sizes": (6, 40, 50, 90),
                "a": (90, 10800, 270, 1),
                "b": (0, 4500, 1, 90),
                "y": (0, 50, 300, 1),
                "shape": (40, 6, 50),
                "alpha": 0.5,
                "terms": 64,
            },
        ),
        (
            "MatMulOfViews",
            ((90, 140), (90, 200)),
            {
                "sizes": (70, 200, 90),
                "a": (70, 1, 140),
                "b": (0, 200, 1),
                "y": (0, 200, 1),
                "shape": (70, 200),
                "terms": 64,
            },
        ),
        ("Add", ((3, 1234), (3, 1234)), {}),
        ("Sub", ((3, 1234), (1234,)), {}),
        ("Relu", ((3, 1234),), {}),
        ("Gelu", ((3, 1234),), {}),
        ("Mul", ((7, 1, 90), (1, 11, 1)), {}),
        ("Where", ((np.arange(600) % 3 == 0).astype(np.uint8).reshape(5, 3, 40), (5, 1, 40), (3, 40)), {}),
        ("Transpose", ((40, 51),), {"perm": (1, 0)}),
        ("Transpose", ((6, 9, 70),), {"perm": (1, 0, 2)}),
        ("Slice", ((9, 70),), {"starts": (1, 3), "sizes": (7, 50)}),
        ("Slice", ((700,),), {"starts": (3,), "sizes": (601,)}),
        ("SliceGrad", ((7, 5, 20),), {"starts": (1, 2, 3), "sizes": (7, 5, 20), "shape": (9, 8, 30)}),
        ("SliceGrad", ((7, 20),), {"starts": (6, 3), "sizes": (7, 20), "steps": (-1, 1), "shape": (9, 30)}),
        ("ReduceSum", ((70, 93),), {"axes": (0,)}),
        ("ReduceSum", ((3, 70, 53),), {"axes": (1,)}),
        ("LayerNormGradParams", ((70, 93), (70, 1), (70, 1), (70, 93)), {"axis": 1}),
        ("MatMul", ((300, 90), (90, 40)), {}),
        ("LstmCell", ((9, 68), (9, 68), (9, 17)), {}),
        ("LstmCellGrad", ((9, 68), *((9, 17),) * 4), {"before": True, "gradients": 1}),
        ("GruCell", ((9, 51), (9, 51), (9, 17)), {}),
        ("GruCellGrad", ((9, 68), *((9, 17),) * 3), {"gradients": 2}),
    )
]


ALONE: dict[int, list[bytes] | int] = {}  # results of one thread, by the identity of the row


def alone(row: Row) -> list[bytes] | int:
    if id(row) not in ALONE:
        ALONE[id(row)] = results(row, library())
    return ALONE[id(row)]


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.long_but("2")
def test_every_kernel_has_the_bits_of_one_thread(tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lib = threaded_library(tmp_path, threads, monkeypatch)
    for row in (*KERNEL_CASES, *LARGE):
        assert results(row, lib) == alone(row), str(row)
    workers = len(list(Path("/proc/self/task").iterdir()))
    assert workers >= threads


@pytest.mark.parametrize("schedule", [paged_decisions, recomputed_decisions])
def test_network_trains_to_the_same_bits(
    tmp_path: Path, schedule: Callable[[Case, str], list[Action]], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = training_case(mlp(hidden=210))
    program = case.program(schedule(case, "a"))
    flags = "-O1 -DPOETC_THREADS_WORK=0"
    built = compile_library([program], case.graph.values, tmp_path, cflags=flags, threads=5)
    trained: set[bytes] = set()
    for threads in (1, 2, 5):
        copy = with_threads(built, tmp_path / f"{threads}.so", threads, monkeypatch)
        with HostModel(copy, [program], case.graph.values) as model:
            losses = [model.run(sample_inputs(program, seed)) for seed in range(3)]
            state = [model.state(name).tobytes() for name in sorted(model.state_names())]
        trained.add(np.array(losses).tobytes() + b"".join(state))
    reference = Interpreter(program, case.graph.values)
    assert np.allclose(losses, [reference.run(sample_inputs(program, seed)) for seed in range(3)])
    assert len(trained) == 1


def test_two_callers_at_once_and_a_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lib = threaded_library(tmp_path, 3, monkeypatch)
    expected = [alone(row) for row in LARGE]

    def run(_: int) -> list[list[bytes] | int]:
        return [results(row, lib) for row in LARGE]

    with ThreadPoolExecutor(3) as callers:
        assert all(made == expected for made in callers.map(run, range(6)))
    child = os.fork()
    if child == 0:  # its pool starts anew
        os._exit(0 if run(0) == expected and run(0) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_every_buffer_begins_on_a_line_of_a_cache(tmp_path: Path) -> None:
    """Kernels look for the first one: floats before it would be missing at the end."""
    source, built = RUNTIME / "src" / "poetc_threads.c", tmp_path / "threads.o"
    include = [f"-I{RUNTIME / folder}" for folder in ("include", "kernels")]
    for floats, held in ((16, 16), (20001, 20016)):
        options = ["-DPOETC_THREADS=5", f"-DPOETC_THREADS_FLOATS={floats}", "-pthread", "-c", "-o", str(built)]
        subprocess.run([*compiler(), *include, *options, str(source)], check=True)
        symbols = subprocess.run(["nm", "-S", str(built)], capture_output=True, text=True, check=True).stdout
        (size,) = (line.split()[1] for line in symbols.splitlines() if line.endswith(" buffers"))
        assert int(size, 16) == 5 * 4 * held


def test_threads_are_only_in_a_build_that_asks_for_them(tmp_path: Path) -> None:
    case = training_case(mlp())
    program = case.program()
    source = emit([program], case.graph.values, model="m", target="host", out_dir=tmp_path / "src")
    expected = {"": False, "THREADS=2": True}
    for option, has_threads in expected.items():
        for goal in ("clean", "train"):
            subprocess.run(["make", "-s", "-C", str(source), "CFLAGS=-O0", *option.split(), goal], check=True)
        symbols = subprocess.run(["nm", str(source / "train")], capture_output=True, text=True, check=True).stdout
        assert ("pthread" in symbols) == ("poetc_parallel" in symbols) == has_threads
    assert "THREADS=N" in (source / "README.md").read_text()
    firmware = emit([program], case.graph.values, model="m", target="cortex-m4f", out_dir=tmp_path / "firmware")
    assert "THREADS" not in (firmware / "Makefile").read_text()
