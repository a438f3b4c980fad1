"""Warnings of a training: norms that are folded, and a validation that never got better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poetc.graph import Graph

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
