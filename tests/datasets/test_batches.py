"""Order, last batch, splitting, scaling and augmentation: all of it follows from the seed."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from poetc.datasets import Augmentation, Batches, Evaluation, Normalization, Samples, split
from poetc.errors import UsageError
from poetc.graph import DType
from tests.datasets.support import CLASS, FEATURES, IMAGE, images, opened, stored

SLOTS = (IMAGE, CLASS)


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    return opened(stored(tmp_path / "d.npz", **images()), *SLOTS)


def _batches(samples: Samples, **changed: object) -> Batches:
    options = {"normalization": Normalization(), "augmentation": Augmentation(), "seed": 5, **changed}
    return Batches(source=samples, slots=SLOTS, **options)  # type: ignore[arg-type]


def _numbers(batches: Batches, epoch: int, first: int = 0) -> list[list[int]]:
    return [batch["x"][:, 0, 0, 0].astype(int).tolist() for batch in batches.epoch(epoch, first)]


def test_an_epoch_has_every_sample_and_fills_its_last_batch_from_its_beginning(samples: Samples) -> None:
    batches = _batches(samples)
    one, two = _numbers(batches, 1), _numbers(batches, 2)
    assert one == _numbers(batches, 1)
    assert one != two
    for epoch in (one, two):
        order = list(chain(*epoch))
        assert sorted(order[:10]) == list(range(10))
        assert order[10:] == order[:2]
    assert "10 samples make 3 batches of 4 an epoch; the last has 2 of them and 2 again" in batches.remark()
    assert _numbers(batches, 2, first=1) == two[1:]
    assert _numbers(_batches(samples, seed=6), 1) != one
    assert list(chain(*_numbers(_batches(samples, shuffle=False), 1))) == [*range(10), 0, 1]


def test_fewer_samples_than_a_batch_takes_still_train(tmp_path: Path) -> None:
    few = opened(stored(tmp_path / "d.npz", **images(3)), *SLOTS)
    assert [sorted(set(batch)) for batch in _numbers(_batches(few), 1)] == [[0, 1, 2]]


def test_validation_counts_each_sample_once(samples: Samples) -> None:
    found = list(Evaluation(source=samples, slots=SLOTS, normalization=Normalization()).batches())
    assert [count for _, count in found] == [4, 4, 2]
    assert found[-1][0]["x"][:, 0, 0, 0].tolist() == [8, 9, 9, 9]


def test_a_split_is_stratified_and_reproducible(samples: Samples) -> None:
    training, validation = split(samples, SLOTS, 0.34, seed=1)
    labels = validation.take(np.arange(len(validation)))["t"]
    assert np.bincount(labels).tolist() == [1, 1, 1]  # of 4, 3 and 3
    assert sorted([*training.rows, *validation.rows]) == list(range(10))  # type: ignore[misc]
    again = split(samples, SLOTS, 0.34, seed=1)[1]
    assert (again.rows == validation.rows).all()  # type: ignore[union-attr]
    assert again.digest() == validation.digest() != training.digest()
    with pytest.raises(UsageError, match="leaves none for validation"):
        split(samples, SLOTS, 0.01, seed=1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0..255", 51 / 255), ("0..255->-1..1", 51 / 127.5 - 1), ("0.5,2", 25.25), ("1,2e1", 2.5)],
)
def test_inputs_are_scaled_by_numbers(samples: Samples, text: str, expected: float) -> None:
    scaled = Normalization.parse(text, SLOTS, samples).apply({"x": np.full((4, 1, 2, 3), 51, np.uint8)})
    assert scaled["x"].dtype == np.float32
    assert scaled["x"].reshape(-1)[0] == pytest.approx(expected, rel=1e-6)


def test_pixels_by_255_have_the_bits_of_a_division(samples: Samples) -> None:
    pixels = np.arange(256, dtype=np.uint8)
    scaled = Normalization.parse("0..255", SLOTS, samples).apply({"x": pixels})["x"]
    assert (scaled == pixels.astype(np.float32) / np.float32(255)).all()


def test_inputs_are_scaled_by_the_training_samples_alone(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.normal((5, 1000, 0), (1, 0.5, 0), (20, 3))
    whole = opened(stored(tmp_path / "d.npz", x=x, target=np.zeros(20, int)), FEATURES, CLASS)
    training, _ = split(whole, (FEATURES, CLASS), 0.5, seed=0)
    scale = Normalization.parse("auto", (FEATURES, CLASS), training).scales["x"]
    mine = x[training.rows]
    np.testing.assert_allclose(scale.shift, mine.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(scale.scale, [*mine.std(axis=0)[:2], 1], rtol=1e-4)


@pytest.mark.parametrize("text", ["", "x", "1", "0..0", "1,0", "nan,1", "1/2,1", "0..255->2..2"])
def test_bad_scales_are_refused(samples: Samples, text: str) -> None:
    with pytest.raises(UsageError, match="--normalize"):
        Normalization.parse(text, SLOTS, samples)


def test_augmentation_depends_on_seed_epoch_and_batch(tmp_path: Path) -> None:
    x = np.arange(60, dtype=np.float32).reshape(10, 1, 2, 3)
    samples = opened(stored(tmp_path / "d.npz", **{**images(), "x": x}), *SLOTS)
    changed = _batches(samples, augmentation=Augmentation.parse("flip,crop:1,noise:0.01"))
    first, second = ([b["x"] for b in changed.epoch(epoch)] for epoch in (1, 2))
    assert all((a["x"] == b).all() for a, b in zip(changed.epoch(1, 1), first[1:], strict=True))
    assert not np.array_equal(first[0], second[0])


def test_a_flip_turns_half_of_the_images(tmp_path: Path) -> None:
    x = np.tile(np.array([0, 1, 2], np.float32), (400, 1, 2, 1))
    samples = opened(stored(tmp_path / "d.npz", x=x, target=np.zeros(400, int)), *SLOTS)
    turned = [
        row[0, 0, 0] == 2
        for batch in _batches(samples, augmentation=Augmentation.parse("flip")).epoch(1)
        for row in batch["x"]
    ]
    assert 150 < sum(turned) < 250


@pytest.mark.parametrize("text", ["flap", "crop", "crop:0", "noise:-1", "noise:x", "flip:1", "crop:1,,"])
def test_bad_augmentation_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--augment"):
        Augmentation.parse(text)


@pytest.mark.parametrize(("given", "wanted"), [({"noise": 0.1}, "noise"), ({"flip": True}, "flip and crop")])
def test_augmentation_of_inputs_without_floats_is_refused(given: dict[str, float], wanted: str) -> None:
    codes = replace(IMAGE, dtype=DType.I8)
    with pytest.raises(UsageError, match=f"--augment: {wanted} .*floating-point"):
        Augmentation(**given).require_images((codes, CLASS))  # type: ignore[arg-type]
    Augmentation(**given).require_images(SLOTS)  # type: ignore[arg-type]
