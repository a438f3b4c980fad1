"""Numbers of fewer bits beside floats: RAM, accuracy, errors of gradients, instructions and time.

    python -m bench.precisions ram DEVICE BATCH SECONDS MODEL...    keep-all's peak and the smallest RAM found, by form
    python -m bench.precisions peaks DEVICE BATCH MODEL...          keep-all's peak with every encoding made
    python -m bench.precisions errors BATCH MODEL                   errors of gradients, all saved tensors encoded
    python -m bench.precisions accuracy ROWS NETWORK DATA.npz       x [samples, h, w] of u8 and y; the last fifth tests
    python -m bench.precisions digits [ROW...]                      the demonstration's digits, from new weights
    python -m bench.precisions size NETWORK DEVICE [BATCH]          smallest RAM, and instructions of a step in QEMU
    python -m bench.precisions times MODEL.onnx [BATCH]             processor time of a step on this machine

NETWORK is one of demo/boards/networks.py or an ONNX file, ROWS one of integers, half, saved. onnxruntime quantises the
models of the form `qas`, with activations calibrated on random inputs. The results pages integer, half, saved and
few-bits have the tables. `times` takes turns between the forms in one process on one thread, so that other work on the
machine disturbs all.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import onnx
from onnx import numpy_helper

import poetc
from bench._command import Rows, main
from bench.instructions import training_step
from demo.boards import networks
from poetc import artifact, measure, passes
from poetc.commands.encodings import encodings_of, offers_of
from poetc.commands.requests import ModelRequest, SolveRequest, read_problem, training_graph, with_any_weights
from poetc.commands.run import RunRequest
from poetc.commands.run import run as run_on_board
from poetc.commands.solve import solve
from poetc.devices import build_problem, load_profile
from poetc.errors import PoetcError
from poetc.events import silent
from poetc.program import all_inputs, sample_inputs
from poetc.scheduling import SolveOptions, keep_all, keep_all_peak_bytes, pack
from poetc.training import PRECISIONS, TrainingOptions

FORMS = {
    "f32": TrainingOptions(saved="off"),
    "exact": TrainingOptions(saved="exact"),
    "saved-f16": TrainingOptions(saved="f16"),
    "saved-int8": TrainingOptions(saved="int8"),
    "bf16": TrainingOptions(precision="bf16"),
    "niti": TrainingOptions(precision="niti"),
    "qas": TrainingOptions(precision="qas"),
}
SAMPLES = 4  # for the ranges of activations
BOARDS = ("mps2-an385-m0", "mps2-an385", "mps2-an386", "mps3-an547", "aarch64")
CFLAGS = "-O3 -march=native"
SEEDS = (0, 1, 2)
DEMO = Path(__file__).resolve().parents[1] / "demo"
NITI = TrainingOptions(precision="niti", niti_weights="xavier", learning_rate=0.125)
MOMENTUM = TrainingOptions(optimizer="momentum", learning_rate=0.02)
THIRDS = "step:every={third},factor=0.5"


@dataclass(frozen=True, slots=True)
class Row:
    """A training. `is_forced`: every saved tensor that can be encoded is."""

    options: TrainingOptions
    schedule: str = "cosine"
    epochs: int = 15
    batch: int = 25
    is_forced: bool = False


ROWS: dict[str, dict[str, Row]] = {
    "integers": {
        "f32, momentum": Row(MOMENTUM),
        "niti": Row(NITI, THIRDS),
        "niti, nearest updates": Row(replace(NITI, rounding="update=nearest"), THIRDS),
        "niti, weights of 24 bits": Row(replace(NITI, learning_rate=0.0625, weight_bits="24")),
        "niti, rescale interval": Row(replace(NITI, rescale="interval"), THIRDS),
    },
    "half": {
        name: Row(replace(MOMENTUM, precision=name, learning_rate=0.01), "constant", epochs=4, batch=16)
        for name in ("f32", "bf16", "f16")
    },
    "saved": {name: Row(replace(MOMENTUM, saved=name), is_forced=True) for name in ("off", "f16", "int8")},
}
DIGITS = {
    name: Row(TrainingOptions(precision=name, learning_rate=0.05), epochs=6, batch=16)
    for name in ("f32", *(precision.name for precision in PRECISIONS.values() if precision.algorithm is not None))
}
DIGITS["niti"] = replace(DIGITS["niti"], options=NITI, schedule=THIRDS)
DIGITS["wageubn"] = replace(DIGITS["wageubn"], options=TrainingOptions(precision="wageubn", learning_rate=0.25))


def network(name: str, folder: Path) -> Path:
    """An ONNX file as it is, or that of a network of demo/boards, written to `folder`."""
    return Path(name) if name.endswith(".onnx") else networks.write(name, folder / f"{name}.onnx")


def quantised(source: Path, folder: Path) -> Path:
    """A QDQ model of `source` in `folder`, batch norms folded, with a scale for each output channel.

    Weights without numbers get random ones: sizes do not depend on them.
    """
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Samples(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, graph: onnx.GraphProto) -> None:
            draw, given = np.random.default_rng(0), {t.name for t in graph.initializer}
            shapes = {
                i.name: [d.dim_value or 1 for d in i.type.tensor_type.shape.dim]
                for i in graph.input
                if i.name not in given
            }
            feeds = ({n: draw.standard_normal(s).astype(np.float32) for n, s in shapes.items()} for _ in range(SAMPLES))
            self._feeds = feeds

        def get_next(self) -> dict[str, Any] | None:
            return next(self._feeds, None)

    model, random = onnx.load(source, load_external_data=False), np.random.default_rng(1)
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            shape = tuple(tensor.dims)
            numbers = np.abs(random.standard_normal(shape)) / np.sqrt(max(1, np.prod(shape[1:])))
            tensor.CopyFrom(numpy_helper.from_array(numbers.astype(np.float32), tensor.name))
    plain, folded, out = (folder / f"{source.stem}.{name}.onnx" for name in ("plain", "folded", "qdq"))
    onnx.save(model, plain)
    quant_pre_process(plain, folded, skip_symbolic_shape=True)
    quantization.quantize_static(
        folded, out, Samples(onnx.load(folded).graph), quant_format=quantization.QuantFormat.QDQ, per_channel=True,
        activation_type=quantization.QuantType.QInt8, weight_type=quantization.QuantType.QInt8,
    )  # fmt: skip
    return out


def smallest_ram(model: Path, device: str, batch: int, seconds: float, options: TrainingOptions) -> tuple[int, int]:
    """Keep-all's peak, and the least RAM that is found, of the problem that probably needs the least."""
    request = SolveRequest(
        model=with_any_weights(ModelRequest(source=model, batch=batch, device=device, training=options)),
        options=SolveOptions(time_limit_s=seconds),
    )
    _, step, profile, problem = read_problem(request)
    found = request.planner(seconds, offers=offers_of(step, profile, problem, None)).search_ram(problem, seconds).result
    return keep_all_peak_bytes(problem), found.ram_bytes or 0


def ram(
    device: str,
    batch: int,
    seconds: Annotated[float, "of search for each model and form"],
    models: tuple[Path, ...],
    *,
    forms: Annotated[tuple[str, ...], f"of {', '.join(FORMS)}"] = ("f32", "bf16"),
) -> Rows:
    yield f"{device}, batch {batch}", *(f"{what}, {form}" for what in ("keep-all", "smallest") for form in forms)
    for model in models:
        cells: dict[str, tuple[object, object]] = {}
        least = 1 << 60
        for form in forms:
            with tempfile.TemporaryDirectory() as scratch:
                try:
                    path = quantised(model, Path(scratch)) if form == "qas" else model
                    peak, found = smallest_ram(path, device, batch, seconds, FORMS[form])
                except PoetcError as error:
                    cells[form] = str(error).splitlines()[0][:150], "-"
                    continue
            if FORMS[form].precision == "f32":
                found = least = min(least, found)  # a schedule with fewer encodings is one for more
            cells[form] = f"{peak:,}", f"{found:,}"
        yield model.stem, *(cells[form][which] for which in (0, 1) for form in forms)


def peaks(device: str, batch: int, models: tuple[Path, ...]) -> Rows:
    """With every encoding made, which no planner chose."""
    forms = [form for form in FORMS if form not in ("bf16", "qas")]
    yield f"{device}, batch {batch}", *forms
    profile = load_profile(device)
    for model in models:
        cells = []
        for form in forms:
            request = ModelRequest(source=model, batch=batch, device=device, training=FORMS[form])
            try:
                _, step = training_graph(with_any_weights(request))
            except PoetcError:
                cells.append("-")
                continue
            step = passes.encoded(step, () if form == "niti" else encodings_of(step))
            cells.append(f"{keep_all_peak_bytes(build_problem(step, profile, budget_bytes=1)):,}")
        yield model.stem, *cells


def forced(path: Path, batch: int, options: TrainingOptions, folder: Path) -> Path:
    """A solved directory in which every tensor that can be encoded is, and kept."""
    request = ModelRequest(source=path, batch=batch, training=options)
    solved = solve(SolveRequest(model=with_any_weights(request), options=SolveOptions(time_limit_s=5)))
    assert solved.graph is not None and solved.profile is not None
    step = passes.encoded(solved.graph, encodings_of(solved.graph))
    problem = build_problem(step, solved.profile, budget_bytes=solved.problem.budget_bytes)
    schedule = keep_all(problem)
    encoded = replace(
        solved, graph=step, problem=problem, schedule=schedule, plan=pack(problem, schedule), inference_problem=None,
        inference_schedule=None, inference_plan=None,
    )  # fmt: skip
    artifact.write(encoded, folder, {}, force=True)
    return folder


def errors(batch: int, model: Path) -> Rows:
    yield "form", "median", "largest", "tensors", "bits of keep-all"
    with tempfile.TemporaryDirectory() as scratch:
        for form in ("f16", "bf16", "int8"):
            folder = forced(model, batch, TrainingOptions(saved=form), Path(scratch) / form)
            found = poetc.open_solution(folder).validate()
            sizes = sorted(e["rel_error"] for e in found["saved_errors"])
            yield form, f"{np.median(sizes):.2e}", f"{sizes[-1]:.2e}", len(sizes), found["bit_identical_to_keep_all"]


def trained(path_of: Callable[[int], Path], row: Row, folder: Path, samples: int) -> tuple[list[float], int]:
    """Accuracy on test.npz after the last epoch in per cent, by seed, and the predicted peak in bytes."""
    found, peak_bytes = list[float](), 0
    schedule = row.schedule.format(third=samples // row.batch * row.epochs // 3)
    for seed in SEEDS:
        path = path_of(seed)
        if row.is_forced:
            source: Any = forced(path, row.batch, row.options, folder / "forced")
        else:
            source = poetc.load(path, batch=row.batch, training=row.options)
        result = poetc.train(
            source, data=f"{folder}/train.npz:x,y", validation=f"{folder}/test.npz:x,y", out=folder / "out.onnx",
            epochs=row.epochs, schedule=schedule, seed=seed, force=True, time_limit_s=3,
        )  # fmt: skip
        found.append(100 * result["epochs"][-1]["validation_accuracy"])
        peak_bytes = result["peak_predicted_bytes"]
    return found, peak_bytes


def table(rows: dict[str, Row], path_of: Callable[[int], Path], folder: Path, samples: int) -> Rows:
    yield "row", "accuracy, %", "the three runs", "RAM"
    for name, row in rows.items():
        found, peak_bytes = trained(path_of, row, folder, samples)
        yield name, f"{np.mean(found):.2f}", ", ".join(f"{a:.2f}" for a in found), f"{peak_bytes / 1e3:,.0f} kB"


def accuracy(rows: Literal["integers", "half", "saved"], model: str, data: Path) -> Rows:
    with np.load(data) as arrays, tempfile.TemporaryDirectory() as scratch:
        folder, batch = Path(scratch), next(iter(ROWS[rows].values())).batch
        x, y = arrays["x"][:, None].astype(np.float32) / arrays["x"].max(), arrays["y"].astype(np.int32)
        order = np.arange(len(x)) if rows == "half" else np.random.default_rng(0).permutation(len(x))
        cut = len(x) * 4 // 5 // batch * batch
        for part, chosen in (("train", order[:cut]), ("test", order[cut:])):
            np.savez(folder / f"{part}.npz", x=x[chosen], y=y[chosen])
        yield from table(ROWS[rows], lambda _: network(model, folder), folder, cut)


def digits(rows: tuple[str, ...] = tuple(DIGITS)) -> Rows:
    """`fp8` takes nine tenths of the time."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with np.load(DEMO / "digits_first_writers.npz") as first, np.load(DEMO / "digits_new_writer.npz") as new:
            parts = {
                "train": [first["train_x"], first["train_y"], new["train_x"], new["train_y"]],
                "test": [new["test_x"], new["test_y"]],
            }
        for name, arrays in parts.items():
            x, y = np.concatenate(arrays[::2]), np.concatenate(arrays[1::2])
            np.savez(folder / f"{name}.npz", x=x[:, None].astype(np.float32) / 255, y=y.astype(np.int32))
        samples = sum(map(len, parts["train"][1::2]))
        yield from table({name: DIGITS[name] for name in rows}, functools.partial(new_weights, folder), folder, samples)


def new_weights(folder: Path, seed: int) -> Path:
    """The digits network with normal weights after He et al. (2015); its norms begin as new ones."""
    model, random = onnx.load(str(DEMO / "digits.onnx")), np.random.default_rng(seed)
    norms = [n for n in model.graph.node if n.op_type == "BatchNormalization"]
    ones = {node.input[k] for node in norms for k in (1, 4)}
    for tensor in model.graph.initializer:
        value = numpy_helper.to_array(tensor)
        if value.dtype != np.float32:
            continue
        if value.ndim > 1:
            fan_in = value[0].size if value.ndim == 4 else max(value.shape)
            new = random.standard_normal(value.shape) * np.sqrt(2 / fan_in)
        else:
            new = np.full(value.shape, float(tensor.name in ones))
        tensor.CopyFrom(numpy_helper.from_array(new.astype(np.float32), tensor.name))
    onnx.save(model, str(folder / "new.onnx"))
    return folder / "new.onnx"


def size(model: str, device: str, batch: int = 8) -> Rows:
    yield "precision", "keep-all", "smallest", *(f"{board}, M instructions" for board in BOARDS)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for precision in ("f32", "niti"):
            loaded = poetc.load(network(model, folder), batch=batch, training=TrainingOptions(precision=precision))
            solution = loaded.solve(device=device, budget="100%", time_limit_s=10)
            directory = solution.save(folder / precision)
            counts = [
                run_on_board(RunRequest(directory=directory, on=f"qemu:{board}", steps=1), silent, lambda *_: None)
                for board in BOARDS
            ]
            bytes_ = (f"{solution.summary[name]:,}" for name in ("keep_all_peak_bytes", "min_budget_bytes"))
            yield precision, *bytes_, *(f"{found['instructions'] / 1e6:.2f}" for found in counts)


def run_once(model: measure.HostModel, inputs: list[tuple[Any, Any]]) -> None:
    """A step without HostModel's checks."""
    for place, value in inputs:
        place[...] = value
    if model._dll.poetc_run(ctypes.byref(model._runtime)):
        raise SystemExit("poetc_run failed")


def times(model: Path, batch: int = 1, *, turns: int = 20) -> Rows:
    """Keep-all steps of floats, without and with fused multiply-adds, and of integers: the quickest and the median."""
    options = {"f32": TrainingOptions(learning_rate=1e-4), "niti": TrainingOptions(precision="niti")}
    fused = f"{CFLAGS} -DPOETC_FUSED"
    spent: dict[str, list[float]] = {}
    with contextlib.ExitStack() as models:
        runs: dict[str, Callable[[], None]] = {}
        for label, flags in (("f32", CFLAGS), ("f32 fused", fused), ("niti", CFLAGS)):
            step, program = training_step(model, batch, options[label.split()[0]])
            built = models.enter_context(measure.build_host([program], step.values, cflags=flags))
            inputs = sample_inputs(program, 0)
            built.run(inputs)
            places = [(built._view(b.operand), inputs[b.name]) for b in all_inputs(program)]
            runs[label], spent[label] = functools.partial(run_once, built, places), []
        for _ in range(turns):
            for label, run_step in runs.items():
                start = time.process_time()
                run_step()
                spent[label].append(1e3 * (time.process_time() - start))
    yield f"{model.stem}, batch {batch}", "least, ms", "median, ms", "speed of f32: least", "median"
    floats = spent["f32"]
    for label, found in spent.items():
        least, middle = min(found), statistics.median(found)
        speeds = min(floats) / least, statistics.median(floats) / middle
        yield label, f"{least:.2f}", f"{middle:.2f}", *(f"{speed:.2f} x" for speed in speeds)


if __name__ == "__main__":
    main(ram, peaks, errors, accuracy, digits, size, times)
