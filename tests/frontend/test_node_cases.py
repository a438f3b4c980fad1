"""The onnx package's own node tests, for every operator that the importer claims."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from poetc.errors import PoetcError, UnsupportedModelError
from poetc.frontend import load
from poetc.frontend._node import TRANSLATIONS
from tests.frontend.support import evaluate, save

# Folded or decided at import time, without a translation of their own.
FOLDED = {"Constant", "Shape", "Size", "ConstantOfShape", "Range", "DequantizeLinear", "EyeLike"}
# Where poetc means something else on purpose: whether dropout drops and batch norm's mode are decided when training is
# built (tests/ops/test_onnx_training_cases.py has these cases). A row of attention that sees nothing is not a number.
DIFFERENT = (
    "test_training_dropout",
    "test_batchnorm_example_training_mode",
    "test_batchnorm_epsilon_training_mode",
    "nan_robustness",
    "fullymasked",
    "qk_matmul_output_mode3_softmax_precision",
)


def cases() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        found = collect_testcases(None)
    for case in found:
        if {n.op_type for n in case.model.graph.node} <= set(TRANSLATIONS) | FOLDED and case.data_sets:
            yield case


def with_constants(model: onnx.ModelProto, arrays: list[np.ndarray], varying: int) -> onnx.ModelProto:
    """The model with static shapes and all but its first `varying` inputs as initializers."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    inputs = list(result.graph.input)
    for info, array in list(zip(inputs, arrays, strict=False))[varying:]:
        result.graph.initializer.append(numpy_helper.from_array(array, info.name))
        result.graph.input.remove(info)
    for info, array in zip(inputs[:varying], arrays, strict=False):
        shape = onnx.helper.make_tensor_type_proto(1, array.shape).tensor_type.shape
        info.type.tensor_type.shape.CopyFrom(shape)
    return result


def test_claimed_operators_compute_what_the_standard_says(tmp_path: Path) -> None:
    agreed = 0
    wrong: list[str] = []
    for case in cases():
        inputs, expected = case.data_sets[0]
        if not all(isinstance(a, (np.ndarray, np.generic)) for a in (*inputs, *expected)):
            continue
        arrays = [np.asarray(a) for a in inputs]
        names = [i.name for i in case.model.graph.input]
        for varying in (len(arrays), 1):
            try:
                graph = load(save(with_constants(case.model, arrays, varying), tmp_path))
            except UnsupportedModelError:
                continue  # perhaps what it refuses is only an input that must be constant
            except PoetcError:
                break
            with np.errstate(all="ignore"):
                results = evaluate(graph, dict(zip(names, arrays, strict=False)))
            made = dict(zip([o.name for o in case.model.graph.output], expected, strict=False))
            if all(close(results[name], np.asarray(made[name])) for name in results):
                agreed += 1
            elif not any(part in case.name for part in DIFFERENT):
                wrong.append(case.name)
            break
    assert not wrong
    assert agreed >= 880


def close(actual: np.ndarray, expected: np.ndarray) -> bool:
    narrow = expected.dtype.itemsize <= 2  # 16-bit cases are computed in f32 here
    relative, absolute = (2e-2, 1e-2) if narrow else (1e-3, 1e-4)
    if actual.shape != expected.shape:
        return False
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    return bool(np.allclose(actual, expected, rtol=relative, atol=absolute, equal_nan=True))
