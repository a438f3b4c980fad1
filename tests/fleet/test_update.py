"""Quantised updates: the C has the bits of the reference, and masks cancel in a sum (test_board.py: on a Cortex-M)."""

from __future__ import annotations

import ctypes
import subprocess
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from poetc.errors import CheckFailed, UsageError
from poetc.fleet import Quantizer
from poetc.graph import Array
from poetc.runtime import runtime_directory
from poetc.runtime.library import Library

INCLUDES = [f"-I{runtime_directory() / folder}" for folder in ("include", "kernels", "src")]
SOURCES = [str(runtime_directory() / "src" / name) for name in ("poetc_update.c", "poetc_data.c")]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    out = tmp_path_factory.mktemp("update") / "update.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-ffp-contract=off", *INCLUDES, *SOURCES, "-o", str(out)]
    subprocess.run(command, check=True)
    return cast(Library, SimpleNamespace(dll=ctypes.CDLL(str(out))))


def numbers(count: int, seed: int = 0) -> Array:
    random = np.random.default_rng(seed)
    drawn = random.standard_normal(count) * 10.0 ** random.integers(-8, 2, count)
    drawn[:6] = [0, -0.0, 1e30, -1e30, 0.75, 1e-40]
    return drawn.astype(np.float32)


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize(("clip", "levels"), [(8.0, 1 << 22), (0.1, 2), (0.37, 255 * 2), (1e-3, 1 << 30)])
def test_c_has_the_words_of_the_reference(library: Library, stochastic: bool, clip: float, levels: int) -> None:
    quantizer = Quantizer(clip=clip, range=levels, factor=0.3, stochastic=stochastic, seed=9, round=4)
    after, before = numbers(4001), numbers(4001, 1)
    words = quantizer.codes(after, before, first=11)
    assert words.tobytes() == quantizer.codes_in_c(library, after, before, first=11).tobytes()
    parts = [quantizer.codes_in_c(library, after[i : i + 7], before[i : i + 7], 11 + i) for i in range(0, 4001, 7)]
    assert np.concatenate(parts).tobytes() == words.tobytes()
    assert int(words.max()) <= levels
    whole = quantizer.codes(after)
    assert whole.tobytes() == quantizer.codes_in_c(library, after).tobytes()
    exact = np.clip(after.astype(np.float64) * np.float32(0.3), -np.float32(clip), np.float32(clip))
    step = 2 * clip / levels
    found = quantizer.numbers(whole)
    assert np.abs(found - exact).max() <= step * (1 if stochastic else 0.5) + clip * 2e-7
    if stochastic and 2 < levels <= 1 << 22:  # beyond, floats are coarser than the words
        assert abs((found - exact).mean()) < 4 * step / np.sqrt(len(after))


def test_masks_cancel_in_the_sum(library: Library) -> None:
    """Three clients with masks that add up to 0 modulo 2^32: the sum is that of the words."""
    quantizer = Quantizer(clip=2.0, range=1 << 16, modulus=1 << 20)
    random = np.random.default_rng(5)
    masks = random.integers(0, 1 << 32, (2, 500), dtype=np.uint32)
    masks = np.concatenate([masks, -masks.sum(0, dtype=np.uint32)[None]])
    updates = random.uniform(-1, 1, (3, 500)).astype(np.float32)
    sent = [
        quantizer.masked_in_c(library, quantizer.codes_in_c(library, u), mask)
        for u, mask in zip(updates, masks, strict=True)
    ]
    assert all((words <= quantizer.mask).all() for words in sent)
    total = quantizer.numbers(np.sum(sent, axis=0, dtype=np.uint64) & np.uint64(quantizer.mask), clients=3)
    np.testing.assert_allclose(total, updates.astype(np.float64).sum(0), atol=3 * 4 / (1 << 16))


def test_what_cannot_be_quantised_is_refused(library: Library) -> None:
    quantizer = Quantizer(clip=1.0, range=256)
    for bad in (np.nan, np.inf):
        array = np.array([0, bad], np.float32)
        for words in (quantizer.codes, lambda a: quantizer.codes_in_c(library, a)):
            with pytest.raises(CheckFailed, match="not finite: the training diverged"):
                words(array)
    for fault, changes in {
        "clipping range": {"clip": 0.0},
        "target range 3: must be even": {"range": 3},
        "target range 2147483648": {"range": 1 << 31},
        "modulus range 256: must be a power of two, above": {"modulus": 256},
        "modulus range 1000: must be a power of two": {"modulus": 1000},
    }.items():
        with pytest.raises(UsageError, match=fault):
            Quantizer(**{"clip": 1.0, "range": 256, **changes})  # type: ignore[arg-type]
