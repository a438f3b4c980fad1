"""The client app under Flower's own strategy, without its network."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.serverapp.strategy import FedAvg, Result

from poetc.artifact import Artifact
from poetc.errors import UsageError
from poetc.fleet import Participant, read_data
from poetc.flower import client_app, initial_arrays, train_config
from poetc.flower._messages import array_record
from poetc.graph import Array
from tests.commands.trained import DIGITS
from tests.support.flower_grid import InProcessGrid

CLIENTS = 3


def part(number: int) -> list[Array]:
    """The data of one client: clients have different numbers of samples."""
    with np.load(DIGITS.with_name("digits_new_writer.npz")) as arrays:
        rows = slice(64 * number, 64 * number + 32 + 16 * number)
        return [arrays["train_x"][rows], arrays["train_y"][rows]]


def data_of(context: Context) -> Sequence[Any]:
    return part(int(context.node_config["partition-id"]))


def grid_of(directory: Path, **options: Any) -> InProcessGrid:
    app = client_app(directory, data_of, normalize="0..255", seed=1, **options)
    nodes = {100 + n: {"partition-id": n} for n in range(CLIENTS)}
    return InProcessGrid(dict.fromkeys(nodes, app), {"learning-rate": 0.02}, nodes)


def start(grid: InProcessGrid, directory: Path, rounds: int = 2, **config: Any) -> Result:
    return FedAvg(fraction_evaluate=float(config.pop("evaluate", 0.0))).start(
        grid=grid,
        initial_arrays=initial_arrays(directory),
        num_rounds=rounds,
        train_config=train_config(directory, **config),
        evaluate_config=train_config(directory),
    )


def test_two_rounds_are_the_average_of_the_clients_own_training(digits: Artifact, digits_directory: Path) -> None:
    grid = grid_of(digits_directory)
    result = start(grid, digits_directory, local_epochs=2)
    assert grid.errors == []
    participant = Participant(digits)
    weights = dict(participant.model.initial)
    for number in (1, 2):
        total, samples = {n: np.zeros(a.shape) for n, a in weights.items()}, 0
        for client in range(CLIENTS):
            data = read_data(part(client), participant.slots, normalize="0..255", seed=1)
            own = participant.fit(
                participant.model.state(weights), data, epochs=2, first_epoch=2 * number - 1, learning_rate=0.02
            )
            samples += own.samples
            for name, array in participant.model.arrays(own.state).items():
                total[name] += array * float(own.samples)
        weights = {n: np.asarray(a / samples, np.float32) for n, a in total.items()}
    participant.close()
    assert list(result.arrays) == list(weights)
    for name, array in result.arrays.items():
        np.testing.assert_allclose(array.numpy(), weights[name], atol=2e-6)
    assert set(result.train_metrics_clientapp[2]) == {"train_loss"}
    sent = sum(a.nbytes + 128 for a in weights.values())  # with the head of an .npy file
    assert (grid.sent_bytes, grid.received_bytes) == (2 * CLIENTS * sent, 2 * CLIENTS * sent)


def test_an_evaluation_has_the_metrics_of_flowers_examples(digits_directory: Path) -> None:
    grid = grid_of(digits_directory, validation_split=0.25)
    result = start(grid, digits_directory, rounds=1, evaluate=1.0)
    assert grid.errors == []
    assert set(result.evaluate_metrics_clientapp[1]) == {"eval_loss", "eval_acc"}


FAULTS: list[tuple[dict[str, Any], dict[str, Array] | None, str]] = [
    ({"poetc-fingerprint": "0" * 64}, None, "the client's model is not the server's: its fingerprint is"),
    ({}, {"other": np.zeros(3, np.float32)}, "the client's model is not the server's: the server sends 'other'"),
    ({"local-epochs": 1.5}, None, "local-epochs: 1.5 is no whole number"),
    ({"learning-rate": "fast"}, None, "learning-rate: fast is no number"),
    ({"learning-rate": -1.0}, None, "learning_rate: -1.0, not a finite number"),
    ({"learning-rate": 1e30}, None, "the loss is"),
]


def test_a_fault_is_one_line(digits_directory: Path) -> None:
    grid = grid_of(digits_directory)
    for config, arrays, message in FAULTS:
        grid.errors.clear()
        given = initial_arrays(digits_directory) if arrays is None else array_record(arrays)
        FedAvg(fraction_evaluate=0.0).start(
            grid=grid, initial_arrays=given, num_rounds=1, train_config=ConfigRecord(config)
        )
        assert len(grid.errors) == CLIENTS, message
        for text in grid.errors:
            assert "\n" not in text and text.startswith(f"{digits_directory}: ") and message in text


def test_no_directory_is_an_error_reply(tmp_path: Path, digits_directory: Path) -> None:
    grid = grid_of(tmp_path / "nothing.poetc")
    start(grid, digits_directory, rounds=1)
    assert len(grid.errors) == CLIENTS and all("nothing.poetc" in text and "\n" not in text for text in grid.errors)
    with pytest.raises(UsageError):
        initial_arrays(tmp_path / "nothing.poetc")


def test_the_demonstration_trains_and_writes_its_model(
    digits_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(DIGITS.with_name("fleet")))
    demo: Any = importlib.import_module("digits_fleet")
    nodes = {n: {"partition-id": n, "num-partitions": 2} for n in range(2)}
    run: dict[str, Any] = {
        "directory": str(digits_directory),
        "data": str(DIGITS.with_name("digits_new_writer.npz")),
        "out": str(tmp_path / "fleet.onnx"),
        "rounds": 1,
    }
    grid = InProcessGrid(dict.fromkeys(nodes, demo.client), run, nodes)
    demo.server(grid, Context(1, 0, {}, RecordDict(), run))
    assert grid.errors == []
    before, after = (onnx.load(p).graph.initializer for p in (DIGITS, tmp_path / "fleet.onnx"))
    assert [t.name for t in before] == [t.name for t in after]
    assert all(a.raw_data != b.raw_data for a, b in zip(before, after, strict=True) if a.dims and a.data_type == 1)
