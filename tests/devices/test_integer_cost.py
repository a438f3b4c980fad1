"""Integer kernels on a core without an FPU are not priced like floats that a library emulates."""

from __future__ import annotations

from poetc.devices import build_problem, load_profile
from poetc.training import TrainingOptions, build, in_precision
from tests.support.graphs import small_cnn


def test_integers_are_cheap_without_an_fpu() -> None:
    graph, options = small_cnn(), TrainingOptions(precision="niti")
    steps = build(graph, TrainingOptions()), build(in_precision(graph, options), options)
    times = {}
    for device in ("qemu-microbit", "stm32f746"):
        profile = load_profile(device)
        problems = [build_problem(step, profile, budget_bytes=profile.ram_bytes) for step in steps]
        times[device] = [problem.compute_once_ns for problem in problems]
    assert times["qemu-microbit"][1] < times["qemu-microbit"][0] / 3
    assert times["stm32f746"][1] < 3 * times["stm32f746"][0]
