"""Train a network of each class of boards on the shipped digits, on the emulated board, and say what it learned.

    python demo/boards/demo.py [CLASS ...]      m0, m3, m4f, m4f-last, m7, m55, a72; without any: m3

Each is solved for the board's budget, emitted, built and trained under emulation (measured: memory, instructions,
pages) on digits of a new writer, and its trained state is then tested on digits of that writer that it has not seen.
Training starts from random weights; where only the last layer is trained, or the network is too large to learn from so
few digits, it starts from weights that were trained before on this machine, on digits of other writers.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import networks
import numpy as np
import onnx
from onnx import numpy_helper

from poetc import measure
from poetc.artifact import Artifact
from poetc.commands import programs
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.commands.solve import solve as solve_request
from poetc.graph import Array
from poetc.program import Program
from poetc.scheduling.schedule import SolveOptions
from poetc.training import TrainingOptions

DIGITS = Path(__file__).resolve().parents[1]
NEW_WRITER, FIRST_WRITERS = "digits_new_writer.npz", "digits_first_writers.npz"
Batch = dict[str, Array]


@dataclass(frozen=True)
class Demo:
    """`before`: steps on this machine, on digits of other writers, that the weights come from; 0: random ones."""

    title: str
    network: str
    board: str
    budget: str
    batch: int
    steps: int
    train: str = "all"
    optimizer: str = "momentum"
    learning_rate: float = 0.05
    before: int = 0

    @property
    def device(self) -> str:
        return f"qemu-{self.board}"


DEMOS = {
    "m0": Demo("Cortex-M0, 16 KiB: an MLP", "mlp", "microbit", "16KiB", 4, 532, optimizer="sgd", learning_rate=0.1),
    "m3": Demo("Cortex-M3, 64 KiB and an SD card: LeNet", "lenet", "lm3s6965evb", "64KiB", 12, 132),
    "m4f": Demo("Cortex-M4F: DS-CNN, all layers", "ds-cnn", "mps2-an386", "50%", 8, 133),
    "m4f-last": Demo(
        "Cortex-M4F: DS-CNN, the last layer", "ds-cnn", "mps2-an386", "100%", 8, 133, train="last:1", before=400
    ),
    "m7": Demo("Cortex-M7: a slim ResNet", "resnet", "mps2-an500", "60%", 8, 66),
    "m55": Demo("Cortex-M55: a slim ResNet", "resnet", "mps3-an547", "60%", 8, 66),
    "a72": Demo(
        "Cortex-A72: MobileNetV2 at 32x32", "mobilenet", "virt-a72", "50%", 8, 24, learning_rate=0.01, before=200
    ),
}


def digits(file: str, part: str, side: int) -> tuple[Array, Array]:
    """Images [n, 1, side, side] in 0 .. 1, and labels."""
    with np.load(DIGITS / file, allow_pickle=False) as archive:
        images = archive[f"{part}_x"].astype(np.float32)[:, None] / np.float32(255)
        labels = archive[f"{part}_y"].astype(np.int32)
    factor = side // images.shape[-1]
    return images.repeat(factor, 2).repeat(factor, 3), labels


def batches(program: Program, file: str, side: int, batch: int, steps: int) -> Iterator[Batch]:
    """Round and round, in an order that is drawn once."""
    images, labels = digits(file, "train", side)
    order = np.random.default_rng(0).permutation(len(images))
    assert program.target is not None
    for step in range(steps):
        rows = order[np.arange(step * batch, (step + 1) * batch) % len(order)]
        yield {"image": images[rows], program.target.name: labels[rows]}


def train_before(demo: Demo, source: Path) -> None:
    """Train all layers on this machine, on digits of other writers, and put the weights into `source`."""
    model = ModelRequest(source=source, batch=16, training=TrainingOptions(optimizer="momentum", learning_rate=0.03))
    solved = solve_request(SolveRequest(model=model, budget="100%", options=SolveOptions(time_limit_s=2)))
    assert solved.graph is not None
    program = programs.training_program(solved)
    side = networks.NETWORKS[demo.network]().input_side
    with measure.build_host([program], solved.graph.values) as host:
        for batch in batches(program, FIRST_WRITERS, side, 16, demo.before):
            host.run(batch)
        state = {name: host.state(name) for name in host.state_names()}
    proto = onnx.load(source)
    for tensor in proto.graph.initializer:
        if tensor.name in state:
            tensor.CopyFrom(numpy_helper.from_array(state[tensor.name], tensor.name))
    onnx.save(proto, source)


def solve(demo: Demo, directory: Path) -> Artifact:
    source = networks.write(demo.network, directory / f"{demo.network}.onnx")
    if demo.before:
        train_before(demo, source)
    training = TrainingOptions(optimizer=demo.optimizer, learning_rate=demo.learning_rate, train=demo.train)
    model = ModelRequest(source=source, batch=demo.batch, device=demo.device, training=training)
    return solve_request(SolveRequest(model=model, budget=demo.budget, options=SolveOptions(time_limit_s=15)))


def accuracy(solved: Artifact, state: dict[str, Array], batch: int, side: int) -> float:
    """Share of the digits kept for testing that the model gets right with `state` (empty: as it was before training),
    computed on this machine.
    """
    program = programs.training_program(solved)
    inference = programs.inference_program(solved, program)
    assert solved.graph is not None and solved.inference is not None and inference is not None
    values = {**solved.inference.values, **solved.graph.values}
    images, labels = digits(NEW_WRITER, "test", side)
    hits = count = 0
    with measure.build_host([program, inference], values) as model:
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
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        solved = solve(demo, directory)
        assert solved.graph is not None
        program = programs.training_program(solved)
        side = networks.NETWORKS[demo.network]().input_side
        data = list(batches(program, NEW_WRITER, side, demo.batch, demo.steps))
        memory = programs.memory_of(solved)
        firmware = measure.build_firmware(program, solved.graph.values, demo.board, directory, memory=memory)
        run = measure.execute(firmware, data)
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
        rows.append(("time of all of this", f"{time.monotonic() - started:.0f} s"))
        for label, value in rows:
            print(f"  {label:<28}{value}", flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or ["m3"]:
        if name not in DEMOS:
            sys.exit(f"demo: no class {name!r}; there are {', '.join(DEMOS)}")
        show(DEMOS[name])
