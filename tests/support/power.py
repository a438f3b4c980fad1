"""Loss of power as an attribute of a test, as littlefs has it.

The body of a test with the marker `power_loss` runs once without a cut, which counts its operations. Then it runs once
for each cut point, and again from its first line after each cut. So it must be reentrant: `power.boot` is 0 where it
begins anew. Else what the cut left is there, and the body says what that may be.

    @pytest.mark.power_loss(quick=8)
    def test_no_row_is_torn(card, power):
        if power.boot == 0:
            card.erase()
        assert card.row() in (OLD, NEW)
        with power.may_go():
            write(card)         # the card asks `power.goes()` in each operation
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from poetc import measure


class PowerLoss(Exception):
    """The power went: the next boot is due."""


class Power:
    """Of one test: `every` cut point or a random `sample` of them, and of every third one another cut if `twice`.

    The test must have tried `at_least` cuts, and their `outcomes` must be among those that it adds.
    """

    def __init__(
        self,
        *,
        every: int = 1,
        sample: int | None = None,
        twice: bool = False,
        at_least: int = 1,
        outcomes: Collection[object] = (),
    ) -> None:
        self.every, self.sample, self.twice, self.at_least, self.expected = every, sample, twice, at_least, outcomes
        self.boot = self.cut_at = self.operations = self.cuts = self.count = self.steps = 0
        self.is_on, self.is_counting, self.has_begun, self.has_gone = True, False, False, False
        self.chosen: Sequence[int] = ()
        self.outcomes, self.random = set[Any](), Random(1)
        self.whole: Any = None  # what the body keeps of the run without a cut

    @contextmanager
    def may_go(self) -> Iterator[None]:
        """Operations within it count, and fail from the cut point on, which must end it with an error.

        Once a boot, since cut points are numbers of operations in one of them. What the body asserts there holds
        without power, too.
        """
        assert not self.has_begun, "power may go in one part of a body"
        self.operations, self.is_counting, self.has_begun = 0, True, True
        try:
            yield
        except AssertionError:
            raise
        except Exception as error:
            if not self.is_on:
                raise PowerLoss from error
            raise
        else:
            assert self.is_on, "operations failed, and no error says so"
        finally:
            self.is_on, self.is_counting = True, False

    def goes(self) -> bool:
        """Count an operation. True: it fails, since power goes with it or has gone."""
        if self.is_counting:
            self.operations += 1
            if self.operations == self.cut_at:
                self.is_on, self.has_gone = False, True
        return not self.is_on

    def operate(self, place: object = "the store") -> None:
        if self.goes():
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(place))

    def points(self) -> Iterator[tuple[int, ...]]:
        """The operations at which power goes, one for each boot."""
        points: Sequence[int] = range(1, self.count + 1, self.every)
        if self.sample is not None:
            sampled = self.random.choices if self.sample > len(points) else self.random.sample
            points = [*self.chosen, *sampled(points, k=self.sample)]
        for n, point in enumerate(points):
            yield (point, 1 + point * 7 % (self.count // 2)) if self.twice and n % 3 == 2 else (point,)

    def _boots(self, body: Callable[[], None], cuts: tuple[int, ...]) -> None:
        self.has_gone, self.steps = False, 0
        for self.boot in range(len(cuts) + 1):
            self.cut_at, self.has_begun = [*cuts, 0][self.boot], False
            try:
                return body()
            except PowerLoss:
                pass
            except Exception as error:
                error.add_note(f"boot {self.boot}, cuts at {cuts} of {self.count} operations")
                raise
        raise AssertionError("power went, and was not to go")

    def run(self, body: Callable[[], None]) -> None:
        self._boots(body, ())
        self.count = self.count or self.operations
        self.outcomes.clear()
        for cuts in self.points() if self.count else ():
            self._boots(body, cuts)
            assert self.has_gone, f"no operation {cuts[0]} of {self.count}"
            self.cuts += 1
        assert self.cuts >= self.at_least, f"{self.cuts} cuts"
        assert self.outcomes.issuperset(self.expected), self.outcomes

    def program(self, *words: object, directory: Path | None = None) -> dict[str, int]:
        """A C program that cuts its own power at every operation; the numbers that it prints, `cuts` among them."""
        done = subprocess.run([*map(str, words)], cwd=directory, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        printed = done.stdout.split()
        numbers = {name: int(number) for name, number in zip(printed[::2], printed[1::2], strict=True)}
        self.cuts += numbers["cuts"]
        return numbers

    def execute(
        self, firmware: measure.Firmware, batches: Sequence[Any], moments: Callable[[measure.Run], list[int]]
    ) -> measure.Run:
        """A board runs; its operations are instructions. `moments`: the chosen ones of the run without a cut."""
        try:
            run = measure.execute(firmware, batches, cut_at=self.cut_at or None)
        except measure.PowerCut as cut:
            self.has_gone, self.steps = True, cut.steps
            raise PowerLoss from cut
        if not self.count:
            self.whole, self.count, self.chosen = self.whole or run, run.total_instructions, moments(run)
        return run


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """With `quick`, a number, a quick case takes a sample of so many cut points, and a long case takes all."""
    marker = next(metafunc.definition.iter_markers("power_loss"), None)
    if marker is not None and "quick" in marker.kwargs:
        words = dict(marker.kwargs)
        quick = words.pop("quick")
        few = pytest.param({**words, "sample": quick, "at_least": quick, "outcomes": ()}, id=f"{quick} cuts")
        metafunc.parametrize("power", [few, pytest.param(words, id="all cuts", marks=pytest.mark.long)], indirect=True)


@pytest.fixture
def power(request: pytest.FixtureRequest) -> Power:
    return Power(**getattr(request, "param", request.node.get_closest_marker("power_loss").kwargs))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if pyfuncitem.get_closest_marker("power_loss") is None:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    arguments["power"].run(lambda: pyfuncitem.obj(**arguments))
    return True
