"""Resize in every mode, convention and rounding: what onnxruntime 1.32 makes of a row of five pixels.

onnx's reference implementation is no oracle here: where length times scale is not whole, it aligns corners (and crops)
at that product, not at the output's last pixel, and it rounds places in double precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.helper import make_node

from poetc.errors import PoetcError
from poetc.frontend import load
from tests.frontend.support import evaluate, make, save
from tests.frontend.test_node_gradients import disagreements

CT = "coordinate_transformation_mode"
PIXELS = np.array([1, 4, 2, 8, 5], np.float32).reshape(1, 1, 1, 5)


@dataclass(frozen=True)
class Case:
    attributes: dict[str, Any]
    expected: list[float]
    scale: float = 0.0
    size: int = 0
    opset: int = 19
    region: tuple[float, float] | None = None


CASES = [
    Case({"mode": "nearest", CT: "half_pixel"}, [1, 1, 4, 2, 2, 8, 5], scale=1.5),
    Case({"mode": "nearest", CT: "pytorch_half_pixel"}, [1, 1, 4, 2, 2, 8, 5], scale=1.5),
    Case({"mode": "nearest", CT: "align_corners"}, [1, 4, 4, 2, 8, 8, 5], scale=1.5),
    Case({"mode": "nearest", CT: "asymmetric"}, [1, 4, 4, 2, 8, 8, 5], scale=1.5),
    Case({"mode": "nearest", CT: "half_pixel_symmetric"}, [1, 4, 4, 2, 8, 8, 5], scale=1.5),
    Case({"mode": "linear", CT: "half_pixel"}, [1, 2.5, 3.66667, 2.33333, 5, 7.5, 5.5], scale=1.5),
    Case({"mode": "linear", CT: "pytorch_half_pixel"}, [1, 2.5, 3.66667, 2.33333, 5, 7.5, 5.5], scale=1.5),
    Case({"mode": "linear", CT: "align_corners"}, [1, 3, 3.33333, 2, 6, 7, 5], scale=1.5),
    Case({"mode": "linear", CT: "asymmetric"}, [1, 3, 3.33333, 2, 6, 7, 5], scale=1.5),
    Case({"mode": "linear", CT: "half_pixel_symmetric"}, [1, 3, 3.33333, 2, 6, 7, 5], scale=1.5),
    Case(
        {"mode": "cubic", CT: "half_pixel"}, [0.739584, 2.6875, 3.86922, 1.81829, 5.09375, 8.09028, 5.53472], scale=1.5
    ),
    Case(
        {"mode": "cubic", CT: "pytorch_half_pixel"},
        [0.739584, 2.6875, 3.86922, 1.81829, 5.09375, 8.09028, 5.53472],
        scale=1.5,
    ),
    Case({"mode": "cubic", CT: "align_corners"}, [1, 3.27778, 3.37037, 2, 6.33334, 7.72222, 5], scale=1.5),
    Case({"mode": "cubic", CT: "asymmetric"}, [1, 3.27778, 3.37037, 2, 6.33334, 7.72222, 5], scale=1.5),
    Case({"mode": "cubic", CT: "half_pixel_symmetric"}, [1, 3.27778, 3.37037, 2, 6.33334, 7.72222, 5], scale=1.5),
    Case({"mode": "cubic", CT: "align_corners"}, [1, 2, 5], scale=0.6),
    Case({"mode": "linear", CT: "align_corners"}, [1], scale=0.3),
    Case({"mode": "nearest", "nearest_mode": "round_prefer_floor"}, [1, 2, 5], scale=0.6),
    Case({"mode": "nearest", "nearest_mode": "round_prefer_floor", CT: "asymmetric"}, [1, 4, 4, 2, 8, 5, 5], scale=1.4),
    Case({"mode": "nearest", "nearest_mode": "round_prefer_ceil"}, [1, 2, 5], scale=0.6),
    Case({"mode": "nearest", "nearest_mode": "round_prefer_ceil", CT: "asymmetric"}, [1, 4, 4, 2, 8, 5, 5], scale=1.4),
    Case({"mode": "nearest", "nearest_mode": "floor"}, [1, 2, 8], scale=0.6),
    Case({"mode": "nearest", "nearest_mode": "floor", CT: "asymmetric"}, [1, 1, 4, 2, 2, 8, 5], scale=1.4),
    Case({"mode": "nearest", "nearest_mode": "ceil"}, [4, 2, 5], scale=0.6),
    Case({"mode": "nearest", "nearest_mode": "ceil", CT: "asymmetric"}, [1, 4, 2, 8, 8, 5, 5], scale=1.4),
    Case({"mode": "nearest", CT: "tf_half_pixel_for_nn"}, [1, 4, 2, 2, 8, 5, 5], scale=1.5, opset=12),
    Case({"mode": "nearest"}, [1, 2, 8], scale=0.7, opset=10),
    Case({"mode": "linear", CT: "tf_half_pixel_for_nn"}, [2, 4, 2.66667, 4, 8, 6, 5], scale=1.5, opset=12),
    Case({"mode": "linear"}, [1, 3.14286, 7.14286], scale=0.7, opset=10),
    Case({"mode": "cubic"}, [0.697531, 2.05556, 3.85597, 2.93964, 2, 5.51852, 8.11934, 6.27778, 4.69753], size=9),
    Case({"mode": "cubic", CT: "pytorch_half_pixel"}, [1], size=1),
    Case({"mode": "linear", CT: "align_corners"}, [1], size=1),
    Case({"mode": "linear", "antialias": 1}, [2.125, 3.77778, 6.125], scale=0.6),
    Case({"mode": "linear", "antialias": 1, "exclude_outside": 1}, [2.28571, 3.77778, 6.28571], scale=0.6),
    Case({"mode": "linear", "antialias": 1, CT: "align_corners"}, [1.76087, 5.58696], scale=0.45),
    Case({"mode": "cubic", "antialias": 1}, [1.99759, 4.04762, 6.34458], scale=0.6),
    Case({"mode": "cubic", "antialias": 1, "exclude_outside": 1}, [2.05612, 4.01852, 6.42347], scale=0.6),
    Case({"mode": "cubic", "antialias": 1, CT: "align_corners"}, [1.53557, 5.86119], scale=0.45),
    Case(
        {"mode": "cubic", "cubic_coeff_a": -0.5},
        [0.82639, 2.625, 3.86342, 1.92824, 5.0625, 7.98611, 5.43055],
        scale=1.5,
    ),
    Case(
        {"mode": "cubic", "exclude_outside": 1},
        [0.695946, 2.54286, 3.86921, 1.81829, 5.09375, 8.03754, 5.49201],
        scale=1.5,
    ),
    Case({"mode": "cubic", "antialias": 1, "cubic_coeff_a": -0.5}, [2.05797, 3.91469, 6.28986], scale=0.6),
    Case(
        {"mode": "nearest", "extrapolation_value": 7.0, CT: "tf_crop_and_resize"},
        [4, 2, 2, 8, 5, 7, 7],
        scale=1.5,
        region=(0.2, 1.3),
    ),
    Case(
        {"mode": "linear", "extrapolation_value": 7.0, CT: "tf_crop_and_resize"},
        [3.4, 2.93333, 3.6, 8, 5.8, 7, 7],
        scale=1.5,
        region=(0.2, 1.3),
    ),
    Case(
        {"mode": "cubic", "extrapolation_value": 7.0, CT: "tf_crop_and_resize"},
        [3.664, 2.58904, 3.36534, 8, 5.96622, 7, 7],
        scale=1.5,
        region=(0.2, 1.3),
    ),
    Case({"mode": "linear", CT: "tf_crop_and_resize"}, [3.2], size=1, region=(0.2, 0.9)),
]


def model_of(case: Case, folder: Path) -> Path:
    weights = {"region": np.zeros(0, np.float32)}
    if case.region is not None:
        weights["region"] = np.array([0, 0, 0, case.region[0], 1, 1, 1, case.region[1]], np.float32)
    if case.scale:
        weights["scales"] = np.array([1, 1, 1, case.scale], np.float32)
        inputs = ["x", "scales"] if case.opset < 11 else ["x", "region", "scales"]
    else:
        weights["sizes"] = np.array([1, 1, 1, case.size])
        inputs = ["x", "region", "", "sizes"]
    node = make_node("Resize", inputs, ["y"], **case.attributes)
    return save(make([node], {"x": (1, 1, 1, 5)}, ["y"], weights, opset=case.opset), folder)


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, (*c.attributes.values(), c.scale or c.size))))
def test_as_onnxruntime(tmp_path: Path, case: Case) -> None:
    y = evaluate(load(model_of(case, tmp_path)), {"x": PIXELS})["y"]
    np.testing.assert_allclose(y.reshape(-1), case.expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("length", "scale", "made"), [(10, 0.7, 7), (5, 0.6, 3), (3, 0.3334, 1), (7, 1.1, 7)])
def test_lengths_are_rounded_in_single_precision(tmp_path: Path, length: int, scale: float, made: int) -> None:
    """As PyTorch's and ONNX's shape inference do: 10 x 0.7 is 7, though the nearest float below 0.7 makes 6.99."""
    weights = {"scales": np.array([1, 1, scale], np.float32)}
    model = make([make_node("Resize", ["x", "", "scales"], ["y"])], {"x": (1, 1, length)}, ["y"], weights)
    assert load(save(model, tmp_path)).tensors["y"].shape == (1, 1, made)


@pytest.mark.parametrize(("policy", "shape"), [("not_larger", (1, 2, 6, 4)), ("not_smaller", (1, 2, 9, 6))])
def test_aspect_ratio_is_kept_along_the_axes_that_are_named(tmp_path: Path, policy: str, shape: Any) -> None:
    attributes = {"axes": [3, 2], "keep_aspect_ratio_policy": policy}
    node = make_node("Resize", ["x", "", "", "sizes"], ["y"], **attributes)
    model = make([node], {"x": (1, 2, 3, 2)}, ["y"], {"sizes": np.array([4, 9])}, opset=19)
    assert load(save(model, tmp_path)).tensors["y"].shape == shape


@pytest.mark.parametrize(
    ("attributes", "scales", "says"),
    [
        ({"mode": "lanczos"}, [1, 1, 2], "mode 'lanczos' is unknown"),
        ({CT: "corners"}, [1, 1, 2], "coordinate_transformation_mode 'corners' is unknown"),
        ({"nearest_mode": "round"}, [1, 1, 2], "nearest_mode 'round' is unknown"),
        ({}, [1, 1, np.nan], "are not all positive numbers"),
        ({}, [1, 1, -1], "are not all positive numbers"),
        ({}, [1, 1, 0.1], r"resizes to \[1, 1, 0\]"),
        ({"axes": [2]}, [1, 1, 2], "3 scales or sizes for 1 axes"),
        ({}, [], "has neither scales nor sizes"),
        ({CT: "tf_crop_and_resize"}, [1, 1, 2], "without a region"),
    ],
)
def test_refused_in_one_line(tmp_path: Path, attributes: Any, scales: Any, says: str) -> None:
    weights = {"scales": np.array(scales, np.float32)}
    node = make_node("Resize", ["x", "", "scales"], ["y"], **attributes)
    with pytest.raises(PoetcError, match=says) as caught:
        load(save(make([node], {"x": (1, 1, 5)}, ["y"], weights, opset=19), tmp_path))
    assert "\n" not in str(caught.value)


SMOOTH = [c for c in CASES if c.attributes["mode"] == "cubic" or c.attributes.get("antialias") or c.region]


@pytest.mark.parametrize("case", SMOOTH, ids=lambda c: "-".join(map(str, (*c.attributes.values(), c.scale or c.size))))
def test_gradients_of_those_that_become_products(tmp_path: Path, case: Case) -> None:
    """Those of the kind `Resize` are in tests/ops/cases/resize.py."""
    compared, wrong = disagreements(load(model_of(case, tmp_path)), {"x": PIXELS})
    assert compared == 1
    assert not wrong
