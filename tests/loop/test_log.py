"""The log of a training: JSON lines and TensorBoard's events, read back by a parser of their own format."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from poetc.errors import UsageError
from poetc.loop import EpochRow, Log


class Heard:
    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []
        self.epochs = self.ends = 0

    def on_start(self, epochs: int, batches: int | None) -> None: ...

    def on_step(self, epoch: int, batch: int, loss: float, mean: float, accuracy: float | None, rate: float) -> None:
        self.steps.append((epoch, batch))

    def on_epoch(self, row: EpochRow, best: bool) -> None:
        self.epochs += 1

    def on_end(self) -> None:
        self.ends += 1


def row(epoch: int) -> EpochRow:
    return EpochRow(
        epoch=epoch, loss=1.0 / epoch, validation_loss=0.5, validation_accuracy=0.25, validation={"loss": 0.5},
        rate=0.1, steps=3, seconds=1.0,
    )  # fmt: skip


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a protocol buffer's fields; of fixed32 and fixed64 the bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        match key & 7:
            case 0:
                yield key >> 3, varint()
            case wire:
                size = {1: 8, 5: 4}.get(wire) or varint()
                yield key >> 3, data[at : at + size]
                at += size


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The values by tag, of TFRecords: Event{step=2, summary=5{value=1{tag=1, simple_value=2}}}."""
    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack_from("<Q", data)
            event = dict(fields(data[12 : 12 + length]))
            data = data[12 + length + 4 :]
            if isinstance(event.get(5), bytes):
                for _, value in fields(bytes(event[5])):  # type: ignore[arg-type]
                    parts = dict(fields(bytes(value)))  # type: ignore[arg-type]
                    (number,) = struct.unpack("<f", parts[2])  # type: ignore[arg-type]
                    found.setdefault(bytes(parts[1]).decode(), []).append((int(event[2]), number))  # type: ignore[arg-type]
    return found


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_a_log_is_written_while_it_runs_and_goes_on(tmp_path: Path) -> None:
    heard, notes = Heard(), list[str]()
    log = Log(tmp_path / "a" / "b", heard, notes.append, resume=False, force=False)
    log.on_start(2, 3)
    for batch in (1, 2, 3):
        log.on_step(1, batch, 10.0 + batch, 10.0, 0.5, 0.25)
    log.on_epoch(row(1), True)
    folder = tmp_path / "a" / "b"
    assert [line["event"] for line in lines(folder)] == ["step"] * 3 + ["epoch"]  # it has not ended
    for _ in range(100):  # the writer of events has a thread of its own
        if len(scalars(folder).get("loss/step", ())) == 3:
            break
        time.sleep(0.1)
    assert scalars(folder)["loss/step"] == [(1, 11.0), (2, 12.0), (3, 13.0)]
    log.on_step(2, 1, 20.0, 20.0, None, 0.25)
    log.on_step(2, 2, 21.0, 20.0, None, 0.25)
    log.close()
    with (folder / "log.jsonl").open("a") as file:
        file.write('{"event": "st')  # cut short
    log = Log(folder, heard, notes.append, resume=True, force=False)
    log.on_start(2, 3)
    for batch in (2, 3):
        log.on_step(2, batch, 30.0 + batch, 30.0, None, 0.25)
    log.on_epoch(row(2), True)
    log.on_end()
    steps = [(line["step"], line["loss"]) for line in lines(folder) if line["event"] == "step"]
    assert steps == [(1, 11.0), (2, 12.0), (3, 13.0), (4, 20.0), (5, 32.0), (6, 33.0)]
    epochs = [line for line in lines(folder) if line["event"] == "epoch"]
    assert [(e["epoch"], e["step"], e["best"]) for e in epochs] == [(1, 3, True), (2, 6, True)]
    assert [line["rate"] for line in lines(folder) if line["event"] == "step"] == [0.25] * 6
    found = scalars(folder)
    assert found["rate/step"][-1] == (6, 0.25)
    assert found["loss/step"][-2:] == [(5, 32.0), (6, 33.0)]
    assert found["validation/loss"] == [(3, 0.5), (6, 0.5)]
    assert (heard.steps[-1], heard.epochs, heard.ends, notes) == ((2, 3), 2, 1, [])


def test_another_log_is_not_replaced_unasked(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"event": "step", "epoch": 1}\n')
    with pytest.raises(UsageError, match="has the log of another training"):
        Log(tmp_path, Heard(), print, resume=False, force=False)
    log = Log(tmp_path, Heard(), print, resume=False, force=True)
    assert len(lines(tmp_path)) == 1  # until the first step
    log.on_step(1, 1, 2.0, 2.0, None, 0.25)
    with pytest.raises(UsageError, match="another training writes to it"):
        Log(tmp_path, Heard(), print, resume=False, force=True)
    log.close()
    Log(tmp_path, Heard(), print, resume=True, force=False).close()
    assert [line["loss"] for line in lines(tmp_path)] == [2.0]
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--log .*file"):
        Log(tmp_path / "file", Heard(), print, resume=False, force=False)
