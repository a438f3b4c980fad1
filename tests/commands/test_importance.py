"""`poetc importance` beside gradients in numpy, and `--train best` from the command line."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from poetc.commands import importance_by_accuracy
from poetc.commands.importance import ImportanceRequest, fisher
from poetc.commands.importance_by_accuracy import Trials, by_accuracy
from poetc.commands.requests import ModelRequest, load_model
from poetc.planning.importance import read_importance, update_text, write_importance
from poetc.training import Channels, TrainingOptions, Update, Whole, build, chosen_channels, layers_of
from tests.cli.conftest import run
from tests.commands.trained import DIGITS
from tests.support.graphs import evaluate

SAMPLES = 3


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("importance")
    random = np.random.default_rng(0)
    np.savez(
        folder / "data.npz",
        x=random.uniform(0, 1, (SAMPLES, 1, 8, 8)).astype(np.float32),
        y=random.integers(0, 10, SAMPLES),
    )
    request = ImportanceRequest(
        model=ModelRequest(source=DIGITS), data=f"{folder}/data.npz:x,y", out=folder / "importance.yaml"
    )
    write_importance(request.out, fisher(request))
    return folder


def test_the_fisher_information_is_that_of_gradients_in_numpy(measured: Path) -> None:
    with np.load(measured / "data.npz") as archive:
        data = {name: archive[name] for name in ("x", "y")}
    graph = load_model(ModelRequest(source=DIGITS, batch=1))
    found = {
        (c.parameter, update_text(c.update)): c for c in read_importance(measured / "importance.yaml", graph).candidates
    }
    step = build(graph, TrainingOptions(batch_norm="frozen", fusion=False))
    squares = {name: np.zeros(graph.tensors[name].shape) for name in step.gradients}
    for x, y in zip(data["x"], data["y"], strict=True):
        values = evaluate(step, {step.inputs[0]: x[None], step.target: np.array([y], np.int32)})
        for name, gradient in step.gradients.items():
            squares[name] += np.square(values[gradient]).reshape(squares[name].shape) / SAMPLES
    assert {name for name, text in found if text == "whole"} == set(squares)
    for (name, _), candidate in found.items():
        if isinstance(candidate.update, Whole):
            assert candidate.importance == pytest.approx(squares[name].sum(), rel=2e-3, abs=1e-9)
    layer = layers_of(graph)["6.weight"]
    share = found["6.weight", "1/4:norm"]
    weight = graph.values["6.weight"]
    assert isinstance(weight, np.ndarray) and not isinstance(share.update, Whole)
    channels = chosen_channels(layer, share.update, weight)  # type: ignore[arg-type]
    assert share.importance == pytest.approx(squares["6.weight"][:, list(channels)].sum(), rel=2e-3)
    assert 0 < share.importance < found["6.weight", "whole"].importance
    assert found["6.weight", "lora:4"].importance > 0


def test_the_best_updates_are_solved_for_and_named(measured: Path) -> None:
    options = ("--batch", 1, "-d", "stm32f746", "-b", "64kB", "--no-paging", "--time-limit", 2, "--json")
    best = ("--train", "best", "--importance", measured / "importance.yaml")
    solved = run("solve", DIGITS, *options, *best, "--max-energy", "0.6x", "-o", measured / "best.poetc")
    assert solved.code == 0, solved.err
    answer = solved.json
    assert 0 < answer["importance"] <= answer["importance_bound"] <= answer["importance_total"]
    assert answer["ram_bytes"] <= 64_000
    assert answer["updates"]["names"] and answer["energy_pj"] <= 0.6 * 10.9e9
    assert any("without encodings of saved tensors): " in note for note in answer["notes"])


@pytest.mark.long
def test_by_accuracy_each_update_is_trained_alone_and_none_twice(
    measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def some(*ignored: object) -> list[tuple[str, Update]]:
        return [("18.weight", Whole()), ("18.weight", Channels(Fraction(1, 2), True)), ("18.bias", Whole())]

    monkeypatch.setattr(importance_by_accuracy, "updates_of", some)
    data = "demo/digits_new_writer.npz"
    training = TrainingOptions(learning_rate=0.02)
    request = ImportanceRequest(
        model=ModelRequest(source=DIGITS, batch=16, training=training),
        data=f"{DIGITS.parents[1] / data}:train_x,train_y",
        out=measured / "trials.yaml",
        normalize="0..255",
    )
    trials = Trials(validation=f"{DIGITS.parents[1] / data}:test_x,test_y", jobs=1)
    said: list[str] = []
    first = by_accuracy(request, trials, said.append)
    assert [c.parameter for c in first.candidates] == ["18.weight", "18.weight", "18.bias"]
    assert first.candidates[0].importance > first.candidates[2].importance and first.candidates[0].importance > 0.05
    assert first.unit == "rise of the validation accuracy after 1 epoch"
    assert said[-1] == "3 of 3 updates, about 0 ns left"
    lines = (measured / "trials.yaml.jsonl").read_text().splitlines()
    (measured / "trials.yaml.jsonl").write_text("\n".join(lines[:2]) + '\n{"key": "cut')
    said.clear()
    assert by_accuracy(request, trials, said.append) == first
    assert [text for text in said if "left" in text] == ["3 of 3 updates, about 0 ns left"]


def test_a_measurement_that_cannot_be_is_refused_at_once(tmp_path: Path) -> None:
    ended = run("importance", DIGITS, "--data", "x.npz", "-o", tmp_path / "absent" / "i.yaml")
    assert ended.code == 2 and ": no such file or directory" in ended.err
    ended = run("importance", DIGITS, "--data", "x.npz", "--by", "accuracy", "-o", tmp_path / "i.yaml")
    assert ended.code == 2 and "--by accuracy: give --validation or --validation-split" in ended.err


@pytest.mark.parametrize(
    "options, fault",
    [
        (("--train", "best"), "--train best needs --importance FILE"),
        (("--importance", "i.yaml"), "--importance does nothing without --train best"),
        (
            ("--train", "best", "--importance", "absent.yaml"),
            "cannot read the importance file absent.yaml: No such file",
        ),
        (("--train", "best", "--importance", "i.yaml", "--lora", "4"), "--lora and --train best exclude each other"),
        (("--train", "best", "--importance", "i.yaml", "-b", "least"), "--budget least and --train best exclude"),
    ],
)
def test_wrong_options_are_one_line(tmp_path: Path, options: tuple[str, ...], fault: str) -> None:
    ended = run("solve", DIGITS, "--batch", 1, *options, "-o", tmp_path / "out")
    assert ended.code == 2 and fault in ended.err and ended.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_budget_below_the_cheapest_update_names_it(measured: Path, tmp_path: Path) -> None:
    best = ("--train", "best", "--importance", measured / "importance.yaml")
    ended = run("solve", DIGITS, "--batch", 1, "-d", "stm32f746", "-b", "4kB", *best, "-o", tmp_path / "out")
    assert ended.code == 4 and "the cheapest is '18.bias whole': it needs" in ended.err
    analyzed = run("analyze", DIGITS, "--batch", 1, "--train", "best")
    assert analyzed.code == 2 and "--train best: the updates are chosen for a budget" in analyzed.err
