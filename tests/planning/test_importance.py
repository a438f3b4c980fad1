"""The file of importance: what is written is read back, and a file that does not fit is refused in one line."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from poetc.errors import UsageError
from poetc.planning.importance import (
    Candidate,
    Importance,
    fingerprint,
    parse_update,
    read_importance,
    update_text,
    write_importance,
)
from poetc.training import Adapter, Channels, Update, Whole
from tests.support.graphs import small_cnn

GRAPH = small_cnn(channels=8)
HEAD = "format: poetc-importance-1\n"


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    candidates = (
        Candidate("stem.weight", Whole(), 0.5),
        Candidate("block.weight", Channels(Fraction(1, 8), True), -1e-9),
        Candidate("block.weight", Channels(Fraction(3, 4)), 12.0),
        Candidate("fc.weight", Adapter(2, 16.0, 0.5), 3.0),
    )
    written = Importance(
        candidates=candidates, name="a: b", model=fingerprint(GRAPH), by="fisher", unit="mean: of squares", seed=7
    )
    path = tmp_path / "importance.yaml"
    write_importance(path, written)
    assert read_importance(path, GRAPH) == written
    assert len(path.read_text().splitlines()) == 2 + 6 + 1 + len(candidates)


def test_the_fingerprint_is_that_of_the_parameters() -> None:
    assert fingerprint(GRAPH) == fingerprint(small_cnn(channels=8, batch=2, seed=5))
    assert fingerprint(GRAPH) != fingerprint(small_cnn(channels=4))


@pytest.mark.parametrize("update", [Whole(), Channels(Fraction(1, 3)), Channels(Fraction(1, 2), True), Adapter(16)])
def test_an_update_has_a_text(update: Update) -> None:
    assert parse_update(update_text(update)) == update


@pytest.mark.parametrize(
    "text, fault",
    [
        ("", "an importance file is a mapping"),
        ("format: poetc-importance-9\ncandidates: []\n", ":1: format is 'poetc-importance-9'; this poetc reads"),
        (HEAD + "candidates: []\n", ":2: candidates: must be a list of updates, with at least one"),
        (HEAD + "models: a\ncandidates: []\n", ":2: unknown key 'models'; there are"),
        (
            HEAD + "model: 0123456789abcdef\nname: other.onnx\ncandidates: [{}]\n",
            r":2: measured on another model \(other.onnx\): its fingerprint is",
        ),
        (HEAD + "candidates:\n- {parameter: a, update: whole}\n", ":3: candidate 1: has the keys"),
        (
            HEAD + "candidates:\n- {parameter: stem.weight, update: whole, importance: much}\n",
            ":3: candidate 1: importance is 'much', not a number up to 3.4e",
        ),
        (
            HEAD + "candidates:\n- {parameter: stem.weight, update: whole, importance: 1.7e+308}\n",
            ":3: candidate 1: importance is '1.7e.308', not a number up to",
        ),
        (
            HEAD + f"candidates:\n- {{parameter: stem.weight, update: {'1' * 5000}/2, importance: 1}}\n",
            r":3: candidate 1: update '1+\.\.\. \(5,002 characters\)': write whole",
        ),
        (
            HEAD + "candidates:\n- {parameter: absent, update: whole, importance: 1}\n",
            ":3: candidate 1: small_cnn has no parameter 'absent'",
        ),
        (
            HEAD + "candidates:\n- {parameter: stem.weight, update: some, importance: 1}\n",
            ":3: candidate 1: update 'some': write whole, a share",
        ),
        (
            HEAD + "candidates:\n- {parameter: fc.weight, update: 'lora:99', importance: 1}\n",
            r":3: candidate 1: --lora 99: 'fc.weight' is \d+ x \d+; the rank is at most",
        ),
        (
            HEAD + "candidates:\n- {parameter: bn0.scale, update: 1/4, importance: 1}\n",
            ":3: candidate 1: --train 'bn0.scale@1/4': matches no weight",
        ),
        (
            HEAD + "candidates:\n" + 2 * "- {parameter: stem.weight, update: whole, importance: 1}\n",
            "'stem.weight whole' stands there twice",
        ),
        (
            HEAD + "candidates:\n- {parameter: stem.weight, update: whole, importance: 0}\n",
            "no update has an importance above 0",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_its_line(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "importance.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=fault) as raised:
        read_importance(path, GRAPH)
    assert str(raised.value).startswith(str(path)) and "\n" not in str(raised.value)
