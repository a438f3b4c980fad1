"""Write `pytorch.json`: losses and weights of PyTorch in double precision, for the cases of `pytorch_cases.py`.

python -m tests.training.make_pytorch        in an environment with poetc, torch 2.13 and torchvision
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torchvision

from poetc.graph import Array
from tests.training.pytorch_cases import CASES, LABELS, NUMBERS, RATE, batches, elements, parameters

Weights = dict[str, torch.Tensor]


def matching(entries: Sequence[str], name: str, default: float) -> float:
    found = [float(value) for pattern, value in (e.split("=") for e in entries) if fnmatch.fnmatch(name, pattern)]
    return found[-1] if found else default


class Clip:
    def __init__(self, o: Mapping[str, Any]) -> None:
        self.options, self.scale = o, 1.0

    def __call__(self, weights: Weights) -> None:
        o, found = self.options, list(weights.values())
        if "clip_value" in o:
            torch.nn.utils.clip_grad_value_(found, o["clip_value"])
        if "clip_norm_per_tensor" in o:
            for w in found:
                torch.nn.utils.clip_grad_norm_([w], o["clip_norm_per_tensor"])
        if "clip_norm" in o:
            torch.nn.utils.clip_grad_norm_(found, o["clip_norm"])
        if "clip_norm_late" in o:
            norm = torch.nn.utils.get_total_norm([w.grad for w in found if w.grad is not None])
            for w in found:
                assert w.grad is not None
                w.grad.mul_(self.scale)
            self.scale = min(1.0, o["clip_norm_late"] / (norm.item() + 1e-6))


def optimizer(weights: Weights, o: Mapping[str, Any]) -> torch.optim.Optimizer:
    groups = [
        {
            "params": [w],
            "weight_decay": matching(o.get("weight_decay_for", ()), name, o.get("weight_decay", 0.0)),
            "lr": RATE * matching(o.get("lr_for", ()), name, 1.0),
        }
        for name, w in weights.items()
    ]
    betas = o.get("beta1", 0.9), o.get("beta2", 0.999)
    epsilon = {"eps": o["epsilon"]} if "epsilon" in o else {}
    match o.get("optimizer", "sgd"):
        case "sgd":
            return torch.optim.SGD(groups)
        case "momentum":
            return torch.optim.SGD(groups, momentum=o["momentum"])
        case "adam":
            return torch.optim.Adam(groups, betas=betas, **epsilon)
        case "adamw":
            return torch.optim.AdamW(groups, betas=betas, **epsilon)
        case "adagrad":
            return torch.optim.Adagrad(groups, **epsilon)
        case "rmsprop":
            own = {k: o[k] for k in ("alpha", "centered", "momentum") if k in o}
            return torch.optim.RMSprop(groups, **own, **epsilon)
        case "nadam":
            own = {"momentum_decay": o["momentum_decay"]} if "momentum_decay" in o else {}
            return torch.optim.NAdam(groups, betas=betas, **own, **epsilon)
        case name:
            raise ValueError(name)


def loss_of(o: Mapping[str, Any], logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if o.get("loss") in ("triplet", "contrastive"):
        return metric(o, logits, target)
    weights = torch.tensor(o["class_weights"]) if "class_weights" in o else None
    ignored, smoothing = o.get("ignore_index", -100), o.get("label_smoothing", 0.0)
    if o.get("loss") != "focal":
        return torch.nn.functional.cross_entropy(
            logits, target, weight=weights, ignore_index=ignored, label_smoothing=smoothing
        )
    log_p = torch.log_softmax(logits, 1)[torch.arange(len(target)), target]
    weight = torch.ones(len(target)) if weights is None else weights[target]
    return (-weight * (1 - log_p.exp()) ** o.get("focal_gamma", 2.0) * log_p).sum() / weight.sum()


def of_elements(o: Mapping[str, Any], x: torch.Tensor, wanted: Array) -> torch.Tensor:
    """Losses whose target has the shape of the output."""
    kind, format = o["loss"], o.get("box_format", "")
    target = torch.tensor(elements(kind, format, wanted).astype("f8"))
    if kind == "bce":
        weights = torch.tensor(o["class_weights"]) if "class_weights" in o else None
        return torch.nn.functional.binary_cross_entropy_with_logits(x, target, pos_weight=weights)
    if kind == "binary-focal":
        alpha, gamma = o.get("focal_alpha", -1), o.get("focal_gamma", 2)
        return torchvision.ops.sigmoid_focal_loss(x, target, alpha=alpha, gamma=gamma, reduction="mean")
    if format:
        x, target = (torchvision.ops.box_convert(b, format, "xyxy") for b in (x, target))
    if kind == "iou":
        shared, whole = torchvision.ops._utils._loss_inter_union(x, target)
        return (1 - shared / (whole + 1e-7)).mean()
    losses = {"giou": torchvision.ops.generalized_box_iou_loss, "ciou": torchvision.ops.complete_box_iou_loss}
    return losses[kind](x, target, reduction="mean")


def metric(o: Mapping[str, Any], x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """All triples, or all pairs, of a batch."""
    margin, kinds = o.get("margin", 1.0), target.tolist()
    if o["loss"] == "triplet":
        rows = range(len(kinds))
        triples = [
            (a, p, n)
            for a in rows
            for p in rows
            for n in rows
            if a != p and kinds[a] == kinds[p] and kinds[a] != kinds[n]
        ]
        if not triples:
            return 0 * x.sum()
        a, p, n = (x[list(places)] for places in zip(*triples, strict=True))
        return torch.nn.functional.triplet_margin_loss(a, p, n, margin=margin)
    terms = []
    for i, kind in enumerate(kinds):
        for j in range(i + 1, len(kinds)):
            distance = torch.nn.functional.pairwise_distance(x[i], x[j])
            terms.append((distance if kind == kinds[j] else (margin - distance).clamp(min=0)) ** 2 / 2)
    return torch.stack(terms).mean()


def ctc(logits: torch.Tensor, classes: Array) -> torch.Tensor:
    """A blank is 0; what comes after it is no label."""
    log_p = torch.log_softmax(logits, 1).reshape(2, -1, logits.shape[1])
    labels = classes[: 2 * LABELS].reshape(2, LABELS)
    lengths = [[*row.tolist(), 0].index(0) for row in labels]
    steps = [log_p.shape[1]] * 2
    return torch.nn.functional.ctc_loss(
        log_p.swapaxes(0, 1), torch.tensor(labels).long(), steps, lengths, zero_infinity=True
    )


def run(o: Mapping[str, Any]) -> dict[str, list[float]]:
    weights = {name: torch.tensor(w.astype("f8"), requires_grad=True) for name, w in parameters().items()}
    update, clip = optimizer(weights, o), Clip(o)
    losses: list[float] = []
    every = o.get("accumulate", 1)
    for x, classes, wanted in batches():
        hidden = torch.tanh(torch.tensor(x.astype("f8")) @ weights["fc1.weight"].T + weights["fc1.bias"])
        logits = hidden @ weights["fc2.weight"].T + weights["fc2.bias"]
        target = torch.tensor(classes).long()
        if "paths" in o.get("loss", ""):
            loss = ctc(logits, classes)
        elif o.get("loss") in ("bce", "binary-focal", "iou", "giou", "ciou"):
            loss = of_elements(o, logits, wanted)
        elif "=" in o.get("loss", ""):
            terms = [term.replace("=", "*").split("*") for term in o["loss"].split(",")]
            loss = torch.zeros(())
            for output, kind, *weight in terms:
                one = (
                    loss_of({**o, "loss": kind}, logits, target)
                    if output == "logits"
                    else torch.nn.functional.mse_loss(hidden, torch.tensor(wanted.astype("f8")))
                )
                loss = loss + one * (float(weight[0]) if weight else 1.0)
        else:
            loss = loss_of(o, logits, target)
        (loss / every).backward()
        if (len(losses) + 1) % every == 0:
            clip(weights)
            update.step()
            update.zero_grad()
        losses.append(loss.item())
    return {
        "losses": losses,
        "fc1.weight": weights["fc1.weight"][0].tolist(),
        "fc2.bias": weights["fc2.bias"].tolist(),
    }


def main() -> None:
    torch.set_default_dtype(torch.float64)  # in which NAdam holds the product of its momentums
    NUMBERS.write_text(json.dumps({name: run(o) for name, o in CASES.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
