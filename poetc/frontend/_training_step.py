"""A file that holds a whole training step: its forward part is the model, and poetc makes the rest again."""

from __future__ import annotations

import onnx

# The operators that update a weight, whose first input it is.
_UPDATES = frozenset({"SGD", "SGDOptimizer", "SGDOptimizerV2", "AdamOptimizer", "AdamWOptimizer"})
_LOSSES = frozenset({"SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossInternal", "SparseSoftmaxCrossEntropy"})
_SHOWN = 4


def with_forward_part(model: onnx.ModelProto) -> list[str]:
    """Make the scores that `model` compares with labels its only outputs; a note on the change.

    No change to a model without updates of weights, or without a loss that is known.
    """
    nodes = model.graph.node
    updated = [n.input[0] for n in nodes if n.op_type in _UPDATES and n.input]
    scores = list(dict.fromkeys(n.input[0] for n in nodes if n.op_type in _LOSSES and n.input))
    if not updated or not scores:
        return []
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in scores)
    more = f" and {len(updated) - _SHOWN} more" if len(updated) > _SHOWN else ""
    return [
        "the file holds a training step: its forward part is trained, and its loss, gradients and updates give way to"
        f" poetc's; it updated {', '.join(updated[:_SHOWN])}{more} (--train takes names)"
    ]
