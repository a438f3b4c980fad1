"""Warnings of a training: folded norms, options that outlast it, and a validation that never got better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poetc.errors import UsageError, format_count
from poetc.graph import Graph
from poetc.training.rates import Schedule

MOST_OLD = 0.5  # of an average: the share of the weights as they were

RECIPE = (
    "training mode is gone with them, and it may end at chance: put them back (--batch-norm restore), export the model"
    " again with its norms (torch.onnx.export(..., optimize=False), or training=TrainingMode.PRESERVE), or train the"
    " last layers alone (--train last:2) at a lower --lr"
)


def of_model(graph: Graph, options: Mapping[str, Any]) -> list[str]:
    """Warnings before the first step. `options`: of the training step."""
    if options.get("batch_norm") == "restore":
        return []
    return [
        f"the batch norms of this model are folded into its layers ({fact.evidence}); {RECIPE}"
        for fact in graph.facts
        if fact.kind == "folded norms"
    ]


def of_length(schedule: Schedule, ema: float | None, accumulate: int, epochs: int, steps: int) -> list[str]:
    """Warnings about options without effect in a training of `epochs` passes over the data, `steps` batches in all.

    UsageError where no step would update a weight.
    """
    updates = steps // accumulate
    if not updates:
        raise UsageError(
            f"--accumulate {accumulate}: the training has {format_count(steps, 'step')}, and none would update a weight"
        )
    notes = []
    if ema is not None and (left := ema**updates) > MOST_OLD:
        notes.append(
            f"--ema {ema}: after {updates:,} updates {left:.0%} of the average are still the untrained weights, and the"
            f" average is written; {MOST_OLD ** (1 / updates):.4g} would leave half of it"
        )
    if schedule.warmup >= updates:
        notes.append(f"--schedule {schedule}: the warm-up outlasts the training, which has {updates:,} updates")
    elif schedule.kind == "step" and schedule.every >= updates - schedule.warmup:
        notes.append(f"--schedule {schedule}: the rate never falls in the {updates:,} updates of this training")
    elif schedule.kind == "plateau" and schedule.patience + 2 >= epochs:
        notes.append(f"--schedule {schedule}: the rate never falls in a training of {format_count(epochs, 'epoch')}")
    return notes


def of_training(document: Mapping[str, Any]) -> list[str]:
    """Warnings behind the last epoch: the validation loss of no epoch was below that of the model at the start."""
    before = (document["before"] or {}).get("loss")
    losses = [row["validation_loss"] for row in document["epochs"] if row.get("validation_loss") is not None]
    if before is None or not losses or min(losses) < before:
        return []
    return [
        f"validation never improved: its loss was {before:.4f} before the training and {min(losses):.4f} at best; try a"
        " lower --lr, --schedule cosine:warmup=100, --optimizer adam or --train last:1, and look at --normalize"
    ]
