"""The numerics of a program: those of its device's profile, where its target can, unless others are asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from poetc.boards import TARGETS, resolve
from poetc.commands.emit import numerics_of_plans
from poetc.commands.programs import numerics_of
from poetc.devices import load_profile, profile_to_dict
from poetc.emit.layouts import Contents
from poetc.emit.layouts._flat import build_header
from poetc.errors import UsageError


def solved_for(device: str | None, numerics: str | None = None) -> Any:
    profile = None if device is None else load_profile(device)
    if profile is not None and numerics is not None:
        profile = msgspec.structs.replace(profile, cpu=msgspec.structs.replace(profile.cpu, numerics=numerics))
    return SimpleNamespace(profile=profile)


@pytest.mark.parametrize(
    ("device", "target", "expected"),
    [
        ("rpi4", "cortex-a", "fused"),
        ("rpi4", "host", "fused"),  # the check on this machine is that of the board
        ("rpi5", "c99", "fused"),
        ("rpi4", "cortex-m0", "separate"),  # has no such instruction
        ("host", "host", "fused"),
        ("stm32f746", "cortex-m7", "separate"),
        ("nrf52840", "host", "separate"),
        (None, "host", "separate"),
    ],
)
def test_a_program_has_the_numerics_of_its_device(device: str | None, target: str, expected: str) -> None:
    assert numerics_of(solved_for(device), target) == expected
    assert numerics_of(solved_for(device), target, asked="separate") == "separate"


def test_directories_and_locks_from_before_keep_theirs() -> None:
    """Their device.yaml names none, and the hash of a profile that says nothing new stays."""
    assert numerics_of(solved_for("rpi4", "separate")) == "separate"
    assert "numerics" not in profile_to_dict(load_profile("stm32f746"))["cpu"]
    assert profile_to_dict(load_profile("rpi4"))["cpu"]["numerics"] == "fused"


def test_a_library_has_one_numerics() -> None:
    both = [solved_for("rpi4"), solved_for("rpi4", "separate")]
    paths: Any = ["a.poetc", "b.poetc"]
    with pytest.raises(UsageError, match=r"b\.poetc was solved for separate numerics, a\.poetc for fused.*--numerics"):
        numerics_of_plans(both, paths, "c99", None, None)
    assert numerics_of_plans(both, paths, "c99", None, "fused") == "fused"


def test_compilers_contract_nothing_by_themselves() -> None:
    for numerics, fused in (("separate", False), ("fused", True)):
        contents: Any = SimpleNamespace(numerics=numerics, opt_level="")
        flags = Contents.numerics_flag.fget(contents)  # type: ignore[attr-defined]
        header = build_header(contents).decode()
        assert "-ffp-contract=off" in flags and "FP_CONTRACT OFF" in header
        assert ("-DPOETC_FUSED" in flags) is ("#define POETC_FUSED 1" in header) is fused


def test_a_core_without_the_instruction_refuses_fused() -> None:
    for name, target in TARGETS.items():
        if target.core is not None and not target.core.multiplies_and_adds:
            with pytest.raises(UsageError, match=f"--numerics fused: {name} has separate$"):
                resolve(name, None, "fused")
    with pytest.raises(UsageError, match=r"--numerics fast: cortex-a has separate or fused$"):
        resolve("cortex-a", None, "fast")
