"""Several processors beside one: energy and time of a training step, with proven gaps.

    python -m bench.processors profiles TORCH FOLDER [PROFILE ...]     five profiles, ten networks
    python -m bench.processors mandheling FOLDER                       integers on a phone's CPU and DSP

TORCH is a Python that has torch and onnx, FOLDER a place for the models. docs/results/processors.md has the tables.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import poetc
from bench._command import Rows, main
from bench.precisions import network
from demo.boards import networks
from poetc.devices.units import format_ns, format_pj
from poetc.errors import PoetcError
from poetc.training import TrainingOptions

HERE = Path(__file__).resolve().parent
DEMO, TRAINING = "demo/boards", "peer_training.py"
NETWORKS = {  # source and batch
    "mlp": (DEMO, 8),
    "lenet": (DEMO, 8),
    "lenet5": (DEMO, 4),
    "ds-cnn": (DEMO, 8),
    "resnet": (DEMO, 8),
    "mobilenet": (DEMO, 1),
    "resnet8": (TRAINING, 1),
    "mobilenetv2_035": (TRAINING, 1),
    "nanogpt": (TRAINING, 1),
    "gru": (TRAINING, 8),
}
INTEGERS = ("lenet", "lenet5", "ds-cnn", "resnet", "mobilenet", "mlp")
PROFILES = ("rp2040", "rp2350", "stm32h745", "rpi4", "phone-dsp")
LIMIT_S = 6.0
LAST = "last:2"  # layers, where the whole network does not fit
PHONE_BATCH = 64
PHONE_RULES = {
    "Mandheling's rule": "mandheling",
    "HEFT": "heft",
    "weight gradients": "weight_gradients",
    "poetc": "poetc",
}
STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def model_file(torch: str, name: str, source: str, folder: Path) -> Path:
    """The ONNX file of a network."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.onnx"
    if source == DEMO:
        return network(name, folder)
    if not path.exists():
        words = [torch, str(HERE / source), "export", name, str(path)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return path


def solved(model: poetc.Model, device: str, **options: Any) -> dict[str, Any] | None:
    """The summary of the best schedule without a store; None where none fits."""
    try:
        return dict(model.solve(device=device, paging=False, time_limit_s=LIMIT_S, **options).summary)
    except PoetcError as error:
        print(f"    {error}", flush=True)
        return None


def profiles(
    torch: str,
    folder: Path,
    profiles: tuple[str, ...] = PROFILES,
    *,
    networks: tuple[str, ...] = tuple(NETWORKS),
) -> Rows:
    for device in profiles:
        yield f"\n## {device}\n"
        yield (
            "network (batch)",
            "one: energy, time",
            "several, least energy",
            "gap",
            "time",
            "several, least time",
            "gap",
        )
        for name in networks:
            source, batch = NETWORKS[name]
            integers = device == "phone-dsp"
            if integers and name not in INTEGERS:
                continue
            options = TrainingOptions(precision="niti") if integers else TrainingOptions()
            path, shown = model_file(torch, name, source, folder), str(batch)
            model = poetc.load(path, batch=batch, training=options)
            one = solved(model, device, processors="main")
            if one is None and not integers:
                model = poetc.load(path, batch=batch, training=TrainingOptions(train=LAST))
                one, shown = solved(model, device, processors="main"), f"{batch}, {LAST}"
            energy = solved(model, device, processors="all")
            time = solved(model, device, processors="all", objective="time")
            if one is None or energy is None or time is None:
                yield f"{name} ({shown})", "does not fit", *[""] * 5
                continue
            ratios = [f"{one['time_ns'] / found['time_ns']:.2f} x" for found in (energy, time)]
            saved = change(energy["energy_pj"], one["energy_pj"])
            first = f"{format_pj(one['energy_pj'])}, {format_ns(one['time_ns'])}"
            yield f"{name} ({shown})", first, saved, gap(energy), *ratios, gap(time)


def phone_networks() -> Iterator[tuple[str, Any]]:
    """Those of Mandheling's evaluation, for images of 32 x 32 (LeNet: 28 x 28), without weights of anybody."""
    make = networks.Network
    net = make("vgg11", 32, 3)
    for channels, pools in ((64, 1), (128, 1), (256, 0), (256, 1), (512, 0), (512, 1), (512, 0), (512, 1)):
        net.conv(channels).relu()
        if pools:
            net.pool()
    yield "VGG11", net.dense(10)
    net = make("resnet18", 32, 3).conv(64, norm=True).relu()
    for channels in (64, 128, 256, 512):
        for stride in (1 if channels == 64 else 2, 1):
            start, width, side = net.at, net.channels, net.side
            net.conv(channels, stride=stride, norm=True).relu().conv(channels, norm=True)
            if stride != 1 or width != channels:
                end, own, at = net.at, net.side, start
                net.at, net.channels, net.side = at, width, side
                start = net.conv(channels, kernel=1, stride=stride, norm=True).at
                net.at, net.side = end, own
            net.add(start).relu()
    yield "ResNet18", net.global_pool().dense(10)
    net = make("mobilenetv2", 32, 3).conv(32, norm=True).relu()
    for expand, channels, count, stride in STAGES:
        for i in range(count):
            start, width, step = net.at, net.channels, stride if i == 0 else 1
            if expand > 1:
                net.conv(width * expand, kernel=1, norm=True).relu()
            net.conv(net.channels, stride=step, group=net.channels, norm=True).relu()
            net.conv(channels, kernel=1, norm=True)
            if step == 1 and width == channels:
                net.add(start)
    yield "MobileNetV2", net.conv(1280, kernel=1, norm=True).relu().global_pool().dense(10)
    net = make("lenet", 28).conv(6, 5).relu().pool().conv(16, 5, padded=False).relu().pool()
    yield "LeNet", net.dense(120).relu().dense(84).relu().dense(10)


def mandheling(folder: Path) -> Rows:
    """Its rule and others on the profile phone-dsp, in integers: time and energy of a batch beside the CPU's."""
    folder.mkdir(parents=True, exist_ok=True)
    yield f"network (batch {PHONE_BATCH})", "CPU alone", *PHONE_RULES, "bound of the energy"
    for name, net in phone_networks():
        path = folder / f"{name}.onnx"
        path.write_bytes(net.model().SerializeToString(deterministic=True))
        model = poetc.load(path, batch=PHONE_BATCH, training=TrainingOptions(precision="niti"))
        one = solved(model, "phone-dsp")
        cells, bound = list[str](), ""
        for solver in PHONE_RULES.values():
            found = solved(model, "phone-dsp", processors="all", solver=solver)
            if one is None or found is None:
                cells.append("does not fit")
                continue
            if solver == "poetc":
                bound = f"{one['energy_pj'] / found['energy_bound_pj']:.2f} x"
            cells.append(
                f"{format_ns(found['time_ns'])}, {format_pj(found['energy_pj'])}: "
                f"{one['time_ns'] / found['time_ns']:.2f} x, {one['energy_pj'] / found['energy_pj']:.2f} x"
            )
        alone = "" if one is None else f"{format_ns(one['time_ns'])}, {format_pj(one['energy_pj'])}"
        yield name, alone, *cells, bound


def change(new: float, old: float) -> str:
    return f"{100 * (new / old - 1):+.1f} %"


def gap(summary: dict[str, Any]) -> str:
    return f"{100 * summary['gap']:.1f} %"


if __name__ == "__main__":
    main(profiles, mandheling)
