"""Networks, their recipes and what PyTorch computed, in one compressed file: tests/conformance/random_networks.tar.xz.

Arrays are kept as `recipe.sketch`es: a few weighted sums of each, which no change of an element leaves alone.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.random_networks.recipe import Array, Recipe, sketch
from tests.random_networks.training import Trained

PATH = Path("tests/conformance/random_networks.tar.xz")


@dataclass(frozen=True, slots=True)
class Kept:
    """One network. `warned`: PyTorch trains another model than the file holds, and a note of poetc has these words."""

    recipe: Recipe
    model: bytes
    expected: Trained  # float64
    noise: Trained  # float32
    start: Mapping[str, Array]
    warned: str


def write(path: Path, kept: list[Kept]) -> None:
    """One .onnx and one .json each, those of like networks next to each other."""
    with tarfile.open(path, "w:xz", preset=9) as archive:
        ordered = sorted(kept, key=lambda k: (k.recipe.exporter, k.recipe.family, k.recipe.seed))
        for one in ordered:
            _add(archive, f"{one.recipe.seed}.onnx", one.model)
        for one in ordered:
            document = {
                "recipe": asdict(one.recipe),
                "expected": _document(one.expected),
                "noise": _document(one.noise),
                "start": _arrays(one.start),
                "warned": one.warned,
            }
            _add(archive, f"{one.recipe.seed}.json", json.dumps(document, separators=(",", ":")).encode())


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)  # no time and no owner: the same networks give the same file
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def _document(trained: Trained) -> dict[str, Any]:
    return {
        "losses": trained.losses,
        "gradients": _arrays(trained.gradients),
        "state": _arrays(trained.state),
    }


def _arrays(arrays: Mapping[str, Array]) -> dict[str, list[float]]:
    """Nine digits: a hundredth of what is asked of double precision."""
    return {name: [float(f"{x:.9g}") for x in sketch(array)] for name, array in sorted(arrays.items())}


def read(path: Path) -> Iterator[Kept]:
    with tarfile.open(path) as archive:
        held = {m.name: file.read() for m in archive.getmembers() if (file := archive.extractfile(m)) is not None}
    for name in sorted((n for n in held if n.endswith(".json")), key=lambda n: int(n[:-5])):
        document = json.loads(held[name])
        fields = {k: tuple(v) if isinstance(v, list) else v for k, v in document["recipe"].items()}
        recipe = Recipe(**fields)
        trained = [
            Trained(d["losses"], _numbers(d["gradients"]), _numbers(d["state"]))
            for d in (document["expected"], document["noise"])
        ]
        start = _numbers(document["start"])
        yield Kept(recipe, held[name[:-5] + ".onnx"], trained[0], trained[1], start, document["warned"])


def _numbers(arrays: Mapping[str, list[float]]) -> dict[str, Array]:
    return {name: np.array(values) for name, values in arrays.items()}
