"""A client of a fleet: which weights travel, a round of training, and the refusal of another model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from poetc import artifact
from poetc.api import Solution
from poetc.artifact import Artifact
from poetc.commands.emit import emit
from poetc.datasets import Slot
from poetc.errors import UsageError
from poetc.fleet import FleetModel, Participant, Source, read_data
from poetc.graph import Array, DType
from poetc.program import Limit
from tests.commands.trained import DIGITS, answers, solved_of

DATA = str(DIGITS.with_name("digits_new_writer.npz"))
SCALED = {"normalize": "0..255", "seed": 3}


@pytest.fixture(scope="module")
def participant(digits: Artifact) -> Iterator[Participant]:
    found = Participant(digits)
    yield found
    found.close()


def first(count: int) -> list[Array]:
    with np.load(DATA) as arrays:
        return [arrays["train_x"][:count], arrays["train_y"][:count]]


def test_the_round_is_that_of_a_session_on_the_same_batches(participant: Participant) -> None:
    data = read_data(first(64), participant.slots, **SCALED)  # type: ignore[arg-type]
    begin = {w.tensor: participant.model.initial[w.name] * np.float32(0.5) for w in participant.model.weights}
    participant.fit(begin, data, learning_rate=0.5)  # which leaves momentum behind
    trained = participant.fit(begin, data, epochs=2, first_epoch=4, learning_rate=0.02)
    found = participant.state()
    session = participant.session
    zeros = {n: np.zeros_like(a) for n, a in session.state_dict().items()}  # the momentum of a first step
    session.load_state_dict({**zeros, **begin})
    session.learning_rate = 0.02
    losses = [session.step(batch) for epoch in (4, 5) for batch in data.batches.epoch(epoch)]
    assert trained.steps == 8 and trained.samples == 64
    assert trained.loss == pytest.approx(np.mean(losses), rel=1e-12)
    for name, array in found.items():
        assert array.tobytes() == session.state_dict([name])[name].tobytes()


def test_the_evaluation_reads_the_given_weights_alone(participant: Participant) -> None:
    data = read_data(f"{DATA}:train_x,train_y", participant.slots, validation=f"{DATA}:test_x,test_y", **SCALED)  # type: ignore[arg-type]
    begin = {w.tensor: participant.model.initial[w.name] for w in participant.model.weights}
    before = participant.evaluate(begin, data)
    participant.fit(begin, data, learning_rate=0.03)
    after = participant.evaluate(participant.state(), data)
    with np.load(DATA) as arrays:
        assert before.samples == len(arrays["test_x"])
    assert after.loss < before.loss and (after.accuracy or 0) > (before.accuracy or 0)
    assert participant.evaluate(begin, data) == before


def test_only_adapters_travel() -> None:
    whole, adapted = FleetModel.of(solved_of(DIGITS, batch=4)), FleetModel.of(solved_of(DIGITS, batch=4, lora=("2",)))
    assert whole.elements > 3 * adapted.elements > 0
    assert all("lora" in w.name for w in adapted.weights), adapted.weights


def test_chosen_weights_travel_alone() -> None:
    solved = solved_of(DIGITS, batch=4)
    last = FleetModel.of(solved).weights[-1].name
    assert [w.name for w in FleetModel.of(solved_of(DIGITS, batch=4, train=last)).weights] == [last]


def test_the_fingerprint_tells_models_and_not_plans(digits: Artifact) -> None:
    model = FleetModel.of(digits)
    other_plan = FleetModel.of(solved_of(DIGITS, batch=4, budget="80%", optimizer="adam"))
    assert other_plan.fingerprint == model.fingerprint
    adapted = FleetModel.of(solved_of(DIGITS, batch=4, lora=("2",)))
    with pytest.raises(UsageError, match=r"^the client's model is not the server's: its fingerprint is \w{12}"):
        model.state(model.initial, adapted.fingerprint)


def test_weights_of_another_model_are_refused(digits: Artifact) -> None:
    model = FleetModel.of(digits)
    names = list(model.initial)
    refused = "^the client's model is not the server's: "
    with pytest.raises(UsageError, match=refused + f"the server does not send '{names[0]}'"):
        model.state({n: model.initial[n] for n in names[1:]})
    with pytest.raises(UsageError, match=refused + "the server sends 'stranger', which it does not train$"):
        model.state({**model.initial, "stranger": np.zeros(1)})
    with pytest.raises(UsageError, match=refused + f"{names[0]} is .* here and .* there$"):
        model.state({**model.initial, names[0]: np.zeros((3, 3), np.float32)})
    with pytest.raises(UsageError, match=f"the server's {names[0]} holds values that are no finite"):
        model.state({**model.initial, names[0]: np.full_like(model.initial[names[0]], np.nan)})
    with pytest.raises(UsageError, match=refused + "the server sends 1 arrays"):
        model.listed_state([np.zeros(1)])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([np.zeros((4, 1, 8, 8), np.float32)], "data: 1 arrays; needed are 2"),
        ([np.zeros((4, 5), np.float32), np.zeros(4, np.int64)], "data: array 1 has shape"),
        ({"x": np.zeros((4, 8, 8), np.float32), "y": np.zeros(3, np.int64)}, "different numbers of samples"),
        ([np.float32(1), np.zeros(4)], "array 1 is a single value"),
        ("nowhere.npz", "data nowhere.npz: does not exist"),
    ],
)
def test_bad_data_are_refused_in_one_line(participant: Participant, source: Source, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refusal:
        read_data(source, participant.slots)
    assert "\n" not in str(refusal.value)


def test_an_evaluation_needs_data(participant: Participant, tmp_path: Path) -> None:
    data = read_data(first(32), participant.slots, normalize="0..255")
    begin = {w.tensor: participant.model.initial[w.name] for w in participant.model.weights}
    with pytest.raises(UsageError, match="no data to evaluate"):
        participant.evaluate(begin, data)
    with pytest.raises(UsageError, match="local-epochs 0: must be at least 1"):
        participant.fit(begin, data, epochs=0)
    first_weight = participant.model.weights[0]
    with pytest.raises(UsageError, match=f"^the state lacks '{first_weight.name}': give every weight"):
        participant.fit({n: a for n, a in begin.items() if n != first_weight.tensor}, data)
    with pytest.raises(UsageError, match=f"^the state gives {first_weight.name} in shape .*; the client trains"):
        participant.fit({**begin, first_weight.tensor: np.zeros((1, 2), np.float32)}, data)


@pytest.fixture(scope="module")
def in_integers() -> Artifact:
    return solved_of(DIGITS, batch=16, precision="niti", weight_bits="24")


def test_integers_of_24_bits_travel_as_the_numbers_that_they_stand_for(in_integers: Artifact, tmp_path: Path) -> None:
    """A round from an average keeps its last bits: numbers become codes and numbers again without a loss."""
    integers = Participant(in_integers)
    model, data = integers.model, read_data(first(32), integers.slots, **SCALED)  # type: ignore[arg-type]
    assert all(name.endswith(":numbers") for name in model.initial)
    one = model.state(model.initial)
    integers.fit(one, data)
    other = integers.state()
    moved = {n: np.abs(other[n] - one[n]).max() for n in one}
    assert min(moved.values()) > 0
    average = {n: (one[n] + other[n]) / 2 for n in one}
    integers.evaluate(average, read_data(first(8), integers.slots, validation=first(8), **SCALED))  # type: ignore[arg-type]
    for weight in model.weights:
        assert weight.exponent is not None
        found, unit = integers.state()[weight.tensor], 2.0 ** (weight.exponent - 16)
        assert np.abs(found - average[weight.tensor]).max() <= unit / 2
        codes = integers.session.state_dict(list(weight.state_names))
        assert codes[weight.tensor].dtype == np.int8 and codes[weight.state_names[1]].dtype == np.int32
    integers.close()
    solution = Solution(in_integers)
    solution.export(model.arrays(other), tmp_path / "fleet.onnx")
    sample = {"image": np.stack(first(8)[0])[:, None].astype(np.float32) / 255}
    before, after = (answers(path, sample)["logits"] for path in (DIGITS, tmp_path / "fleet.onnx"))
    assert 0.01 < np.abs(before - after).max() < 10
    name = model.weights[0].name
    for wrong, says in ((np.nan, "numbers that are not finite"), (1j, "is of type complex64; needed are numbers")):
        with pytest.raises(UsageError, match=f"{name} .*{says}"):
            solution.export({**model.arrays(other), name: other[model.weights[0].tensor] * wrong}, tmp_path / "o.onnx")
    with pytest.raises(UsageError, match=r"is of type float32; the model trains it in integers, of int8"):
        solution.export({w.tensor: other[w.tensor] for w in model.weights}, tmp_path / "other.onnx")


def test_integers_of_8_bits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which lose an average; solve with --precision niti --weight-bits 24"):
        FleetModel.of(solved_of(DIGITS, batch=16, precision="niti"))


def test_firmware_of_a_fleet_trains_floats(in_integers: Artifact, tmp_path: Path) -> None:
    artifact.write(in_integers, tmp_path / "solved", {})
    with pytest.raises(UsageError, match=r"^--fleet: a board in a fleet trains floats, and .* is of integers here"):
        emit(tmp_path / "solved", None, tmp_path / "c", board="mps2-an385", fleet=True)


def test_named_classes_are_refused_where_clients_would_number_them_differently(tmp_path: Path) -> None:
    features = Slot(name="x", shape=(4, 1), dtype=DType.F32, is_target=False, sample_shape=(1,))
    target = Slot(name="t", shape=(4,), dtype=DType.I32, is_target=True, sample_shape=(), limit=Limit(0, 1, 0))
    (tmp_path / "both.csv").write_text("a,kind\n1,rose\n2,iris\n")
    assert read_data(tmp_path / "both.csv", (features, target)).batches.source.classes == ("iris", "rose")
    (tmp_path / "one.csv").write_text("a,kind\n1,rose\n2,rose\n")
    with pytest.raises(UsageError, match=r"one\.csv: has only 1 of the model's 2 classes, by name"):
        read_data(tmp_path / "one.csv", (features, target))
