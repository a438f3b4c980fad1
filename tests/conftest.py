"""Parts that all tests share: golden files, and solves of little work where a test is not about the search.

`golden(path, text)` compares with tests/.../golden/, `--update-golden` writes them.
"""

from __future__ import annotations

import gc
import math
import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from poetc.cli import COLLECTIONS
from poetc.scheduling import SolveOptions, _packing
from poetc.solvers.poetc import settings
from tests.support.compilers import cache_folder, forgets, remember

pytest_plugins = ["tests.support.power"]
remember()
os.environ.setdefault("POETC_TEST_LEVEL", "-O1")  # of the runtime on this machine: half of the compiler's time
# Where ccache is installed, it comes before the compilers that remember, and is quicker. It does not know the level.
os.environ["CCACHE_DIR"] = str(cache_folder() / f"ccache{os.environ['POETC_TEST_LEVEL']}")
if forgets():
    os.environ["CCACHE_DISABLE"] = "1"
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line does; xdist's workers inherit it
# A shell starts what it runs in the background with Ctrl-C ignored, which processes inherit; tests send it to theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# A solve's time limit is its counted work too, unless a test says more. Most of that goes to better schedules. Tests of
# these folders and files want a schedule, its files and messages, unless they are marked `searches`.
LITTLE_WORK = {
    "api",
    "arm",
    "benchmark",
    "cli",
    "commands",
    "docs",
    "fleet",
    "host_c",
    "layouts",
    "locking",
    "measure",
    "passes",
    "planning/parallel/test_overlap.py",
    "planning/parallel/test_ways.py",
    "planning/streaming",
    "planning/test_progress.py",
    "reporting",
    "sweeping",
    "training",
}
WORK_S, QUICK_WORK_S = 0.3, 0.1  # of a long test, and of another
# The parts of a small problem's solve that no limit of work shortens: all schedules,
# rounds of relaxations until the gap is closed, the least RAM, and offsets.
LITTLE_STAGES: tuple[tuple[object, dict[str, float]], ...] = (
    (settings.CANDIDATES, {"exhaustive_operators": settings.ENGINE.tiny_operators}),
    (settings.ENGINE, {"small_runs": 60, "refinements": 2}),
    (settings.SMALLEST_BUDGET, {"work_s": WORK_S}),
    (_packing, {"SEARCH_PLACEMENTS": 15_000, "ONE_PIECE_PLACEMENTS": 4_000, "STATE_PLACEMENTS": 1_200}),
)
QUICK_STAGES: tuple[tuple[object, dict[str, float]], ...] = (
    *LITTLE_STAGES,
    (settings.ENGINE, {"small_runs": 24, "refinements": 1}),
    (settings.SMALLEST_BUDGET, {"work_s": QUICK_WORK_S}),
    (settings.RELAXING, {"rounds": 10, "nodes": 20, "coarse_cuts": 12}),
    (settings.NESTED, {"most_operators": 0}),
    (settings.PLACEMENT, {"rounds": 10, "nodes": 20, "runs": 4, "coarse_cuts": 12}),
)
ALL_STAGES = [(stage, {name: getattr(stage, name) for name in little}) for stage, little in QUICK_STAGES]
STAGES = {math.inf: (), WORK_S: LITTLE_STAGES, QUICK_WORK_S: QUICK_STAGES}
_asked_for = SolveOptions.__post_init__
_work_s = math.inf


def _post_init(options: SolveOptions) -> None:
    if _work_s < math.inf and options.work_limit_s < 0:
        object.__setattr__(options, "work_limit_s", min(_work_s, options.time_limit_s))
    _asked_for(options)


SolveOptions.__post_init__ = _post_init  # type: ignore[method-assign]


def _set_work(work_s: float) -> None:
    global _work_s
    if work_s != _work_s:
        _work_s = work_s
        for stage, values in (*ALL_STAGES, *STAGES[work_s]):
            for name, value in values.items():
                object.__setattr__(stage, name, value)  # settings are frozen


def pytest_collection_finish() -> None:
    """The collector of garbage leaves what is loaded by now alone, and looks as seldom as in the command line."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTIONS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fixtures that a test is the first to use are made within it."""
    path = item.path.relative_to(Path(__file__).parent)
    listed = not LITTLE_WORK.isdisjoint((path.parts[0], str(path.parent), str(path)))
    if not listed or item.get_closest_marker("searches") is not None:
        _set_work(math.inf)
    else:
        _set_work(WORK_S if item.get_closest_marker("long") is not None else QUICK_WORK_S)
    try:
        return (yield)
    finally:
        _set_work(math.inf)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test with `long_but`, the cases that are not named are long. A name that is of no case is a mistake."""
    missing: dict[str, set[str]] = {}
    for item in items:
        marker, callspec = item.get_closest_marker("long_but"), getattr(item, "callspec", None)
        if marker is None or callspec is None:
            continue
        missing.setdefault(item.nodeid.partition("[")[0], set(marker.args)).discard(callspec.id)
        if callspec.id not in marker.args:
            item.add_marker(pytest.mark.long)
    if not any("[" in argument for argument in config.args):  # else some cases alone are asked for
        for test, names in missing.items():
            if names:
                raise pytest.UsageError(f"{test}: long_but names {', '.join(sorted(names))}, and there is no such case")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


@pytest.fixture(scope="session", autouse=True)
def _mapped_libraries_are_whole() -> Iterator[None]:
    """A test that writes into a loaded library, instead of replacing it, ends the process with SIGBUS later."""
    yield
    with Path("/proc/self/mem").open("rb", buffering=0) as memory:
        for line in Path("/proc/self/maps").read_text().splitlines():
            addresses, access, _, _, _, *path = line.split(maxsplit=5)
            if path and ".so" in path[0] and access.startswith("r"):
                memory.seek(int(addresses.split("-")[1], 16) - 1)
                try:
                    memory.read(1)
                except OSError:
                    raise AssertionError(f"{path[0]}: loaded here, and written into: replace it instead") from None


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the file of that name in the folder `golden` beside the test."""
    folder = Path(str(request.path)).parent / "golden"
    update = bool(request.config.getoption("--update-golden"))

    def compare(name: str, text: str) -> None:
        path = folder / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing: run pytest with --update-golden and look at what it writes"
        assert text == path.read_text(), f"{path} differs: run pytest with --update-golden and look at the difference"

    return compare
