"""Modelled times of profiles beside published ones, and the ranking of recomputation and paging.

    python -m bench.cycles steps
    python -m bench.cycles study [--models FOLDER]
    python -m bench.cycles mlperf [--models FOLDER]
    python -m bench.cycles energy [--models FOLDER]
    python -m bench.cycles kernels [--models FOLDER]
    python -m bench.cycles products
    python -m bench.cycles x86
    python -m bench.cycles ranking [--device rpi4] [--before FILE]

Each prints a Markdown table. FOLDER has mlperf_ad, mlperf_ic_resnet8, mlperf_kws_f32 and mlperf_vww96 as ONNX files.
That of `study` has graphs, as that of bench.papers.
Nothing is measured here: the same profiles give the same table on every machine. `x86` needs gcc and llvm-mca.
"""

from __future__ import annotations

import functools
import re
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from bench._command import Rows, main
from poetc import frontend, passes, training
from poetc.benchmark._pipeline import Loop, innermost_loops, run_model
from poetc.commands.requests import ModelRequest, training_graph, with_any_weights
from poetc.devices import DeviceProfile, build_problem, load_profile
from poetc.devices.cost import CostModel
from poetc.devices.features import features_of
from poetc.devices.modelled import at_end
from poetc.graph import Phase, Role, TensorType, TrainingGraph
from poetc.ops import Builder, spec
from poetc.runtime import runtime_directory
from poetc.scheduling import Problem
from poetc.training import TrainingOptions
from tests.devices.mobilenet import mobilenet_v2

# (board, size, width, published steps in ms: of other software). EMDL: Cai et al. 2021; TinyEngine: Lin et al. 2022.
STEPS = (
    ("rpi3bplus", 224, 1.0, "MNN 6,698, TensorFlow 10,468, PyTorch 48,274"),
    ("rpi4", 224, 1.0, ""),
    ("rpi5", 224, 1.0, ""),
    ("rpizero2w", 224, 1.0, ""),
    ("jetson-tx2", 224, 1.0, ""),
    ("stm32f746", 128, 0.35, "TinyEngine, int8, few layers 373; TFLite, few layers 3,448, all 8,501"),
    *(
        (name, 128, 0.35, "")
        for name in ("stm32h743", "stm32f405", "nrf52840", "apollo4", "cortex-m55", "rp2350", "rp2040")
    ),
)
# MLPerf Tiny, one inference in ms, by network: medians of the logs, github.com/mlcommons/tiny_results_v0.5 and
# ..._v1.0. (board, its clock in Hz if it is another part of the family, precision, submission, times)
MLPERF = (
    ("stm32l4r5", None, "int8", "v0.5 reference, TFLM", {"ad": 10.05, "ic": 704.2, "kws": 181.9, "vww": 600.6}),
    ("stm32l4r5", None, "int8", "v1.0 STMicroelectronics", {"ad": 7.58, "ic": 226.9, "kws": 75.1, "vww": 230.5}),
    ("stm32h7b3", None, "int8", "v1.0 STMicroelectronics, H7A3", {"ad": 1.83, "ic": 54.3, "kws": 16.8, "vww": 50.7}),
    ("rpi4", None, "float32", "v0.5 Latent AI", {"ad": 0.169, "ic": 1.312, "kws": 0.393, "vww": 3.745}),
)
# MLPerf Tiny, one inference in microjoules: medians of the same logs. Apollo4 Plus: read off the bar chart of
# github.com/AmbiqAI/MLPerfTiny (docs/results.png), not submitted, the clock is not stated. (board, submission,
# energies)
ENERGIES = (
    ("stm32l4r5", "v0.5 reference, TFLM", {"ad": 416, "ic": 29_207, "kws": 7_374, "vww": 24_313}),
    ("stm32l4r5", "v1.0 STMicroelectronics", {"ad": 323, "ic": 10_682, "kws": 3_372, "vww": 10_067}),
    ("stm32h7b3", "v1.0 STMicroelectronics, H7A3", {"ad": 266, "ic": 8_707, "kws": 2_722, "vww": 7_978}),
    ("apollo4", "Ambiq, Apollo4 Plus, TFLM, a chart", {"ic": 2_000, "kws": 430, "vww": 1_480}),
)
NETWORKS = {"ad": "mlperf_ad", "ic": "mlperf_ic_resnet8", "kws": "mlperf_kws_f32", "vww": "mlperf_vww96"}
# HPL in float64 on four cores: github.com/geerlingguy/top500-benchmark, issues 33, 18 and 26. (board, clock of the
# published board in Hz, GFLOP/s)
PRODUCTS = (("rpi4", 1.5e9, 11.433), ("rpi5", 2.4e9, 30.249), ("rpizero2w", 1.0e9, 0.370))
SIDE = 512
# Instructions a multiply-accumulate of CMSIS-NN's convolutions, counted in QEMU with their code.
CMSIS = {
    ("qemu-mps2-an386", "float32"): "5.2 to 5.3, depthwise 8.2",
    ("qemu-mps2-an386", "int8"): "1.93 to 2.07",
    ("qemu-mps3-an547", "int8"): "0.25 to 0.39",
}
# Loops of the profile `host` that are one loop of the assembly: (group, loop, function, vectors of 64 bytes a pass).
X86 = (
    ("gemm", "packed_12", "block_12", 26),
    ("gemm", "terms_12", "block_12", 26),
    ("gemm", "packed_8", "block_8", 18),
    ("gemm", "terms_8", "block_8", 18),
    ("clip_grad", "chunk", "poetc_op_clip_grad", 5),
    ("leaky_relu_grad", "chunk", "poetc_op_leaky_relu_grad", 4),
    ("leaky_relu", "chunk", "poetc_op_leaky_relu", 3),
    ("relu_grad", "chunk", "poetc_op_relu_grad", 3),
)
X86_SOURCES = ("gemm/poetc_gemm.c", "operators/activation.c")
X86_FLAGS = ("-std=c99", "-O3", "-march=icelake-client", "-ffp-contract=off", "-g1")
X86_HZ = 3.6e9  # of the machine of the profile, by its first loop
MODELS = Path("models")
STUDY_BATCHES, STUDY_DEVICES = (1, 2, 4), ("rpi3bplus", "snapdragon855", "exynos9820")
STUDY_NETWORKS = ("lenet5", "squeezenet11_224", "mobilenetv2_224", "vgg16_cifar", "resnet50_224")
CROSSING = 3 / 4  # of the accesses of 64 bytes, whose operands begin at any multiple of 16


def ends(profile: DeviceProfile) -> tuple[DeviceProfile, DeviceProfile, DeviceProfile]:
    """The profile as it is, and at the low and the high end of the bands of its times."""
    return profile, at_end(profile, "compute", "low"), at_end(profile, "compute", "high")


def at_clock(name: str, clock_hz: float | None) -> DeviceProfile:
    """A profile with another clock of the core; what follows from the cycles follows."""
    if clock_hz is None:
        return load_profile(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.yaml"
        text = f"inherits: {name}\ntitle: x\nsources: {{p: {{kind: published, text: x}}}}\n"
        path.write_text(text + f"cpu: {{clock_hz: {{value: {clock_hz:.0f}, source: p}}}}\n", encoding="utf-8")
        return load_profile(path)


def milliseconds(step: TrainingGraph, profile: DeviceProfile, phases: tuple[Phase, ...] = ()) -> float:
    """Every operator once, of some phases or of all."""
    problem = build_problem(step, profile, budget_bytes=0)
    return sum(op.time_ns for op in problem.operators if not phases or op.phase in [p.value for p in phases]) / 1e6


def three(time_of: Callable[[DeviceProfile], float], profile: DeviceProfile) -> tuple[float, float, float]:
    value, low, high = map(time_of, ends(profile))
    return value, low, high


def shown(ms: float) -> str:
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def verdict(published: float, low: float, high: float) -> str:
    return (
        "inside"
        if low <= published <= high
        else f"{published / high:.1f} x the high end"
        if published > high
        else f"{published / low:.2f} x the low end"
    )


@functools.cache
def mobilenet_step(size: int, width: float, batch: int = 1) -> TrainingGraph:
    return passes.run_standard(training.build(mobilenet_v2(batch, size, width), TrainingOptions()))


def steps() -> Rows:
    yield ("board", "step", "modelled, ms", "band, ms", "published, ms")
    for name, size, width, published in STEPS:
        found = three(functools.partial(milliseconds, mobilenet_step(size, width)), load_profile(name))
        value, low, high = map(shown, found)
        step = f"{size} x {size}" + (f", width {width}" if width != 1 else "")
        yield (name, step, value, f"{low} to {high}", published or "none found")


def study(*, models: Path = MODELS) -> Rows:
    """Batches and kinds of device of the measurement study (Cai et al., EMDL 2021): one core, everything kept."""
    yield ("network", "device", *(f"batch {batch}, ms" for batch in STUDY_BATCHES))
    for network in STUDY_NETWORKS:
        (path,) = [p for p in (models / f"{network}.train.graph.onnx", models / f"{network}.train.onnx") if p.exists()]
        for device in STUDY_DEVICES:
            cells = []
            for batch in STUDY_BATCHES:
                step = training_graph(with_any_weights(ModelRequest(source=path, device=device, batch=batch)))[1]
                value, low, high = map(shown, three(functools.partial(milliseconds, step), load_profile(device)))
                cells.append(f"{value} ({low} to {high})")
            yield (network, device, *cells)


@functools.cache
def network_step(folder: Path, network: str, precision: str = "float32") -> TrainingGraph:
    """The training step; in int8 by NITI's formulas, which train classifiers alone."""
    if network == "ad":
        options = TrainingOptions(loss="mse")
    else:
        options = TrainingOptions(precision="niti" if precision == "int8" else "f32")
    graph = frontend.load(folder / f"{NETWORKS[network]}.onnx", batch=1, random_weights=0)
    return passes.run_standard(training.build(training.in_precision(graph, options), options))


def mlperf(*, models: Path = MODELS) -> Rows:
    yield (
        "board",
        "network",
        "precision",
        "forward pass, ms",
        "band, ms",
        "published, ms",
        "of",
        "published is",
        "step, ms",
    )
    for name, clock_hz, precision, submission, times in MLPERF:
        profile = at_clock(name, clock_hz)
        where = f"{name} at {clock_hz / 1e6:.0f} MHz" if clock_hz else name
        for network, published in times.items():
            step = network_step(models, network, precision)
            value, low, high = three(lambda p, s=step: milliseconds(s, p, (Phase.FORWARD,)), profile)
            whole = milliseconds(step, profile)
            cells = (
                network,
                "float32" if network == "ad" else precision,
                shown(value),
                f"{shown(low)} to {shown(high)}",
                shown(published),
            )
            yield (where, *cells, f"{submission}, {precision}", verdict(published, low, high), shown(whole))


def energy(*, models: Path = MODELS) -> Rows:
    """Energy of the forward pass: its time times the active power, at the ends of both bands."""
    yield ("board", "network", "precision", "forward pass, µJ", "band, µJ", "published, µJ", "of", "published is")
    for name, submission, published in ENERGIES:
        profile = load_profile(name)
        found = (profile, *(at_end(at_end(profile, "compute", end), "power", end) for end in ("low", "high")))
        for network, microjoules in published.items():
            step = network_step(models, network, "int8")
            value, low, high = (1e3 * milliseconds(step, p, (Phase.FORWARD,)) * p.power.active_w.value for p in found)
            cells = ("float32" if network == "ad" else "int8", f"{value:,.0f}", f"{low:,.0f} to {high:,.0f}")
            yield (name, network, *cells, f"{microjoules:,}", f"{submission}, int8", verdict(microjoules, low, high))


def kernels(*, models: Path = MODELS) -> Rows:
    """Instructions a multiply-accumulate of convolutions of ResNet-8 and DS-CNN, as the counted loops price them."""
    yield ("board", "precision", "convolutions, forward", "gradients", "depthwise", "CMSIS-NN, forward")
    for (name, precision), published in CMSIS.items():
        profile = load_profile(name)
        costs = CostModel(profile)
        sums: dict[str, list[float]] = {"forward": [0, 0], "gradients": [0, 0], "depthwise": [0, 0]}
        for network in ("ic", "kws"):
            step = network_step(models, network, precision)
            for op in step.operators:
                if "Conv" not in op.kind or spec(op.kind).is_view:
                    continue
                found = features_of(op, step.tensors, costs.machine)
                if not found.macs:
                    continue
                is_forward = op.phase is Phase.FORWARD
                key = (
                    "depthwise" if found.cost_class.endswith("/depthwise") else "forward" if is_forward else "gradients"
                )
                if key != "depthwise" or is_forward:
                    sums[key][0] += costs.operator(found).time_ns * profile.cpu.clock_hz.value / 1e9
                    sums[key][1] += found.macs
        cells = (f"{total / macs:.2f}" if macs else "none" for total, macs in sums.values())
        yield (name, precision, *cells, published)


def products() -> Rows:
    """GFLOP/s of a product of float32 matrices on one core, beside HPL in float64: half as many lanes, four cores."""
    yield (
        "board",
        f"product of {SIDE} x {SIDE}, GFLOP/s",
        "band",
        "HPL, float64, four cores",
        "of it, float32, one core",
        "published",
    )
    builder = Builder()
    for name in "ab":
        builder.add_tensor(name, TensorType((SIDE, SIDE)), Role.INPUT)
    builder.emit1("MatMul", ["a", "b"])
    (op,) = builder.operators
    for name, clock_hz, published in PRODUCTS:
        rates = []
        for profile in ends(at_clock(name, clock_hz)):
            costs = CostModel(profile)
            rates.append(2 * SIDE**3 / costs.operator(features_of(op, builder.tensors, costs.machine)).time_ns)
        value, most, least = rates
        one = 2 * published / 4
        where = (
            "inside"
            if least <= one <= most
            else f"{one / least:.2f} x the low end"
            if one < least
            else f"{one / most:.2f} x the high end"
        )
        yield (name, f"{value:.1f}", f"{least:.1f} to {most:.1f}", f"{published:.1f}", f"{one:.1f}", where)


def x86() -> Rows:
    """Loops of kernels in llvm-mca's model of Ice Lake, without and with accesses that cross a line of the cache."""
    yield ("loop", "cycles", "with lines", "ns", "ns, with lines", "ns, measured", "error", "with lines")
    loops = [loop for source in X86_SOURCES for loop in innermost_loops(assembly(source))]
    measured = load_profile("host").compute.loop_ns
    for group, name, function, accesses in X86:  # of several copies the first: they take the same cycles
        loop = next(found for found in loops if found.function == function and vectors(found) == accesses)
        (timed,) = run_model([loop], "x86_64-linux-gnu", "icelake-client")
        crossing = timed.cycles + line_cycles(loop, CROSSING)
        ns = measured[group][name].value
        plain, lined = (1e9 * cycles / X86_HZ for cycles in (timed.cycles, crossing))
        cells = (f"{timed.cycles:.3g}", f"{crossing:.3g}", f"{plain:.2f}", f"{lined:.2f}", f"{ns:.2f}")
        yield (f"`{group}.{name}`", *cells, f"{plain / ns - 1:+.0%}", f"{lined / ns - 1:+.0%}")


def assembly(source: str) -> str:
    root = runtime_directory()
    folders = [root / "include", root / "kernels", *(p for p in (root / "kernels").iterdir() if p.is_dir())]
    words = ["gcc", *X86_FLAGS, *(f"-I{folder}" for folder in folders), "-S", "-o", "-", str(root / "kernels" / source)]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def vectors(loop: Loop) -> int:
    return sum("zmm" in line and "(%" in line for line in loop.body)


def line_cycles(loop: Loop, share: float) -> float:
    """Cycles that a share of the accesses of 64 bytes adds by crossing a line: as if nothing else hid them.

    A load that crosses takes one of the two load ports twice, and a store two writes of the cache, which makes one a
    cycle. A number that is read for all lanes crosses nothing.
    """
    whole = [line for line in loop.body if "zmm" in line and "(%" in line and "{1to16}" not in line]
    stores = sum(re.search(r"zmm\d+(\{%k\d\})?, [^,]*\(%", line) is not None for line in whole)
    return share * ((len(whole) - stores) / 2 + stores)


def ranking(*, device: str = "rpi4", before: Path | None = None) -> Rows:
    yield (
        "MobileNetV2",
        "profile",
        "every operator once, ms",
        "saved tensors",
        "cheaper to recompute",
        "cheaper to page",
        "page over recompute",
    )
    profile = load_profile(device)
    rows = [
        ("now", profile),
        ("low end", at_end(profile, "compute", "low")),
        ("high end", at_end(profile, "compute", "high")),
    ]
    if before is not None:
        rows.insert(0, ("before", load_profile(before)))
    for size, batch in ((224, 1), (32, 32)):
        for name, priced in rows:
            problem = build_problem(mobilenet_step(size, 1.0, batch), priced, budget_bytes=0)
            ratios = list(page_over_recompute(problem))
            recompute = sum(ratio > 1 for ratio in ratios)
            counts = (len(ratios), recompute, len(ratios) - recompute)
            what = f"{size} x {size}, batch {batch}"
            yield (
                what,
                name,
                shown(problem.compute_once_ns / 1e6),
                *map(str, counts),
                f"{statistics.median(ratios):.1f}",
            )


def page_over_recompute(problem: Problem) -> Iterator[float]:
    """By tensor that the forward pass makes and the backward pass reads: energy of paging over making it again."""
    readers: dict[int, set[str]] = {}
    for op in problem.operators:
        for tensor in op.inputs:
            readers.setdefault(tensor, set()).add(op.phase)
    for op in problem.operators:
        if op.phase != Phase.FORWARD.value:
            continue
        for output in op.outputs:
            if Phase.BACKWARD.value in readers.get(output, ()):
                spec = problem.tensors[output]
                yield (spec.page_out_pj + spec.page_in_pj) / max(1, op.energy_pj)


if __name__ == "__main__":
    main(steps, study, mlperf, energy, kernels, products, x86, ranking)
