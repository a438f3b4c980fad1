"""Every outside model is either analysed, or refused with everything named that is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.support import files, poetc

pytestmark = pytest.mark.conformance

ALL = [path for folder in ("light", "zoo", "thirdparty") for path in files(folder, "*.onnx")]
TRAINED = ("lenet5.", "ds_cnn_kws.", "resnet18_cifar", "nanogpt_tiny.", "mlperf_ic_resnet8")


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_is_analysed_or_refused_by_name(path: Path) -> None:
    answer = poetc("analyze", path, code=None)
    if answer.code == 2:
        assert "--batch" in answer["error"]
        answer = poetc("analyze", path, "--batch", 2, code=None)
    assert answer.code in (0, 3), answer.json
    if answer.code == 3:
        assert not path.name.startswith(TRAINED), answer["error"]
        assert "node" in answer["error"] or "operator" in answer["error"]
        return
    assert answer["operators"] > 0
    assert 0 < answer["saved_bytes"] < answer["keep_all_peak_bytes"]
    assert 0 < answer["min_budget_bytes"] <= answer["keep_all_peak_bytes"]
    assert 0 < answer["trained_parameters"] <= answer["parameters"]
    assert answer["step_macs"] >= 2 * answer["forward_macs"] > 0
