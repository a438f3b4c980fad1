"""Profiles: what comes with poetc, the schema's complaints (file, line, key), inheritance."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from poetc.devices import list_profiles, load_profile, profile_to_dict, profile_to_yaml
from poetc.devices.processors import parse_processors
from poetc.errors import UsageError

GOOD = """\
title: A board
source: sheet
sources:
  sheet: {kind: datasheet, text: the data sheet}
  bench: {kind: measured, text: on my desk}
cpu: {core: cortex-m4, fpu: single, core_count: 1, clock_hz: 1e8}
memory:
  ram_bytes: 65536
  flash_readable_in_place: true
  runtime_bytes: 64
  stack_bytes: 1024
compute:
  contraction_mac_per_s: {value: 1.0e7, source: bench, note: with dsp}
  elementwise_flop_per_s: 1.0e7
  memory_bytes_per_s: 1e8
  operator_overhead_ns: 100
  efficiency:
    Softmax: 0.5
power: {active_w: 0.1, idle_w: 0.01}
default_store: sd
stores:
  sd:
    kind: sd
    mode: sync
    cpu_during_transfer: idle
    block_bytes: 512
    capacity_bytes: 1000000
    read_latency_ns: 0
    write_latency_ns: 0
    read_bytes_per_s: 1.0e6
    write_bytes_per_s: 1.0e6
    read_w: 0.1
    write_w: 0.1
"""


def write(folder: Path, text: str, name: str = "board.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_every_profile_loads_and_says_where_its_numbers_come_from() -> None:
    assert {"host", "rpi4", "stm32f746", "nrf52840", "mkr1000"} <= set(list_profiles())
    for name in list_profiles():
        profile = load_profile(name)
        assert profile.name == name
        assert profile.title
        assert profile.memory.ram_bytes.source.text
        assert profile.compute.contraction_mac_per_s.source.kind
        assert profile.default_store in profile.stores


def test_devices_whose_cores_are_used_are_not_described_as_one_core() -> None:
    for name in list_profiles():
        device = load_profile(name)
        if parse_processors("auto", device):
            assert not re.search(r"one (core|thread)\b", f"{device.title} {device.description}"), name


def test_published_anchors_bound_the_profiles() -> None:
    """Power and throughput give the published energy per operation, where what is published is consistent."""
    for name, flop_per_s, flop_per_j in (("mkr1000", 166_667, 2.525e6), ("nrf52840", 6.37e6, 580e6)):
        profile = load_profile(name)
        assert flop_per_s / profile.power.active_w.value == pytest.approx(flop_per_j, rel=0.01)
        if profile.compute.cycles is None:  # the rate of poetc's own kernels is another one
            assert 2 * profile.compute.contraction_mac_per_s.value == pytest.approx(flop_per_s, rel=1e-3)
    pi = load_profile("rpi4")
    assert 120.3e6 / pi.power.active_w.value == pytest.approx(
        40.1e6, rel=0.01
    )  # the row that does not contradict itself
    assert pi.power.active_w.value < 10  # and not the 50 W of the one that does


def test_a_good_file(tmp_path: Path) -> None:
    profile = load_profile(write(tmp_path, GOOD))
    assert profile.name == "board"
    assert profile.ram_bytes == 65536
    assert profile.base_bytes == 1088
    assert profile.flash_bytes is None
    assert profile.cpu.clock_hz.value == 100_000_000
    rate = profile.compute.contraction_mac_per_s
    assert (rate.value, rate.source.kind, rate.note) == (1e7, "measured", "with dsp")
    assert profile.memory.ram_bytes.source.text == "the data sheet"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("ram_bytes: 65536", "ram_byte: 65536", ":8: unknown key 'ram_byte' in 'memory'; did you mean 'ram_bytes'?"),
        ("ram_bytes: 65536", "ram_kb: 64", ":8: unknown key 'ram_kb' in 'memory'; did you mean 'ram_bytes'?"),
        ("ram_bytes: 65536", "ram_bytes: lots", ":8: 'memory.ram_bytes' must be a number, not 'lots'"),
        ("ram_bytes: 65536", "ram_bytes: 0", ":8: 'memory.ram_bytes' must be greater than zero"),
        ("ram_bytes: 65536", "ram_bytes: -4", ":8: 'memory.ram_bytes' must be a finite number"),
        ("ram_bytes: 65536", "ram_bytes: 10.5", ":8: 'memory.ram_bytes' must be a whole number"),
        ("ram_bytes: 65536", "ram_bytes: 512", ":8: 'memory.ram_bytes' leaves nothing"),
        ("  ram_bytes: 65536\n", "", ":7: section 'memory' lacks 'ram_bytes'"),
        ("source: bench", "source: desk", ":13: unknown source 'desk'"),
        ("kind: measured", "kind: guessed", ":5: source 'bench': its kind is 'guessed'; choose from "),
        ("Softmax: 0.5", "Softmax: [1]", ":18: 'compute.efficiency.Softmax' must be a number"),
        ("    kind: sd\n", "    kind: tape\n", ":23: 'stores.sd.kind': one of sd, emmc"),
        (
            "    block_bytes: 512\n",
            "    block_bytes: 512\n    block_bytes: 256\n",
            ":27: key 'block_bytes' is given twice",
        ),
        ("block_bytes: 512", "block_bytes: 500", "block_bytes' must be a multiple of 16, at least 32, not 500"),
        ("block_bytes: 512", "block_bytes: 16", "block_bytes' must be a multiple of 16, at least 32, not 16"),
        ("block_bytes: 512", "block_bytes: 1099511627776", ":26: 'stores.sd.block_bytes' is more than the store's"),
        ("    read_w: 0.1\n", "", ":22: section 'stores.sd' lacks 'read_w'"),
        ("default_store: sd", "default_store: tape", ":20: 'default_store' is 'tape', but 'stores' has: sd"),
        ("idle_w: 0.01", "idle_w: 0.2", ":19: 'power.idle_w' is more than 'power.active_w'"),
        ("compute:\n", "compute: []\nx:\n", ": unknown key 'x'"),
        ("power: {", "power: [{", ":20: not valid YAML"),
        ("power: {active_w: 0.1, idle_w: 0.01}", "power:", "the profile lacks 'power'"),
        ("source: sheet\n", "", ": 'cpu.core_count' has no source"),
        ("title: A board", "title: A board\ninherits: rpi44", ":2: unknown device 'rpi44'; did you mean rpi4"),
        ("title: A board", "title: A board\ninherits: board.yaml", ":2: 'board.yaml' inherits this profile: a circle"),
        ("title: A board", "title: &a {x: *a}", ":1: not valid YAML: an alias (*name); write the values out"),
        ("title: A board", "title: " + "[" * 20_000, ":1: not valid YAML: nested too deeply"),
        ("title: A board", "title: [" + "1," * 20_000 + "1]", ":1: not valid YAML: more than 20,000 values"),
        ("ram_bytes: 65536", "ram_bytes: 0x_", ":8: 'memory.ram_bytes' must be a number, not '0x_'"),
        ("ram_bytes: 65536", "ram_bytes: " + "9" * 5000, ":8: a number of 5,000 characters"),
        ("ram_bytes: 65536", f"ram_bytes: 0x{2**64:x}", ":8: the number 0x10000000000000000 is too large"),
        ("ram_bytes: 65536", "ram_bytes: 1e999", ":8: the number 1e999 is too large"),
    ],
)
def test_complaints_name_file_line_and_key(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(UsageError) as error:
        load_profile(path)
    assert str(error.value).startswith(str(path))
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("old", ["", "  Softmax: 0.5", "power: {", "title: A board", "    kind: sd"])
@pytest.mark.parametrize("new", ["", "[", "a: 'x", "\tx", "a: b: c", "!x", "''", "é: |", "\x07"])
def test_profiles_are_the_same_without_libyaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    """Messages too."""
    found = []
    for has_libyaml in (True, False):
        monkeypatch.setattr("yaml.__with_libyaml__", has_libyaml)
        path = write(tmp_path, f"{GOOD.replace(old, new, 1) if old else GOOD}# {has_libyaml}\n")
        try:
            found.append(repr(load_profile(path)))
        except UsageError as error:
            found.append(str(error))
    assert found[0] == found[1]


def test_inheritance_merges_and_keeps_each_number_with_its_source(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "base.yaml")
    child = """\
    title: A smaller board
    inherits: ./base.yaml
    sources: {sheet: {kind: datasheet, text: another data sheet}}
    memory: {ram_bytes: {value: 32768, source: sheet}}
    compute: {efficiency: {Softmax: null}}
    """
    profile = load_profile(write(tmp_path, textwrap.dedent(child), "small.yaml"))
    assert profile.title == "A smaller board"
    assert profile.ram_bytes == 32768
    assert profile.memory.ram_bytes.source.text == "another data sheet"
    assert profile.memory.stack_bytes.source.text == "the data sheet"
    assert profile.compute.efficiency == {}
    assert profile.stores["sd"].block_bytes.value == 512


def test_an_empty_section_takes_the_inherited_one_away(tmp_path: Path) -> None:
    assert load_profile("rpi4").threads is not None
    assert load_profile(write(tmp_path, "inherits: rpi4\nthreads:\n")).threads is None


def test_errors_in_what_is_inherited_name_that_file(tmp_path: Path) -> None:
    base = write(tmp_path, GOOD.replace("    read_w: 0.1\n", ""), "base.yaml")
    with pytest.raises(UsageError, match=r"section 'stores.sd' lacks 'read_w'") as error:
        load_profile(write(tmp_path, "title: x\ninherits: ./base.yaml\n"))
    assert str(error.value).startswith(f"{base}:22")


@pytest.mark.parametrize("name", list_profiles())
def test_the_yaml_of_a_profile_loads_as_the_same_profile(tmp_path: Path, name: str) -> None:
    profile = load_profile(name)
    again = load_profile(write(tmp_path, profile_to_yaml(profile), f"{name}.yaml"))
    assert again == profile


def test_unknown_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"unknown device 'stm32f764'; did you mean stm32f746"):
        load_profile("stm32f764")
    for text, names in {"pico": "rp2040 or rp2350", "Teensy 4": "teensy41", "raspberrypi4": "rpi4"}.items():
        with pytest.raises(UsageError, match=rf"unknown device '{text}'; did you mean {names}\?"):
            load_profile(text)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text("hello\n")
    with pytest.raises(UsageError, match=r"^t\.txt: is a file, but no profile, whose name ends in \.yaml"):
        load_profile("t.txt")
    with pytest.raises(UsageError, match=r"^no device is called u\.txt, and no device profile has that name"):
        load_profile("u.txt")
    with pytest.raises(UsageError, match=r"unknown device 'zzz'; known: .*host"):
        load_profile("zzz")
    with pytest.raises(UsageError, match=r"no device profile at"):
        load_profile(tmp_path / "none.yaml")
    binary = tmp_path / "x.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not a text file"):
        load_profile(binary)
    with pytest.raises(UsageError, match="1: a device profile is a mapping"):
        load_profile(write(tmp_path, "- 1\n"))


def test_the_example_in_the_documentation_loads(tmp_path: Path) -> None:
    page = Path(__file__).parents[2].joinpath("docs", "how-to", "add-a-device.md").read_text()
    example = page.split("```yaml\n")[1].split("```")[0]
    profile = load_profile(write(tmp_path, example))
    assert profile.default_store == "qspi"
    assert list(profile.stores) == ["qspi"]
    assert profile.stores["qspi"].read_w.source.kind == "measured"
    assert profile.ram_bytes == load_profile("nrf52840").ram_bytes


SECOND = """\
processors:
  second:
    power: {active_w: 0.05, idle_w: 0.01}
    hand_over_ns: 100
    flush_bytes_per_s: 1.0e9
    kinds: [Relu]
    banks: [sram]
"""


def with_second(old: str = "", new: str = "") -> str:
    banks = "  banks: {sram: {kind: ram, size_bytes: 65536}, ccm: {kind: ram, size_bytes: 1024}}\n"
    return GOOD.replace("  stack_bytes: 1024\n", "  stack_bytes: 1024\n" + banks) + SECOND.replace(old, new)


def test_another_processor(tmp_path: Path) -> None:
    profile = load_profile(write(tmp_path, with_second()))
    second = profile.on("second")
    assert (second.cpu, second.compute) == (profile.cpu, profile.compute)
    assert second.power.active_w.value == 0.05
    assert load_profile(write(tmp_path, profile_to_yaml(profile), "again.yaml")).processors == profile.processors
    assert "processors" not in profile_to_dict(load_profile(write(tmp_path, GOOD, "plain.yaml")))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("second:", "main:", "'main' is the processor that 'cpu' describes; take another name"),
        ("idle_w: 0.01", "idle_w: 0.1", "'processors.second.power.idle_w' is more than its 'active_w'"),
        ("[sram]", "[dtcm]", "'processors.second.banks': there is no RAM bank 'dtcm', but ccm, sram"),
        ("[sram]", "[ccm]", "'processors.second.banks' lacks 'sram', the largest bank, which holds the arena"),
        ("    hand_over_ns: 100\n", "", "section 'processors.second' lacks 'hand_over_ns'"),
        ("banks: [sram]", "precisions: [f16]", "'processors.second.precisions': invalid enum value"),
    ],
)
def test_complaints_about_another_processor(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    path = write(tmp_path, with_second(old, new))
    with pytest.raises(UsageError) as caught:
        load_profile(path)
    assert complaint in str(caught.value)
    assert str(caught.value).startswith(f"{path}:")


def test_names_of_processors() -> None:
    pi, plain = load_profile("rpi4"), load_profile("stm32f746")
    assert parse_processors("main", pi) == parse_processors("", plain) == ()
    assert parse_processors("all", pi) == ("core1", "core2", "core3")
    assert parse_processors("main,core2", pi) == ("core2",)
    with pytest.raises(UsageError, match=r"device 'rpi4' has no processor 'core4'; did you mean 'core[123]'"):
        parse_processors("core4", pi)
    with pytest.raises(UsageError, match="device 'stm32f746' has the main processor alone"):
        parse_processors("all", plain)
