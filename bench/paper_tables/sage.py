"""Sage: the RAM of a step under each of its means. Gim and Ko, MobiSys 2022, figures 7 to 9.

Without paging, as in the paper. The least RAM of a method is that of its schedule at the smallest budget of BUDGETS
that it fits, or of BUDGETS_OF_ONE. *Static* is a fixed rule, *dynamic* goes as far as the budget asks.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.paper_tables._runs import Known, Rows, Run, answer, known_only, mb

NETWORKS = ("resnet50_224", "mobilenetv2_224", "bert_small", "densenet121_224")
BATCH = 32
PARTS = 4  # of static accumulation
WHOLE = "100%"
BUDGETS = "100%,80%,60%,50%,42%,36%,30%,25%,21%,18%,15%,12%,10%,8%"
BUDGETS_OF_ONE = "100%,92%,86%,80%,74%,68%"  # of one sample a part: most of that is weights and their gradients
LIMIT_S, LIMIT_OF_ONE_S = "3", "10"  # a part of one sample makes a step of 10,000 to 50,000 operators
COMMON = ("compare", "--device", "snapdragon865", "--processors", "main", "--no-paging", "--state", "ram")
SWITCHED = ("mobilenetv2_cifar", "resnet18_cifar")
SWITCHES = ("80%:50%@25%", "80%:50%@50%", "80%:50%@75%")


def _words(budgets: str, solvers: str, limit_s: str, *more: str) -> tuple[str, ...]:
    return (*COMMON, "--batch", str(BATCH), "--budgets", budgets, "--solvers", solvers, "--time-limit", limit_s, *more)


def runs(_: float) -> Iterator[Run]:
    for network in NETWORKS:
        yield Run("sage", f"{network} plain", _words(WHOLE, "keep_all", LIMIT_S, "--no-fusion"), network)
        yield Run("sage", f"{network} fused", _words(BUDGETS, "keep_all,chen,sage", LIMIT_S), network)
        four = ("--micro-batches", str(PARTS))
        yield Run("sage", f"{network} parts", _words(WHOLE, "keep_all", LIMIT_S, *four), network)
        one = ("--micro-batches", str(BATCH))
        yield Run(
            "sage", f"{network} one", _words(BUDGETS_OF_ONE, "keep_all,sage,poetc", LIMIT_OF_ONE_S, *one), network
        )


def _least(found: dict[str, object], solver: str) -> int | None:
    rows: list[dict[str, object]] = found["rows"]  # type: ignore[assignment]
    peaks = [int(str(r["peak_bytes"])) for r in rows if r["solver"] == solver and r["peak_bytes"] is not None]
    return min(peaks, default=None)


def _at_whole(found: dict[str, object], solver: str) -> int | None:
    rows: list[dict[str, object]] = found["rows"]  # type: ignore[assignment]
    peaks = [int(str(r["peak_bytes"])) for r in rows if r["solver"] == solver and r["peak_bytes"] is not None]
    return max(peaks, default=None)


def table(known: Known) -> Rows:
    """Megabytes, and how many times less than the baseline."""
    names = ("plain", "fused", "parts", "one")
    columns = ("baseline", "fusion", "subgraph reduction", "checkpointing, static", "checkpointing, dynamic")
    more = ("accumulation, static", "accumulation, dynamic", "hybrid", "hybrid, ours")

    def row(network: str) -> list[str]:
        plain, fused, parts = (answer(known, "sage", f"{network} {name}") for name in names[:3])
        one = known.get(("sage", f"{network} one"), {"answer": {}})["answer"]
        sizes = [
            _at_whole(plain, "keep_all"),
            _at_whole(fused, "keep_all"),
            _at_whole(fused, "sage"),
            _least(fused, "chen"),
            _least(fused, "sage"),
            _at_whole(parts, "keep_all") if "rows" in parts else None,
            *(
                (_at_whole(one, "keep_all"), _least(one, "sage"), _least(one, "poetc"))
                if "rows" in one
                else (None,) * 3
            ),
        ]
        return [network, *(_cell(size, sizes[0]) for size in sizes)]

    return [["network", *columns, *more], *known_only(NETWORKS, row)]


def _cell(size: int | None, baseline: int | None) -> str:
    if size is None or baseline is None:
        return "-"
    return mb(size) if size == baseline else f"{mb(size)} ({baseline / size:.1f})"


def switch_runs(_: float) -> Iterator[Run]:
    for network in SWITCHED:
        switches = [word for switch in SWITCHES for word in ("--switch", switch)]
        words = ("compare", "--device", "snapdragon865", "--processors", "main", "--batch", str(BATCH), *switches)
        yield Run("sage-switch", network, (*words, "--time-limit", "5"), network)


def switches(known: Known) -> Rows:
    """The cost of a budget that falls while a step runs: the energy of the step that switches."""
    rules = ("poetc", "melon", "sage", "restart")
    rows = [["network", "falls to, MB", "after", *(f"{rule}, J" for rule in ("ours", "Melon", "Sage", "restart"))]]
    for network in SWITCHED:
        found = answer(known, "sage-switch", network)
        cells: dict[tuple[int, float], dict[str, str]] = {}
        for row in found["switches"]:
            change = row["change"]
            place = (change["after_bytes"], change["share"])
            cost = row["cost"]
            cells.setdefault(place, {})[row["rule"]] = "none" if cost is None else f"{cost / 1e12:.4g}"
        for (size, share), costs in sorted(cells.items()):
            rows.append([network, mb(size), f"{share:.0%}", *(costs.get(rule, "-") for rule in rules)])
    return rows
