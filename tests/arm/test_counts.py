"""The profiles of emulated boards: predicted instructions, and firmware that measures."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from poetc import benchmark, boards, emit, frontend, measure, passes, training
from poetc.commands.run import predicted_ns
from poetc.devices import build_problem, load_profile
from poetc.graph import Graph, Operator, Role, TensorType, TrainingGraph
from poetc.measure import build_firmware, execute
from poetc.ops import Builder, bind, spec
from poetc.program import Call, lower, sample_inputs
from poetc.scheduling import keep_all, pack
from poetc.training import TrainingOptions
from tests.arm.conftest import load_networks
from tests.cli.conftest import MODEL, run
from tests.devices import mobilenet
from tests.support import qdq
from tests.support.graphs import small_cnn

WITHIN = 0.05


@pytest.mark.parametrize("board", ["mps2-an386", "mps2-an500"])
def test_counted_instructions_are_those_predicted(board: str, tmp_path: Path) -> None:
    """Of a step that pages: the loops that are counted are those that the kernels run."""
    profile = load_profile(f"qemu-{board}")
    step = benchmark.step_of(small_cnn(), "sgd")
    program = benchmark.paging_program(step, profile)
    problem = build_problem(step, profile, budget_bytes=1 << 40)
    counted = execute(build_firmware(program, step.values, board, tmp_path), [sample_inputs(program, 0)])
    assert predicted_ns(problem, program) == pytest.approx(counted.time_ns, rel=WITHIN)
    assert sum(counted.step_instructions) == counted.instructions
    assert sum(counted.step_ns) == counted.time_ns
    costs = {op.name: op.time_ns for op in problem.operators}
    kernels = [
        (costs[i.operator], n)
        for i, n in zip(program.instructions, counted.step_ns, strict=True)
        if isinstance(i, Call)
    ]
    off = [(predicted, n) for predicted, n in kernels if abs(predicted - n) > 0.25 * n]
    assert sum(n for _, n in off) < 0.05 * counted.time_ns, off


_INTEGER_BOARDS = ("mps2-an385-m0", "mps2-an385", "mps2-an500", "mps3-an547", "virt-a72", "virt-a76")


@pytest.mark.parametrize("board", ["mps2-an386", *(pytest.param(b, marks=pytest.mark.long) for b in _INTEGER_BOARDS)])
def test_instructions_of_a_step_in_integers_are_those_predicted(board: str, tmp_path: Path) -> None:
    """And those of the larger kernels, of a step that the sweep does not have."""
    network, options = load_networks().write("lenet5", tmp_path / "model.onnx"), TrainingOptions(precision="niti")
    graph = frontend.load(network, batch=1)
    step = passes.run_standard(training.build(training.in_precision(graph, options), options))
    profile = load_profile(f"qemu-{board}")
    program = benchmark.plain_program(step, profile)
    problem = build_problem(step, profile, budget_bytes=1 << 40)
    counted = execute(build_firmware(program, step.values, board, tmp_path / "firmware"), [sample_inputs(program, 0)])
    assert predicted_ns(problem, program) == pytest.approx(counted.time_ns, rel=WITHIN)
    costs = {op.name: op.time_ns for op in problem.operators}
    for call, n in zip(program.instructions, counted.step_ns, strict=True):
        assert isinstance(call, Call)
        assert n < 0.02 * counted.time_ns or costs[call.operator] == pytest.approx(n, rel=0.1), call.title


@pytest.mark.parametrize("board", ["mps2-an386", pytest.param("virt-a72", marks=pytest.mark.long)])
@pytest.mark.long
def test_instructions_of_a_step_on_codes_are_those_predicted(board: str, tmp_path: Path) -> None:
    """Of a QDQ model (`--precision qas`)."""
    options, profile = TrainingOptions(precision="qas"), load_profile(f"qemu-{board}")
    graph = frontend.load(qdq.quantised(tmp_path), quantized=True)
    step = passes.run_standard(training.build(training.in_precision(graph, options), options))
    program = benchmark.plain_program(step, profile)
    problem = build_problem(step, profile, budget_bytes=1 << 40)
    counted = execute(build_firmware(program, step.values, board, tmp_path / "firmware"), [sample_inputs(program, 0)])
    assert predicted_ns(problem, program) == pytest.approx(counted.time_ns, rel=WITHIN)
    costs = {op.name: op.time_ns for op in problem.operators}
    for call, n in zip(program.instructions, counted.step_ns, strict=True):
        assert isinstance(call, Call)
        assert n < 0.05 * counted.time_ns or costs[call.operator] == pytest.approx(n, rel=0.15), call.title


def counted_step(
    graph: Graph, board: str, numerics: emit.Numerics, directory: Path
) -> tuple[dict[str, int], measure.Run, dict[str, Operator]]:
    """Of a step of plain SGD, keep-all: multiply-accumulates of every operator, what was counted, the operators."""
    step = benchmark.step_of(graph, "sgd")
    return *counted_program(step, board, numerics, directory), {op.name: op for op in step.operators}


def counted_program(
    step: TrainingGraph, board: str, numerics: emit.Numerics, directory: Path
) -> tuple[dict[str, int], measure.Run]:
    """Multiply-accumulates of every operator of a step, keep-all, and what was counted."""
    problem = build_problem(step, load_profile("host"), budget_bytes=1 << 40)
    schedule = keep_all(problem)
    program = lower(step, problem, schedule, pack(problem, schedule))
    counted = execute(
        build_firmware(program, step.values, board, directory, numerics=numerics), [sample_inputs(program, 0)]
    )
    return {op.name: spec(op.kind).work(bind(op, step.tensors)).macs for op in step.operators}, counted


@pytest.mark.long
def test_batch_norm_made_again_takes_what_is_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Cortex-A, in gradients of weights and beside them: pointwise, depthwise, strided; batch norms with clips."""
    monkeypatch.setattr(mobilenet, "_BLOCKS", ((6, 24, 2, 2),))
    profile = load_profile("qemu-virt-a72")
    step = benchmark.step_of(mobilenet.mobilenet_v2(1, 64, 0.5, 10), "sgd")
    program = benchmark.plain_program(step, profile)
    problem = build_problem(step, profile, budget_bytes=1 << 40)
    firmware = build_firmware(program, step.values, "virt-a72", tmp_path, numerics=profile.cpu.numerics)
    counted = execute(firmware, [sample_inputs(program, 0)])
    assert predicted_ns(problem, program) == pytest.approx(counted.time_ns, rel=WITHIN)
    costs = {op.name: op.time_ns for op in problem.operators}
    sums: dict[str, list[int]] = {}
    for call, n in zip(program.instructions, counted.step_ns, strict=True):
        assert isinstance(call, Call)
        both = sums.setdefault(call.symbol.removeprefix("poetc_op_"), [0, 0])
        both[0] += costs[call.operator]
        both[1] += n
    again = ("conv_grad_weight_norm_packed", "depthwise_grad_weight_norm")
    for name in (*again, "batch_norm_clip_grad_input", "batch_norm_clip_grad_params", "batch_norm_grad_input"):
        predicted, measured = sums[name]
        assert predicted == pytest.approx(measured, rel=0.12), name


@pytest.mark.parametrize(
    ("board", "numerics", "most"), [("mps2-an386", "separate", 4.3), ("mps3-an547", "fast", 0.8)], ids=["m4f", "m55"]
)
@pytest.mark.parametrize("network", ["lenet5", pytest.param("ds-cnn", marks=pytest.mark.long)])
def test_instructions_of_a_multiply_accumulate(
    network: str, board: str, numerics: emit.Numerics, most: float, tmp_path: Path
) -> None:
    """Of products and convolutions in the backward pass, all together; `python -m bench.instructions` has every one.

    On the Cortex-M4F they are cycles.
    """
    graph = frontend.load(load_networks().write(network, tmp_path / "model.onnx"), batch=1)
    macs, counted, operators = counted_step(graph, board, numerics, tmp_path / "firmware")
    products = [
        item
        for item in counted.counts
        if item.kind.startswith(("Conv", "MatMul")) and operators[item.name].phase != "forward"
    ]
    each = sum(item.cycles or item.instructions for item in products) / sum(
        macs[item.name] * item.times for item in products
    )
    assert len(products) > 5 and each <= most


@pytest.mark.parametrize(("network", "most"), [("lenet5", 3.5), pytest.param("resnet", 2.2, marks=pytest.mark.long)])
@pytest.mark.long
def test_instructions_of_a_multiply_accumulate_in_integers(network: str, most: float, tmp_path: Path) -> None:
    """Of all products, forward and backward, with SMLAD."""
    options = TrainingOptions(precision="niti")
    graph = frontend.load(load_networks().write(network, tmp_path / "model.onnx"), batch=4)
    step = passes.run_standard(training.build(training.in_precision(graph, options), options))
    macs, counted = counted_program(step, "mps2-an386", "separate", tmp_path / "firmware")
    products = [item for item in counted.counts if item.kind.startswith("IntegerConv")]
    assert len(products) > 5
    assert sum(p.instructions for p in products) <= most * sum(macs[p.name] * p.times for p in products)


# Depthwise: (channels, side, taps, stride).
LAYERS = ((16, 4, 3, 2), (24, 6, 3, 1), (32, 2, 3, 1), (16, 3, 3, 1), (16, 8, 7, 1), (16, 16, 7, 2), (16, 14, 5, 1))
# (inputs, outputs, side, taps); a side of 0: dense.
PRODUCTS = (
    (64, 128, 2, 1),
    (128, 128, 2, 1),
    (64, 64, 2, 3),
    (32, 32, 8, 1),
    (120, 84, 0, 1),
    (84, 120, 0, 1),
    (400, 120, 0, 1),
)


@pytest.mark.long
def test_layers_whose_outputs_share_little_take_no_more_than_others(tmp_path: Path) -> None:
    """Forward, gradient of the weight and of the input alike, each alone."""
    random = np.random.default_rng(5)
    b = Builder()

    def parameter(name: str, shape: tuple[int, ...]) -> str:
        value = random.standard_normal(shape).astype(np.float32)
        return b.add_tensor(name, TensorType(shape), Role.PARAMETER, value)

    results = [b.add_tensor("input", TensorType((1, 4)), Role.INPUT)]
    for number, (channels, side, taps, stride) in enumerate(LAYERS):
        image = parameter(f"image{number}", (1, channels, side, side))
        weight = parameter(f"filter{number}", (channels, 1, taps, taps))
        pads = (taps // 2,) * 4
        results.append(b.emit1("Conv", [image, weight], {"strides": (stride, stride), "pads": pads, "group": channels}))
    for number, (inputs, outputs, side, taps) in enumerate(PRODUCTS):
        image = parameter(f"row{number}", (1, inputs, side, side) if side else (1, inputs))
        weight = parameter(f"weight{number}", (outputs, inputs, taps, taps) if side else (outputs, inputs))
        if side:
            results.append(b.emit1("Conv", [image, weight], {"pads": (taps // 2,) * 4}))
        else:
            results.append(b.emit1("MatMul", [image, weight], {"trans_b": 1}))
    flat = [b.emit1("Reshape", [name], {"shape": (1, b.type(name).elements)}) for name in results]
    y = b.emit1("Concat", flat, {"axis": 1}, hint="y")
    graph = Graph("layers", b.tensors, tuple(b.operators), ("input",), (y,), b.values)
    macs, counted, _ = counted_step(graph, "mps2-an386", "separate", tmp_path)
    products = [item for item in counted.counts if item.kind.startswith(("Conv", "MatMul"))]
    assert len(products) == 3 * (len(LAYERS) + len(PRODUCTS))
    over = {i.name: i.cycles / macs[i.name] for i in products if i.cycles > 6 * macs[i.name]}
    assert not over


@pytest.mark.parametrize(
    ("network", "board", "most"),
    [
        *(("lenet5", "mps2-an385", 74.5), ("ds-cnn", "mps2-an385", 96.0)),
        *(("lenet5", "mps2-an385-m0", 167.0), ("ds-cnn", "mps2-an385-m0", 206.0)),
    ],
)
def test_instructions_of_a_multiply_accumulate_without_an_fpu(
    network: str, board: str, most: float, tmp_path: Path
) -> None:
    """Of the whole step. They depend on the numbers, too: additions and multiplications by zero are done soon."""
    graph = frontend.load(load_networks().write(network, tmp_path / "model.onnx"), batch=1)
    macs, counted, _ = counted_step(graph, board, "separate", tmp_path / "firmware")
    assert 0.97 * most < counted.instructions / sum(macs.values()) <= most


@pytest.mark.parametrize("board", ["mps2-an386", "virt-a72"])
@pytest.mark.long
def test_run_sets_counted_instructions_beside_the_predicted(board: str, tmp_path: Path) -> None:
    solved = tmp_path / "digits.poetc"
    chosen = ("--batch", "2", "--device", f"qemu-{board}", "--budget", "70%", "--gap", "0.05")
    assert run("solve", MODEL, *chosen, "-o", solved).code == 0
    ended = run("run", solved, "--on", f"qemu:{board}", "--steps", "2", "--json")
    assert ended.code == 0, ended.err
    work = "cycles" if board == "mps2-an386" else "instructions"
    assert ended.json[f"{work}_predicted"] == pytest.approx(ended.json[work], rel=WITHIN)
    numerics = "fused" if board == "mps2-an386" else "separate"  # not those that its profile prices
    other = run("run", solved, "--on", f"qemu:{board}", "--steps", "1", "--numerics", numerics, "--json")
    assert other.json[f"{work}_predicted"] is None


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
    qemu = [*boards.BOARDS["mps2-an386"].qemu, "-semihosting-config", "enable=on,target=native"]
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
    assert run("profile", "bench", "--emit", firmware, "--device", "host").code == 2


@pytest.mark.long
def test_a_program_for_linux_measures_and_its_log_is_a_profile(tmp_path: Path) -> None:
    """One static binary, one log: measured groups replace the modelled ones of the closest profile."""
    ended = run("profile", "bench", "--emit", tmp_path / "fw", "--device", "rpi4", "--json")
    assert ended.code == 0, ended.err
    make = ["make", "-s", "-C", str(tmp_path / "fw"), "LDFLAGS=-static"]
    subprocess.run(make, check=True, capture_output=True)
    run_it = ["qemu-aarch64", "./train"]
    done = subprocess.run(run_it, cwd=tmp_path / "fw", capture_output=True, text=True, check=True, timeout=120)
    log = tmp_path / "board.log"
    log.write_text(done.stdout)
    assert done.stdout.endswith("# done\n")
    assert len(benchmark.read_csv(log)) == ended.json["steps"]
    fitted = run("profile", "fit", log, "--like", "rpi4", "-o", tmp_path / "fitted.yaml")
    assert fitted.code == 0, fitted.err
    assert run("profile", "check", tmp_path / "fitted.yaml").code == 0
    kinds = {
        loops[name].source.kind
        for loops in load_profile(tmp_path / "fitted.yaml").compute.loop_ns.values()
        for name in loops
    }
    assert kinds == {"measured", "modelled"}
