"""TinyEngine's sparse updates beside the optimum of poetc's MILP over sets, in TinyEngine's own model of memory.

    python bench/update_sets.py FOLDER      FOLDER is a clone of github.com/mit-han-lab/tiny-training

The networks come from algorithm/assets/mcu_models, the 15 schemes from compilation/mcu_ir_gen.py, the model of memory
from algorithm/core/utils/partial_backward.py. TinyEngine chose the schemes by the measured change of accuracy of each
update, in tables that are not published. So tables are drawn: each has a number for every depth of biases, and one for
every weight at 1/8, 1/4, 1/2 and all of its input channels. One table is the most favourable for the scheme: it has
numbers for the updates of the scheme alone. Prints the rows of docs/results/best-updates.md.
"""

from __future__ import annotations

import argparse
import ast
import io
import math
import pickle
import random
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poetc.planning.update_sets import Option, Piece, SetModel

NETWORKS = {"mbv2": "mbv2-w0.35", "mcunet": "mcunet-5fps", "proxyless": "proxyless-w0.3"}
RATIOS = (0.125, 0.25, 0.5, 1.0)
TABLES = 4
GAP = 1e-3  # relative, at which the MILP may stop
DEPTH = "biases"


@dataclass(frozen=True)
class Layer:
    """A convolution: channels, taps of its kernel, pixels of its input and output."""

    inputs: int
    outputs: int
    taps: int
    in_pixels: int
    out_pixels: int
    depthwise: bool

    @property
    def mask_and_bias_bits(self) -> int:
        return self.outputs * self.out_pixels + 32 * self.outputs

    def weight_bits(self, ratio: float) -> int:
        """The kept input channels and the weights that read them, 8 bits each."""
        kept = int(self.inputs * ratio)
        weights = kept * self.taps * (1 if self.depthwise else self.outputs)
        return 8 * (kept * self.in_pixels + weights)


class _Nothing(dict[Any, Any]):
    """Stands for every object of a class: nothing of it is kept, and nothing of it runs."""

    def __init__(self, *ignored: Any) -> None:
        super().__init__()

    def __setstate__(self, ignored: Any) -> None:
        pass


class _Plain(pickle.Unpickler):
    """Numbers, texts and containers, without the tensors."""

    def find_class(self, module: str, name: str) -> Any:
        return _Nothing

    def persistent_load(self, ignored: Any) -> None:
        return None


def layers(path: Path) -> tuple[list[Layer], int]:
    """The convolutions from input to output without the classifier, and the inputs of the classifier."""
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith("data.pkl"))
        model = _Plain(io.BytesIO(archive.read(name))).load()
    found = [_layer(model["first_conv"])]
    for block in model["blocks"]:
        found += [_layer(block[key]) for key in ("pointwise1", "depthwise", "pointwise2") if block.get(key)]
    if model.get("feature_mix"):
        found.append(_layer(model["feature_mix"]))
    return found, int(model["classifier"]["in_channel"])


def _layer(d: dict[str, Any]) -> Layer:
    depthwise = int(d.get("groups", 1)) > 1
    taps = math.prod(d["kernel_size"])
    return Layer(d["in_channel"], d["out_channel"], taps, d["in_shape"] ** 2, d["out_shape"] ** 2, depthwise)


def schemes(path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(network, budget, scheme) as the file has them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
            continue
        (right,) = node.test.comparators
        for statement in node.body:
            named = isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "")
            if named == "sparse_update_config" and isinstance(right, ast.Constant):
                for budget, scheme in ast.literal_eval(statement.value).items():
                    yield str(right.value), budget, scheme


def set_model(convs: list[Layer], table: dict[object, float]) -> SetModel:
    """Every depth of biases, and every weight at each ratio; a weight needs the biases from its layer on."""
    count = len(convs)
    pieces: dict[object, Piece] = {j: Piece({"bits": c.mask_and_bias_bits}, {}) for j, c in enumerate(convs)}
    # A layer's bias is worth the depth that it adds: numbers of depths grow.
    depths = [0.0, *(table[DEPTH, n] for n in range(1, count + 1))]
    options = [
        Option(f"bias {count - n}", depths[n] - depths[n - 1], frozenset(range(count - n, count)), {})
        for n in range(1, count + 1)
    ]
    for j, conv in enumerate(convs):
        for ratio in RATIOS:
            value = table.get((j, ratio), 0.0)
            if int(conv.inputs * ratio) and value > 0:
                options.append(
                    Option(f"weight {j}", value, frozenset(range(j, count)), {"bits": conv.weight_bits(ratio)})
                )
    return SetModel(options, pieces)


def published(convs: list[Layer], scheme: dict[str, Any], table: dict[object, float]) -> tuple[float, int]:
    """The value and the bits of a scheme."""
    count, depth = len(convs), scheme["n_bias_update"]
    value = table[DEPTH, depth]
    bits = sum(c.mask_and_bias_bits for c in convs[count - depth :])
    for j, ratio in zip(scheme["manual_weight_idx"], scheme["weight_update_ratio"], strict=True):
        if ratio:
            value += table.get((j, ratio), 0.0)
            bits += convs[j].weight_bits(ratio)
    return value, bits


def tables(convs: list[Layer], scheme: dict[str, Any]) -> Iterator[dict[object, float]]:
    """The most favourable table for the scheme, and drawn ones that grow with depth and ratio."""
    own: dict[object, float] = {(DEPTH, n): float(n >= scheme["n_bias_update"]) for n in range(1, len(convs) + 1)}
    own |= {key: 1.0 for key in zip(scheme["manual_weight_idx"], scheme["weight_update_ratio"], strict=True) if key[1]}
    yield own
    for seed in range(TABLES):
        draw = random.Random(seed)
        table: dict[object, float] = {}
        total = 0.0
        for n in range(1, len(convs) + 1):
            total += draw.uniform(0, 0.3)
            table[DEPTH, n] = total
        for j in range(len(convs)):
            parts = sorted(draw.uniform(0, 1) for _ in RATIOS)
            table |= {(j, ratio): part for ratio, part in zip(RATIOS, parts, strict=True)}
        yield table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    print("| network | scheme | bytes | tables without a gain | least gain | largest gain | proven | ms |")
    for network, budget, scheme in schemes(folder / "compilation" / "mcu_ir_gen.py"):
        convs, features = layers(folder / "algorithm" / "assets" / "mcu_models" / f"{NETWORKS[network]}.pkl")
        gains, equal, exact, started = [], 0, 0, time.perf_counter()
        limit = 0
        for table in tables(convs, scheme):
            value, limit = published(convs, scheme, table)
            model = set_model(convs, table)
            found = model.solve({"bits": float(limit)}, gap=GAP, time_limit_s=60)
            assert found.chosen is not None
            best = model.value(found.chosen)
            assert best >= value * (1 - 1e-9), (network, budget, best, value)
            assert model.amount("bits", found.chosen) <= limit * (1 + 1e-6)
            gains.append(best / value - 1)
            equal += best <= value * (1 + 1e-9)
            exact += found.bound <= best * (1 + 2 * GAP)
        spent = 1e3 * (time.perf_counter() - started) / len(gains)
        size = (limit + 8 * features) // 8
        print(
            f"| {network} | {budget} | {size:,} | {equal} of {len(gains)} | {min(gains):.1%} | {max(gains):.1%} |"
            f" {exact} of {len(gains)} | {spent:.0f} |"
        )


if __name__ == "__main__":
    main()
