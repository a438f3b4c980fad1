"""The ranges of integers, and the NaNs that a model replaces, by the element of a sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_node

from poetc.datasets import slots_of
from poetc.errors import UsageError
from poetc.frontend import load
from poetc.graph import DType
from poetc.program import require_values
from poetc.training import TrainingOptions, build
from tests.frontend.support import make, normal, save
from tests.support.cases import CASES


def _columns(tmp_path: Path, way: str) -> Path:
    """Two columns of one tensor, indices into tables of 7 and of 600 rows."""
    cuts = {
        "Gather": [make_node("Gather", ["cats", f"at{k}"], [f"c{k}"], axis=1) for k in (0, 1)],
        "Slice": [
            node
            for k in (0, 1)
            for node in (
                make_node("Slice", ["cats", f"from{k}", f"to{k}", "one"], [f"s{k}"]),
                make_node("Squeeze", [f"s{k}", "one"], [f"c{k}"]),
            )
        ],
        "Split": [
            make_node("Split", ["cats", "halves"], ["s0", "s1"], axis=1),
            *(make_node("Squeeze", [f"s{k}", "one"], [f"c{k}"]) for k in (0, 1)),
        ],
    }
    nodes = [
        *cuts[way],
        make_node("Gather", ["small", "c0"], ["e0"]),
        make_node("Gather", ["large", "c1"], ["e1"]),
        make_node("Add", ["e0", "e1"], ["e"]),
        make_node("MatMul", ["e", "w"], ["y"]),
    ]
    weights = {"small": normal(7, 4), "large": normal(600, 4), "w": normal(4, 3), "halves": np.array([1, 1])}
    weights |= {"one": np.array([1]), **{f"at{k}": np.array(k) for k in (0, 1)}}
    weights |= {f"from{k}": np.array([k]) for k in (0, 1)} | {f"to{k}": np.array([k + 1]) for k in (0, 1)}
    return save(make(nodes, {"cats": (TensorProto.INT64, (4, 2))}, ["y"], weights), tmp_path)


@pytest.mark.parametrize("way", ["Gather", "Slice", "Split"])
@pytest.mark.parametrize("parts", [1, 2])
def test_each_column_has_the_range_of_its_own_table(tmp_path: Path, way: str, parts: int) -> None:
    path = _columns(tmp_path, way)
    part = load(path, rows=4 // parts)
    step = build(load(path), TrainingOptions(loss="mse", micro_batches=parts), part)
    slot = slots_of(step)[0]
    assert slot.limit is not None
    assert slot.limit.parts == ((-7, 6), (-600, 599))
    good = np.array([[6, 599], [-7, 535], [0, 0]])
    require_values(good, DType.I32, slot.limit, "d.npz", "cats", is_target=False)
    for row, column, value, message in (
        (0, 0, 535, r"cats\[10, 0\] is 535, not -7 to 6"),
        (2, 1, 600, r"cats\[12, 1\] is 600, not -600 to 599"),
    ):
        bad = good.copy()
        bad[row, column] = value
        with pytest.raises(UsageError, match=message):
            require_values(bad, DType.I32, slot.limit, "d.npz", "cats", is_target=False, first=10)


def test_a_nan_is_allowed_where_the_graph_replaces_it(tmp_path: Path) -> None:
    for name, batch, missing in (("imputer_mlp", 8, (True,) * 4), ("nan_where", None, (True,) * 3)):
        graph = load(CASES / f"{name}.onnx", batch=batch)
        slot = slots_of(build(graph, TrainingOptions()))[0]
        assert slot.may_miss == missing
        x = np.zeros((2, len(missing)), np.float32)
        x[1, 1] = np.nan
        require_values(x, DType.F32, None, "d", "x", is_target=False, missing=slot.may_miss)
        x[1, 1] = np.inf
        with pytest.raises(UsageError, match=r"x\[1, 1\] is inf, not a finite number"):
            require_values(x, DType.F32, None, "d", "x", is_target=False, missing=slot.may_miss)


def test_a_column_that_is_read_as_it_is_takes_no_nan(tmp_path: Path) -> None:
    """Column 0 is imputed and read by the mask; column 1 goes straight to the layer."""
    nodes = [
        make_node("Split", ["x", "halves"], ["a", "b"], axis=1),
        make_node("IsNaN", ["a"], ["gap"]),
        make_node("Where", ["gap", "mean", "a"], ["filled"]),
        make_node("Concat", ["filled", "b"], ["c"], axis=1),
        make_node("MatMul", ["c", "w"], ["y"]),
    ]
    weights = {"halves": np.array([1, 1]), "mean": np.array([2.5], np.float32), "w": normal(2, 3)}
    graph = load(save(make(nodes, {"x": (4, 2)}, ["y"], weights), tmp_path))
    slot = slots_of(build(graph, TrainingOptions(loss="mse")))[0]
    assert slot.may_miss == (True, False)
    x = np.array([[np.nan, 1], [0, np.nan]], np.float32)
    with pytest.raises(UsageError, match=r"x\[1, 1\] is nan"):
        require_values(x, DType.F32, None, "d", "x", is_target=False, missing=slot.may_miss)
