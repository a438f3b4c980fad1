"""Train a network of each class of boards on the shipped digits, on the emulated board, and say what it learned.

    python demo/boards/demo.py [CLASS ...]      m0, m3-sd, m4f, m4f-last, m7, m55, a72; without any: m3-sd

Each is solved for the board's budget, emitted, built, trained under emulation from random weights (measured: memory,
instructions, pages), and its trained state is then tested on digits that it has not seen.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import networks
import numpy as np

from poetc import codegen, outputs, pipeline
from poetc.artifact import Artifact
from poetc.graph import Array
from poetc.pipeline import ModelRequest, SolveRequest
from poetc.scheduling.schedule import SolveOptions
from poetc.training import TrainingOptions

DIGITS = Path(__file__).resolve().parents[1] / "digits_new_writer.npz"


@dataclass(frozen=True)
class Demo:
    title: str
    network: str
    board: str
    device: str
    budget: str
    batch: int
    steps: int
    train: str = "all"
    optimizer: str = "momentum"
    learning_rate: float = 0.05


DEMOS = {
    "m0": Demo("Cortex-M0, 16 KiB: an MLP", "mlp", "microbit", "qemu-microbit", "16KiB", 4, 266, optimizer="sgd"),
    "m3-sd": Demo(
        "Cortex-M3, 64 KiB and an SD card: LeNet", "lenet", "lm3s6965evb", "qemu-lm3s6965evb", "64KiB", 12, 88
    ),
    "m4f": Demo("Cortex-M4F: DS-CNN, all layers", "ds-cnn", "mps2-an386", "qemu-mps2-an386", "50%", 8, 66),
    "m4f-last": Demo(
        "Cortex-M4F: DS-CNN, the last layer", "ds-cnn", "mps2-an386", "qemu-mps2-an386", "100%", 8, 66, train="last:1"
    ),
    "m7": Demo("Cortex-M7: a slim ResNet", "resnet", "mps2-an500", "qemu-mps2-an500", "60%", 8, 66),
    "m55": Demo("Cortex-M55: a slim ResNet", "resnet", "mps3-an547", "qemu-mps3-an547", "60%", 8, 66),
    "a72": Demo("Cortex-A72: MobileNetV2 at 32x32", "mobilenet", "virt-a72", "qemu-virt-a72", "50%", 8, 12),
}


def digits(part: str, side: int) -> tuple[Array, Array]:
    """Images [n, 1, side, side] in 0 .. 1, and labels."""
    with np.load(DIGITS, allow_pickle=False) as archive:
        images = archive[f"{part}_x"].astype(np.float32)[:, None] / np.float32(255)
        labels = archive[f"{part}_y"].astype(np.int32)
    factor = side // images.shape[-1]
    return images.repeat(factor, 2).repeat(factor, 3), labels


def solve(demo: Demo, directory: Path) -> Artifact:
    source = networks.write(demo.network, directory / f"{demo.network}.onnx")
    training = TrainingOptions(optimizer=demo.optimizer, learning_rate=demo.learning_rate, train=demo.train)
    model = ModelRequest(source=source, batch=demo.batch, device=demo.device, training=training)
    return pipeline.solve(SolveRequest(model=model, budget=demo.budget, options=SolveOptions(time_limit_s=20)))


def accuracy(solved: Artifact, state: dict[str, Array], batch: int, side: int) -> float:
    """Share of the digits kept for testing that the model gets right with `state` (empty: as it was before training),
    computed on this machine.
    """
    program = outputs.training_program(solved)
    inference = outputs.inference_program(solved, program)
    assert solved.graph is not None and solved.inference is not None and inference is not None
    values = {**solved.inference.values, **solved.graph.values}
    images, labels = digits("test", side)
    hits = count = 0
    with codegen.build_host([program, inference], values) as model:
        for name, array in state.items():
            model.set_state(name, array)
        model.select(inference)
        for start in range(0, len(images) - batch + 1, batch):
            model.run({"image": images[start : start + batch]})
            hits += int((model.output("logits").argmax(1) == labels[start : start + batch]).sum())
            count += batch
    return hits / count


def show(demo: Demo) -> None:
    print(f"\n{demo.title}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        solved = solve(demo, directory)
        assert solved.graph is not None
        program = outputs.training_program(solved)
        side = networks.NETWORKS[demo.network]().input_side
        images, labels = digits("train", side)
        order = np.random.default_rng(0).permutation(len(images))
        images, labels = images[order], labels[order]
        target = program.target.name if program.target is not None else ""
        batches = []
        for step in range(demo.steps):
            rows = np.arange(step * demo.batch, (step + 1) * demo.batch) % len(images)
            batches.append({"image": images[rows], target: labels[rows]})
        memory = outputs.memory_of(solved)
        firmware = codegen.build_firmware(program, solved.graph.values, demo.board, directory, memory=memory)
        run = codegen.execute(firmware, batches)
        summary = solved.summary
        base = solved.problem.base_bytes
        rows = [
            ("keep-all would take", f"{summary['keep_all_peak_bytes']:,} B"),
            ("budget", f"{summary['budget_bytes']:,} B"),
            ("peak, predicted", f"{base + program.high_water_bytes:,} B"),
            ("peak, measured", f"{base + run.arena_bytes:,} B"),
            ("recomputed, paged out, in", f"{summary['recomputes']}, {run.page_outs}, {run.page_ins}"),
            ("flash", f"{firmware.elf.flash_bytes:,} B"),
            ("instructions a step", f"{run.instructions // demo.steps:,}"),
            ("loss, first to last", f"{run.losses[0]:.3f} -> {np.mean(run.losses[-5:]):.3f} in {demo.steps} steps"),
        ]
        state = dict(run.state)
        if all(not page.image for page in program.pages):
            rows.append(
                (
                    "right on unseen digits",
                    f"{accuracy(solved, {}, demo.batch, side):.1%} before,"
                    f" {accuracy(solved, state, demo.batch, side):.1%} after",
                )
            )
        for label, value in rows:
            print(f"  {label:<28}{value}", flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or ["m3-sd"]:
        if name not in DEMOS:
            sys.exit(f"demo: no class {name!r}; there are {', '.join(DEMOS)}")
        show(DEMOS[name])
