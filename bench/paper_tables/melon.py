"""Melon: the largest batch of each method within two budgets, and what a sample costs then.

Wang et al., MobiSys 2022, figures 8 and 9: 5,500 MB on a phone of 8 GB, 3,800 MB on one of 6 GB. A method's batch is
searched for in steps of GRAIN, by solving: `python -m bench.largest_batches`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from bench.paper_tables._runs import Known, Rows, Run, answer, known_only

NETWORKS = ("mobilenetv2_224", "squeezenet11_224", "mobilenetv1_224", "resnet50_224")
BUDGETS = ("5500MB", "3800MB")
SOLVERS = ("keep_all", "vdnn", "chen_greedy", "capuchin", "melon", "sage", "poetc")
TITLES = ("Ideal", "vDNN", "Sublinear", "Capuchin", "Melon", "Sage", "ours")
PUBLISHED = {("mobilenetv2_224", "5500MB"): "MNN 32, Melon 112 to 176, 208"}

THROUGHPUT = {"mobilenetv2_224": (128, 192, 256, 320, 448, 512), "resnet50_224": (64, 96, 128, 160, 192, 256)}


def runs(_: float) -> Iterator[Run]:
    for network in NETWORKS:
        words = ("bench.largest_batches", "--device", "snapdragon865", "--budgets", ",".join(BUDGETS))
        yield Run("melon", network, (*words, "--solvers", ",".join(SOLVERS)), network)


def table(known: Known) -> Rows:
    def row(case: tuple[str, str]) -> list[str]:
        network, budget = case
        of = answer(known, "melon", network)["budgets"][budget]
        cells = [_cell(of["solvers"][name]) for name in SOLVERS]
        return [network, budget, *cells, str(of["too_large"]), PUBLISHED.get(case, "-")]

    head = ["network", "budget", *TITLES, "too large", "published"]
    return [head, *known_only(((n, b) for n in NETWORKS for b in BUDGETS), row)]


def throughput_runs(_: float) -> Iterator[Run]:
    for network, batches in THROUGHPUT.items():
        words = ("bench.largest_batches", "--device", "snapdragon865", "--budgets", BUDGETS[0])
        words = (*words, "--solvers", ",".join(SOLVERS), "--batches", ",".join(map(str, batches)))
        yield Run("melon-throughput", network, words, network)


def throughput(known: Known) -> Rows:
    """Samples a second of each method at a batch, as a share of those without recomputing or paging."""
    rows = [["network", "batch", *TITLES]]
    for network, batches in THROUGHPUT.items():
        with suppress(KeyError):
            of = answer(known, "melon-throughput", network)["budgets"][BUDGETS[0]]["slower"]
            for k, batch in enumerate(batches):
                rows.append([network, str(batch), *(_share(of[name][k]) for name in SOLVERS)])
    return rows


def _share(slower: float | None) -> str:
    return "-" if slower is None else f"{100 / slower:.1f} %"


def _cell(found: dict[str, float]) -> str:
    """Batch, and the time of a sample over that without recomputing or paging."""
    return f"{found['batch']} ({found['slower']:.2f})" if found["batch"] else "none"
