"""The record of a long run of random networks: it goes on where it ended, and counts by reason."""

from __future__ import annotations

from pathlib import Path

from tests.random_networks.records import Record, append, done, kind_of, read, summary


def test_a_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "record.jsonl"
    assert read(path) == {}
    for record in (
        Record(3, "agrees", "", "legacy", True),
        Record(4, "differs", "loss #", "dynamo", False),
        Record(5, "fails", "KeyError: _", "legacy", False),
        Record(4, "agrees", "", "dynamo", False),
    ):
        append(path, record)
    with path.open("a") as file:
        file.write('{"seed": 6, "end": "agr')  # cut off there
    records = read(path)
    assert done(records) == {3, 4}
    text = summary(records.values())
    assert text.startswith("3 networks, seeds 3 to 5: 2 agrees, 1 fails\n")
    assert "1 of those that agree ran as scheduled C" in text and "1 fails: KeyError: _ (seeds 5)" in text


def test_like_refusals_are_counted_together() -> None:
    first = "/tmp/a1/17.onnx: 1 node cannot be trained:   Conv 'body.3': 4 spatial axes of [1, 2]"
    second = "/tmp/b7/9.onnx: 2 nodes cannot be trained:   Conv 'head': 5 spatial axes of [3]"
    assert kind_of(first) == kind_of(second) == "Conv _: # spatial axes of #"
    assert kind_of("/tmp/x/1.onnx: no output depends on an input") == "no output depends on an input"
