"""Parts that all tests share: golden files, and solves of little work where a test is not about the search.

`golden(path, text)` compares with tests/.../golden/, `--update-golden` writes them.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from poetc.cli import COLLECTIONS
from poetc.scheduling import SolveOptions, _packing
from poetc.solvers.poetc import settings
from tests.support.compilers import cache_folder, forgets, remember

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
    "planning/test_overlap.py",
    "planning/test_progress.py",
    "planning/test_streamed_models.py",
    "planning/test_streaming.py",
    "planning/test_ways.py",
    "reporting",
    "sweeping",
    "training",
}
WORK_S = 0.3
# The parts of a small problem's solve that no limit of work shortens: the relaxation of stages, all schedules,
# rounds of relaxations until the gap is closed, the least RAM, and offsets.
LITTLE_STAGES: tuple[tuple[object, dict[str, float]], ...] = (
    (settings.CANDIDATES, {"staged_operators": 0, "exhaustive_operators": settings.ENGINE.tiny_operators}),
    (settings.ENGINE, {"small_runs": 60, "refinements": 2}),
    (settings.SMALLEST_BUDGET, {"work_s": WORK_S}),
    (_packing, {"SEARCH_PLACEMENTS": 15_000, "ONE_PIECE_PLACEMENTS": 4_000, "STATE_PLACEMENTS": 1_200}),
)
ALL_STAGES = [(stage, {name: getattr(stage, name) for name in little}) for stage, little in LITTLE_STAGES]
_asked_for = SolveOptions.__post_init__
_little_work = False


def _post_init(options: SolveOptions) -> None:
    if _little_work and options.work_limit_s < 0:
        object.__setattr__(options, "work_limit_s", min(WORK_S, options.time_limit_s))
    _asked_for(options)


SolveOptions.__post_init__ = _post_init  # type: ignore[method-assign]


def _set_little_work(little: bool) -> None:
    global _little_work
    if little is not _little_work:
        _little_work = little
        for stage, values in LITTLE_STAGES if little else ALL_STAGES:
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
    listed = not LITTLE_WORK.isdisjoint((path.parts[0], str(path)))
    _set_little_work(listed and item.get_closest_marker("searches") is None)
    try:
        return (yield)
    finally:
        _set_little_work(False)


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
