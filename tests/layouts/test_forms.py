"""Names, sections and optimisation of what is emitted, and one line for what cannot be."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from poetc.cli.emit import LAYOUTS, OPT_LEVELS
from poetc.emit import LAYOUTS as KNOWN
from poetc.emit import OPT_LEVELS as KNOWN_LEVELS
from poetc.emit import Form, Part, Sections, bank_sections
from poetc.errors import UsageError
from poetc.scheduling import BankSpec, BankUse, MemoryPlan, Problem
from tests.layouts.support import Model, make_model, run, write
from tests.program.models import state_paged_decisions, training_case


@pytest.fixture(scope="module")
def model() -> Model:
    return make_model(4)


def test_the_command_line_has_every_choice() -> None:
    assert tuple(sorted(KNOWN)) == LAYOUTS and KNOWN_LEVELS == OPT_LEVELS


@pytest.mark.parametrize(
    ("names", "common"),
    [(("", ""), "mlp_model.h"), (("Net", "net"), "net_model.h"), (("a", "a_train"), "A_TRAIN_ARENA_BYTES")],
)
def test_models_with_a_name_in_common_are_refused(
    names: tuple[str, ...], common: str, model: Model, tmp_path: Path
) -> None:
    says = rf"^\w+ and \w+ both have the name {common}: give each model a name of its own with --name"
    with pytest.raises(UsageError, match=says):
        write([model.part(name) for name in names], Form(), tmp_path / "o", "c99")
    assert not (tmp_path / "o").exists()


def test_a_model_may_be_called_as_the_runtime_is(model: Model, tmp_path: Path) -> None:
    """`poetc_model` would be the model's description and a type of the runtime."""
    out = write([model.part("poetc")], Form(), tmp_path / "o", "c99")
    assert "m_poetc_model" in (out / "model.h").read_text()
    run(["gcc", "-std=c99", "-I.", "-Iruntime/include", "-fsyntax-only", "model.c"], out)


def test_several_models_for_a_microcontroller_are_a_library(model: Model, tmp_path: Path) -> None:
    """Its sources are those of the models and of the runtime: no board has a part in it."""
    out = write([model.part("a"), model.part("b")], Form(), tmp_path / "o", "cortex-m7")
    assert (out / "a_model.h").exists() and not (out / "port").exists()


def test_names_change_no_identity(model: Model, tmp_path: Path) -> None:
    """So that trained.bin of one emission is that of all."""
    plain = write([model.part()], Form(), tmp_path / "a", "c99")
    renamed = write([model.part("other")], Form("zephyr"), tmp_path / "b", "c99")
    both = write([model.part(), model.part("other")], Form(), tmp_path / "c", "c99")
    first, second = (json.loads((out / "poetc-emit.json").read_text()) for out in (plain, renamed))
    several = json.loads((both / "poetc-emit.json").read_text())["models"]
    assert {d["state"]["identity"] for d in (first, second, *several)} == {first["state"]["identity"]}
    assert [m["name"] for m in several] == ["mlp", "other"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["heap=.x"], "--section heap=.x: write arena, constants or store, =, and a section"),
        (["arena"], "--section arena: nothing is not a section of your own"),
        (["arena=.bss"], "--section arena=.bss: .bss is not a section"),
        (["arena=a b"], "--section arena=a b: a b is not a section"),
        (["arena=.x", "arena=.y"], "--section arena=.y: arena has a section already"),
        (["arena=.x", "constants=.x"], "--section: the arena is in RAM, and needs"),
    ],
)
def test_bad_sections(words: list[str], says: str) -> None:
    with pytest.raises(UsageError) as raised:
        Sections.parse(words)
    assert str(raised.value).startswith(says)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["axi=.x@here"], "--section axi=.x@here: 'here' is no address, as 0x24001000 is"),
        (["axi=.x@-0x10"], "--section axi=.x@-0x10: '-0x10' is no address, as 0x24001000 is"),
        (["dtcm=.x"], "--section dtcm=.x: write arena, constants, store or axi, =, and a section"),
        (["axi=.x@0x24000008"], "--section axi=.x@0x24000008: give an address that is a multiple of 16"),
        (["axi=.x@0x20000000"], "ends at 0x20000040; give it another address"),
        (["axi=.x@0"], "no part of an arena is at address 0; give another, as in @0x00000010"),
        (["axi=.near"], "--section: each bank needs a section that no other has"),
        (["arena=.x"], "--section arena=.x: the arena is in banks; name their sections, as in near=.near, axi=.axi"),
    ],
)
def test_bad_sections_of_banks(words: list[str], says: str) -> None:
    banks = (
        BankSpec(name="near", budget_bytes=64, address=0x20000000),
        BankSpec(name="axi", budget_bytes=64, address=0x24000000),
    )
    problem = Problem(name="p", budget_bytes=128, tensors=(), operators=(), banks=banks)
    plan = MemoryPlan(
        allocations=(),
        arena_bytes=128,
        max_live_bytes=0,
        state_bytes=0,
        banks=(BankUse(arena_bytes=64, state_bytes=0), BankUse(arena_bytes=64, state_bytes=0)),
    )
    with pytest.raises(UsageError, match=re.escape(says)):
        bank_sections(Sections.parse(words, ["axi"]), problem, plan, {})


def test_what_cannot_be(model: Model, tmp_path: Path) -> None:
    for form, target, says in (
        (Form(shared_arena=True), "c99", "--share-arena: one model has no other"),
        (Form(sections=Sections(arena=".x")), "host", "--section: the operating system of host gives"),
        (Form(sections=Sections(store=".x")), "c99", "--section store=.x: no weights live on the store"),
    ):
        with pytest.raises(UsageError, match=says):
            write([model.part()], form, tmp_path / "o", target)
    with pytest.raises(UsageError, match="unknown layout 'keil': choose from android, arduino, cmake, "):
        Form("keil")
    with pytest.raises(UsageError, match="unknown level '-O9': choose from -O0, "):
        Form(opt_level="-O9")
    assert not (tmp_path / "o").exists()


@pytest.fixture(scope="module")
def on_store() -> Part:
    names = ["fc1.weight", "fc1.weight:velocity"]
    case = training_case(on_store=names)
    return Part([case.program(state_paged_decisions(case, names))], case.graph.values, "mlp")


@pytest.mark.skipif(shutil.which("arm-none-eabi-gcc") is None, reason="make setup-arm")
@pytest.mark.parametrize("layout", ["makefile", "arduino"])
def test_sections_and_levels_reach_the_program(layout: str, on_store: Part, tmp_path: Path) -> None:
    """The map file of firmware shows each section at its place; a library has them in its objects."""
    sections = Sections.parse(["arena=.axi_sram", "constants=.qspi", "store=.ext_flash"])
    out = write([on_store], Form(layout, "-Os", sections), tmp_path / "o")
    if layout == "makefile":
        assert "-Os -mthumb" in (out / "Makefile").read_text() and "-O2" not in (out / "Makefile").read_text()
        run(["make", "-s"], out)
        text = (out / "firmware.map").read_text()
        place = {name: int(at, 16) for name, at in re.findall(r"^(\.\w+)\s+(0x[0-9a-f]+)\s+0x[0-9a-f]+", text, re.M)}
        assert place[".axi_sram"] >= 0x20000000 > place[".qspi"] and ".arena" not in place
        return
    assert '#pragma GCC optimize("Os")' in (out / "src" / "poetc_build.h").read_text()
    run(["arm-none-eabi-gcc", "-c", "src/mlp_model_data.S", "-o", "data.o"], out)
    listing = run(["arm-none-eabi-readelf", "-SW", "data.o"], out)
    found = dict(re.findall(r"\] (\.\w+)\s+(PROGBITS|NOBITS)", listing))
    assert (found[".axi_sram"], found[".qspi"], found[".ext_flash"]) == ("NOBITS", "PROGBITS", "PROGBITS")
    image = (out / "mlp_store.img").read_bytes()
    run(["arm-none-eabi-objcopy", "-O", "binary", "-j", ".ext_flash", "data.o", "image"], out)
    assert (out / "image").read_bytes() == image
