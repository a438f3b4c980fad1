"""Networks and data of others train on emulated boards: the bits of this machine, the memory that was predicted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conformance.support import MODELS, Answer, needs, poetc

pytestmark = pytest.mark.conformance


def train(model: Path, board: str, batch: int, steps: int, directory: Path, *data: object) -> tuple[Answer, Answer]:
    """Solved for less than keep-all takes, if weights leave room for that; on the board, and on this machine."""
    out, device = directory / "solved", f"qemu-{board}"
    needed = needs(model, batch, device)
    budget = max(needed["min_budget_bytes"] * 11 // 10, needed["keep_all_peak_bytes"] * 7 // 10)
    poetc("solve", model, "--batch", batch, "--device", device, "--budget", budget, "--time-limit", 3, "-o", out)
    on_board, on_host = (
        poetc("run", out, "--on", where, "--steps", steps, *data) for where in (f"qemu:{board}", "host")
    )
    assert on_board["peak_measured_bytes"] == on_board["peak_predicted_bytes"] <= on_board["budget_bytes"]
    assert on_board["losses"] == on_host["losses"]
    assert on_board["state_sha256"] == on_host["state_sha256"]
    flash, predicted = on_board["flash_bytes"], on_board["flash_predicted_bytes"]
    assert predicted == pytest.approx(flash, rel=0.02)
    return on_board, on_host


@pytest.mark.parametrize(
    ("name", "board"),
    [
        ("mlperf_ic_resnet8", "mps2-an500"),
        ("mlperf_kws_f32", "mps2-an386"),
        ("mlperf_ad", "mps2-an386"),
        ("mlperf_vww96", "virt-a72"),
    ],
)
def test_mlperf_tiny_trains_on_a_board(name: str, board: str, tmp_path: Path) -> None:
    train(MODELS / "thirdparty" / f"{name}.onnx", board, 1, 2, tmp_path)


def test_lenet_learns_mnist_on_a_board(tmp_path: Path) -> None:
    with np.load(MODELS / "data" / "mnist_t10k_first2500.npz", allow_pickle=False) as archive:
        x, y = archive["x"][:320], archive["y"][:320]
    images = ((x[:, None].astype(np.float32) / 255) - 0.1307) / 0.3081
    model = MODELS / "reference" / "lenet5.b8.dynamo.onnx"
    (name,) = poetc("analyze", model)["inputs"]
    data = tmp_path / "mnist.npz"
    np.savez(data, **{name: images.astype(np.float32), "target": y.astype(np.int32)})
    on_board, _ = train(model, "mps2-an500", 8, 40, tmp_path, "--data", data)
    losses = on_board["losses"]
    assert np.mean(losses[-8:]) < np.mean(losses[:8])
