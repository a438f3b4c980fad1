"""Products whose sums have few bits: chunk-based accumulation (Wang et al., NeurIPS 2018).

A chunk of terms is added up, then the chunks, one after the other. Every addition of f32 is rounded to the grid of
`poetc.ops.few_bits`, to nearest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from poetc.graph import TensorType
from poetc.kernels import Kernel, Parameters
from poetc.ops import _narrow_sums as sums
from poetc.ops._bound import Bound
from poetc.ops._narrow_kernels import NarrowConvolution, NarrowProduct
from poetc.ops._registry import Work, register, spec
from poetc.ops.few_bits import LEAST_LOW, MOST_MANTISSA, MOST_POWER, rounded
from poetc.ops.narrow import Narrowed, kernel_of, loaded, plain

KINDS = {
    "Conv": "conv",
    "ConvGradInput": "conv_grad_input",
    "ConvGradWeight": "conv_grad_weight",
    "MatMul": "matmul",
}
MOST_CHUNK = 1 << 20
MOST_BITS = MOST_MANTISSA - 1  # of a mantissa


@dataclass(frozen=True, slots=True)
class Chunked(Parameters):
    product: NarrowConvolution | NarrowProduct
    chunk: int
    low: int
    mantissa: int
    power: int


@register
class NarrowedChunks(Narrowed):
    summary = (
        "Narrowed, bf16 or f32 operands and f32 results. Sums of `chunk` terms, then of chunks, on the grid `low`, "
        "`mantissa`, `largest` times 2^`power` after every addition"
    )
    cost_like = "Narrowed"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        if op.get_str("of") not in KINDS or op.get_str("dtype") != "bf16" or any(f not in (0, 1) for f in _forms(op)):
            raise ValueError(f"{self.kind}: {op.get_str('of')} with forms {_forms(op)} has no sums in chunks")
        types = super().infer(op)
        low, mantissa, power = (op.get_int(name) for name in ("low", "mantissa", "power"))
        if not (min(low, low + power) >= LEAST_LOW and low <= 0 <= mantissa <= MOST_BITS and abs(power) <= MOST_POWER):
            raise ValueError(f"{self.kind}: low {low}, mantissa {mantissa} or power {power} is beyond its range")
        if not 1 <= op.get_int("chunk") <= MOST_CHUNK or any(t.dtype.is_narrow for t in types):
            raise ValueError(f"{self.kind}: chunks of {op.get_int('chunk')} terms, results {types}")
        return types

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        chunk, low, mantissa = (op.get_int(name) for name in ("chunk", "low", "mantissa"))
        largest, power = op.get_float("largest"), op.get_int("power")

        def on_grid(x: Any) -> Any:
            a = rounded(np.abs(x) * np.float32(2.0**-power), low, mantissa, largest) * np.float32(2.0**power)
            return np.where(x < 0, -a, a).astype(np.float32)

        floats = [
            loaded(x, t.dtype) if t.dtype.is_narrow else x.astype(np.float32)
            for x, t in zip(inputs, op.inputs, strict=True)
        ]
        outputs = sums.evaluate(
            op.get_str("of"), plain(op), floats, partial(sums.product, terms=chunk, rounded=on_grid)
        )
        assert outputs is not None
        return outputs

    def work(self, op: Bound) -> Work:
        whole = spec(op.get_str("of")).work(plain(op))
        return Work(whole.macs, 12 * whole.macs)

    def kernel(self, op: Bound) -> Kernel:
        whole = kernel_of(op)
        assert whole is not None
        product = whole.parameters
        assert isinstance(product, NarrowConvolution | NarrowProduct)
        chunk, low, mantissa, power = (op.get_int(name) for name in ("chunk", "low", "mantissa", "power"))
        parameters = Chunked(replace(product, workspace_floats=0), chunk, low, mantissa, power)
        return Kernel(f"poetc_op_narrow_chunked_{KINDS[op.get_str('of')]}", parameters, (op.get_float("largest"),))

    def may_alias(self, op: Bound) -> tuple[tuple[int, int], ...]:
        return ()


def _forms(op: Bound) -> tuple[int, ...]:
    return tuple(op.get_ints("forms"))
