"""Loops of compiled kernels in llvm-mca's model of a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from poetc import benchmark, boards
from poetc.benchmark import _cycle_profile, _pipeline
from poetc.benchmark._pipeline import (
    ClassCycles,
    Loop,
    by_class,
    float_library,
    innermost_loops,
    m0plus_cycles,
    model_of,
    run_model,
    target_of,
    with_float_library,
)
from poetc.devices import load_profile
from poetc.errors import UsageError
from tests.cli.conftest import run

LATER_AND_PLAIN = ("19, Cortex-M55 model", "14, Cortex-M4 model")
ASSEMBLY = """
\t.file 1 "{kernels}/gemm/matmul.c"
poetc_op_matmul:
.L2:
\t.loc 1 10 3
\tmov\tr2, #0
.L3:
\t.loc 1 11 5
\tvldr.32\ts0, [r0]
\tvadd.f32\ts1, s1, s0
\tadds\tr0, r0, #4
\tcmp\tr0, r1
\tbne\t.L3
\tsubs\tr3, r3, #1
\tbne\t.L2
.L9:
\tldr\tr0, [r1]
\tbl\telsewhere
\tcmp\tr0, #0
\tbne\t.L9
"""


def loop(*body: str) -> Loop:
    return Loop("gemm/matmul.c", "poetc_op_matmul", 1, body)


def test_the_innermost_loops_without_calls_are_found() -> None:
    kernels = (_pipeline.runtime_directory() / "kernels").as_posix()
    (found,) = innermost_loops(ASSEMBLY.format(kernels=kernels))
    assert (found.source, found.function, found.line) == ("gemm/matmul.c", "poetc_op_matmul", 11)
    assert found.kernel_class == "gemm"
    assert [line.split()[0] for line in found.body] == ["vldr.32", "vadd.f32", "adds", "cmp", "bne"]


def test_a_chain_of_sums_takes_the_latency_of_each() -> None:
    """On a Cortex-A57, Software Optimization Guide table 3-14: a sum of floats after another takes five cycles."""
    (timed,) = run_model([loop("fadd\tv0.4s, v0.4s, v1.4s", "add\tx0, x0, 16", "cmp\tx0, x1")], "aarch64", "cortex-a72")
    assert timed.cycles == pytest.approx(5, abs=0.2)
    assert timed.instructions == 3


def test_instructions_that_the_model_refuses_are_left_out() -> None:
    """LLVM 14 has no times of comparisons with exceptions on a Cortex-M7, and takes no `it` in the middle of a text."""
    body = (
        "vldr.32\ts0, [r0]",
        "vcmpe.f32\ts0, #0.0",
        "vmrs\tAPSR_nzcv, FPSCR",
        "it\tgt",
        "adds\tr0, r0, #4",
        "cmp\tr0, r1",
    )
    plain, refused = run_model([loop(body[0], *body[4:]), loop(*body)], "thumbv7em-none-eabihf", "cortex-m7")
    assert refused.instructions == 6
    assert refused.cycles >= plain.cycles > 0
    nothing = run_model([loop("nonsense\tr0", "more\tr1", "adds\tr0, r0, #1")], "thumbv7em-none-eabihf", "cortex-m7")
    assert nothing == []


def test_several_registers_take_a_cycle_each_on_a_cortex_m4() -> None:
    body = ("vldmia.32\tr0!, {s0-s3}", "adds\tr1, r1, #1", "cmp\tr1, r2")
    (timed,) = run_model([loop(*body)], "thumbv7em-none-eabihf", "cortex-m4")
    assert timed.cycles >= 5 + 1  # 1 + 4 of the load, and others of which one may pass at the same time
    (small,) = m0plus_cycles([loop("ldmia\tr0!, {r3, r4}", "adds\tr3, r3, r4", "bne\t.L3")])
    assert small.cycles == 3 + 1 + 2


def test_cycles_of_a_cortex_m0plus_are_the_manuals() -> None:
    """Arm DDI 0484C, table 3-1: `ble` is a branch, and neither `bl` nor `bics`."""
    words = {
        "ble\t.L3": 2,
        "bls.n\t.L3": 2,
        "b.n\t.L3": 2,
        "bl\tx": 3,
        "bx\tlr": 2,
        "bics\tr0, r1": 1,
        "muls\tr0, r1": 1,
    }
    words |= {"ldrb\tr0, [r1]": 2, "push\t{r4, lr}": 3, "pop\t{r4, pc}": 5}
    for line, cycles in words.items():
        (timed,) = m0plus_cycles([loop(line)])
        assert timed.cycles == cycles, line
    (half,) = m0plus_cycles([loop("bne\t.L3")], taken=0.5)
    assert half.cycles == 1.5


def test_without_an_fpu_the_library_counts() -> None:
    prefix, flags, _ = target_of(boards.Core("cortex-m0plus"))
    found = float_library(prefix, flags.split())
    assert {part.function for part in found} == {"addsf3", "subsf3", "mulsf3"}
    assert all(100 < len(part.body) < 1000 for part in found)
    library = by_class(m0plus_cycles(found, taken=0.5))["other"]
    assert 1.1 < library.per_instruction < 1.5
    classes = with_float_library(
        {"movement": ClassCycles(2.0, 1.5, 2.5, 3), "gemm": ClassCycles(1.0, 1.0, 9.0, 1)}, library
    )
    assert classes["movement"].per_instruction == 2.0
    assert classes["gemm"] == ClassCycles(library.per_instruction, 1.0, 9.0, 1)
    assert classes["other"].per_instruction == library.per_instruction


def test_a_later_release_has_the_better_model(monkeypatch: pytest.MonkeyPatch) -> None:
    releases = {"llvm-mca": 14, "llvm-mca-19": 19}
    monkeypatch.setattr(_pipeline, "_release", lambda program: releases.get(program, 0))
    monkeypatch.setattr("shutil.which", releases.get)
    found, advice = {}, {}
    for step in ("both", "plain"):
        _pipeline.tool_for.cache_clear()
        advice[step] = [_pipeline.missing_model(core) for core in ("cortex-m55", "cortex-m4", "cortex-m0")]
        found[step] = [_cycle_profile._source_text(core, model_of(core)) for core in ("cortex-m55", "cortex-m4")]
        releases.pop("llvm-mca-19", None)
    _pipeline.tool_for.cache_clear()
    assert found["both"] == [f"llvm-mca {said}, on the innermost loops of the kernels" for said in LATER_AND_PLAIN]
    assert found["plain"][0].startswith("llvm-mca 14, Cortex-M4 model, the nearest to cortex-m55,")
    assert advice["both"] == ["", "", ""]
    assert "apt-get install llvm-19" in advice["plain"][0] and advice["plain"][1:] == ["", ""]


def test_a_class_is_weighted_by_instructions_and_has_a_band() -> None:
    few, many = loop("a", "b", "c"), loop(*"abcdefghi")
    classes = by_class([_pipeline.Timed(few, 3, 9.0), _pipeline.Timed(many, 9, 9.0)])
    assert classes["gemm"].per_instruction == pytest.approx(18 / 12)
    assert (classes["gemm"].low, classes["gemm"].high, classes["gemm"].loops) == (1.0, 1.5, 2)
    assert classes["other"] == classes["gemm"]


def test_a_core_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no model of 'cortex-m85'"):
        model_of("cortex-m85")
    assert model_of("cortex-m0plus") is None
    ended = run("profile", "fit", "--cycles", "--like", "host", "-o", tmp_path / "mine.yaml")
    assert ended.code == 2
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "mine.yaml").exists()
    unnamed = run("profile", "fit", "--cycles", "-o", tmp_path / "mine.yaml")
    assert (unnamed.code, unnamed.err.count("\n")) == (2, 1)
    assert "--cycles needs --like DEVICE" in unnamed.err
    for arguments in (("some.csv", "--cycles"), ()):
        assert run("profile", "fit", *arguments, "-o", tmp_path / "mine.yaml").code == 2


def test_a_fitted_profile_prices_kernels_by_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From one file of the runtime, which the compiler of the board compiles."""
    prefix, flags, triple = target_of(boards.Core("cortex-m4", "single", "dsp"))
    text = next(t for t in _pipeline.assemble(prefix, flags.split()) if "poetc_op_conv" in t)
    classes = by_class(run_model(innermost_loops(text)[:8], triple, "cortex-m4"))
    monkeypatch.setattr(_cycle_profile, "measure_class_cycles", lambda *_: classes)
    made, _, source = benchmark.fit_cycles("nrf52840", tmp_path / "mine.yaml")
    assert source == "llvm-mca 14, Cortex-M4 model, on the innermost loops of the kernels"
    assert made.compute.cycles is not None
    other = made.compute.cycles.per_instruction["other"]
    assert other.value == pytest.approx(classes["other"].per_instruction, rel=0.01)
    assert other.low is not None and other.high is not None
    assert 0.9 * classes["other"].low == pytest.approx(other.low, rel=0.01)
    assert made.compute.contraction_mac_per_s.source.kind == "modelled"
    assert load_profile(tmp_path / "mine.yaml") == made
