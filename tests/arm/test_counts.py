"""The profiles of emulated boards: predicted instructions, and firmware that measures."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from poetc import benchmark, codegen, frontend
from poetc.benchmark import _measure
from poetc.codegen import build_firmware, execute, sample_inputs
from poetc.codegen.program import Call
from poetc.devices import build_problem, load_profile
from poetc.ops import bind, spec
from poetc.running import predicted_ns
from poetc.scheduling import keep_all, pack
from tests.arm.conftest import load_networks
from tests.cli.conftest import MODEL, run
from tests.support.graphs import small_cnn

WITHIN = 0.05


@pytest.mark.parametrize("board", ["mps2-an386", "mps2-an500"])
def test_counted_instructions_are_those_predicted(board: str, tmp_path: Path) -> None:
    """Of a step that pages: the loops that are counted are those that the kernels run."""
    profile = load_profile(f"qemu-{board}")
    step = _measure.step_of(small_cnn(), "sgd")
    program = _measure.paging_program(step, profile)
    problem = build_problem(step, profile, budget_bytes=1 << 40)
    counted = execute(build_firmware(program, step.values, board, tmp_path), [sample_inputs(program, 0)])
    assert predicted_ns(problem, program) == pytest.approx(counted.instructions, rel=WITHIN)
    assert sum(counted.step_instructions) == counted.instructions
    costs = {op.name: op.time_ns for op in problem.operators}
    kernels = [
        (costs[i.operator], n)
        for i, n in zip(program.instructions, counted.step_instructions, strict=True)
        if isinstance(i, Call)
    ]
    off = [(predicted, n) for predicted, n in kernels if abs(predicted - n) > 0.25 * n]
    assert sum(n for _, n in off) < 0.05 * counted.instructions, off


@pytest.mark.parametrize(
    ("board", "numerics", "most"), [("mps2-an386", "portable", 2.5), ("mps3-an547", "fast", 0.8)], ids=["m4f", "m55"]
)
@pytest.mark.parametrize("network", ["lenet5", "ds-cnn"])
def test_instructions_of_a_multiply_accumulate(
    network: str, board: str, numerics: codegen.Numerics, most: float, tmp_path: Path
) -> None:
    """Of products and convolutions in the backward pass, all together; `python -m bench.instructions` has every one."""
    graph = frontend.load(load_networks().write(network, tmp_path / "model.onnx"), batch=1)
    step = _measure.step_of(graph, "sgd")
    problem = build_problem(step, load_profile("host"), budget_bytes=1 << 40)
    schedule = keep_all(problem)
    program = codegen.lower(step, problem, schedule, pack(problem, schedule))
    firmware = build_firmware(program, step.values, board, tmp_path / "firmware", numerics=numerics)
    counted = execute(firmware, [sample_inputs(program, 0)])
    macs = {op.name: spec(op.kind).work(bind(op, step.tensors)).macs for op in step.operators if op.phase != "forward"}
    products = [item for item in counted.counts if item.kind.startswith(("Conv", "MatMul")) and item.name in macs]
    each = sum(item.instructions for item in products) / sum(macs[item.name] * item.times for item in products)
    assert len(products) > 5 and each <= most


@pytest.mark.parametrize("board", ["mps2-an386", "virt-a72"])
def test_run_sets_counted_instructions_beside_the_predicted(board: str, tmp_path: Path) -> None:
    solved = tmp_path / "digits.poetc"
    chosen = ("--batch", "2", "--device", f"qemu-{board}", "--budget", "70%", "--gap", "0.05")
    assert run("solve", MODEL, *chosen, "-o", solved).code == 0
    ended = run("run", solved, "--on", f"qemu:{board}", "--steps", "2", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["instructions_predicted"] == pytest.approx(ended.json["instructions"], rel=WITHIN)
    fast = run("run", solved, "--on", f"qemu:{board}", "--steps", "1", "--numerics", "fast", "--json")
    assert fast.json["instructions_predicted"] is None


def test_firmware_that_measures_logs_what_fit_reads(tmp_path: Path) -> None:
    device, firmware = tmp_path / "small.yaml", tmp_path / "fw"
    device.write_text(
        "title: Small\ninherits: qemu-mps2-an386\nsources: {me: {kind: estimated, text: a test}}\n"
        "memory: {source: me, ram_bytes: 32768, banks: null}\n"
    )
    ended = run("profile", "bench", "--emit", firmware, "--device", device, "--json")
    assert ended.code == 0, ended.err
    subprocess.run(["make", "-s", "-C", str(firmware)], check=True, capture_output=True)
    (firmware / "data.bin").touch()
    qemu = [*codegen.BOARDS["mps2-an386"].qemu, "-semihosting-config", "enable=on,target=native"]
    done = subprocess.run(
        [*qemu, "-kernel", "firmware.elf"], cwd=firmware, capture_output=True, text=True, check=True, timeout=60
    )
    log = tmp_path / "board.csv"
    log.write_text(done.stdout + done.stderr)
    rows = benchmark.read_csv(log)
    assert len(rows) == ended.json["steps"]
    assert {"Conv", "MatMul", "Sgd", "PageIn", "PageOut"} <= {row.cost_class for row in rows}
    assert max(row.time_ns for row in rows) > 0
    assert all(row.loops for row in rows)
    fitted = run("profile", "fit", log, "--like", device, "-o", tmp_path / "fitted.yaml", "--json")
    assert fitted.code == 0, fitted.err
    assert run("profile", "check", tmp_path / "fitted.yaml").code == 0
    assert run("profile", "bench", "--emit", firmware, "--device", "rpi4").code == 2
