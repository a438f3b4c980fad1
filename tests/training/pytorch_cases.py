"""What the numbers of PyTorch in `pytorch.json` were made of: a small network, batches, and options of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from poetc.graph import Array, Graph, Role, TensorType
from poetc.ops import Builder

NUMBERS = Path(__file__).with_name("pytorch.json")
STEPS = 8
ROWS, FEATURES, HIDDEN, CLASSES = 6, 5, 7, 4
LABELS = 2  # of each of two samples, of which the rows are the time steps
RATE = 2.0**-5  # exact in 32 bits, in which a program holds it

# Options of `poetc` by the name of the case.
CASES: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum, decay": {"optimizer": "momentum", "momentum": 0.8, "weight_decay": 0.1},
    "adam, decay": {"optimizer": "adam", "weight_decay": 0.1},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3},
    "adagrad": {"optimizer": "adagrad"},
    "adagrad, decay": {"optimizer": "adagrad", "weight_decay": 0.1, "epsilon": 1e-3},
    "rmsprop": {"optimizer": "rmsprop"},
    "rmsprop, decay": {"optimizer": "rmsprop", "alpha": 0.9, "epsilon": 1e-3, "weight_decay": 0.1},
    "rmsprop, centered": {"optimizer": "rmsprop", "centered": True},
    "rmsprop, momentum": {"optimizer": "rmsprop", "momentum": 0.5, "alpha": 0.9},
    "rmsprop, all": {"optimizer": "rmsprop", "momentum": 0.5, "alpha": 0.9, "centered": True, "weight_decay": 0.1},
    "nadam": {"optimizer": "nadam"},
    "decay but of biases": {"optimizer": "adamw", "weight_decay": 0.2, "weight_decay_for": ("*.bias=0",)},
    "rates and decays": {
        "optimizer": "momentum",
        "momentum": 0.5,
        "lr_for": ("*=0.25", "fc2.*=4"),
        "weight_decay_for": ("fc1.*=0.1", "fc1.bias=0.5"),
    },
    "clipped values": {"clip_value": 0.03, "optimizer": "momentum", "momentum": 0.5, "weight_decay": 0.1},
    "clipped tensors": {"clip_norm_per_tensor": 0.25, "optimizer": "rmsprop"},
    "clipped": {"clip_norm": 0.5, "weight_decay": 0.1},
    "clipped, adamw": {"clip_norm": 0.5, "optimizer": "adamw"},
    "clipped never": {"clip_norm": 100.0},
    "clipped late": {"clip_norm_late": 0.5, "optimizer": "adam"},
    "class weights": {"class_weights": (0.5, 2.0, 1.0, 0.25)},
    "class weights, smoothed": {
        "class_weights": (0.5, 2.0, 0.0, 0.25),
        "label_smoothing": 0.2,
        "ignore_index": 1,
    },
    "class weights in parts": {"class_weights": (0.5, 2.0, 1.0, 0.25), "ignore_index": 3, "micro_batches": 3},
    "focal": {"loss": "focal"},
    "focal, weighted": {
        "loss": "focal",
        "focal_gamma": 0.5,
        "class_weights": (0.5, 2.0, 1.0, 0.25),
        "micro_batches": 2,
    },
    "bce": {"loss": "bce"},
    "bce, one weight": {"loss": "bce", "class_weights": (2.5,)},
    "bce, a weight a column": {"loss": "bce", "class_weights": (0.5, 3.0, 0.0, 1.0), "micro_batches": 2},
    "binary focal": {"loss": "binary-focal"},
    "binary focal, balanced": {"loss": "binary-focal", "focal_gamma": 0.5, "focal_alpha": 0.25},
    "iou": {"loss": "iou", "box_format": "cxcywh"},
    "giou": {"loss": "giou", "box_format": "cxcywh", "micro_batches": 2},
    "giou, corner and size": {"loss": "giou", "box_format": "xywh"},
    "ciou": {"loss": "ciou"},
    "ciou, centres": {"loss": "ciou", "box_format": "cxcywh"},
    "two losses": {"loss": "logits=cross-entropy*0.75,hidden=mse*2", "label_smoothing": 0.1},
    "two losses in parts": {
        "loss": "hidden=mse,logits=focal*0.5",
        "class_weights": (0.5, 2.0, 1.0, 0.25),
        "micro_batches": 2,
        "clip_norm": 0.5,
    },
    "ctc": {"loss": "paths=ctc", "ctc_labels": LABELS},
    "triplet": {"loss": "triplet"},
    "contrastive": {"loss": "contrastive", "margin": 1.5},
    "accumulated": {"accumulate": 2, "weight_decay": 0.1},
    "accumulated, adam": {"accumulate": 4, "optimizer": "adam", "clip_norm": 0.5},
    "accumulated, nadam": {"accumulate": 2, "optimizer": "nadam", "loss": "hidden=mse,logits=cross-entropy*0.5"},
    "nadam, decay": {"optimizer": "nadam", "weight_decay": 0.1, "beta1": 0.8, "momentum_decay": 0.1},
}


def parameters() -> dict[str, Array]:
    random = np.random.default_rng(11)
    shapes = {
        "fc1.weight": (HIDDEN, FEATURES),
        "fc1.bias": (HIDDEN,),
        "fc2.weight": (CLASSES, HIDDEN),
        "fc2.bias": (CLASSES,),
    }
    return {name: random.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def batches() -> list[tuple[Array, Array, Array]]:
    """Inputs, classes and what the hidden layer is to be, of every step."""
    random, more = np.random.default_rng(12), np.random.default_rng(13)
    return [
        (
            random.standard_normal((ROWS, FEATURES)).astype(np.float32),
            random.integers(0, CLASSES, ROWS).astype("i4"),
            more.uniform(-1, 1, (ROWS, HIDDEN)).astype(np.float32),
        )
        for _ in range(STEPS)
    ]


def elements(loss: str, box_format: str, wanted: Array) -> Array:
    """The target of a loss of elements or boxes, for the hidden layer; corners without a format."""
    values = wanted[:, :CLASSES]
    if loss in ("bce", "binary-focal"):
        return (values + 1) / 2
    corner, size = values[:, :2], 1.5 + values[:, 2:]
    return np.concatenate([corner, size if box_format else corner + size], axis=1)


def network(rows: int = ROWS, outputs: tuple[str, ...] = ("logits",)) -> Graph:
    """A product, tanh (`hidden`), a product (`logits`)."""
    b = Builder()
    h = b.add_tensor("x", TensorType((rows, FEATURES)), Role.INPUT)
    for name, value in parameters().items():
        b.add_tensor(name, TensorType(value.shape), Role.PARAMETER, value)
    attributes = {"trans_a": False, "trans_b": True, "alpha": 1.0}
    h = b.emit1("Tanh", [b.emit1("MatMul", [h, "fc1.weight", "fc1.bias"], attributes)], hint="hidden")
    y = b.emit1("MatMul", [h, "fc2.weight", "fc2.bias"], attributes, hint="logits")
    if "paths" in outputs:
        b.emit1("Reshape", [y], {"shape": (2, rows // 2, CLASSES)}, hint="paths")
    return Graph("two products", b.tensors, tuple(b.operators), ("x",), outputs, b.values)
