"""The corpus of `make fuzz`, without a fuzzer: what once broke a parser does not break it again."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fuzz import harness
from tests.fuzz.targets import TARGETS, check

CORPUS = Path(__file__).with_name("corpus")
SLOW = {"onnx", "directory"}  # their seeds alone: `make fuzz` runs them


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_is_read_or_refused(name: str, tmp_path: Path) -> None:
    """With the good inputs, which are read."""
    paths = sorted((CORPUS / name).glob("*"))
    for path in paths:
        check(name, path.read_bytes(), tmp_path)
    for seed, data in () if name in SLOW else TARGETS[name].seeds():
        try:
            TARGETS[name].run(data, tmp_path)
        except Exception as error:
            assert name == "frames", f"{seed}: {error}"  # there the replies end in the midst of a talk


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 300_000


def test_a_defect_of_a_parser_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(data: bytes, folder: Path) -> None:
        raise KeyError(data)

    monkeypatch.setitem(TARGETS, "profile", replace(TARGETS["profile"], run=fail))
    with pytest.raises(KeyError):
        check("profile", b"", tmp_path)


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@pytest.mark.long
@pytest.mark.parametrize("name", harness.NAMES)
def test_the_runtime_takes_its_corpus(name: str, tmp_path: Path, objects: Path) -> None:
    """Under GCC's sanitizers. The good inputs are there too: those of `store` and `state` go on from what they hold."""
    program = harness.compile_target(name, tmp_path, ("gcc",), replay=True, objects=objects)
    paths = sorted((CORPUS / name).glob("*"))
    for seed, data in harness.seeds(name):
        (tmp_path / seed).write_bytes(data)
        paths.append(tmp_path / seed)
    done = subprocess.run(
        [program, *paths],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(paths)
