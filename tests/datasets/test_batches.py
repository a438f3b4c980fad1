"""Order, last batch, splitting, scaling and augmentation: all of it follows from the seed."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from poetc.datasets import Augmentations, Batches, Evaluation, Normalization, Samples, Slot, split
from poetc.errors import UsageError
from poetc.graph import Array, DType
from tests.datasets.support import CLASS, FEATURES, IMAGE, images, opened, stored

SLOTS = (IMAGE, CLASS)


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    return opened(stored(tmp_path / "d.npz", **images()), *SLOTS)


def _batches(samples: Samples, **changed: object) -> Batches:
    options = {"normalization": Normalization(), "augmentation": Augmentations(), "seed": 5, **changed}
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
    said = "3 samples for a batch of 4; it has each of them up to 2 times; --batch 3 has each once"
    assert _batches(few).remark() == said


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
    changed = _batches(samples, augmentation=Augmentations.parse("flip,crop:1,noise:0.01"))
    first, second = ([b["x"] for b in changed.epoch(epoch)] for epoch in (1, 2))
    assert all((a["x"] == b).all() for a, b in zip(changed.epoch(1, 1), first[1:], strict=True))
    assert not np.array_equal(first[0], second[0])


def test_a_flip_turns_half_of_the_images(tmp_path: Path) -> None:
    x = np.tile(np.array([0, 1, 2], np.float32), (400, 1, 2, 1))
    samples = opened(stored(tmp_path / "d.npz", x=x, target=np.zeros(400, int)), *SLOTS)
    turned = [
        row[0, 0, 0] == 2
        for batch in _batches(samples, augmentation=Augmentations.parse("flip")).epoch(1)
        for row in batch["x"]
    ]
    assert 150 < sum(turned) < 250


@pytest.mark.parametrize(
    "text", ["flap", "crop", "crop:0", "noise:-1", "noise:x", "flip:1", "crop:1,,", "flip,flip", "gain:1"]
)
def test_bad_augmentation_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--augment"):
        Augmentations.parse(text)


@pytest.mark.parametrize("text", ["noise:0.1", "flip"])
def test_augmentation_of_inputs_without_floats_is_refused(text: str) -> None:
    codes = replace(IMAGE, dtype=DType.I8)
    with pytest.raises(UsageError, match=f"--augment: {text[:4]}.* is for floating-point"):
        Augmentations.parse(text).require_inputs((codes, CLASS))
    Augmentations.parse(text).require_inputs(SLOTS)


def augmented(text: str, *arrays: Array) -> list[Array]:
    """One batch of these inputs after the changes; an array of integers is the target of the first."""
    slots = [
        Slot(
            name=str(n),
            shape=a.shape,
            dtype=DType.F32 if a.dtype == np.float32 else DType.I32,
            is_target=a.dtype != np.float32,
            sample_shape=a.shape[1:],
        )
        for n, a in enumerate(arrays)
    ]
    changes, random = Augmentations.parse(text), np.random.default_rng(3)
    changes.require_inputs(slots)
    batch = {slot.name: array for slot, array in zip(slots, arrays, strict=True)}
    batch = changes.after_scaling(changes.before_scaling(batch, slots, random), slots, random)
    return [batch[slot.name] for slot in slots]


@pytest.mark.parametrize("text", ["flip", "crop:2", "flip,crop:3"])
def test_a_mask_moves_with_its_image(text: str) -> None:
    masks = np.random.default_rng(1).integers(1, 5, (20, 6, 7)).astype(np.int32)
    images = np.stack([masks, 2 * masks], axis=1).astype(np.float32)
    moved, labels = augmented(text, images, masks)
    assert (moved[:, 0] == labels).all() and (moved[:, 1] == 2 * labels).all()
    assert (moved != images).any()


@pytest.mark.parametrize("text", ["crop:6", "cutout:99", "crop:1000000"])
def test_a_change_that_leaves_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=rf"--augment {text}: nothing of 0 .* would be left"):
        augmented(text, np.ones((4, 1, 6, 7), np.float32))
    with pytest.raises(UsageError, match=r"--augment shift:50: nothing of 0 .* would be left"):
        augmented("shift:50", np.ones((4, 2, 50), np.float32))


@pytest.mark.parametrize("text", ["noise:0.1", "gain:0.5"])
@pytest.mark.parametrize("axes", [0, 5])
def test_noise_and_gain_are_for_samples_of_any_axes(text: str, axes: int) -> None:
    given = np.ones((4, *(2,) * axes), np.float32)
    (changed,) = augmented(text, given)
    assert changed.shape == given.shape and (changed != 1).any()


def test_a_cutout_blanks_a_square() -> None:
    (blanked,) = augmented("cutout:3", np.ones((200, 2, 8, 9), np.float32))
    gone = (blanked == 0).sum(axis=(2, 3))
    assert (gone[:, 0] == gone[:, 1]).all() and gone.max() == 9 and gone.min() >= 4  # less where the border cuts it


def test_a_shift_keeps_the_order_of_a_signal() -> None:
    signals = np.tile(np.arange(1, 11, dtype=np.float32), (50, 3, 1))
    (shifted,) = augmented("shift:4", signals)
    for row in shifted.reshape(-1, 10):
        inside = row[row > 0]
        assert len(inside) >= 6 and (np.diff(inside) == 1).all()
        assert (row[0] == 0 or row[-1] == 0) or (row == signals[0, 0]).all()
    assert len({row.tobytes() for row in shifted[:, 0]}) == 9
    assert (shifted[:, 0] == shifted[:, 2]).all()


def test_a_shift_moves_labels_of_places_and_no_shares_of_classes() -> None:
    signals = np.tile(np.arange(1, 11, dtype=np.float32), (20, 3, 1))
    shifted, labels = augmented("shift:4", signals, signals[:, 0].astype(np.int32))
    assert (shifted[:, 1] == labels).all()
    shares = replace(CLASS, sample_shape=(10,), dtype=DType.F32)
    signal = replace(IMAGE, sample_shape=(3, 10))
    changes = Augmentations.parse("shift:4")
    batch = {"x": signals, CLASS.name: np.eye(10, dtype=np.float32).repeat(2, 0)}
    changed = changes.before_scaling(batch, (signal, shares), np.random.default_rng(0))
    assert (changed[CLASS.name] == batch[CLASS.name]).all() and (changed["x"] != signals).any()


def test_a_gain_is_one_factor_a_sample() -> None:
    rows = np.random.default_rng(2).standard_normal((300, 5)).astype(np.float32)
    (louder,) = augmented("gain:0.2", rows)
    factors = louder / rows
    np.testing.assert_allclose(factors, np.broadcast_to(factors[:, :1], factors.shape), rtol=1e-6)
    assert 0.8 <= factors.min() < 0.82 and 1.18 < factors.max() <= 1.2


def test_what_would_part_a_target_from_its_image_is_refused() -> None:
    boxes = replace(CLASS, name="corners", sample_shape=(4,), dtype=DType.F32, boxes="xyxy")
    with pytest.raises(UsageError, match="flip moves the image, and the boxes of corners would stay"):
        Augmentations.parse("flip").require_inputs((IMAGE, boxes))
    with pytest.raises(UsageError, match=r"crop:2: nothing of x \[samples, 1, 2, 3\] would be left"):
        Augmentations.parse("crop:2").require_inputs(SLOTS)


@pytest.mark.parametrize("text", ["flip,crop:2", "cutout:3,gain:0.2"])
def test_inputs_of_one_size_change_together(text: str) -> None:
    images = np.random.default_rng(5).standard_normal((20, 2, 6, 7)).astype(np.float32)
    masks = np.abs(images[:, 0] * 100).astype(np.int32)
    left, right, labels = augmented(text, images, images.copy(), masks)
    assert (left == right).all() and (left != images).any()
    if "flip" in text:
        assert (labels == np.abs(left[:, 0] * 100).astype(np.int32)).all()
    noisy, other = augmented("noise:0.1", images, images.copy())
    assert (noisy != other).any()
