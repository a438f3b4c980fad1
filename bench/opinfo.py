"""`make opinfo`: PyTorch's own test suite of operators and modules, one training step beside float64 gradients.

    python -m bench.opinfo FOLDER [--record FILE] [--write] [--archive]

FOLDER holds what bench/peer_opinfo.py wrote. A case is "right" if the loss and every gradient of the compiled C lie
within 1e-4 of PyTorch's in float64, relative to the largest number of the tensor. It is "rounding" where they do
in double precision alone. It is "the file's" where they do not, and onnxruntime computes another output from the file
than PyTorch, in just the same way. Else it is "wrong", "refused" by poetc, or "fails" with an exception. The record has
a line a case, and a run with the same record goes on where it ended; with --again, cases that were not right are tried
again. Exit code 1 if one is wrong or fails.
"""

from __future__ import annotations

import io
import json
import os
import platform
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnxruntime

from bench._command import main
from poetc import measure, training
from poetc.commands import programs
from poetc.commands import solve as solving
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.errors import PoetcError
from poetc.frontend import load
from poetc.graph import TrainingGraph, materialize
from poetc.ops import bind, spec
from poetc.program import Copies
from poetc.scheduling import SolveOptions
from poetc.training import TrainingOptions

TOLERANCE = 1e-4
PAGE = Path("docs/results/opinfo.md")
ARCHIVE = Path("tests/conformance/opinfo.tar.xz")
RANDOM = {"Bernoulli", "Dropout", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
MOST_BYTES = 1 << 14  # of a case in it
Arrays = Mapping[str, np.ndarray[Any, np.dtype[Any]]]


def trained_step(path: Path, held: Arrays, batch_norm: Any, folder: Path) -> tuple[float, dict[str, Any], list[str]]:
    """Loss and gradients of one step as compiled C, and the notes of the import."""
    how = TrainingOptions(loss="mse", batch_norm=batch_norm)
    request = SolveRequest(
        model=ModelRequest(source=path, device="host", training=how),
        budget="200%",
        options=SolveOptions(time_limit_s=1.0, gap=0.5),
        smallest=False,
    )
    solved = solving.solve(request)
    graph = solved.graph
    assert graph is not None
    program, values = programs.training_program(solved), graph.values
    library = measure.compile_library([program], values, folder)
    given = {graph.target: held["t"], **({graph.inputs[0]: held["x"]} if graph.inputs else {})}
    inputs = {n: np.asarray(a, np.float32 if a.dtype.kind == "f" else np.int32) for n, a in given.items()}
    with measure.HostModel(library, [program], values) as model:
        gradients = dict(measure.unstored_gradients(model, inputs, Copies()))
        model.probes = Copies()
        loss = model.run(inputs)
        gradients |= {name: np.array(g) for name, g in model.probes.items()}
    return loss, gradients, list(graph.notes)


def is_off(found: Any, wanted: Any) -> bool:
    """Whether a tensor differs by more than the tolerance of its largest number."""
    found, wanted = np.asarray(found, np.float64).reshape(-1), np.asarray(wanted, np.float64).reshape(-1)
    if found.shape != wanted.shape or not np.isfinite(found).all():
        return True
    return bool(np.abs(found - wanted).max(initial=0) > TOLERANCE * max(np.abs(wanted).max(initial=0), 1e-6))


_MISSING = "is not trained"


def differences(loss: float, gradients: Mapping[str, Any], held: Arrays) -> list[str]:
    """What is not PyTorch's. A parameter whose gradient is zero need not have one."""
    wrong = [f"loss {loss:.6g}, PyTorch has {float(held['loss']):.6g}"] if is_off(loss, held["loss"]) else []
    for key, wanted in held.items():
        if not key.startswith("g:"):
            continue
        name = key.removeprefix("g:")
        found = gradients.get(name, np.zeros_like(wanted))
        if np.asarray(found).size == wanted.size and is_off(found, wanted) and np.abs(wanted).max(initial=0) > 1e-8:
            missing = (
                _MISSING if name not in gradients else f"{np.abs(np.ravel(found) - np.ravel(wanted)).max():.2g} off"
            )
            wrong.append(f"gradient of {name} {missing}")
    return wrong


def runtime_output(path: Path, held: Arrays) -> np.ndarray[Any, np.dtype[Any]]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feeds = {i.name: held["x"] for i in session.get_inputs()}
    return np.asarray(session.run(None, feeds)[0])


def is_the_files(path: Path, held: Arrays, loss: float) -> str:
    """Why the file is another function than PyTorch's, "" where onnxruntime does not say so."""
    try:
        output = runtime_output(path, held)
    except Exception as error:  # of many kinds
        return f"onnxruntime: {str(error).splitlines()[0][:120]}"
    if output.shape != held["y"].shape or is_off(output, held["y"]):
        own = (
            float(np.mean((output.astype(np.float64) - held["t"]) ** 2)) if output.shape == held["t"].shape else np.nan
        )
        same = not (np.isfinite(own) or np.isfinite(loss)) or not is_off(loss, own)
        return f"onnxruntime's output differs from PyTorch's; its loss is {own:.6g}, here {loss:.6g}" if same else ""
    return ""


def is_the_derivative(path: Path, held: Arrays, batch_norm: Any) -> bool:
    """Whether poetc's gradients agree with differences of the loss in double precision."""
    step, at = _beginning(path, held, batch_norm)
    own = _in_double(step, at)
    # Wider ones where a Cast rounds to 32 bits on the way.
    return any(_agrees_with_differences(step, at, own, width) for width in (1e-6, 1e-3))


def _agrees_with_differences(step: TrainingGraph, at: Mapping[str, Any], own: Mapping[str, Any], width: float) -> bool:
    draw = np.random.default_rng(3)
    for name, gradient in step.gradients.items():
        direction = draw.standard_normal(at[name].shape)
        ends = [{**at, name: at[name] + e * direction} for e in (width, -width)]
        high, low = (float(_in_double(step, end)[step.loss]) for end in ends)
        exact, finite = float(np.sum(own[gradient] * direction)), (high - low) / (2 * width)
        if abs(exact - finite) > 1e-4 * max(abs(exact), abs(finite), 1e-3):
            return False
    return True


def is_right_in_double(path: Path, held: Arrays, batch_norm: Any) -> bool:
    """Whether poetc's loss and gradients are PyTorch's where both compute in double precision."""
    step, at = _beginning(path, held, batch_norm)
    own = _in_double(step, at)
    return not differences(float(own[step.loss]), {n: own[g] for n, g in step.gradients.items()}, held)


def _beginning(path: Path, held: Arrays, batch_norm: Any) -> tuple[TrainingGraph, dict[str, Any]]:
    """The training step, and its inputs and parameters in double precision."""
    step = training.build(load(path), TrainingOptions(loss="mse", batch_norm=batch_norm))
    at: dict[str, Any] = {step.target: held["t"].astype(np.float64)}
    at |= {name: held["x"].astype(np.float64) for name in step.inputs}
    for name in step.gradients:
        at[name] = np.asarray(materialize(step.values[name], step.tensors[name].type)).astype(np.float64)
    return step, at


def _in_double(step: TrainingGraph, given: Mapping[str, Any]) -> dict[str, Any]:
    held = {name: np.asarray(materialize(v, step.tensors[name].type)) for name, v in step.values.items()} | dict(given)
    for op in step.operators:
        results = spec(op.kind).evaluate(bind(op, step.tensors), [held[t] for t in op.inputs])
        held.update(zip(op.outputs, results, strict=True))
    return held


def judged(path: Path) -> dict[str, str]:
    """The end of a case, and why."""
    with np.load(path.with_suffix(".npz")) as archive:
        held = {name: archive[name] for name in archive.files}
    batch_norm = "train" if "-train-" in path.name else "frozen"
    with tempfile.TemporaryDirectory() as folder:
        try:
            loss, gradients, notes = trained_step(path, held, batch_norm, Path(folder))
        except PoetcError as error:
            fault = is_the_files(path, held, float("nan"))
            why = str(error).replace(f"{path}: ", "").replace("\n", " ")[:200]
            return {"end": "the file's" if fault else "refused", "why": fault or why}
        except Exception as error:  # whatever is raised is a defect
            return {"end": "fails", "why": f"{type(error).__name__}: {error}"[:300]}
    wrong = differences(loss, gradients, held)
    if not wrong:
        return {"end": "right", "why": ""}
    if fault := is_the_files(path, held, loss):
        return {"end": "the file's", "why": fault}
    if RANDOM & {node.op_type for node in onnx.load(path).graph.node}:
        return {"end": "random", "why": "it draws numbers, which are others here"}
    if is_right_in_double(path, held, batch_norm):
        return {"end": "rounding", "why": "; ".join(wrong[:3])}
    is_whole = not any(text.endswith(_MISSING) for text in wrong)  # differences say nothing of what is not trained
    if is_whole and not wrong[0].startswith("loss") and is_the_derivative(path, held, batch_norm):
        return {"end": "PyTorch's", "why": "its gradient is not the derivative; " + "; ".join(wrong[:3])}
    single = float(np.mean((held["y"].astype(np.float64) - held["t"]) ** 2))
    if is_off(single, held["loss"]) and not is_off(loss, single):
        return {
            "end": "PyTorch's",
            "why": f"its own loss in float32 is {single:.6g}, in float64 {float(held['loss']):.6g}",
        }
    return {"end": "wrong", "why": "; ".join([*wrong[:3], *notes[:2]])[:400]}


def group_of(case: str) -> str:
    mode = case.rsplit("-", 2)[1]
    return {
        "input": "operators, the input scaled by a parameter",
        "all": "operators, every float operand scaled by a parameter",
        "eval": "modules in evaluation",
        "train": "modules in training",
    }[mode]


def page(found: Mapping[str, Mapping[str, str]], exported: Mapping[str, Mapping[str, str]]) -> str:
    """docs/results/opinfo.md."""
    ends = ("right", "rounding", "the file's", "PyTorch's", "refused", "wrong", "fails")
    judged_cases = [c for c in found if found[c]["end"] in ends]
    right = sum(found[c]["end"] == "right" for c in judged_cases)
    bad = sum(found[c]["end"] in ("wrong", "fails") for c in judged_cases)
    lines = [
        "# PyTorch's test suite",
        "",
        f"Of {len(judged_cases)} samples of PyTorch's operators and modules that its exporter writes,"
        f" {right} are trained rightly, and {bad} wrongly.",
        "",
        "One step as compiled C, loss and every gradient within 1e-4 of PyTorch's in float64. Command: `make opinfo`.",
        f"{date.today()}, {platform.machine()} with {os.cpu_count()} cores, {len(exported)} samples drawn:",
        "of each entry two, if it has them, which differ in shapes or arguments.",
        "It is rounding where poetc agrees within 1e-4 in double precision, and floats of 32 bits cancel.",
        "A case is the file's where onnxruntime's output from the file differs from PyTorch's just as poetc's does,",
        "or where onnxruntime cannot run the file. It is PyTorch's where differences of the loss agree with poetc,",
        "or where its own loss in float32 is poetc's.",
        "",
        "| cases | " + " | ".join(ends) + " |",
        "|---|" + "---|" * len(ends),
    ]
    for group in dict.fromkeys(map(group_of, sorted(judged_cases))):
        counts = Counter(found[c]["end"] for c in judged_cases if group_of(c) == group)
        lines.append(f"| {group} | " + " | ".join(str(counts[e]) for e in ends) + " |")
    kept_out = Counter(e["end"] for e in exported.values() if e["end"] != "exported")
    kept_out["random"] = sum(f["end"] == "random" for f in found.values())
    lines += ["", "Not judged: " + ", ".join(f"{count} {end}" for end, count in sorted(kept_out.items())) + ".", ""]
    for end in ends[1:]:
        names = sorted(c for c in judged_cases if found[c]["end"] == end)
        if names:
            lines += [f"## {end.capitalize()}", "", "| case | reason |", "|---|---|"]
            lines += [f"| `{c}` | {found[c]['why'].replace('|', ' ')[:160]} |" for c in names]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def write_archive(found: Mapping[str, Mapping[str, str]], folder: Path) -> None:
    """ARCHIVE: of the cases that are right, the smallest one for each set of ONNX operators, and its arrays."""
    smallest: dict[tuple[str, ...], tuple[int, str]] = {}
    for case in sorted(c for c in found if found[c]["end"] == "right"):
        files = [folder / f"{case}{suffix}" for suffix in (".onnx", ".npz")]
        size_bytes = sum(file.stat().st_size for file in files)
        kinds = tuple(sorted({node.op_type for node in onnx.load(files[0]).graph.node}))
        if size_bytes < MOST_BYTES:
            smallest[kinds] = min(smallest.get(kinds, (size_bytes, case)), (size_bytes, case))
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for case in sorted(case for _, case in smallest.values()):
            for suffix in (".onnx", ".npz"):
                info = tarfile.TarInfo(case + suffix)  # no time and no owner: the same cases give the same file
                data = (folder / info.name).read_bytes()
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))


def read(path: Path) -> dict[str, dict[str, str]]:
    """By case, the last line of each."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {entry["case"]: entry for entry in map(json.loads, lines)}


def run(
    folder: Path,
    *,
    record: Path = Path("build/opinfo.jsonl"),
    again: Annotated[bool, "cases that were not right too"] = False,
    write: Annotated[bool, f"write {PAGE}"] = False,
    archive: Annotated[bool, f"write {ARCHIVE}"] = False,
) -> int:
    exported, found = read(folder / "exported.jsonl"), read(record)
    for case, entry in exported.items():
        kept = found.get(case, {}).get("end")
        is_settled = kept in ("right", "rounding", "the file's", "PyTorch's") or (kept and not again)
        if entry["end"] != "exported" or is_settled:
            continue
        found[case] = {"case": case, **judged(folder / f"{case}.onnx")}
        with record.open("a") as file:
            file.write(json.dumps(found[case]) + "\n")
        if found[case]["end"] in ("wrong", "fails", "refused"):
            print(case, found[case]["end"], found[case]["why"], flush=True)
    print(dict(Counter(f["end"] for f in found.values())))
    if write:
        PAGE.write_text(page(found, exported))
    if archive:
        write_archive(found, folder)
    return int(any(f["end"] in ("wrong", "fails") for f in found.values()))


if __name__ == "__main__":
    main(run)
