"""Small networks, solved for a board. Boards are emulated: a missing toolchain is an error, not a skip."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from poetc import boards, emit, measure
from poetc.artifact import Artifact
from poetc.commands import programs
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.commands.solve import solve as solve_request
from poetc.emit import Memory
from poetc.graph import Array
from poetc.measure import HostModel, Run
from poetc.program import Program, sample_inputs
from poetc.scheduling.schedule import SolveOptions
from poetc.training import TrainingOptions

STACK_ARM64_BYTES = 4608  # the stack that the profile qemu-virt-a72 sets aside

ROOT = Path(__file__).resolve().parents[2]

QUICK_BOARDS = ("mps2-an386", "aarch64")  # which `make test` runs; tests of others are long
# Boards whose kernels are compiled as those of mps2-an385-m0, mps2-an385, mps2-an505, virt-a72 and linux-a76.
REPEATED = ("microbit", "lm3s6965evb", "mps2-an521", "raspi3b", "virt-a76")
CORES = sorted(set(boards.BOARDS) - set(REPEATED))  # one board of each, with room for convolutions
INSTRUCTIONS = [board for board in CORES if board != "aarch64"]  # whose core has those of virt-a72


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        callspec = getattr(item, "callspec", None)
        board = callspec.params.get("board") if callspec is not None else None
        if board not in (None, *QUICK_BOARDS) and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.long)


def load_networks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("networks", ROOT / "demo" / "boards" / "networks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Bits:
    """What must be the same everywhere: loss and gradients of every step, and the state after the last."""

    losses: tuple[float, ...]
    state_sha256: str
    gradients_crc: tuple[int, ...]


@dataclass(frozen=True)
class Solved:
    artifact: Artifact
    program: Program

    @property
    def values(self):  # type: ignore[no-untyped-def]
        assert self.artifact.graph is not None
        return self.artifact.graph.values

    @property
    def memory(self) -> Memory:
        return programs.memory_of(self.artifact)

    def batches(self, steps: int) -> list[dict[str, Array]]:
        return [dict(sample_inputs(self.program, step)) for step in range(steps)]

    def on_host(self, steps: int, cflags: str = "-O2", numerics: boards.Numerics = "separate") -> Bits:
        with measure.build_host([self.program], self.values, cflags=cflags, numerics=numerics) as model:
            return run_host(model, self.batches(steps))

    def on_board(
        self,
        board: str,
        directory: Path,
        steps: int,
        gradients: bool = False,
        numerics: boards.Numerics = "separate",
    ) -> Run:
        memory = self.memory
        if boards.BOARDS[board].target == "cortex-a-bare":  # frames of 64-bit code are larger than the plan's
            stack_bytes = max(STACK_ARM64_BYTES, memory.stack_bytes)
            memory = emit.Memory(memory.budget_bytes + stack_bytes - memory.stack_bytes, stack_bytes)
        firmware = measure.build_firmware(
            self.program, self.values, board, directory, memory=memory, gradients=gradients, numerics=numerics
        )
        return measure.execute(firmware, self.batches(steps))


def run_host(model: HostModel, batches: list[dict[str, Array]]) -> Bits:
    losses, gradients = [], []
    for batch in batches:
        losses.append(model.run(batch))
        gradients.append(model.gradients_crc())
    digest = measure.state_digest({name: model.state(name) for name in model.state_names()})
    return Bits(tuple(losses), digest, tuple(gradients))


def bits(run: Run) -> Bits:
    return Bits(run.losses, run.state_sha256, run.gradients_crc)


Solve = Callable[..., Solved]


def windows(networks: ModuleType) -> Any:
    """Depthwise convolutions for which there are loops of their own: 3 x 3 and 5 x 5, strides, padded or not."""
    net = networks.Network("windows", 28).conv(4, kernel=1)
    for kernel, stride, padded in ((3, 2, True), (5, 1, True), (5, 2, True), (3, 1, True), (3, 2, False), (3, 3, True)):
        net.conv(4, kernel, stride=stride, group=4, padded=padded)
    return net.dense(networks.CLASSES)


def layers(networks: ModuleType) -> Any:
    """Dense layers of odd sizes, one with more than 1,024 inputs."""
    return networks.Network("layers", 8).dense(33).relu().dense(1100).relu().dense(13).relu().dense(networks.CLASSES)


def mixed(networks: ModuleType) -> Any:
    """Convolutions whose rows go one to four at a time, pools, depthwise windows, dense layers."""
    net = networks.Network("mixed", 12).conv(6, 3).relu().pool().conv(9, 3, stride=2).relu()
    for kernel, stride in ((3, 1), (5, 1), (3, 2)):
        net.conv(9, kernel, stride=stride, group=9)
    return net.conv(11, kernel=1).relu().dense(37).relu().dense(networks.CLASSES)


def depthwise(networks: ModuleType, side: int) -> Any:
    """Depthwise filters of all sizes that have loops of their own, over planes of this side, half of it, a quarter."""
    net = networks.Network(f"depthwise-{side}", side).conv(5, kernel=1)
    for kernel, stride in ((3, 1), (5, 1), (7, 1), (3, 2), (3, 1), (5, 2), (3, 1)):
        net.conv(5, kernel, stride=stride, group=5)
    return net.dense(networks.CLASSES)


def picture(networks: ModuleType) -> Any:
    """An image of 76 KB, larger than the RAM of a small board, in planes of 2.3 KB."""
    net = networks.Network("picture", 24, channels=33).conv(8).relu().pool().conv(6, stride=2).relu()
    return net.global_pool().dense(networks.CLASSES)


def deep(networks: ModuleType) -> Any:
    """68 KB of weights, the largest 10 KB."""
    net = networks.Network("deep", 8).dense(40).relu()
    for _ in range(9):
        net.dense(40).relu()
    return net.dense(networks.CLASSES)


def strips(networks: ModuleType) -> Any:
    """Convolutions that Helium does without packing where the workspace has room for a strip: 24 channels of 8 x 8."""
    net = networks.Network("strips", 8).conv(24).relu()
    return net.conv(24).relu().conv(24).relu().dense(networks.CLASSES)


@pytest.fixture(scope="session")
def solve(tmp_path_factory: pytest.TempPathFactory) -> Solve:
    """solve(network, batch, device, budget): made once a session; state lives in RAM unless told otherwise."""
    directory = tmp_path_factory.mktemp("networks")
    networks, done = load_networks(), {}
    networks.NETWORKS["windows"] = lambda: windows(networks)
    for side in range(2, 10):
        networks.NETWORKS[f"depthwise-{side}"] = functools.partial(depthwise, networks, side)
    networks.NETWORKS["mixed"] = lambda: mixed(networks)
    networks.NETWORKS["strips"] = lambda: strips(networks)
    networks.NETWORKS["deep"] = lambda: deep(networks)
    networks.NETWORKS["picture"] = lambda: picture(networks)
    networks.NETWORKS["layers"] = lambda: layers(networks)

    def make(network: str, batch: int, device: str, budget: str, state: str = "ram", precision: str = "f32") -> Solved:
        key = (network, batch, device, budget, state, precision)
        if key not in done:
            source = networks.write(network, directory / f"{network}.onnx")
            training = TrainingOptions(precision=precision)
            model = ModelRequest(source=source, batch=batch, device=device, training=training)
            options = SolveOptions(time_limit_s=20, gap=0.05)
            artifact = solve_request(SolveRequest(model=model, budget=budget, state=state, options=options))
            done[key] = Solved(artifact, programs.training_program(artifact))
        return done[key]

    return make
