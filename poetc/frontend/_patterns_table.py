"""Which patterns look at which kind of operator, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poetc.frontend import patterns, patterns_norm, patterns_softmax
from poetc.frontend._rewriter import Pattern

PATTERNS: Mapping[str, Sequence[Pattern]] = {
    "Reshape": [patterns.merge_reshapes, patterns_norm.group_norm],
    "Transpose": [patterns.merge_transposes],
    "Affine": [patterns.merge_affines, patterns.scale_into_matmul, patterns.hard_sigmoid],
    "Slice": [patterns.slice_of_concat],
    "MatMul": [patterns.transpose_into_matmul, patterns.scaled_operand_of_matmul],
    "Conv": [patterns.pad_into_window],
    "AveragePool": [patterns.pad_into_window],
    "Add": [
        patterns.expand_into_broadcast,
        patterns.matmul_bias,
        patterns.conv_bias,
        patterns_norm.norm_bias,
        patterns_norm.group_norm_affine,
        patterns_norm.batch_norm,
    ],
    "Div": [patterns.expand_into_broadcast, patterns_norm.layer_norm],
    "Mul": [
        patterns.expand_into_broadcast,
        patterns.gelu,
        patterns.gated,
        patterns_norm.layer_norm,
        patterns_norm.norm_scale,
        patterns_norm.group_norm_affine,
    ],
    "Sub": [patterns.expand_into_broadcast],
    "Where": [patterns_softmax.guarded_softmax, patterns.expand_into_broadcast],
}
