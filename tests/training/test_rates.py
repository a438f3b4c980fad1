"""Learning-rate schedules: PyTorch's values, the text that describes them, and the errors of that text."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import platform

import numpy as np
import pytest

from poetc.errors import UsageError
from poetc.runtime import runtime_directory
from poetc.training.rates import Schedule, c_fields, parse
from tests.support.kernels import compile_shared

STEPS = (0, 1, 4, 9, 10, 11, 25, 49, 99)

# The rates of STEPS as PyTorch 2.13 gives them, one scheduler step after every optimizer step.
PYTORCH = [
    # StepLR(10, 0.5)
    ("step:every=10,factor=0.5", 0.1, (0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.025, 0.00625, 0.0001953125)),
    # CosineAnnealingLR(100, 1e-5)
    (
        "cosine:steps=100,final=1e-5",
        0.1,
        (
            *(0.1, 0.09997533048548475, 0.09960577449221733, 0.09801488281541879, 0.09755307053217621),
            *(0.09704433404386652, 0.08535680352542147, 0.05157538090011105, 3.4669514515248674e-05),
        ),
    ),
    # SequentialLR(LinearLR(total_iters=10), CosineAnnealingLR(90, 1e-4)), milestone 10
    (
        "cosine:warmup=10,steps=100,final=1e-4",
        0.05,
        (
            *(0.016666666666666666, 0.02, 0.03, 0.04666666666666665, 0.05),
            *(0.04998480113412644, 0.04665733382442176, 0.030237396685903094, 0.00011519886587356075),
        ),
    ),
    # SequentialLR(LinearLR(0.1, total_iters=10), StepLR(20, 0.3)), milestone 10
    (
        "step:every=20,factor=0.3,warmup=10,start=0.1",
        0.01,
        (0.001, 0.0019, 0.0046, 0.0091, 0.01, 0.01, 0.01, 0.003, 8.1e-05),
    ),
    # LinearLR(total_iters=10)
    ("constant:warmup=10", 0.01, (0.01 / 3, 0.004, 0.006, 0.028 / 3, 0.01, 0.01, 0.01, 0.01, 0.01)),
]


@pytest.mark.parametrize(("text", "base", "expected"), PYTORCH, ids=[text for text, _, _ in PYTORCH])
def test_rates_are_those_of_pytorch(text: str, base: float, expected: tuple[float, ...]) -> None:
    schedule = parse(text)
    rates = [schedule.rate(base, step) for step in STEPS]
    assert all(isinstance(rate, np.float32) for rate in rates)
    np.testing.assert_allclose(rates, expected, rtol=1.5e-7)  # the first rate is rounded to float32, and so is each


def test_plateau_is_that_of_pytorch() -> None:
    """ReduceLROnPlateau(factor=0.3, patience=2, cooldown=1, min_lr=1e-3), with a loss that is no number among them."""
    losses = [2, 1.5, 1.5, 1.49999, 1.6, 1.4, 1.5, 1.5, 1.5, 1.5, 1.5, *[1.3] * 8, math.nan, 1.3, 1.2]
    expected = [0.1] * 4 + [0.03] * 4 + [0.009] * 6 + [0.0027] * 4 + [0.001] * 4
    schedule = parse("plateau:factor=0.3,patience=2,cooldown=1,final=1e-3")
    rates = []
    for loss in losses:
        schedule = schedule.observe(loss)
        rates.append(schedule.rate(0.1, 7))
    np.testing.assert_allclose(rates, expected, rtol=1.5e-7)


def test_cosine_stays_at_its_end_and_is_exact_there() -> None:
    schedule = parse("cosine:warmup=3,steps=10,final=0.25")
    assert [schedule.rate(1, t) for t in (3, 10, 11, 10**6)] == [1, 0.25, 0.25, 0.25]
    angles = np.arange(1001, dtype=np.float64)
    long = parse("cosine:steps=1000")
    expected = 0.5 * (1 + np.cos(np.pi * angles / 1000))
    np.testing.assert_allclose([long.rate(1, t) for t in range(1001)], expected, rtol=6e-8, atol=1e-17)


def test_a_cosine_without_length_lasts_as_long_as_the_run() -> None:
    schedule = parse("cosine:warmup=5")
    assert schedule.needs_steps
    with pytest.raises(ValueError, match="over"):
        schedule.rate(0.1, 7)
    assert schedule.over(20) == parse("cosine:warmup=5,steps=20")
    assert not schedule.over(3).needs_steps  # a run that is shorter than the warm-up
    for text in ("cosine:steps=7", "constant", "step:every=4", "plateau"):
        assert parse(text).over(20) == parse(text)


@pytest.mark.parametrize("text", ["constant", "step:every=10", "cosine:warmup=2,start=0.5,final=0.001", "plateau"])
def test_text_is_read_back(text: str) -> None:
    assert str(parse(text)) == text
    assert parse(str(parse(text))) == parse(text)


def test_a_schedule_observes_without_changing() -> None:
    plateau = parse("plateau:patience=0")
    assert plateau.observe(1).observe(1).plateau.reductions == 1
    assert plateau == parse("plateau:patience=0")
    constant = Schedule()
    assert constant.observe(3.0) is constant


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "choose from constant, step, cosine, plateau"),
        ("cosin:steps=3", "choose from"),
        ("step", "step:every=1000"),
        ("step:", "'' is none of every="),
        ("step:every=0", "every=0 must be a whole number of at least 1"),
        ("step:every=99999999999", "whole number"),
        ("step:every=1,factor=2", "factor=2 must be a number from 0 to 1"),
        ("cosine:final=-1", "final=-1 must be a number of at least 0"),
        ("cosine:final=nan", "final=nan must be a number"),
        ("cosine:final=inf", "final=inf must be a number"),
        ("cosine:every=1", "'every=1' is none of steps=, final=, warmup=, start="),
        ("cosine:steps=1,steps=2", "'steps=2' is given twice"),
        ("cosine:steps=10,warmup=10", "leaves nothing after a warm-up of 10"),
        ("constant:start=0.5", "start= needs warmup="),
    ],
)
def test_a_wrong_text_is_named_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(text)
    assert message in str(refused.value)
    assert str(refused.value).startswith("--schedule ")
    assert "\n" not in str(refused.value)


class _Schedule(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("kind", "warmup", "steps", "patience", "cooldown")),
        *((name, ctypes.c_double) for name in ("start", "factor", "final", "threshold")),
    ]


class _Plateau(ctypes.Structure):
    _fields_ = [
        ("best", ctypes.c_float),
        *((name, ctypes.c_uint32) for name in ("worse", "cooling", "reductions")),
    ]


@pytest.mark.parametrize("flags", [("-ffp-contract=off",), ("-ffp-contract=fast", "-O3", "-mfma")])
def test_rates_in_c_have_the_same_bits(flags: tuple[str, ...]) -> None:
    """Whatever the compiler may fuse."""
    source = runtime_directory() / "src"
    if "-mfma" in flags and platform.machine() != "x86_64":
        flags = flags[:2]  # other machines have it anyway
    library = compile_shared([source / "poetc_rate.c"], *flags)
    library.poetc_rate.restype = ctypes.c_float
    texts = [text for text, _, _ in PYTORCH]
    texts += ["cosine:steps=77,warmup=7,final=3e-5", "plateau:factor=0.7,patience=0,cooldown=1,warmup=3", "constant"]
    random = np.random.default_rng(0)
    for text in texts:
        schedule, plateau = parse(text), _Plateau()
        c = _Schedule(*c_fields(schedule))
        library.poetc_plateau_begin(ctypes.byref(plateau))
        for step in range(0, 400, 3):
            loss = np.float32(random.uniform(0.5, 1))
            base = float(np.float32(random.uniform(1e-4, 1)))
            expected = schedule.rate(base, step)
            found = library.poetc_rate(ctypes.byref(c), ctypes.byref(plateau), ctypes.c_float(base), step)
            assert np.float32(found).tobytes() == expected.tobytes(), (text, step)
            schedule = schedule.observe(loss)
            library.poetc_rate_observe(ctypes.byref(c), ctypes.byref(plateau), ctypes.c_float(loss))
            kept = (plateau.best, plateau.worse, plateau.cooling, plateau.reductions)
            assert kept == dataclasses.astuple(schedule.plateau), text
