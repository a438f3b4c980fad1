"""Adapters beside peft and beside Deeploy's fixtures, and their cost beside training everything.

    python -m bench.adapters peft                  losses of 100 steps, in the venv of `bench/setup_peers adapters`
    python -m bench.adapters deeploy FOLDER        FOLDER has the directories of DeeployTest/Tests/Models/CCT_Train
    python -m bench.adapters cost MODEL.onnx ...   RAM, flash and energy on a device (--device, --ranks)

docs/results/adapters.md has the tables.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import poetc
from bench._command import Rows, main
from poetc.commands.requests import ModelRequest, SolveRequest, read_problem, with_any_weights
from poetc.graph import Role, TrainingGraph
from poetc.ops import bind, spec
from poetc.scheduling import Problem, keep_all_peak_bytes
from poetc.training import TrainingOptions

DIGITS = Path(__file__).resolve().parents[1] / "demo" / "digits_first_writers.npz"
STEPS, BATCH, RANK, ALPHA, RATE = 100, 16, 4, 8, 0.5
SEARCH_S = 5.0  # for the smallest budget
DEVICE = "stm32f746"


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
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

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


def exported(solution: poetc.Solution, state: Any, folder: Path) -> Path:
    folder.mkdir()
    solution.export(state, folder / "adapter_model.safetensors", adapter=True)
    return folder


def peft() -> Rows:
    """Relative differences of losses from PyTorch's in 64 bits, and of the logits of the exported model."""
    import onnxruntime
    import torch
    from peft import PeftModel

    data = np.load(DIGITS)
    order = np.random.default_rng(0).integers(0, len(data["train_y"]), (STEPS, BATCH))
    images, labels = data["train_x"][order].astype(np.float32)[:, :, None] / 16, data["train_y"][order].astype(np.int32)
    with tempfile.TemporaryDirectory() as scratch:
        file, merged = Path(scratch) / "small.onnx", Path(scratch) / "merged.onnx"
        first = torch.from_numpy(images[0])
        torch.onnx.export(network(), (first,), file, input_names=["image"], dynamo=False, opset_version=17)
        options = TrainingOptions(lora=(f"{RANK}:alpha={ALPHA}",), train="head.*", learning_rate=RATE)
        solution = poetc.load(file, training=options).solve(budget="100%", time_limit_s=SEARCH_S)
        start = exported(solution, None, Path(scratch) / "start")
        losses: dict[str, Any] = {}
        for name, dtype in (("PyTorch and peft, 64 bits", torch.float64), ("PyTorch and peft, 32 bits", torch.float32)):
            model = PeftModel.from_pretrained(network(), start, is_trainable=True).to(dtype)
            trained = [p for p in model.parameters() if p.requires_grad]
            optimizer, losses[name] = torch.optim.SGD(trained, RATE), []
            for image, label in zip(images, labels, strict=True):
                loss = torch.nn.functional.cross_entropy(
                    model(torch.from_numpy(image).to(dtype)), torch.from_numpy(label).long()
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses[name].append(loss.item())
        with solution.trainer() as session:
            losses["poetc"] = [session.step(x, y) for x, y in zip(images, labels, strict=True)]
            logits, state = np.array(session.predict(images[0])), session.state_dict()
        exact = np.array(losses.pop("PyTorch and peft, 64 bits"))
        yield "", *(f"step {n}" for n in (1, 10, 50, STEPS))
        for name, found in losses.items():
            errors = np.abs(np.array(found) - exact) / exact
            yield name, *(f"{errors[:n].max():.1e}" for n in (1, 10, 50, STEPS))
        kept = {n: a for n, a in state.items() if n in solution.artifact.inference.tensors}
        end = exported(solution, kept, Path(scratch) / "end")
        solution.export(kept, merged)
        with torch.no_grad():
            by_peft = PeftModel.from_pretrained(network(), end)(first).numpy()
        by_onnx = onnxruntime.InferenceSession(merged).run(None, {"image": images[0]})[0]
    by_peft, by_onnx = (np.abs(x - logits).max() / np.abs(logits).max() for x in (by_peft, by_onnx))
    yield f"{sum(p.numel() for p in trained):,} trained numbers; losses from {exact[0]:.2f} to {exact[-1]:.2f}"
    yield f"logits: peft with the exported adapter {by_peft:.1e}, onnxruntime with the merged file {by_onnx:.1e}"


def step_of(model: Path, device: str, options: TrainingOptions, batch: int) -> tuple[TrainingGraph, Problem, int]:
    """The training step, its problem, and the smallest budget that is found, in bytes."""
    task = with_any_weights(ModelRequest(source=model, batch=batch, device=device, training=options))
    request = SolveRequest(model=task)
    _, step, _, problem = read_problem(request)
    return step, problem, request.planner(SEARCH_S).search_ram(problem, SEARCH_S).result.ram_bytes or 0


def deeploy(folder: Path, *, device: str = DEVICE) -> Rows:
    """Weights after a step of this machine's C beside those of the fixtures, and RAM."""
    yield "fixture", "trained numbers", "difference", "keep-all peak, bytes", "smallest budget found, bytes"
    for name in ("CCT2_LP", "CCT2_FT1", "CCT2_LoRA1", "CCT2_FT2", "CCT2_LoRA2"):
        model = folder / name / "network_infer.onnx"
        inputs, outputs = (np.load(folder / name / f"{part}.npz") for part in ("inputs", "outputs"))
        nodes = onnx.load(folder / name / "network.onnx").graph.node
        rate = next(a.f for n in nodes if n.op_type == "SGD" for a in n.attribute)
        after = {n.removesuffix("_updated"): outputs[n] for n in outputs.files}
        options = TrainingOptions(train=",".join(after), learning_rate=rate, loss="cross-entropy")
        with poetc.load(model, training=options).solve(budget="100%", time_limit_s=SEARCH_S).trainer() as session:
            session.step(inputs["input"], inputs["labels"].astype(np.int32))
            state = session.state_dict()
        worst = max(np.abs(state[n] - array).max() for n, array in after.items())
        _, problem, least = step_of(model, device, options, 1)
        trained = sum(array.size for array in after.values())
        yield name, f"{trained:,}", f"{worst:.1e}", f"{keep_all_peak_bytes(problem):,}", f"{least:,}"


def cost(
    models: tuple[Path, ...], *, device: str = DEVICE, ranks: tuple[int, ...] = (4, 8, 16), batch: int = 1
) -> Rows:
    """Training everything beside adapters of each rank; MB are millions of bytes."""
    units = "RAM, kept, MB", "RAM, least, MB", "flash, MB", "energy, mJ", "multiply-accumulates, M", "operators"
    yield "network", "trained", "trained numbers", *units
    for model in models:
        for rank in (0, *ranks):
            options = TrainingOptions(lora=(f"{rank}",) if rank else (), optimizer="adam")
            step, problem, least = step_of(model, device, options, batch)
            tensors = step.tensors
            trained = sum(tensors[n].type.elements for n in step.updates if tensors[n].role is Role.PARAMETER)
            flash = sum(t.size_bytes for t in tensors.values() if t.role is Role.CONSTANT)
            macs = sum(spec(op.kind).work(bind(op, tensors)).macs for op in step.operators)
            sizes = (f"{size / 1e6:.2f}" for size in (keep_all_peak_bytes(problem), least, flash))
            energy = f"{problem.compute_once_pj / 1e9:.1f}"
            label = f"rank {rank}" if rank else "all"
            name = model.name.split(".")[0]
            yield name, label, f"{trained:,}", *sizes, energy, f"{macs / 1e6:,.0f}", len(step.operators)


if __name__ == "__main__":
    main(peft, deeploy, cost)
