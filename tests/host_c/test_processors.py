"""A schedule for several processors on threads of this machine: the bits, the peak and the gradients of one."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from poetc.devices.processors import TEAM_BYTES
from poetc.emit import MANIFEST
from poetc.measure import HostModel, compile_library
from poetc.program import Program, sample_inputs
from poetc.runtime.library import Library
from poetc.runtime.session import Session
from tests.host_c.stores.test_queues import parallel
from tests.program.models import Case

STEPS = 20


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.long)])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, Program, Path]:
    case, program = parallel(request.param, request.param)
    folder = tmp_path_factory.mktemp("processors")
    return case, program, compile_library([program], case.graph.values, folder, cflags="-O1")


@pytest.fixture
def models(built: tuple[Case, Program, Path]) -> Iterator[tuple[HostModel, HostModel]]:
    case, program, library = built
    one = replace(program, queues=())
    with HostModel(library, [program], case.graph.values) as several, HostModel(library, [one], case.graph.values) as m:
        yield several, m


def test_the_bits_of_one_processor(models: tuple[HostModel, HostModel]) -> None:
    several, one = models
    assert several.program.queues and not one.program.queues
    for seed in range(STEPS):
        batch = sample_inputs(one.program, seed)
        assert several.run(batch) == one.run(batch)
        assert several.gradients_crc() == one.gradients_crc()
        for name in one.state_names():
            assert several.state(name).tobytes() == one.state(name).tobytes()


def test_the_peak_is_the_predicted_one(models: tuple[HostModel, HostModel]) -> None:
    several, _ = models
    batch = sample_inputs(several.program, 0)
    assert several.measure_high_water(batch) == several.program.high_water_bytes
    first = several.run(batch)
    several.reset()
    assert several.run(batch) == first


def test_a_session(built: tuple[Case, Program, Path], models: tuple[HostModel, HostModel]) -> None:
    _, program, library = built
    before = threads()
    with Session(library, library.with_name(MANIFEST)) as session:
        assert threads() == before + len(program.queues) - 1
        for seed in range(STEPS):
            batch = sample_inputs(program, seed)
            assert session.step(batch) == models[1].run(batch)
        assert session.measure_peak(batch) == program.high_water_bytes
        assert session.steps == STEPS
    assert threads() == before


def threads() -> int:
    """Of this process."""
    return len(os.listdir("/proc/self/task"))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_works_with_one_processor(models: tuple[HostModel, HostModel]) -> None:
    """Threads do not survive a fork."""
    several, one = models
    batches = [sample_inputs(one.program, seed) for seed in range(2)]
    expected = [one.run(batch) for batch in batches]
    assert several.run(batches[0]) == expected[0]
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if several.run(batches[1]) == expected[1] else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_the_memory_that_plans_set_aside(built: tuple[Case, Program, Path]) -> None:
    library = Library(built[2])
    assert ctypes.c_uint32.from_address(library.address("poetc_processors_bytes")).value <= TEAM_BYTES
