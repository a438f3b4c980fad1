"""Loops of compiled kernels in llvm-mca's model of a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from poetc import benchmark, boards
from poetc.benchmark import Loop, _cycle_profile, _pipeline, by_class, innermost_loops, model_of, run_model, target_of
from poetc.devices import load_profile
from poetc.errors import UsageError
from tests.cli.conftest import run

LATER_AND_PLAIN = ("19, Cortex-M55 model", "14, Cortex-M7 model")
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


def test_cores_with_a_table_are_priced_as_counted() -> None:
    for core in ("cortex-m0", "cortex-m0plus", "cortex-m3", "cortex-m4", "cortex-m33"):
        classes = _pipeline.measure_class_cycles(boards.Core(core))
        assert list(classes) == ["other"]
        assert classes["other"].low < classes["other"].per_instruction == 1.0 < classes["other"].high


def test_a_later_release_has_the_better_model(monkeypatch: pytest.MonkeyPatch) -> None:
    releases = {"llvm-mca": 14, "llvm-mca-19": 19}
    monkeypatch.setattr(_pipeline, "_release", lambda program: releases.get(program, 0))
    monkeypatch.setattr("shutil.which", releases.get)
    found, advice = {}, {}
    for step in ("both", "plain"):
        _pipeline.tool_for.cache_clear()
        advice[step] = [_pipeline.missing_model(core) for core in ("cortex-m55", "cortex-m7", "cortex-m0")]
        found[step] = [_cycle_profile._source_text(core, core, model_of(core)) for core in ("cortex-m55", "cortex-m7")]
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
    prefix, flags, triple = target_of(boards.Core("cortex-m7", "single", "dsp"))
    text = next(t for t in _pipeline.assemble(prefix, flags.split()) if "poetc_op_conv" in t)
    classes = by_class(run_model(innermost_loops(text)[:8], triple, "cortex-m7"))
    monkeypatch.setattr(_cycle_profile, "measure_class_cycles", lambda *_: classes)
    made, _, source = benchmark.fit_cycles("stm32f746", tmp_path / "mine.yaml")
    assert source == "llvm-mca 14, Cortex-M7 model, on the innermost loops of the kernels"
    assert made.compute.cycles is not None
    other = made.compute.cycles.per_instruction["other"]
    assert other.value == pytest.approx(classes["other"].per_instruction, rel=0.01)
    assert other.low is not None and other.high is not None
    assert 0.9 * classes["other"].low == pytest.approx(other.low, rel=0.01)
    assert made.compute.contraction_mac_per_s.source.kind == "modelled"
    assert load_profile(tmp_path / "mine.yaml") == made
