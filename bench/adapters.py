"""Adapters beside peft and beside Deeploy's fixtures, and their cost beside training everything.

    python bench/adapters.py peft                  needs torch, peft, onnx and onnxruntime
    python bench/adapters.py deeploy FOLDER        FOLDER has the directories of DeeployTest/Tests/Models/CCT_Train
    python bench/adapters.py cost MODEL.onnx ...   RAM, flash and energy on a device (--device, --ranks)

Each prints rows of a table of docs/results/adapters.md.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import poetc
from poetc import TrainingOptions, frontend, passes, training
from poetc.devices import build_problem, load_profile
from poetc.graph import Graph, Role, TrainingGraph, materialize
from poetc.ops import bind, spec
from poetc.scheduling import keep_all_peak_bytes

DIGITS = Path(__file__).resolve().parent.parent / "demo" / "digits_first_writers.npz"
STEPS, BATCH, RANK, ALPHA, RATE = 100, 16, 4, 8, 0.5
SEARCH_S = 5.0  # for the smallest budget


# --- beside peft ------------------------------------------------------------------------------------------------------


def network() -> Any:
    """A transformer of two blocks on 4 x 4 patches of a digit, with a convolution in front."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down, self.heads = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), heads

        def forward(self, x: Any) -> Any:
            n, t, d = x.shape
            h = self.norm1(x)
            q, k, v = (
                f(h).reshape(n, t, self.heads, d // self.heads).transpose(1, 2)
                for f in (self.query, self.key, self.value)
            )
            scores = torch.softmax(q @ k.transpose(2, 3) / (d // self.heads) ** 0.5, -1)
            x = x + self.out((scores @ v).transpose(1, 2).reshape(n, t, d))
            return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(1, 32, 3, stride=2, padding=1)
            self.position = nn.Parameter(torch.randn(1, 16, 32) * 0.1)
            self.blocks = nn.Sequential(Block(32, 4), Block(32, 4))
            self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

        def forward(self, image: Any) -> Any:
            x = self.patch(image).flatten(2).transpose(1, 2) + self.position
            return self.head(self.norm(self.blocks(x)).mean(1))

    torch.manual_seed(0)
    torch.set_num_threads(1)
    return Small().eval()


def batches() -> tuple[np.ndarray, np.ndarray]:
    data = np.load(DIGITS)
    order = np.random.default_rng(0).integers(0, len(data["train_y"]), (STEPS, BATCH))
    return data["train_x"][order].astype(np.float32)[:, :, None] / 16, data["train_y"][order].astype(np.int32)


def beside_peft(folder: Path) -> None:
    """100 losses of the same adapters, and the logits of what is exported."""
    import onnxruntime
    import torch
    from peft import PeftModel

    images, labels = batches()
    base, file = network(), folder / "small.onnx"
    torch.onnx.export(base, (torch.from_numpy(images[0]),), file, input_names=["image"], dynamo=False, opset_version=17)
    options = TrainingOptions(lora=(f"{RANK}:alpha={ALPHA}",), train="head.*", learning_rate=RATE)
    solution = poetc.load(file, training=options).solve(budget="100%", time_limit_s=5)
    start = folder / "start" / "adapter_model.safetensors"
    start.parent.mkdir()
    solution.export(None, start, adapter=True)

    losses: dict[str, list[float]] = {}
    for name, dtype in (("PyTorch, 64 bits", torch.float64), ("PyTorch, 32 bits", torch.float32)):
        model = PeftModel.from_pretrained(network(), start.parent, is_trainable=True).to(dtype)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trained, RATE)
        losses[name] = []
        for image, label in zip(images, labels, strict=True):
            logits = model(torch.from_numpy(image).to(dtype))
            loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(label).long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[name].append(loss.item())
    count = sum(p.numel() for p in trained)
    with solution.trainer() as session:
        losses["poetc"] = [session.step(x, y) for x, y in zip(images, labels, strict=True)]
        logits = np.array(session.predict(images[0]))
        state = session.state_dict()
    exact = np.array(losses.pop("PyTorch, 64 bits"))
    print(f"| trained numbers | {count:,} |\n| loss at step 1, 100 | {exact[0]:.4f}, {exact[-1]:.4f} |")
    for name, found in losses.items():
        errors = np.abs(np.array(found) - exact) / exact
        print(f"| {name} | " + " | ".join(f"{errors[:n].max():.1e}" for n in (1, 10, 50, 100)) + " |")

    kept = {n: a for n, a in state.items() if n in solution.artifact.inference.tensors}
    end = folder / "end" / "adapter_model.safetensors"
    end.parent.mkdir()
    solution.export(kept, end, adapter=True)
    merged = folder / "merged.onnx"
    solution.export(kept, merged)
    with torch.no_grad():
        theirs = PeftModel.from_pretrained(network(), end.parent)(torch.from_numpy(images[0])).numpy()
    by_onnx = onnxruntime.InferenceSession(merged).run(None, {"image": images[0]})[0]
    scale = np.abs(logits).max()
    print(f"| logits of peft with the exported adapter | {np.abs(theirs - logits).max() / scale:.1e} |")
    print(f"| logits of onnxruntime with the merged file | {np.abs(by_onnx - logits).max() / scale:.1e} |")


# --- beside Deeploy ---------------------------------------------------------------------------------------------------


def beside_deeploy(folder: Path, device: str) -> None:
    """Weights after a step beside those of the fixtures, and RAM."""
    import onnx

    for name in ("CCT2_LP", "CCT2_FT1", "CCT2_LoRA1", "CCT2_FT2", "CCT2_LoRA2"):
        graph = frontend.load(folder / name / "network_infer.onnx")
        inputs, outputs = (np.load(folder / name / f"{part}.npz") for part in ("inputs", "outputs"))
        nodes = onnx.load(folder / name / "network.onnx").graph.node
        rate = next(a.f for n in nodes if n.op_type == "SGD" for a in n.attribute)
        names = [n.removesuffix("_updated") for n in outputs.files]
        options = TrainingOptions(train=",".join(names), learning_rate=rate, loss="cross-entropy")
        step = passes.run_standard(training.build(graph, options))
        values = _evaluated(step, {step.inputs[0]: inputs["input"], step.target: inputs["labels"].astype(np.int32)})
        errors = [np.abs(values[step.updates[n]] - outputs[f"{n}_updated"]).max() for n in names]
        cost = _cost(step, device)
        trained = sum(step.tensors[n].type.elements for n in names)
        print(f"| {name} | {trained:,} | {max(errors):.1e} | {cost['keep_all']:,} | {cost['least']:,} |")


def _evaluated(graph: Graph, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    values = {n: materialize(v, graph.tensors[n].type) for n, v in graph.values.items()} | given
    for op in graph.operators:
        results = spec(op.kind).evaluate(bind(op, graph.tensors), [values[t] for t in op.inputs])
        values.update(zip(op.outputs, results, strict=True))
    return values


# --- cost -------------------------------------------------------------------------------------------------------------


def cost_of(model: Path, device: str, ranks: list[int], batch: int) -> None:
    """Training everything beside adapters of each rank."""
    for label, lora in (("all", ()), *((f"LoRA {r}", (f"{r}",)) for r in ranks)):
        options = TrainingOptions(lora=lora, random_weights=0, optimizer="adam")
        graph = frontend.load(model, batch=batch, random_weights=0)
        if lora:
            graph = training.with_adapters(graph, training.select_updates(graph, "all", lora))
        step = passes.run_standard(training.build(graph, options))
        cost = _cost(step, device)
        trained = sum(step.tensors[n].type.elements for n in step.updates if step.tensors[n].role is Role.PARAMETER)
        print(
            f"| {model.name.split('.')[0]} | {label} | {trained:,} | {cost['keep_all'] / 1e6:.2f} |"
            f" {cost['least'] / 1e6:.2f} | {cost['constants'] / 1e6:.2f} | {cost['energy_mj']:.1f} |"
            f" {cost['macs'] / 1e6:,.0f} | {cost['operators']} |",
            flush=True,
        )


def _cost(step: TrainingGraph, device: str) -> dict[str, Any]:
    from poetc.commands.requests import ModelRequest, SolveRequest

    problem = build_problem(step, load_profile(device), budget_bytes=0)
    request = SolveRequest(model=ModelRequest(source=Path("unused.onnx"), device=device))
    seconds = SEARCH_S
    least = request.planner(seconds).search_ram(problem, seconds).found.ram_bytes
    return {
        "keep_all": keep_all_peak_bytes(problem),
        "least": least or 0,
        "constants": sum(t.size_bytes for t in step.tensors.values() if t.role is Role.CONSTANT),
        "energy_mj": sum(op.energy_pj for op in problem.operators) / 1e9,
        "macs": sum(spec(op.kind).work(bind(op, step.tensors)).macs for op in step.operators),
        "operators": len(step.operators),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("peft", "deeploy", "cost"))
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--device", default="stm32f746")
    parser.add_argument("--ranks", type=int, nargs="*", default=[4, 8, 16])
    parser.add_argument("--batch", type=int, default=1)
    given = parser.parse_args()
    if given.part == "peft":
        with tempfile.TemporaryDirectory() as folder:
            beside_peft(Path(folder))
    elif given.part == "deeploy":
        beside_deeploy(given.paths[0], given.device)
    else:
        for model in given.paths:
            cost_of(model, given.device, given.ranks, given.batch)


if __name__ == "__main__":
    main()
