"""Which version of the operator set a file really uses. Headers lie: converters merge models and forget to raise it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from poetc.errors import UnsupportedModelError
from poetc.frontend._node import Node

OLDEST, NEWEST = 7, 24

# Operators, by the version that introduced them.
_INTRODUCED = {
    "Range": 11, "CumSum": 11, "GatherElements": 11, "GatherND": 11, "Round": 11, "SplitToSequence": 11,
    "SequenceAt": 11, "Celu": 12, "Einsum": 12, "GreaterOrEqual": 12, "LessOrEqual": 12,
    "SoftmaxCrossEntropyLoss": 12, "NegativeLogLikelihoodLoss": 12, "HardSwish": 14,
    "Trilu": 14, "CastLike": 15, "LayerNormalization": 17, "GroupNormalization": 18, "Mish": 18, "Gelu": 20,
    "RMSNormalization": 23, "Attention": 23, "RotaryEmbedding": 23, "Swish": 24,
}  # fmt: skip

# (operator, input index, version): that input exists only from this version on.
_INPUT_SINCE = (
    ("Slice", 1, 10), ("Clip", 1, 11), ("Pad", 1, 11), ("Dropout", 1, 12), ("Squeeze", 1, 13), ("Unsqueeze", 1, 13),
    ("Split", 1, 13), ("ReduceSum", 1, 13), ("ReduceMean", 1, 18), ("ReduceMax", 1, 18), ("ReduceMin", 1, 18),
    ("ReduceProd", 1, 18), ("ReduceL1", 1, 18), ("ReduceL2", 1, 18), ("ReduceLogSumExp", 1, 18), ("Resize", 2, 11),
)  # fmt: skip


def effective_opset(model: onnx.ModelProto, nodes: Sequence[Node], notes: list[str]) -> int:
    """The version to read the nodes as: the header's, raised to the version that the nodes need.

    Adds a note when they differ.
    """
    declared = {o.domain or "ai.onnx": o.version for o in model.opset_import}.get("ai.onnx")
    if declared is None:
        declared = OLDEST if not any(n.is_standard for n in nodes) else 13
        notes.append(f"the file declares no operator set; read as {declared}")
    if declared < OLDEST:
        raise UnsupportedModelError(f"operator set {declared} is too old; convert it with onnx.version_converter")
    needed, why = declared, ""
    # onnxruntime's optimizer writes its own LayerNormalization into the default domain of any version.
    optimized = any(o.domain == "com.microsoft" for o in model.opset_import)
    for n in nodes:
        if not n.is_standard:
            continue
        since = 1 if optimized and n.op == "LayerNormalization" else _INTRODUCED.get(n.op, 1)
        for op, index, version in _INPUT_SINCE:
            if op == n.op and n.has_input(index):
                since = max(since, version)
        if since > needed:
            needed, why = since, n.label
    if needed != declared:
        notes.append(f"the file declares operator set {declared} but {why} needs {needed}; read as {needed}")
    if declared > NEWEST:
        notes.append(f"operator set {declared} is newer than the newest known ({NEWEST}); read as {NEWEST}")
    return min(needed, NEWEST)
