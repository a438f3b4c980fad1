"""Times of loops from counted instructions and a pipeline model, and bands of numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from poetc.devices import list_profiles, load_profile, profile_to_yaml
from poetc.devices.checking import implausible
from poetc.devices.modelled import at_end, bands, is_modelled
from poetc.errors import UsageError
from poetc.kernels.classes import CLASSES, class_of_group, class_of_source
from poetc.runtime import runtime_directory

HEAD = """title: A board
inherits: nrf52840
sources:
  model: {kind: modelled, text: a model}
  bench: {kind: measured, text: a measurement}
"""
BOARDS = (
    *("rpi3bplus", "rpi4", "rpi5", "rpizero2w", "jetson-tx2", "stm32f405", "stm32f746", "stm32h743", "stm32h745"),
    "stm32h7b3",
    *("stm32l476", "stm32l4r5", "teensy41", "nrf52840", "apollo4", "cortex-m55", "rp2040", "rp2350"),
)
M4_OF_PI = "inherits: stm32h745\ntitle: x\nprocessors: {m4: {compute: {cycles: {counted: rpi4}}}}\n"
CYCLES = """compute:
  cycles:
    counted: qemu-mps2-an386
    per_instruction:
      source: model
      gemm: {value: 2.0, low: 1.0, high: 4.0}
      other: {value: 1.0, low: 1.0, high: 1.0}
    fetch_cycles_per_instruction: {value: 0.5, low: 0.0, high: 1.0, source: model}
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_loop_takes_its_instructions_times_their_cycles(tmp_path: Path) -> None:
    profile = load_profile(write(tmp_path / "mine.yaml", HEAD + CYCLES))
    counted = load_profile("qemu-mps2-an386").compute.loop_ns["gemm"]["terms_4"].value
    made = profile.compute.loop_ns["gemm"]["terms_4"]
    cycle_ns = 1e9 / 64e6
    assert made.value == pytest.approx(counted * 2.5 * cycle_ns)
    assert made.low == pytest.approx(counted * 1.0 * cycle_ns)
    assert made.high == pytest.approx(counted * 5.0 * cycle_ns)
    assert made.source.kind == "modelled"
    relu = profile.compute.loop_ns["relu"]["single"].value
    per = load_profile("nrf52840").compute.cycles
    assert per is not None
    counted = load_profile("qemu-mps2-an386").compute.loop_ns["relu"]["single"].value
    assert relu == pytest.approx(counted * (per.per_instruction["other"].value + 0.5) * cycle_ns)


def test_a_measured_group_counts_before_a_modelled_one(tmp_path: Path) -> None:
    text = HEAD + CYCLES + "  loop_ns:\n    gemm: {terms_4: {value: 7.0, source: bench}}\n"
    profile = load_profile(write(tmp_path / "mine.yaml", text))
    assert {name: q.value for name, q in profile.compute.loop_ns["gemm"].items()} == {"terms_4": 7.0}
    assert profile.compute.loop_ns["relu"]["single"].source.kind == "modelled"
    again = load_profile(write(tmp_path / "again.yaml", profile_to_yaml(profile)))
    assert {g: {n: q.value for n, q in loops.items()} for g, loops in again.compute.loop_ns.items()} == {
        g: {n: q.value for n, q in loops.items()} for g, loops in profile.compute.loop_ns.items()
    }


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            "counted: qemu-mps2-an386",
            "counted: qemu-virt-a72",
            "counts the loops of another kind of core",
        ),
        ("counted: qemu-mps2-an386", "counted: qemu-386", "unknown device 'qemu-386'"),
        ("      gemm:", "      gem:", "there is no class of kernels 'gem'"),
        ("high: 4.0", "high: 1.5", "the band of 'compute.cycles.per_instruction.gemm', 1.0 to 1.5, does not hold"),
        (", high: 4.0", "", "has two ends: give both 'low' and 'high'"),
        ("low: 1.0, high: 4.0", "low: few, high: 4.0", "the low end of"),
        ("      other: {value: 1.0, low: 1.0, high: 1.0}", "      recurrent: {value: }", "recurrent' must be a number"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in CYCLES
    with pytest.raises(UsageError) as error:
        load_profile(write(tmp_path / "mine.yaml", HEAD + CYCLES.replace(old, new, 1)))
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_a_profile_does_not_count_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    with pytest.raises(UsageError, match="names mine, whose times are modelled too"):
        load_profile(write(path, HEAD + CYCLES.replace("qemu-mps2-an386", str(path))))


def test_profiles_do_not_count_each_other(tmp_path: Path) -> None:
    path, other = tmp_path / "mine.yaml", tmp_path / "other.yaml"
    write(other, HEAD + CYCLES.replace("qemu-mps2-an386", str(path)))
    with pytest.raises(UsageError, match="names other, whose times are modelled too"):
        load_profile(write(path, HEAD + CYCLES.replace("qemu-mps2-an386", str(other))))


def test_an_end_of_a_band_makes_everything_quick_or_slow(tmp_path: Path) -> None:
    rates = "  memory_bytes_per_s: {value: 1.0e8, low: 0.5e8, high: 2.0e8, source: bench}\n"
    rates += "  efficiency: {Softmax: {value: 0.5, low: 0.25, high: 0.75, source: bench}}\n"
    profile = load_profile(write(tmp_path / "mine.yaml", HEAD + CYCLES + rates))
    low, high = (at_end(profile, "compute", end) for end in ("low", "high"))  # type: ignore[arg-type]
    times = [p.compute.loop_ns["gemm"]["terms_4"].value for p in (low, profile, high)]
    assert times == sorted(times)
    assert times[0] < times[2]
    assert [p.compute.memory_bytes_per_s.value for p in (low, profile, high)] == [2.0e8, 1.0e8, 0.5e8]
    assert [p.compute.efficiency["Softmax"].value for p in (low, profile, high)] == [0.75, 0.5, 0.25]
    assert low.power == profile.power
    assert bands(profile, "compute") > 400
    assert bands(profile, "power") == 1  # of `idle_w`


@pytest.mark.parametrize("name", list_profiles())
def test_every_profile_can_be_contributed(name: str) -> None:
    """`poetc profile check` finds no fault, and the source of each number says more than a word."""
    profile = load_profile(name)
    assert list(implausible(profile)) == []
    for section in (profile.cpu.clock_hz, profile.memory.ram_bytes, profile.power.active_w, profile.power.idle_w):
        assert len(section.source.text.split()) >= 2, section
    if profile.compute.cycles is not None:
        source = profile.compute.cycles.per_instruction["other"].source
        assert source.kind == "modelled"
        assert source.text.startswith(("llvm-mca", "cycles by Arm's table"))


def test_every_board_is_timed_by_loops_with_bands() -> None:
    """Kernels of poetc's own, not rates of others': POET's MKR1000 keeps its published row."""
    for name in BOARDS:
        profile = load_profile(name)
        assert profile.compute.cycles is not None, name
        assert is_modelled(profile.compute.loop_ns["gemm"]), name
        for end in ("low", "high"):
            assert at_end(profile, "compute", end) != profile, name


def test_another_processor_is_timed_by_its_own_loops(tmp_path: Path) -> None:
    profile = load_profile("stm32h745")
    own = profile.processors["m4"].compute
    assert own is not None
    assert own.loop_ns["gemm"]["terms_4"].value > 1.5 * profile.compute.loop_ns["gemm"]["terms_4"].value
    assert own.loop_ns["relu"]["single"].source.text.startswith("instructions counted in QEMU (qemu-mps2-an386)")
    assert len(profile_to_yaml(profile)) < 20_000  # loops that follow from cycles are left out
    with pytest.raises(
        UsageError, match=r"'processors.m4.compute.cycles.counted' names rpi4, whose times are modelled"
    ):
        load_profile(write(tmp_path / "mine.yaml", M4_OF_PI))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("low: 1.0, high: 4.0", "low: 0.1, high: 4.0", "wider than a factor of 30"),
        ("{value: 2.0, low: 1.0, high: 4.0}", "2.0", "has no band"),
        ("{value: 2.0, low: 1.0, high: 4.0}", "{value: 40.0, low: 40.0, high: 41.0}", "40.0 cycles an instruction"),
    ],
)
def test_an_implausible_band_is_named(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in CYCLES
    path = write(tmp_path / "mine.yaml", HEAD + CYCLES.replace(old, new, 1))
    (said,) = implausible(load_profile(path))
    assert "'compute.cycles.per_instruction.gemm'" in said
    assert complaint in said


def test_every_group_and_every_file_of_kernels_has_a_class() -> None:
    kernels = runtime_directory() / "kernels"
    found = {class_of_source(path.relative_to(kernels).as_posix()) for path in kernels.rglob("*.[ch]")}
    assert found <= set(CLASSES)
    assert len(found) >= 12
    groups = load_profile("qemu-mps2-an386").compute.loop_ns
    other = sum(class_of_group(group) == "other" for group in groups)
    assert other < 0.15 * len(groups)
