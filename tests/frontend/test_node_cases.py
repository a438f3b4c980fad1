"""The onnx package's own node tests, for every operator that the importer claims. Each agrees, or is on a list here."""

from __future__ import annotations

import functools
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from poetc.errors import PoetcError
from poetc.frontend import TRANSLATIONS, load
from tests.frontend.support import evaluate, save
from tests.support.onnx_cases import every_case

# Folded or decided at import time, without a translation of their own.
FOLDED = {"Constant", "Shape", "Size", "ConstantOfShape", "Range", "DequantizeLinear", "EyeLike"}
# Read by `--precision qas` alone; otherwise the float model stands for them: tests/frontend/test_quantized.py.
INTEGERS = {"QuantizeLinear"}
# Where poetc means something else on purpose: whether dropout drops and batch norm's mode are decided when training is
# built. tests/ops/test_onnx_training_cases.py runs these.
IN_TRAINING = (
    "training_dropout_default", "training_dropout_default_mask", "training_dropout", "training_dropout_mask",
    "batchnorm_example_training_mode", "batchnorm_epsilon_training_mode",
)  # fmt: skip
# The standard's text, onnxruntime and PyTorch align corners at the output's last pixel, onnx's reference at the product
# of length and scale. tests/frontend/test_resize.py runs these.
AS_ONNXRUNTIME = ("resize_downsample_scales_cubic_align_corners", "resize_downsample_scales_linear_align_corners")
# Mod of floats is x - y floor(x / y) here, so that it has gradients: NaN where y is infinite.
INFINITE = tuple(f"mod_float_edge_cases_fmod_0_float{bits}" for bits in (16, 32, 64))
# Random numbers are their mean outside of training: tests/frontend/test_met.py.
RANDOM = ("bernoulli_expanded", "bernoulli_double_expanded", "bernoulli_seed_expanded")
DIFFERENT = (*IN_TRAINING, *AS_ONNXRUNTIME, *INFINITE, *RANDOM)
# What is refused of an operator that is claimed, by what the message says (docs/reference/operators.md lists it too).
REFUSED = {
    "integers where only floats are trained": r"division of integers|of 8 bits|unsigned integers|not i32|U8"
    r"|not \(u8, u8\)|not \(i32, f32\)",
    "element types": r"element type|a cast to",
    "reductions of nothing": r"of an empty tensor|has no elements",
    "a function of constants alone": r"there is nothing to train|(Range|EyeLike|ConstantOfShape) '.*: this"
    " operator",
    "operator sets before 7": r"is too old",
}


@functools.cache
def cases() -> list[Any]:
    """Those of operators that are claimed, and of nothing else."""
    claimed = set(TRANSLATIONS) - INTEGERS | FOLDED
    return [case for case in every_case() if {n.op_type for n in case.model.graph.node} <= claimed]


def array(value: Any) -> Any:
    """Narrow element types come as protobuf; sequences and optional values are no arrays at all."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def with_constants(model: onnx.ModelProto, arrays: list[np.ndarray], varying: int) -> onnx.ModelProto:
    """The model with static shapes and all but its first `varying` inputs as initializers."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    inputs = list(result.graph.input)
    for info, given in list(zip(inputs, arrays, strict=False))[varying:]:
        result.graph.initializer.append(numpy_helper.from_array(given, info.name))
        result.graph.input.remove(info)
    for info, given in zip(inputs[:varying], arrays, strict=False):
        shape = onnx.helper.make_tensor_type_proto(1, given.shape).tensor_type.shape
        info.type.tensor_type.shape.CopyFrom(shape)
    return result


def outcome(case: Any, folder: Path) -> str:
    """ "" where all outputs agree, else what is wrong: the importer's message, or the outputs that differ."""
    inputs, expected = ([array(a) for a in arrays] for arrays in case.data_sets[0])
    arrays = [np.asarray(a) for a in inputs]
    names = [i.name for i in case.model.graph.input]
    message = ""
    # Some inputs must be constant: then all but the first are.
    for varying in (len(arrays), 1):
        try:
            graph = load(save(with_constants(case.model, arrays, varying), folder))
        except PoetcError as error:
            message = str(error)
            continue
        with np.errstate(all="ignore"):
            results = evaluate(graph, dict(zip(names, arrays, strict=False)))
        made = dict(zip([o.name for o in case.model.graph.output], expected, strict=False))
        return ", ".join(f"{n} differs" for n in results if not close(results[n], np.asarray(made[n])))
    return message


def test_claimed_operators_compute_what_the_standard_says(tmp_path: Path) -> None:
    agreed, refused, wrong = 0, Counter[str](), []
    for case in cases():
        given = [array(a) for arrays in case.data_sets[0] for a in arrays]
        if not all(isinstance(a, (np.ndarray, np.generic)) for a in given):
            continue  # sequences and optional values: not what a network takes
        message = outcome(case, tmp_path)
        name = case.name.removeprefix("test_")
        reason = next((r for r, pattern in REFUSED.items() if re.search(pattern, message)), None)
        if not message:
            agreed += 1
            assert name not in DIFFERENT
        elif reason is not None:
            refused[reason] += 1
        elif name not in DIFFERENT:
            wrong.append(f"{name}: {message}")
    assert not wrong
    assert agreed >= 1200
    assert set(refused) == set(REFUSED)  # what is refused no longer comes off the list


def close(actual: np.ndarray, expected: np.ndarray) -> bool:
    narrow = expected.dtype.itemsize <= 2  # 16-bit cases are computed in f32 here
    relative, absolute = (2e-2, 1e-2) if narrow else (1e-3, 1e-4)
    if actual.shape != expected.shape:
        return False
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    return bool(np.allclose(actual, expected, rtol=relative, atol=absolute, equal_nan=True))
