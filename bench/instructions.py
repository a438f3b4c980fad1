"""Cycles or instructions a multiply-accumulate of every operator of a training step, counted on an emulated board.

    python -m bench.instructions [--board mps2-an386] [--numerics separate] [--precision f32] [--batch 1] [--no-fusion]
                                 [MODEL ...]

A MODEL is an ONNX file or a network of demo/boards (lenet5, ds-cnn, resnet, mobilenet, ...). Counts are exact and do
not depend on how busy this machine is. Cycles are by Arm's table, without waits of the flash, on cores that have one.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Literal

from bench._command import main
from demo.boards import networks
from poetc import boards, frontend, measure, passes, training
from poetc.devices import build_problem, load_profile
from poetc.graph import TrainingGraph
from poetc.ops import bind, spec
from poetc.program import Call, Program, lower, sample_inputs
from poetc.scheduling import keep_all, pack
from poetc.training import TrainingOptions

MODELS = ("lenet5", "resnet", "ds-cnn")


def training_step(source: Path, batch: int, options: TrainingOptions) -> tuple[TrainingGraph, Program]:
    """A keep-all schedule."""
    graph = frontend.load(source, batch=batch, random_weights=0, quantized=options.precision == "qas")
    step = passes.run_standard(training.build(training.in_precision(graph, options), options))
    problem = build_problem(step, load_profile("host"), budget_bytes=1 << 40)
    schedule = keep_all(problem)
    return step, lower(step, problem, schedule, pack(problem, schedule))


def count(
    source: Path, batch: int, board: str, numerics: boards.Numerics, all_rows: bool, training_options: TrainingOptions
) -> None:
    step, program = training_step(source, batch, training_options)
    with tempfile.TemporaryDirectory(prefix="poetc-count-") as scratch:
        firmware = measure.build_firmware(program, step.values, board, Path(scratch), numerics=numerics)
        run = measure.execute(firmware, [sample_inputs(program, 0)])
    operators = {op.name: op for op in step.operators}
    symbols = {i.operator: i.symbol for i in program.instructions if isinstance(i, Call)}
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    unit = "cycles" if run.cycles else "instructions"
    print(f"{source.stem} batch {batch} on {board}, {numerics}: {run.cycles or run.instructions} {unit} a step")
    for item in run.counts:
        op, spent = operators[item.name], item.cycles or item.instructions
        bound = bind(op, step.tensors)
        macs = spec(op.kind).work(bound).macs * item.times
        if not macs:
            sums["other"][1] += spent
            if all_rows:
                elements = max(t.elements for t in (*bound.inputs, *bound.outputs))
                print(f"  {symbols[item.name]:36} {spent / elements:6.2f} an element of {elements}")
            continue
        sums[symbols[item.name]][0] += macs
        sums[symbols[item.name]][1] += spent
        if all_rows:
            shapes = " ".join("x".join(map(str, t.shape)) for t in (*bound.inputs, *bound.outputs))
            print(f"  {symbols[item.name]:36} {spent / macs:6.2f} a MAC of {macs}: {shapes}")
    for symbol, (macs, spent) in sorted(sums.items(), key=lambda s: -s[1][1]):
        ratio = f"{spent / macs:6.2f} a MAC" if macs else ""
        print(f"  {symbol:36} {spent:12} {ratio}")
    total, step_spent = sum(m for m, _ in sums.values()), run.cycles or run.instructions
    print(f"  whole step{'':26} {step_spent:12} {step_spent / total:6.2f} a MAC", flush=True)


def run(
    models: tuple[str, ...] = MODELS,
    *,
    board: str = "mps2-an386",
    batch: int = 1,
    numerics: Literal["separate", "fused", "fast"] = "separate",
    precision: Literal["f32", "bf16", "f16", "niti", "qas"] = "f32",
    no_fusion: bool = False,
    rows: Annotated[bool, "a line for every operator"] = False,
) -> None:
    step = TrainingOptions(learning_rate=0.01, fusion=not no_fusion, precision=precision)
    with tempfile.TemporaryDirectory(prefix="poetc-count-") as scratch:
        for model in models:
            source = Path(model)
            if model in networks.NETWORKS:
                source = networks.write(model, Path(scratch) / f"{model}.onnx")
            count(source, batch, board, numerics, rows, step)


if __name__ == "__main__":
    main(run)
