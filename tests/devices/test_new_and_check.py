"""`profile new` and `profile check`, and what does not fit a device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from poetc import training
from poetc.devices import (
    NewProfile,
    check_profiles,
    create_profile,
    fit_notes,
    flash_needed_bytes,
    list_profiles,
    load_profile,
)
from poetc.errors import CheckFailed, UsageError
from poetc.training import TrainingOptions
from tests.cli.conftest import run
from tests.support.graphs import small_cnn


def test_every_profile_passes_its_check() -> None:
    names = list_profiles()
    result = check_profiles(names)
    result.require()
    assert [row["profile"] for row in result.document["profiles"]] == list(names)
    assert all(sum(row["sources"].values()) >= 15 for row in result.document["profiles"])


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("contraction_mac_per_s: {value: 1.25e8", "contraction_mac_per_s: {value: 53.0e9", "cycles a multiply"),
        ("contraction_mac_per_s: {value: 1.25e8", "contraction_mac_per_s: {value: 53.0e-3", "is the unit right"),
        ("ram_bytes: {value: 327680", "ram_bytes: {value: 3276800", "more than its banks"),
        ("  operator_overhead_ns", "  efficiency: {Convv: 0.5}\n  operator_overhead_ns", "has no source"),
    ],
)
def test_impossible_numbers_are_named(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    from poetc.devices.loading import profile_folder

    text = (profile_folder() / "stm32f746.yaml").read_text()
    assert old in text
    path = tmp_path / "board.yaml"
    path.write_text(text.replace(old, new, 1))
    result = check_profiles([path, "host"])
    with pytest.raises(CheckFailed, match=complaint) as error:
        result.require()
    assert str(path) in str(error.value)
    assert [row["valid"] for row in result.document["profiles"]] == [False, True]


def test_a_profile_with_a_mistake_prints_nothing_but_its_error(tmp_path: Path) -> None:
    path = tmp_path / "board.yaml"
    path.write_text("title: Mine\ninherits: nrf52840\nram: 3\n")
    ended = run("profile", "check", path)
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert run("profile", "check", path, "host").out.startswith("host: ok")


def test_a_new_profile_is_its_base_with_what_was_given(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    new = NewProfile(
        title="Mine",
        inherits="nrf52840",
        clock_hz=128_000_000,
        ram_bytes=524_288,
        active_w=0.02,
        source_kind="datasheet",
        source_text="its data sheet",
    )
    made, base = create_profile(new, path), load_profile("nrf52840")
    assert made == load_profile(path)
    assert (made.title, made.name, made.ram_bytes) == ("Mine", "mine", 524_288)
    assert made.power.active_w.source.kind == "datasheet"
    rate, base_rate = made.compute.contraction_mac_per_s, base.compute.contraction_mac_per_s
    assert rate.value == pytest.approx(2 * base_rate.value)
    assert rate.source.kind == "derived"
    assert made.compute.operator_overhead_ns.value == base.compute.operator_overhead_ns.value / 2
    assert made.power.idle_w == base.power.idle_w
    assert not made.memory.banks  # the base's memory map is not this board's
    check_profiles([path]).require()
    with pytest.raises(UsageError, match=r"exists.*--force"):
        create_profile(new, path)
    assert create_profile(replace(new, title="Another"), path, force=True).title == "Another"
    kept = path.read_bytes()
    with pytest.raises(UsageError, match="idle_w"):
        create_profile(replace(new, idle_w=5.0), path, force=True)
    assert path.read_bytes() == kept and list(tmp_path.iterdir()) == [path]


def test_a_new_profile_that_cannot_be_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    with pytest.raises(UsageError, match="idle_w"):
        create_profile(NewProfile(title="Mine", inherits="nrf52840", idle_w=5.0), path)
    for title in ("", " ", "My\nboard"):
        with pytest.raises(UsageError, match=r"--title .*one line"):
            create_profile(NewProfile(title=title, inherits="nrf52840"), path)
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_the_device_is_said() -> None:
    graph = training.build(small_cnn(), TrainingOptions())
    board = load_profile("qemu-microbit")
    assert fit_notes(graph, board, board.ram_bytes) == ()
    notes = fit_notes(graph, board, board.ram_bytes + 1)
    assert len(notes) == 1
    assert "more than the 16.38 kB of RAM" in notes[0]
    wide = training.build(small_cnn(channels=512), TrainingOptions())
    notes = fit_notes(wide, board, 1)
    assert len(notes) == 1 and "of flash, code not counted" in notes[0]
    state = flash_needed_bytes(wide, board)
    (note,) = fit_notes(wide, board, 1, state)
    assert "of initial state have to come on the store" in note and "262.1 kB of flash" in note
    (note,) = fit_notes(wide, board, 1, state - board.flash_bytes - 1)
    assert "take 262.1 kB of flash" in note
