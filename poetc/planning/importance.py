"""The importance of updates: a number for each part of the model that could be trained, and the file that holds them.

The numbers of a set of updates add up. `poetc importance` measures them; a user may edit the file, or write one.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from poetc.errors import UsageError, shortened
from poetc.files import write_text
from poetc.graph import Graph, Role
from poetc.training import Adapter, Channels, Lora, Update, Updates, Whole, select_updates
from poetc.yaml_values import KeyPath
from poetc.yaml_values import read as read_yaml

FORMAT = "poetc-importance-1"
_SHARE = re.compile(r"([0-9]{1,10})/([0-9]{1,10})(:norm)?")
_LARGEST = 3.4028234e38  # of an importance, so that sums of all are finite
_KEYS = frozenset(("format", "name", "model", "by", "unit", "seed", "candidates"))
_CANDIDATE_KEYS = frozenset(("parameter", "update", "importance"))


@dataclass(frozen=True, slots=True)
class Candidate:
    """One update of one parameter, and its importance."""

    parameter: str
    update: Update
    importance: float

    @property
    def label(self) -> str:
        """The parameter and the update in one word, for messages and tables."""
        return f"{self.parameter} {update_text(self.update)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """The candidates of a model.

    `model`: its fingerprint, "" where the file is from elsewhere. `by`: the method. `seed`: of adapters' first numbers.
    """

    candidates: tuple[Candidate, ...]
    name: str = ""
    model: str = ""
    by: str = "other"
    unit: str = ""
    seed: int = 0

    def updates(self, chosen: Iterable[int]) -> Updates:
        """The set of updates of these candidates."""
        chosen_updates = (self.candidates[k] for k in sorted(chosen))
        return Updates({c.parameter: c.update for c in chosen_updates}, self.seed)


def fingerprint(graph: Graph) -> str:
    """16 hexadecimal digits that tell a model by the names, shapes and readers of its parameters, not by its numbers.

    So training and another batch leave it as it is.
    """
    readers: dict[str, list[str]] = {}
    for op in graph.operators:
        for tensor in op.inputs:
            readers.setdefault(tensor, []).append(op.kind)
    digest = hashlib.sha256()
    for name, parameter in sorted(graph.tensors.items()):
        if parameter.role is Role.PARAMETER:
            digest.update(repr((name, parameter.shape, sorted(readers.get(name, ())))).encode())
    return digest.hexdigest()[:16]


def update_text(update: Update) -> str:
    """An update as the file has it: `whole`, `1/4`, `1/4:norm`, or `lora:RANK`."""
    if isinstance(update, Whole):
        return "whole"
    if isinstance(update, Channels):
        return f"{update.share.numerator}/{update.share.denominator}{':norm' * update.largest}"
    more = f":alpha={update.alpha:g}" * (update.alpha != Adapter(1).alpha)
    return f"lora:{update.rank}{more}{f':dropout={update.dropout:g}' * bool(update.dropout)}"


def parse_update(text: str) -> Update:
    """The update of such a text. UsageError for any other."""
    if text == "whole":
        return Whole()
    if text.startswith("lora:"):
        entry = Lora.parse(text.removeprefix("lora:"))
        if not entry.patterns:
            return entry.adapter
    share = _SHARE.fullmatch(text)
    if share is not None and 0 < int(share[1]) < int(share[2]) < 2**31:
        return Channels(Fraction(int(share[1]), int(share[2])), share[3] is not None)
    raise UsageError(f"update {shortened(text, 80)!r}: write whole, a share such as 1/4 or 1/4:norm, or lora:RANK")


def write_importance(path: Path, importance: Importance) -> None:
    """Whole or not at all."""
    head: dict[str, Any] = {"format": FORMAT, "name": importance.name, "model": importance.model, "by": importance.by}
    if importance.unit:
        head["unit"] = importance.unit
    if importance.seed:
        head["seed"] = importance.seed
    lines = [
        "# The importance of each update of a model: poetc solve --train best --importance FILE takes the best set.",
        "# Edit the numbers, or take lines out. Numbers of a set add up; one of 0 or less is never trained.",
        yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=10**6).rstrip(),
        "candidates:",
    ]
    for c in importance.candidates:
        entry = {"parameter": c.parameter, "update": update_text(c.update), "importance": float(f"{c.importance:.6g}")}
        text = yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, default_flow_style=True, width=10**6)
        lines.append(f"- {text.strip()}")
    write_text(path, "\n".join(lines) + "\n")


def read_importance(path: Path, graph: Graph) -> Importance:
    """The file, for the model `graph`. UsageError names the file, the line and the fault."""
    document, lines = read_yaml(path, "an importance file")

    def fail(key: KeyPath, why: str) -> UsageError:
        return UsageError(f"{path}:{lines.get(key, 1)}: {why}")

    if unknown := sorted(document.keys() - _KEYS):
        raise fail((unknown[0],), f"unknown key {shortened(unknown[0], 40)!r}; there are {', '.join(sorted(_KEYS))}")
    if document.get("format") != FORMAT:
        raise fail(("format",), f"format is {shortened(document.get('format'), 40)!r}; this poetc reads {FORMAT}")
    entries = document.get("candidates")
    if not isinstance(entries, list) or not entries:
        raise fail(("candidates",), "candidates: must be a list of updates, with at least one")
    seed = document.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise fail(("seed",), "seed: must be a whole number of at least 0")
    texts = {key: str(document.get(key) or "") for key in ("name", "model", "by", "unit")}
    if texts["model"] and texts["model"] != fingerprint(graph):
        raise fail(
            ("model",),
            f"measured on another model ({shortened(texts['name'], 60) or 'without a name'}): its fingerprint is"
            f" {shortened(texts['model'], 40)}, that of {graph.name} is {fingerprint(graph)}",
        )
    candidates: list[Candidate] = []
    for k, entry in enumerate(entries):
        at = ("candidates", str(k))
        where = next((key for key in lines if key[:2] == at), ("candidates",))
        if not isinstance(entry, dict) or entry.keys() != _CANDIDATE_KEYS:
            raise fail(where, f"candidate {k + 1}: has the keys parameter, update and importance, and no other")
        number = entry["importance"]
        if not isinstance(number, int | float) or isinstance(number, bool) or not abs(number) <= _LARGEST:
            why = f"importance is {shortened(number, 40)!r}, not a number up to {_LARGEST:.2g}"
            raise fail(where, f"candidate {k + 1}: {why}")
        try:
            candidate = Candidate(str(entry["parameter"]), parse_update(str(entry["update"])), float(number))
            _require_possible(graph, candidate)
        except UsageError as error:
            raise fail(where, f"candidate {k + 1}: {error}") from None
        candidates.append(candidate)
    counted = Counter(c.label for c in candidates)
    if double := next((label for label, count in counted.items() if count > 1), None):
        raise fail(("candidates",), f"{double!r} stands there twice")
    if all(c.importance <= 0 for c in candidates):
        raise fail(("candidates",), "no update has an importance above 0")
    return Importance(candidates=tuple(candidates), seed=seed, **texts)


def _require_possible(graph: Graph, candidate: Candidate) -> None:
    """UsageError where the model has no such parameter, or the parameter takes no such update."""
    tensor = graph.tensors.get(candidate.parameter)
    if tensor is None or tensor.role is not Role.PARAMETER:
        raise UsageError(f"{graph.name} has no parameter {shortened(candidate.parameter, 80)!r}")
    train, lora = Updates({candidate.parameter: candidate.update}).options()
    select_updates(graph, train, lora)
