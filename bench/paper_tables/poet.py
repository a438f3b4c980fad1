"""POET's figure: energy over RAM, with deadlines, and the least RAM of whole operands.

Patil et al., ICML 2022, figures 5 to 8: VGG-16, ResNet-18 and BERT on MKR1000, nRF52840, Raspberry Pi 4 and Jetson TX2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.paper_tables._runs import Known, Rows, Run, answer, joules, known_only, mb, solver_rows

NETWORKS = ("vgg16_cifar", "resnet18_cifar", "bert_small")
BOARDS = {"mkr1000": "32KiB", "nrf52840": "256KiB"}  # RAM, which only streamed operands fit
LINUX = ("rpi4", "jetson-tx2")
DEVICES = (*BOARDS, *LINUX)
SOLVERS = ("poet", "checkmate", "pofo", "capuchin", "rotor", "dtr")
BATCH = "32"  # on Linux: with one sample nearly all RAM is weights, which no method but paging can save
LIMIT_S, LONG_S = "20", "30"
OTHER_LIMITS_S = {"bert_small": "60"}
TIGHT_LIMIT_S = {"vgg16_cifar": "40"}  # at 60 %: weights go to the store and back
WHOLE, OTHER_WHOLE = (
    "50%",
    {"bert_small": "70%"},
)  # of a microcontroller, for whole operands: BERT's table is 64 % alone
DEADLINE = "1.1x"
Case = tuple[str, str, str, str, str]  # network, device, batch, budget, deadline or ""


def least_runs(_: float) -> Iterator[Run]:
    for network in NETWORKS:
        for device in DEVICES:
            words = ("analyze", "--device", device, "--batch", "1")
            yield Run("poet-least", f"{network} {device}", words, network)


def least(known: Known) -> Rows:
    def row(case: tuple[str, str]) -> list[str]:
        a = answer(known, "poet-least", " ".join(case))
        return [*case, mb(a["keep_all_peak_bytes"]), mb(a["min_budget_bytes"])]

    cases = ((network, device) for network in NETWORKS for device in DEVICES)
    return [["network", "device", "keep-all, MB", "least, MB"], *known_only(cases, row)]


def _cases() -> Iterator[Case]:
    """In the order of the table."""
    for network in NETWORKS:
        for device in LINUX:
            yield network, device, BATCH, "85%", ""
            yield network, device, BATCH, "85%", DEADLINE
            yield network, device, BATCH, "60%", ""
        for device in BOARDS:
            yield network, device, "1", OTHER_WHOLE.get(network, WHOLE), ""
            yield network, device, "1", BOARDS[device], ""


def _key(case: Case) -> str:
    return " ".join(case).rstrip()


def energy_runs(_: float) -> Iterator[Run]:
    for case in _cases():
        network, device, batch, budget, deadline = case
        words = ["--device", device, "--batch", batch]
        if budget.endswith("%"):
            limit = OTHER_LIMITS_S.get(network, LONG_S if budget == "85%" and not deadline else LIMIT_S)
            limit = TIGHT_LIMIT_S.get(network, limit) if budget == "60%" else limit
            words = ["compare", *words, "--processors", "main", "--budgets", budget, "--time-limit", limit]
            words += ["--solvers", ",".join(("poetc", *SOLVERS))]
        else:
            words = ["solve", *words, "--budget", budget, "--time-limit", LIMIT_S]
        if deadline:
            words += ["--deadline", deadline]
        yield Run("poet-energy", _key(case), tuple(words), network)


def energy(known: Known) -> Rows:
    def row(case: Case) -> list[str]:
        network, device, batch, budget, deadline = case
        a = answer(known, "poet-energy", _key(case))
        first = [network, f"{device}, {batch}"]
        if not budget.endswith("%"):
            ours = [why(a["error"]), "-"] if "error" in a else [joules(a["energy_pj"]), joules(a["energy_bound_pj"])]
            ram = f"{int(budget[:-3]) * 1024 / 1e6:.3f}"
            return [*first, ram, "-", *["whole"] * len(SOLVERS), *ours]
        found = dict(solver_rows(a))
        bound = a["bounds"][0]["bound"] if a["bounds"] else None
        cells = [_cell(found[name]) for name in (*SOLVERS, "poetc")]
        ram = mb(next(iter(found.values()))["budget_bytes"])
        return [*first, ram, deadline or "-", *cells, joules(bound)]

    head = ["network", "device, batch", "RAM, MB", "deadline", *map(_title, SOLVERS), "ours", "bound"]
    return [head, *known_only(_cases(), row)]


def _title(solver: str) -> str:
    return {"poet": "POET", "pofo": "POFO", "dtr": "DTR"}.get(solver, solver.capitalize())


def _cell(row: Mapping[str, Any]) -> str:
    if row["energy_pj"] is None:
        return why(row["reason"])
    return joules(row["energy_pj"])


REASONS = (  # of a message: the word that the page explains
    ("tensors on the store", "state"),
    ("nothing is left to evict", "RAM"),
    ("formulation has no schedule", "RAM"),
    ("at the least", "RAM"),
    ("the smallest budget", "RAM"),
    ("does not fit", "RAM"),
    ("makes no schedule", "none"),
    ("deadline", "late"),
    ("found no schedule in", "time"),
    ("not even built", "time"),
    ("allow more time", "time"),
    ("operators", "size"),
)


def why(reason: str) -> str:
    """Why there is no schedule, in the word that the page explains."""
    return next((word for part, word in REASONS if part in reason), reason)
