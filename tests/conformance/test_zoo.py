"""Every outside model is analysed and scheduled, or refused with everything named that is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from poetc.commands.analyze import analyze
from poetc.commands.requests import ModelRequest, training_graph
from poetc.devices import build_problem, load_profile
from poetc.devices.saved import saved_bytes
from poetc.errors import InfeasibleError, LimitError, UnsupportedModelError, UsageError
from poetc.planning import ram_bytes
from poetc.scheduling import keep_all_peak_bytes, verify
from poetc.scheduling.problem import Problem
from poetc.scheduling.schedule import SolveOptions
from poetc.training import TrainingOptions
from tests.conformance.support import files, open_batch
from tests.support.planning import solve_plain

pytestmark = pytest.mark.conformance

ALL = [path for folder in ("light", "zoo", "thirdparty") for path in files(folder, "*.onnx")]
# One exporter's file of each architecture: what is scheduled is the same for all.
ARCHITECTURES = list({path.name.partition(".")[0]: path for path in reversed(ALL)}.values())
STREAMED = ("gru_tagger", "lstm_har", "lenet5")  # with streamed operands too, which takes long for large networks
QUICK = SolveOptions(time_limit_s=3.0, gap=1.0)
# Megabytes that PyTorch 2.13 saves for backward for each further sample of a batch: docs/results/graph-quality.md.
PYTORCH_MB = {
    "ad_autoencoder": 0.0159, "bert_small": 5.710, "gru_tagger": 0.034,
    "densenet121_224": 130.37, "ds_cnn_kws": 0.707, "lenet5": 0.0387, "lstm_har": 0.2655,
    "mobilenetv2_224": 78.21, "mobilenetv2_cifar": 19.07, "mobilenetv2_w035_96": 6.209,
    "mobilenetv3_small_224": 16.17, "nanogpt_tiny": 0.2518, "nanogpt_tiny_defaultinit": 0.2518,
    "proxyless_tiny_64": 2.850, "resnet18_cifar": 4.700, "resnet18_cifar_slim": 0.598, "resnet50_224": 85.91,
    "squeezenet11_224": 21.07, "tcn_har": 0.2096, "unet_bilinear_64": 6.095, "unet_convt_64": 5.177,
    "vgg16_cifar": 1.505, "vit_tiny_cifar": 1.386,
}  # fmt: skip


def request(path: Path, **training: Any) -> ModelRequest:
    """With two rows where the file leaves the batch open."""
    return ModelRequest(source=path, batch=open_batch(path), training=TrainingOptions(random_weights=0, **training))


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_is_analysed(path: Path) -> None:
    is_first = path in ARCHITECTURES  # what others add is how they are read
    streams = is_first and path.name.startswith(STREAMED)
    answer = analyze(request(path), search_s=0.3 if is_first else 0.01, streams=streams)
    assert answer["operators"] > 0
    assert 0 < answer["saved_near_free_bytes"] <= answer["saved_bytes"] < answer["keep_all_peak_bytes"]
    assert 0 < answer["min_budget_bytes"] <= answer["keep_all_peak_bytes"] * 1.1  # packing included
    assert 0 < answer["trained_parameters"] <= answer["parameters"]
    assert answer["step_macs"] >= 2 * answer["forward_macs"] > 0


@pytest.mark.parametrize("path", ARCHITECTURES, ids=lambda path: path.stem)
def test_is_scheduled(path: Path) -> None:
    """At 60 % of the keep-all peak, or a tenth over the smallest budget known where weights make that larger."""
    _, step = training_graph(request(path))
    problem = build_problem(step, load_profile("host"), budget_bytes=0)
    problem = replace(problem, budget_bytes=keep_all_peak_bytes(problem) * 6 // 10)
    try:
        schedule, plan = scheduled(problem)
    except (InfeasibleError, LimitError) as refusal:
        smallest = refusal.details["min_budget_bytes"]
        assert isinstance(smallest, int)
        assert smallest > problem.budget_bytes
        problem = replace(problem, budget_bytes=smallest * 11 // 10)
        schedule, plan = scheduled(problem)
    assert verify(problem, schedule).peak_bytes <= problem.budget_bytes
    assert ram_bytes(problem, plan) <= problem.budget_bytes


def scheduled(problem: Problem) -> Any:
    return solve_plain(problem, "poetc", QUICK)


@pytest.mark.parametrize("name", PYTORCH_MB)
def test_graphs_are_as_lean_as_pytorchs(name: str) -> None:
    """Saved bytes of each further sample; every exporter's file gives the same graph, give or take 2 %."""
    paths = [path for path in files("zoo", f"{name}.*.onnx") if "dynamo_raw" not in path.name]
    found = {}
    for path in paths:
        saved = []
        for batch in (2, 4):
            try:
                _, step = training_graph(replace(request(path), batch=batch))
            except UsageError:
                break  # exported for one batch, with the number in a constant
            saved.append(saved_bytes(build_problem(step, load_profile("host"), budget_bytes=0)))
        else:
            found[path.name] = (saved[1] - saved[0]) / 2e6
    assert found
    assert min(found.values()) <= PYTORCH_MB[name]


def test_mobilenet_keeps_little_more_than_what_convolutions_made() -> None:
    """78 MB in PyTorch."""
    for device in ("host", "rpi4"):
        for path in files("zoo", "mobilenetv2_224.preserve.*"):
            answer = analyze(replace(request(path), device=device), search_s=0.1)
            assert answer["saved_near_free_bytes"] <= 27_000_000
            assert answer["saved_bytes"] <= 54_000_000


def test_what_is_refused_names_every_node(tmp_path: Path) -> None:
    """No file of the folders is refused; one with control flow and a foreign domain is, with both named."""
    model = onnx.load(files("zoo", "lenet5.preserve.onnx")[0])
    for node, domain in zip(model.graph.node[:2], ("ai.onnx.ml", "com.example"), strict=True):
        node.domain = domain
    path = tmp_path / "foreign.onnx"
    onnx.save(model, path)
    with pytest.raises(UnsupportedModelError, match=r"(?s)2 nodes.*ai\.onnx\.ml.*com\.example"):
        analyze(request(path))
