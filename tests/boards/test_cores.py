"""Which code runs on which core, and with which flags it is compiled."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from poetc.boards import BOARDS, TARGETS, Core, Numerics, check_device, numerics_of_target, resolve
from poetc.devices import list_profiles, load_profile
from poetc.errors import UsageError

M0 = Core("cortex-m0plus")
M4 = Core("cortex-m4", "none", "dsp")
M4F = Core("cortex-m4", "single", "dsp")
M7 = Core("cortex-m7", "single", "dsp")
M33 = Core("cortex-m33", "single", "dsp")
M85 = (Core("cortex-m85", "double", "helium"), Core("cortex-m85", "single"), Core("cortex-m85"))
M55 = Core("cortex-m55", "double", "helium")
A53 = Core("cortex-a53", "double", "neon")
XTENSA = Core("xtensa-lx7", "single")


def flags(target: str, core: Core, board: str | None = None, numerics: Numerics = "separate") -> str:
    return resolve(target, board, numerics, core)[0].flags


def test_a_library_is_built_for_the_devices_core() -> None:
    for core, expected in (
        (M0, "-mcpu=cortex-m0plus"),
        (M4, "-mcpu=cortex-m4"),
        (M4F, "-mcpu=cortex-m4 -mfloat-abi=hard -mfpu=fpv4-sp-d16"),
        (M7, "-mcpu=cortex-m7 -mfloat-abi=hard -mfpu=fpv5-sp-d16 -DPOETC_CHAINED"),
        (Core("cortex-m7", "double", "dsp"), "-mcpu=cortex-m7 -mfloat-abi=hard -mfpu=fpv5-d16"),
        (M33, "-mcpu=cortex-m33 -mfloat-abi=hard -mfpu=fpv5-sp-d16"),
        (M55, "-mcpu=cortex-m55+nomve.fp -mfloat-abi=hard"),
        (Core("cortex-m55", "single", "dsp"), "-mcpu=cortex-m55+nomve -mfloat-abi=hard"),
    ):
        assert flags("cortex-m", core) == f"-Os -mthumb {expected}"
    assert flags("cortex-m", M55, numerics="fast") == "-Os -mthumb -mcpu=cortex-m55 -mfloat-abi=hard"


def test_firmware_and_programs_suit_the_device() -> None:
    for board in (None, "mps2-an500"):  # the STM32F746's FPU has no double precision, the emulated board's has
        assert flags("cortex-m7", M7, board).endswith(
            "-mcpu=cortex-m7 -mfloat-abi=hard -mfpu=fpv5-sp-d16 -DPOETC_CHAINED"
        )
    assert flags("cortex-a", A53) == "-O2 -mcpu=cortex-a53"
    assert flags("cortex-a", A53, "armhf") == BOARDS["armhf"].flags
    for target in TARGETS:  # what does not suit the target changes nothing
        assert flags(target, XTENSA) == resolve(target, None, "separate")[0].flags


@pytest.mark.parametrize("numerics", ["separate", "fused", "fast"])
def test_compilers_know_the_flags(tmp_path: Path, numerics: Numerics) -> None:
    if shutil.which("arm-none-eabi-gcc") is None:
        pytest.skip("no arm-none-eabi-gcc: make setup-arm")
    (tmp_path / "a.c").write_text("float f(float a) { return 2 * a; }\n")
    for core in (M0, M4, M4F, M7, M33, M55, Core("cortex-m23"), Core("cortex-m55", "single"), Core("cortex-m55"), *M85):
        if numerics not in numerics_of_target(TARGETS["cortex-m"], core):
            with pytest.raises(UsageError, match=f"--numerics {numerics}: cortex-m has separate"):
                flags("cortex-m", core, numerics=numerics)
            continue
        words = ["arm-none-eabi-gcc", *flags("cortex-m", core, numerics=numerics).split(), "-Werror", "-c", "a.c"]
        subprocess.run(words, cwd=tmp_path, check=True)


@pytest.mark.parametrize(
    ("target", "core", "ways"),
    [
        ("cortex-m55", M7, "cortex-m7, cortex-m4f, cortex-m3, cortex-m0, cortex-m or c99, or name a --board"),
        ("cortex-m7", M4F, "cortex-m4f, cortex-m3, cortex-m0, cortex-m or c99, or"),
        ("cortex-m4f", M4, "cortex-m3, cortex-m0, cortex-m or c99, or"),
        ("cortex-m3", M0, "cortex-m0, cortex-m or c99, or"),
        ("cortex-m", A53, "cortex-a, cortex-a-bare or c99$"),
        ("cortex-m", XTENSA, "host or c99$"),
        ("cortex-a", XTENSA, "host or c99, or"),
        ("cortex-a", Core("cortex-a7", "double", "neon"), "generic-a7 or c99, or name a --board"),
        ("generic-a76", A53, "cortex-a, cortex-a-bare or c99, or name a --board"),
        ("cortex-m4f", Core("native", "double"), "host or c99, or"),
    ],
)
def test_code_that_the_device_does_not_run_is_refused(target: str, core: Core, ways: str) -> None:
    says = rf"^{target}: code for a cortex-\w+ does not run on board1 \({core}\), which .*; choose --target {ways}"
    with pytest.raises(UsageError, match=says):
        check_device(target, None, core, "board1")


def test_code_that_runs_but_is_for_another_core_gets_a_note() -> None:
    linked, lesser = check_device("cortex-m4f", None, M7, "stm32f746")
    assert linked.startswith("firmware.elf is for the memory map and start-up of mps2-an386 (MPS2 with")
    assert linked.endswith("docs/how-to/port.md says how they become stm32f746's")
    assert lesser.endswith(" runs on stm32f746's cortex-m7 but does not use all of it: --target cortex-m7 does")
    assert len(check_device("cortex-m7", None, M7, "stm32f746")) == 1
    assert check_device("cortex-m4f", None, M33, "rp2350")[1].endswith("--target generic-m33 does")
    assert len(check_device("generic-m33", None, M33, "rp2350")) == 1
    asked = check_device("cortex-a", "armhf", M7, "stm32f746")
    assert asked == [
        "code for armhf (cortex-a7), as asked, does not run on stm32f746 (cortex-m7), which it was solved for"
    ]
    for target, board, core in (
        ("host", None, XTENSA),
        ("c99", None, XTENSA),
        ("cortex-m", None, M7),
        ("cortex-m7", "mps2-an500", M7),
        ("cortex-a", None, A53),
        ("cortex-a", "armhf", Core("cortex-a7", "double", "neon")),
    ):
        assert check_device(target, board, core, "stm32f746") == []


@pytest.mark.parametrize("name", list_profiles())
def test_profiles_have_a_target_that_runs_on_them(name: str) -> None:
    cpu = load_profile(name).cpu
    core = Core(cpu.core, cpu.fpu, cpu.simd)
    arm = "cortex-m" if core.is_microcontroller else "cortex-a"
    usual = {"native": "host", "xtensa-lx7": "c99"}.get(cpu.core, arm)
    assert check_device(usual, None, core, name) == []
    emulated = BOARDS.get(name.removeprefix("qemu-"))
    if emulated is not None and TARGETS[emulated.target].board == emulated.name:
        assert check_device(emulated.target, None, core, name) == []
        # The flags of emulated boards are those that their code sizes and instructions were counted with.
        assert (
            resolve(emulated.target, None, "separate", core)[0].flags
            == resolve(emulated.target, None, "separate")[0].flags
        )


def test_names_of_cores_are_those_of_the_compiler() -> None:
    assert all(re.fullmatch(r"cortex-[amr]\d+\w*", t.core.name) for t in TARGETS.values() if t.core is not None)
