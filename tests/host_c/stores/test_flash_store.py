"""The store on raw flash: cuts of every operation, units that fail, and wear, on a simulated flash."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from poetc.runtime import runtime_directory
from tests.support.power import Power

FLAGS = ("-std=c99", "-O1", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror", "-fsanitize=address,undefined")


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runtime, program = runtime_directory(), tmp_path_factory.mktemp("flash") / "flash_store"
    drivers = runtime / "ports" / "drivers"
    folders = (runtime / "include", runtime / "src", drivers)
    sources = (Path(__file__).with_name("flash_store.c"), drivers / "flash_store.c", runtime / "src" / "poetc.c")
    subprocess.run(
        ["gcc", *FLAGS, *(f"-I{folder}" for folder in folders), *map(str, sources), "-o", str(program)], check=True
    )
    return program


def numbers(program: Path, word: str) -> list[int]:
    done = subprocess.run([program, word], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.fullmatch(rf"{word}((?: \d+)+)\n", done.stdout)
    assert found is not None, done.stdout
    return [int(n) for n in found[1].split()]


@pytest.mark.parametrize("word", ["cuts", "repeated"])
@pytest.mark.power_loss(at_least=500)
def test_every_cut_leaves_each_block_as_before_or_after(word: str, harness: Path, power: Power) -> None:
    """An erasure or a write is not begun, half done, or done when the power goes."""
    power.program(harness, word)


def test_units_that_fail_lose_nothing(harness: Path) -> None:
    """One that cannot be erased, cannot be programmed, or says nothing of a wrong bit."""
    assert numbers(harness, "bad")[0] >= 300


def test_wear_is_level(harness: Path) -> None:
    """One block of 30 is written 4,000 times, the others never again: all units are erased about as often."""
    least, most = numbers(harness, "wear")
    assert most - least <= 12 < least
