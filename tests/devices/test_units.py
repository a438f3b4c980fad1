from __future__ import annotations

import math
from random import Random

import pytest

from poetc.devices import format_bytes, format_enough, format_gap, format_ns, format_pj, parse_duration, parse_size
from poetc.devices.units import format_enough_ns
from poetc.errors import UsageError, format_count


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("737719", 737_719),
        ("256MB", 256_000_000),
        ("256 MB", 256_000_000),
        ("256MiB", 268_435_456),
        ("256mib", 268_435_456),
        ("1.5GB", 1_500_000_000),
        ("1.1GB", 1_100_000_000),  # exact: not 1100000000.0000002
        ("64kB", 64_000),
        ("64KB", 64_000),
        ("64KiB", 65_536),
        ("12B", 12),
        (".5kB", 500),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_percentage_needs_a_base() -> None:
    assert parse_size("60%", of=1001) == 600
    assert parse_size("12.5 %", of=800) == 100
    with pytest.raises(UsageError, match=r"--budget '60%'.*percentage"):
        parse_size("60%")


@pytest.mark.parametrize(
    "text", ["", "MB", "-5MB", "1e6", "5 parsecs", "256M", "256Mb", "nan", "0", "0.2B", "1,000B", "5MB!"]
)
def test_bad_sizes_name_the_option(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--ram ") as error:
        parse_size(text, option="--ram")
    assert repr(text) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("text", "end"), [("0", "byte"), ("0.6", "byte; a part is written 60%"), ("0.2B", "byte")])
def test_less_than_one_byte(text: str, end: str) -> None:
    with pytest.raises(UsageError, match=f"^--ram '{text}' is less than one {end}$"):
        parse_size(text, of=1000, option="--ram")


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2.5s", 2_500_000_000),
        ("300ms", 300_000_000),
        ("7us", 7_000),
        ("7µs", 7_000),
        ("9ns", 9),
        ("2min", 120 * 10**9),
    ],
)
def test_durations(text: str, time: int) -> None:
    assert parse_duration(text) == time


def test_multiple_needs_a_base() -> None:
    assert parse_duration("1.3x", of=1000) == 1300
    with pytest.raises(UsageError, match=r"--deadline '1.3x'.*multiple"):
        parse_duration("1.3x")


@pytest.mark.parametrize("text", ["", "2.5", "s", "-1s", "3 fortnights", "0s"])
def test_bad_durations_name_the_option(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--deadline "):
        parse_duration(text, of=5)


def test_formatting() -> None:
    assert [format_bytes(n) for n in (0, 9_999, 10_000, 737_719, 5_177_344)] == [
        "0 B", "9,999 B", "10.00 kB", "737.7 kB", "5.177 MB",
    ]  # fmt: skip
    times = (5, 78_328_451, 2_400_000_001, 3_174_369_980)
    assert [format_enough_ns(n) for n in times] == ["5 ns", "78.33 ms", "2.401 s", "3.175 s"]
    assert all(n <= parse_duration(format_enough_ns(n).replace(" ", "")) < 1.001 * n for n in times)
    assert [format_ns(n) for n in (5, 1_500, 46_470_000, 2_500_000_000)] == ["5 ns", "1.500 µs", "46.47 ms", "2.500 s"]
    assert [format_pj(n) for n in (5, 48_790_000_000, 1_578 * 10**9)] == ["5 pJ", "48.79 mJ", "1.578 J"]


def test_a_budget_that_is_told_suffices() -> None:
    """As it is printed, an option takes it, and it is no less."""
    random = Random(1)
    sizes = [134_240, 9_999, 10_000, 999_999, 999_950, 1_000_001, *(random.randrange(1, 10**k) for k in range(1, 15))]
    for size in sizes:
        assert size <= parse_size(format_enough(size)) <= size * 1.001 + 1, size
    assert [format_enough(n) for n in (134_240, 45_632, 5_632, 10**7)] == ["134.3 kB", "45.64 kB", "5632 B", "10.00 MB"]


@pytest.mark.parametrize("gap", [math.nan, math.inf])
def test_a_gap_that_is_no_number_is_unknown(gap: float) -> None:
    assert format_gap(gap) == "unknown"


@pytest.mark.parametrize(
    ("count", "nouns", "text"),
    [
        (0, ("tensor",), "0 tensors"),
        (1, ("tensor",), "1 tensor"),
        (1, ("copy", "copies"), "1 copy"),
        (1_200, ("copy", "copies"), "1,200 copies"),
    ],
)
def test_counts_have_a_singular(count: int, nouns: tuple[str, ...], text: str) -> None:
    assert format_count(count, *nouns) == text


def test_budgets_by_bank_where_there_is_one_ram() -> None:
    with pytest.raises(UsageError, match=r"--budgets 'dtcm=1kB': only poetc solve --budget takes budgets by bank"):
        parse_size("dtcm=1kB", of=1000, option="--budgets")
