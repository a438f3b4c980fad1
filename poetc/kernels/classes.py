"""Classes of kernels whose loops look alike to a pipeline: by the group of a loop, and by the file of its source."""

from __future__ import annotations

OTHER = "other"
# By class: the beginnings of groups, and of sources in runtime/kernels. The first class that matches counts.
_CLASSES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "winograd": (("winograd",), ("convolution/convolution_winograd", "convolution/poetc_winograd")),
    "gemm": (
        ("gemm", "inner", "outer", "rank_one", "descend", "matmul", "direct"),
        ("gemm/", "convolution/poetc_direct"),
    ),
    "depthwise": (
        ("depthwise", "filter", "taps", "slide", "strip", "gaps", "tiles", "pairs", "correlate", "segment"),
        ("depthwise/", "convolution/convolution.c", "convolution/poetc_convolution.h"),
    ),
    "convolution": (
        ("conv", "put", "transpose", "planes", "pixels", "windows", "spread", "fill"),
        ("convolution/",),
    ),
    "normalization": (
        ("batch_norm", "layer_norm", "group_norm", "rms_norm"),
        ("operators/batch_norm", "operators/layer_norm", "operators/poetc_norm", "operators/lrn"),
    ),
    "pooling": (("max_pool", "average_pool", "resize"), ("operators/pool", "operators/resize")),
    "reduction": (("reduce", "softmax", "log_softmax"), ("operators/reduce", "operators/softmax")),
    "recurrent": (("lstm", "gru"), ("operators/recurrent",)),
    "movement": (
        ("copy", "memcpy", "walk", "clear", "gather", "scatter", "concat", "split", "put_slices"),
        ("operators/mov", "operators/gather", "operators/pad", "operators/poetc_walk", "simd/poetc_clear"),
    ),
    "optimizer": (("sgd",), ("operators/optimizer", "operators/sgd_of", "operators/accumulation")),
    "int8": (("int8", "Integer", "qlinear", "QLinear"), ("int8/",)),
    "elementwise": (
        (
            "add",
            "sub",
            "mul",
            "div",
            "maximum",
            "minimum",
            "pow",
            "relu",
            "leaky",
            "clip",
            "neg",
            "affine",
            "abs",
            "elu",
        ),
        ("operators/binary", "operators/poetc_elementwise"),
    ),
    "function": (
        (
            *("exp", "log", "erf", "gelu", "tanh", "sigmoid", "silu", "soft", "hard", "sqrt", "reciprocal"),
            *("selu", "celu", "mish", "sin", "cos", "atan"),
        ),
        ("operators/activation", "operators/unary", "operators/poetc_activation", "simd/poetc_vector_math"),
    ),
}
CLASSES = (*_CLASSES, OTHER)


def class_of_group(group: str) -> str:
    """The class of a group of loops; `other` for one that nothing else fits."""
    return next((name for name, (groups, _) in _CLASSES.items() if group.startswith(groups)), OTHER)


def class_of_source(path: str) -> str:
    """The class of a file, by its path relative to runtime/kernels."""
    return next((name for name, (_, files) in _CLASSES.items() if path.startswith(files)), OTHER)
