"""The client app under Flower's own strategy, without its network."""

from __future__ import annotations

import importlib
import logging
import random
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common.recorddict_compat import arrayrecord_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg as OlderFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp.strategy import FedAvg, Result
from flwr.supercore.task_identity import TaskIdentity

from poetc import artifact
from poetc.artifact import Artifact
from poetc.errors import UsageError
from poetc.fleet import FleetModel, Participant, Trained, read_data, require_sound
from poetc.flower import CheckedFedAvg, FedAvgOfChanges, client_app, gateway_app, initial_arrays, train_config
from poetc.graph import Array
from tests.commands.trained import DIGITS, solved_of
from tests.fleet.conftest import Firmware
from tests.support.fleet_board import BOARD, running
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


def start(
    grid: InProcessGrid,
    directory: Path,
    rounds: int = 2,
    strategy: Any = FedAvg,
    options: dict[str, Any] | None = None,
    **config: Any,
) -> Result:
    return strategy(fraction_evaluate=float(config.pop("evaluate", 0.0)), **(options or {})).start(
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
            for name, array in participant.model.arrays(participant.state()).items():
                total[name] += array * float(own.samples)
        weights = {n: np.asarray(a / samples, np.float32) for n, a in total.items()}
    participant.close()
    assert list(result.arrays) == list(weights)
    for name, array in result.arrays.items():
        np.testing.assert_allclose(array.numpy(), weights[name], atol=2e-6)
    assert set(result.train_metrics_clientapp[2]) == {"train_loss", "sent_bytes"}
    sent = sum(a.nbytes + 128 for a in weights.values())  # with the head of an .npy file
    assert (grid.sent_bytes, grid.received_bytes) == (2 * CLIENTS * sent, 2 * CLIENTS * sent)


def test_adapters_travel_alone_and_a_round_says_its_bytes(digits: Artifact, tmp_path: Path) -> None:
    """Two clients with `--lora 2`: the server averages factors of the adapters, and sees no other weight."""
    directory = tmp_path / "adapted.poetc"
    artifact.write(solved_of(DIGITS, batch=16, lora=("2",)), directory, {})
    app = client_app(directory, data_of, normalize="0..255", seed=1)
    nodes = {100 + n: {"partition-id": n} for n in range(2)}
    grid = InProcessGrid(dict.fromkeys(nodes, app), {"learning-rate": 0.02}, nodes)
    result = start(grid, directory)
    assert grid.errors == []
    arrays = {name: array.numpy() for name, array in result.arrays.items()}
    assert all(".lora_" in name for name in arrays) and arrays
    sent = sum(array.nbytes for array in arrays.values())
    assert 5 * sent < 4 * FleetModel.of(digits).elements
    assert [result.train_metrics_clientapp[n]["sent_bytes"] for n in (1, 2)] == [sent, sent]
    assert grid.sent_bytes == 2 * 2 * (sent + 128 * len(arrays))  # with the heads of .npy files
    start_of = {name: array.numpy() for name, array in initial_arrays(directory).items()}
    assert any((arrays[n] != start_of[n]).any() for n in arrays)


def test_an_evaluation_has_the_metrics_of_flowers_examples(digits_directory: Path) -> None:
    grid = grid_of(digits_directory, validation_split=0.25)
    result = start(grid, digits_directory, rounds=1, evaluate=1.0)
    assert grid.errors == []
    assert set(result.evaluate_metrics_clientapp[1]) == {"eval_loss", "eval_acc"}


def array_record(arrays: dict[str, Array]) -> ArrayRecord:
    return ArrayRecord({name: FlowerArray(array) for name, array in arrays.items()})


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


class Diverging(Participant):
    """A client whose last update gives an infinity, behind a loss that is a number; `lies`: it does not look."""

    def fit(self, state: Any, data: Any, **options: Any) -> Trained:
        trained = super().fit(state, data, **options)
        name = self.model.weights[0].tensor
        (weight,) = self.session.state_dict([name]).values()
        weight.flat[3] = np.inf
        self.session.load_state_dict({name: weight}, strict=False)
        require_sound(state, self.state())
        return trained


def test_a_client_that_diverges_is_left_out(digits_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two others make the average: where it says so itself, and where only the server looks."""
    expected = start(without_the_last(grid_of(digits_directory)), digits_directory).arrays
    for lies in (False, True):
        grid = grid_of(digits_directory)
        start(grid, digits_directory, rounds=1)  # which makes the participant of the others
        with monkeypatch.context() as patch:
            patch.setattr("poetc.flower.app.Participant", Diverging)
            diverging = client_app(digits_directory, data_of, normalize="0..255", seed=1)
            grid.replace(CLIENTS + 99, diverging)
            if lies:
                patch.setattr(f"{__name__}.require_sound", lambda before, after: None)
            found = start(grid, digits_directory, strategy=CheckedFedAvg)
        assert len(grid.errors) == (0 if lies else 2)
        assert all("holds numbers that are not finite" in text and "\n" not in text for text in grid.errors)
        for name, array in found.arrays.items():
            np.testing.assert_allclose(array.numpy(), expected[name].numpy(), atol=2e-6, err_msg=name)


def without_the_last(grid: InProcessGrid) -> InProcessGrid:
    """The grid with an app in the last place that answers with errors alone."""
    grid.replace(CLIENTS + 99, client_app("nothing.poetc", data_of))
    return grid


def test_the_norm_of_an_update_is_limited(
    digits_directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the client of poetc, and by the server where the client does not keep to it."""
    grid = grid_of(digits_directory)
    found = start(grid, digits_directory, rounds=1, strategy=CheckedFedAvg, options={"max_update_norm": 1e-6})
    assert len(grid.errors) == CLIENTS and len(found.arrays) == 0
    assert all("the update's norm is" in text and "above max-update-norm 1e-06" in text for text in grid.errors)
    grid = grid_of(digits_directory)
    with monkeypatch.context() as patch:
        patch.setattr("poetc.fleet.participant.require_sound", lambda before, after, norm: None)
        logging.getLogger("flwr").addHandler(caplog.handler)
        try:
            found = start(grid, digits_directory, rounds=1, strategy=CheckedFedAvg, options={"max_update_norm": 1e-6})
        finally:
            logging.getLogger("flwr").removeHandler(caplog.handler)
    assert grid.errors == [] and len(found.arrays) == 0
    left_out = {r.getMessage() for r in caplog.records if "is left out" in r.getMessage()}
    assert len(left_out) == CLIENTS and all("the update's norm is" in text for text in left_out)
    wide = start(grid_of(digits_directory), digits_directory, strategy=CheckedFedAvg, options={"max_update_norm": 1e6})
    plain = start(grid_of(digits_directory), digits_directory)
    for name, array in plain.arrays.items():
        np.testing.assert_allclose(wide.arrays[name].numpy(), array.numpy(), atol=2e-6)
    with pytest.raises(UsageError, match="max_update_norm 0: must be"):
        CheckedFedAvg(max_update_norm=0.0)


def test_replies_of_strangers_do_not_end_a_round(digits_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other names, no samples, a loss that is no number: each left out, and the sound reply is the average."""
    for name in ("_task_id", "_run_id", "_node_id"):  # of the process, which a run of the framework sets
        monkeypatch.setattr(TaskIdentity, name, 1)
    sent, strategy = initial_arrays(digits_directory), CheckedFedAvg()
    asked = [
        Message(RecordDict({"arrays": sent, "config": ConfigRecord()}), n, "train", group_id="1", ttl=10.0)
        for n in range(5)
    ]
    strategy._sent = {name: array.numpy() for name, array in sent.items()}
    arrays = {name: array.numpy() + np.float32(0.5) for name, array in sent.items()}
    first = next(iter(arrays))
    kinds: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (arrays, {"train_loss": 1.0, "num-examples": 4}),
        ({**arrays, "stranger": np.zeros(1, np.float32)}, {"train_loss": 1.0, "num-examples": 4}),
        (arrays, {"train_loss": 1.0, "num-examples": 0}),
        (arrays, {"train_loss": float("nan"), "num-examples": 4}),
        ({**arrays, first: np.full_like(arrays[first], np.nan)}, {"train_loss": 1.0, "num-examples": 4}),
    ]
    replies = [
        Message(RecordDict({"arrays": array_record(a), "metrics": MetricRecord(m)}), reply_to=message)
        for message, (a, m) in zip(asked, kinds, strict=True)
    ]
    average, metrics = strategy.aggregate_train(1, replies)
    assert average is not None and metrics is not None and metrics["train_loss"] == 1.0
    for name, array in average.items():
        np.testing.assert_array_equal(array.numpy(), arrays[name])


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


def older(directory: Path) -> dict[str, Any]:
    """The arguments of a strategy of the older interface."""

    def config(server_round: int) -> dict[str, Any]:
        return {**train_config(directory), "server-round": server_round}

    initial = ndarrays_to_parameters([array.numpy() for array in initial_arrays(directory).values()])
    return {"initial_parameters": initial, "on_fit_config_fn": config, "fraction_evaluate": 0.0}


def secure_rounds(
    grid: InProcessGrid, directory: Path, strategy: Any, clip: float, rounds: int = 2, **options: Any
) -> list[Array]:
    """The weights after some rounds of Flower's SecAgg+ over the older interface of strategies."""
    context = LegacyContext(Context(1, 0, {}, RecordDict(), {}), ServerConfig(num_rounds=rounds), strategy)
    workflow = SecAggPlusWorkflow(3, 2, clipping_range=clip, **{"max_weight": 200, **options})
    DefaultWorkflow(fit_workflow=workflow)(grid, context)
    record = context.state.array_records["parameters"]
    return parameters_to_ndarrays(arrayrecord_to_parameters(record, keep_input=True))


@pytest.mark.long
def test_secure_aggregation_gives_the_average(digits_directory: Path) -> None:
    """Whole weights and changes by poetc's C, and whole weights by Flower's own modifier."""
    plain = start(grid_of(digits_directory), digits_directory)
    expected = [array.numpy() for array in plain.arrays.values()]
    received = {}
    for name, kind, clip, mods, error in (
        ("C, weights", OlderFedAvg, 8.0, [], 2e-4),
        ("C, changes", FedAvgOfChanges, 0.5, [], 1.5e-5),
        ("Flower, weights", OlderFedAvg, 8.0, [secaggplus_mod], 5e-4),  # it rounds up or down by chance, unseeded
    ):
        grid = grid_of(digits_directory, mods=mods)
        weights = secure_rounds(grid, digits_directory, kind(**older(digits_directory)), clip)
        assert grid.errors == [], name
        for array, wanted in zip(weights, expected, strict=True):
            np.testing.assert_allclose(array, wanted, atol=error, err_msg=name)
        received[name] = grid.received_words
    assert received["C, weights"] == received["C, changes"] < 0.52 * received["Flower, weights"]


def test_faults_of_secure_aggregation_and_of_a_gateway_are_one_line(digits_directory: Path) -> None:
    grid = grid_of(digits_directory)
    secure_rounds(grid, digits_directory, OlderFedAvg(**older(digits_directory)), 8.0, rounds=1, max_weight=1)
    assert len(grid.errors) >= CLIENTS
    assert all("samples of at most 1" in text and "\n" not in text for text in grid.errors[:CLIENTS])
    app = gateway_app(digits_directory, digits_directory, "unix:/nonexistent/line")
    grid = InProcessGrid(dict.fromkeys(range(2), app))
    start(grid, digits_directory, rounds=1)
    assert len(grid.errors) == 2
    assert all(text.startswith("unix:/nonexistent/line: ") and "\n" not in text for text in grid.errors)


@pytest.mark.long
def test_a_board_takes_part_as_any_client(firmware: Firmware, tmp_path: Path) -> None:
    """Two clients of this machine, and a third that is a board or has its data here: the same bits, secure or not."""
    directory, averages = firmware.directory, []
    participant = Participant(firmware.solved)
    data = read_data(part(2), participant.slots, normalize="0..255", shuffle=False)
    participant.close()
    for on_board in (False, True):
        random.seed(1)  # Flower's order of the clients, and of their sum
        batches = list(data.batches.epoch(1))
        board = running(firmware.solved, firmware.emitted, BOARD, batches, tmp_path) if on_board else nullcontext("")
        with board as line:
            grid = grid_of(directory, shuffle=False)
            if on_board:
                grid.replace(102, gateway_app(directory, firmware.emitted, line, seed=1))
            plain = start(grid, directory, rounds=1)
            masked = secure_rounds(grid, directory, FedAvgOfChanges(**older(directory)), 0.5, rounds=1)
            assert grid.errors == []
            averages.append(
                [array.numpy().tobytes() for array in (*plain.arrays.values(),)] + [a.tobytes() for a in masked]
            )
    assert averages[0] == averages[1]
