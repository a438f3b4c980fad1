"""Mandheling: a step of 64 images in floats and in integers, and the hours and watt-hours to convergence.

Xu et al., MobiCom 2022, tables 4 to 6. A round is an epoch: 50,000 images of CIFAR-10, 64 at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from bench.paper_tables._runs import Known, Rows, Run, answer, known_only

DEVICE = "snapdragon865"
NETWORKS = (
    *("vgg11_cifar", "vgg16_cifar", "vgg19_cifar", "resnet18_cifar", "resnet34_cifar"),
    *("vgg11_imagenet", "vgg16_imagenet", "vgg19_imagenet", "resnet18_imagenet", "resnet34_imagenet"),
    "inceptionv3_299",
)
BATCH, IMAGES = 64, 50_000
# Rounds, and hours to convergence: floats, MNN in integers, Mandheling.
PUBLISHED = {"vgg11_cifar": (150, 29.13, 24.77, 7.50), "resnet18_cifar": (150, 223.55, 135.71, 35.68)}
JOULES_A_WATT_HOUR = 3600


def runs(_: float) -> Iterator[Run]:
    for network in NETWORKS:
        words = ("solve", "--device", DEVICE, "--batch", str(BATCH), "--budget", "100%", "--objective", "time")
        words = (*words, "--band", "--time-limit", "2")
        yield Run("mandheling", f"{network} f32", words, network)
        yield Run("mandheling", f"{network} niti", (*words, "--precision", "niti"), network)


def table(known: Known) -> Rows:
    def row(network: str) -> list[str]:
        floats, integers = (answer(known, "mandheling", f"{network} {p}") for p in ("f32", "niti"))
        both = floats, integers
        is_whole = not any("error" in a for a in both)
        ratio = f"{floats['time_ns'] / integers['time_ns']:.2f}" if is_whole else "-"
        joules = (_cell(a, lambda a: f"{a['energy_pj'] / 1e12:.3g}") for a in both)
        sizes = (_cell(a, lambda a: f"{a['peak_bytes'] / 1e6:,.0f}") for a in both)
        return [network, *(_cell(a, _seconds) for a in both), ratio, *joules, *sizes]

    head = ["network, batch 64", "f32, s", "niti, s", "ratio", "f32, J", "niti, J", "f32, MB", "niti, MB"]
    return [head, *known_only(NETWORKS, row)]


def hours(known: Known) -> Rows:
    def row(network: str) -> list[str]:
        rounds, *theirs = PUBLISHED[network]
        steps = rounds * math.ceil(IMAGES / BATCH)
        cells = []
        for unit, per in (("time", 3600e9), ("energy", JOULES_A_WATT_HOUR * 1e12)):
            for precision in ("f32", "niti"):
                found = answer(known, "mandheling", f"{network} {precision}")
                cells.append(_band(found, unit, steps / per))
        return [network, *cells, ", ".join(map(str, theirs))]

    head = ["network", "f32, hours", "niti, hours", "f32, Wh", "niti, Wh", "published hours: f32, MNN int8, Mandheling"]
    return [head, *known_only(PUBLISHED, row)]


def _cell(found: dict[str, Any], show: Callable[[dict[str, Any]], str]) -> str:
    """A dash where the command refused."""
    return "-" if "error" in found else show(found)


def _seconds(found: dict[str, Any]) -> str:
    return _band(found, "time", 1e-9)


def _band(found: dict[str, Any], unit: str, factor: float) -> str:
    field = {"time": "time_ns", "energy": "energy_pj"}[unit]
    ends = [end[field] for end in found["band"]]
    low, high = min(ends), max(ends)
    return f"{found[field] * factor:.3g} ({low * factor:.3g} to {high * factor:.3g})"
