"""Attention as one operator, and its gradient: the scores of a few queries exist at a time, not [heads, queries, keys].

A strip of queries has the scores of all keys that it sees, so that softmax needs no running maximum. Rows of scores are
independent of each other, and the gradients of keys and values add up whole blocks of terms. So a result has the same
bits for any number of queries at a time: those of the operators apart, where their products pack. The backward pass
computes a strip of shares again, and saves nothing but queries, keys and values.
Dao et al., FlashAttention (2022), arXiv 2205.14135, and Rabe and Staats (2021), arXiv 2112.05682, do so in blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from poetc.graph import Attribute, DType, Operator, TensorType
from poetc.kernels import Kernel
from poetc.kernels.gemm.packing import workspace_floats
from poetc.kernels.gemm.selection import PackedProduct
from poetc.kernels.operators.attention import LOOPS, AttentionRows, Sizes, steps_in_window
from poetc.ops._bound import Bound
from poetc.ops._builder import Builder
from poetc.ops._cuts import WHOLE, Cut, Part, Range, within_steps
from poetc.ops._registry import Gradients, OpSpec, Work, register
from poetc.ops._strides import strided_view
from poetc.ops.matmul import MatMul

BLOCK_TERMS = 64  # of a sum, where the product apart would not pack
SUM_ROW = 1024  # elements of a block of a row's sum: POETC_SUM_LANES * POETC_SUM_BLOCK
STRIP_FLOATS = 1 << 17  # of all strips of the fastest kernel: they lie in a cache
PART_ROWS = 64, 32  # of a strip that has a band, whose scores are made at a time; the second of short sequences
SHORT = 128  # queries
MOST_ROWS = 128  # of a strip: more of them see keys that others do not see
_LANES = 16  # of a row's sum
_PANELS = (16, 4, 1)
_WORTH = 8  # a kernel saves at least this part of the workspace of the one before
_FEW_ROWS = (64, 32, 16, 8, 4)
_EXP, _TANH = 12, 12  # flops of an element


def _sizes(op: Bound) -> Sizes:
    return Sizes(*op.get_ints("sizes"))


def _shapes(s: Sizes) -> tuple[tuple[int, ...], ...]:
    """Of queries, keys, values and results, as steps lead through them."""
    heads, shared = (s.batch, s.groups, s.times, s.queries), (s.batch, s.groups, s.keys)
    return (*heads, s.size), (*shared, s.size), (*shared, s.width), (*heads, s.width)


def _wants(op: Bound) -> tuple[int, ...]:
    return op.get_ints("wants") if "wants" in op.attributes else ()


def _band(op: Bound) -> tuple[int, int]:
    s = _sizes(op)
    low, high = op.get_ints("band") if "band" in op.attributes else (-s.queries, s.keys)
    return max(low, -s.queries), min(high, s.keys)


def _mask(op: Bound) -> TensorType | None:
    first = 4 if _wants(op) else 3
    return op.inputs[first] if len(op.inputs) > first else None


def _plain(op: Bound) -> list[Bound]:
    """The products of which it is made, apart: scores, results, gradients of shares, queries, values and keys."""
    s = _sizes(op)
    shared = {"small_ram": op.attributes["small_ram"]} if "small_ram" in op.attributes else {}
    batch = (s.batch, s.groups * s.times)
    q, k, v, y, scores = (
        TensorType((*batch, *shape), DType.F32)
        for shape in (
            (s.queries, s.size),
            (s.keys, s.size),
            (s.keys, s.width),
            (s.queries, s.width),
            (s.queries, s.keys),
        )
    )

    def product(a: TensorType, b: TensorType, result: TensorType, turned: str = "") -> Bound:
        return Bound({"trans_a": turned == "a", "trans_b": turned == "b", **shared}, (a, b), (result,))

    forward = [product(q, k, scores, "b"), product(scores, v, y)]
    if not _wants(op):
        return forward
    return [
        *forward,
        product(y, v, scores, "b"),
        product(scores, k, q),
        product(scores, y, v, "a"),
        product(scores, q, k, "a"),
    ]


def _terms(op: Bound) -> tuple[int, ...]:
    """Of a block of each sum: as many as the product apart has, or `BLOCK_TERMS` where that does not pack."""
    terms: list[int] = []
    for part in _plain(op):
        parameters = MatMul().kernel(part).parameters
        depth = part.inputs[0].shape[-2 if part.get_int("trans_a") else -1]
        terms.append(parameters.terms if isinstance(parameters, PackedProduct) else min(depth, BLOCK_TERMS))
    return tuple(terms)


class _Attention(OpSpec):
    cost_like: ClassVar[str] = "MatMul"

    def infer(self, op: Bound) -> tuple[TensorType, ...]:
        s, wants = _sizes(op), _wants(op)
        if not 3 <= len(op.inputs) - bool(wants) <= 4 or min(s.ints()) < 1:
            raise ValueError(f"{self.kind} of sizes {s.ints()} does not take {len(op.inputs)} inputs")
        heads, shapes = (s.batch, s.groups, s.times, s.queries), _shapes(s)
        types = [*op.inputs[:3], op.inputs[3] if wants else TensorType(op.get_ints("shape"), op.inputs[0].dtype)]
        for name, type, shape in zip("qkvy", types, shapes, strict=True):
            _require_reach(f"{self.kind}: {name}", type, op.get_ints(name), shape[:-1], shape[-1])
        mask = _mask(op)
        if mask is not None:
            if mask.dtype not in (DType.F32, DType.U8):
                raise ValueError(f"{self.kind}: the mask has {mask.dtype.value}")
            _require_reach(f"{self.kind}: the mask", mask, op.get_ints("mask"), (*heads, s.keys), 1)
        if not wants:
            return (types[3],)
        return tuple(t for t, wanted in zip(op.inputs[:3], wants, strict=True) if wanted)

    def parts(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Queries, keys and values as [batch, groups, times, rows, size], shares, and the slope of the cap."""
        s = _sizes(op)
        lead = (s.batch, s.groups)
        q = strided_view(inputs[0], (0, *op.get_ints("q"), 1), (*lead, s.times, s.queries, s.size))
        k, v = (
            strided_view(inputs[i], (0, *op.get_ints(name), 1), (*lead, s.keys, size))[:, :, None]
            for i, name, size in ((1, "k", s.size), (2, "v", s.width))
        )
        dtype = q.dtype.type
        scores, slope = np.matmul(q, k.swapaxes(-1, -2)) * dtype(op.get_float("alpha", 1.0)), None
        if "cap" in op.attributes:
            inner, outer = op.get_float("cap"), op.get_float("capped")
            turned = np.tanh(scores * dtype(inner))
            scores, slope = turned * dtype(outer), dtype(outer) * (1 - turned) * (1 + turned) * dtype(inner)
        if _mask(op) is not None:
            mask = strided_view(inputs[-1], (0, *op.get_ints("mask")), scores.shape)
            if mask.dtype == np.uint8:
                scores = np.where(mask != 0, scores, dtype(op.get_float("hides")))
            else:
                scores = scores + mask
        low, high = _band(op)
        ahead = np.arange(s.keys) - np.arange(s.queries)[:, None]
        scores = np.where((ahead >= low) & (ahead <= high), scores, dtype(-np.inf))
        most = scores.max(axis=-1, keepdims=True)
        shares = np.exp(scores - np.where(np.isneginf(most), dtype(0), most))
        total = shares.sum(axis=-1, keepdims=True)
        return q, k, v, shares / np.where(total == 0, dtype(1), total), slope

    def work(self, op: Bound) -> Work:
        p = self.kernel(op).parameters_as(AttentionRows)
        s, strips = p.sizes, list(p.strips())
        scores, visible = sum(rows * keys for rows, keys, _ in strips), sum(v for *_, v in strips)
        flops = s.heads * visible * (_EXP + 4 + _TANH * p.capped + 4 * p.is_backward)
        if not p.is_backward:
            return Work(s.heads * scores * (s.size + s.width), flops)
        want_q, want_k, want_v = p.wants
        macs = scores * (s.size + (s.width if want_q or want_k else 0) + s.size * want_q)
        macs += sum(keys * queries for keys, queries in p.sums()) * (s.width * want_v + s.size * want_k)
        return Work(s.heads * macs, flops)

    def cuts(self, op: Bound) -> tuple[Cut, ...]:
        """By samples, and by heads of keys with the queries that they serve, where steps lead through whole tensors."""
        declared: list[Cut] = []
        extents = dict(zip("qkvy", _shapes(_sizes(op)), strict=True))
        of_operands = ["q", "k", "v", *["y"] * bool(_wants(op)), *["mask"] * (_mask(op) is not None)]
        of_results = [name for name, wanted in zip("qkv", _wants(op), strict=True) if wanted] if _wants(op) else ["y"]
        extents["mask"] = (*extents["q"][:-1], _sizes(op).keys)
        for cut, loop in LOOPS.items():
            parts: list[Part | None] = []
            try:
                for name, type in zip([*of_operands, *of_results], (*op.inputs, *op.outputs), strict=True):
                    steps = op.get_ints(name)
                    steps = (*steps, 1)[: len(extents[name])]
                    part = within_steps(type.elements, 0, steps, extents[name], loop)
                    if part is not None and part.span is not None:
                        raise ValueError(f"{name} lies between other numbers")
                    parts.append(part)
                    is_result = len(parts) > len(op.inputs)
                    if is_result and (part is None or type.elements != math.prod(extents[name])):
                        raise ValueError(f"the gradient of {name} has elements that nobody reads, or is a sum")
            except ValueError:
                continue
            if extents["q"][loop] > 1:
                declared.append(Cut(cut, extents["q"][loop], tuple(parts)))
        return tuple(declared)

    def block(self, op: Bound, cut: Cut, ranges: Sequence[Range]) -> Bound:
        """With its own sizes, and steps within windows."""
        bound = super().block(op, cut, ranges)
        if cut.name == WHOLE:
            return bound
        sizes, loop, ((begin, end),) = [*op.get_ints("sizes")], LOOPS[cut.name], ranges
        attributes: dict[str, Attribute] = {
            name: steps_in_window(op.get_ints(name), loop, sizes[loop], end - begin)
            for name in ("q", "k", "v", "y", "mask")
            if name in op.attributes
        }
        sizes[loop] = end - begin
        attributes["sizes"] = tuple(sizes)
        if "shape" in op.attributes:
            attributes["shape"] = bound.outputs[0].shape
        return Bound({**op.attributes, **attributes}, bound.inputs, bound.outputs)

    def kernel(self, op: Bound) -> Kernel:
        return next(self._kernels(op))

    def kernels(self, op: Bound) -> tuple[Kernel, ...]:
        """With fewer and fewer queries at a time, and columns that are packed at once."""
        offered: list[Kernel] = []
        for kernel in self._kernels(op):
            if not offered or _WORTH * kernel.workspace_bytes <= (_WORTH - 1) * offered[-1].workspace_bytes:
                offered.append(_numbered(kernel, len(offered)))
        return tuple(offered)

    def _kernels(self, op: Bound) -> Iterator[Kernel]:
        s, wants, mask, terms = _sizes(op), _wants(op), _mask(op), _terms(op)
        low, high = _band(op)
        cap = op.get_float("cap", 1.0), op.get_float("capped", 1.0)
        floats = (op.get_float("alpha", 1.0), *cap, op.get_float("hides", -math.inf))
        symbol = "poetc_op_attention_grad" if wants else "poetc_op_attention"
        for rows, panels in _choices(op):
            product = _product_workspace_floats(op, terms, panels)
            parameters = AttentionRows(
                s,
                rows,
                min(rows, _part(s)) if wants and "band" in op.attributes else rows,
                _align(s.keys, (terms[1], *terms[3:4])),
                low,
                high,
                0 if mask is None else 1 if mask.dtype is DType.F32 else 2,
                "cap" in op.attributes,
                op.get_ints("mask") if mask is not None else (0,) * 5,
                op.get_ints("q"),
                op.get_ints("k"),
                op.get_ints("v"),
                op.get_ints("y"),
                terms,
                product,
                wants,
            )
            held = _strips(op) * _aligned(rows * s.keys) + product + _held(op)
            yield Kernel(symbol, parameters, floats, 4 * held)


def _numbered(kernel: Kernel, number: int) -> Kernel:
    return Kernel(kernel.symbol, kernel.parameters, kernel.floats, kernel.workspace_bytes, number)


def _align(keys: int, terms: Sequence[int]) -> int:
    """Leading keys that nobody sees may be left out in so many: each block of a sum then has the terms that it had."""
    return math.lcm(SUM_ROW if keys > SUM_ROW else _LANES, *(n for n in terms if n < keys))


def _strips(op: Bound) -> int:
    """Strips of scores that are held at a time."""
    return 1 if not _wants(op) else 2 + ("cap" in op.attributes)


def _held(op: Bound) -> int:
    """Floats of sums of one head, where several heads of queries share keys and values."""
    s, wants = _sizes(op), _wants(op)
    if not wants or s.times == 1:
        return 0
    return _aligned(s.keys * s.size) * wants[1] + _aligned(s.keys * s.width) * wants[2]


def _part(s: Sizes) -> int:
    return PART_ROWS[s.queries < SHORT]


def _aligned(floats: int) -> int:
    return -(-floats // 4) * 4


def _product_workspace_floats(op: Bound, terms: Sequence[int], panels: int) -> int:
    """The f32 numbers of the workspace that the products of attention share: those of the largest."""
    floats = []
    for part, n in zip(_plain(op), terms, strict=True):
        floats.append(workspace_floats(part.outputs[0].shape[-1], n, panels, bool(part.get_int("trans_a"))))
    return _aligned(max(floats))


def _choices(op: Bound) -> Iterator[tuple[int, int]]:
    """(queries, panels) at a time: the fastest one first, then fewer and fewer."""
    s = _sizes(op)
    unit = math.lcm(*_terms(op)[4:]) if _wants(op) else 4
    if unit >= s.queries:
        steps = [s.queries]
    else:
        fits = STRIP_FLOATS // _strips(op) // s.keys // unit * unit
        limit = min(MOST_ROWS, max(_part(s), s.queries // 4)) if "band" in op.attributes else MOST_ROWS
        most = min(s.queries, max(unit, min(64, limit) // unit * unit, min(fits, limit // unit * unit)))
        steps = [most, *(n for n in dict.fromkeys([*(_FEW_ROWS if unit == 4 else ()), unit]) if n < most)]
    for panels in _PANELS:
        yield steps[0], panels
    for rows in steps[1:]:
        yield rows, _PANELS[-1]


def _require_reach(name: str, type: TensorType, steps: Sequence[int], shape: Sequence[int], last: int) -> None:
    if len(steps) not in (len(shape), len(shape) + 1):
        raise ValueError(f"{name} has {len(steps)} steps for {len(shape)} axes")
    reach = sum(step * (n - 1) for step, n in zip(steps, (*shape, last), strict=False))
    if min(steps) < 0 or reach + (last - 1 if len(steps) == len(shape) else 0) >= type.elements:
        raise ValueError(f"{name} of shape {type.shape} has no element at the end of {tuple(shape)} in steps {steps}")


@register
class Attention(_Attention):
    summary = (
        "(q, k, v, [mask]): softmax(cap(alpha · q kᵀ) + mask) v. Steps `q`, `k`, `v`, `y`, `mask` lead through `sizes`:"
        " batch, heads of keys, heads of queries for each, queries, keys, size, width. `band`: j - i of keys seen"
    )

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        *_, v, shares, _ = self.parts(op, inputs)
        result = np.empty(op.get_ints("shape"), v.dtype)
        y = np.matmul(shares, v)
        strided_view(result, (0, *op.get_ints("y"), 1), y.shape)[...] = y
        return (result,)

    def gradient(self, b: Builder, op: Operator, grads: Gradients, needed: Sequence[bool]) -> Gradients:
        """Gradients of q, k and v. The mask gets none: attention with a trained mask is not fused to one operator."""
        result: list[str | None] = [None] * len(op.inputs)
        if grads[0] is None or not any(needed[:3]):
            return result
        attributes: dict[str, Attribute] = {n: a for n, a in op.attributes.items() if n != "shape"}
        attributes["wants"] = tuple(int(n) for n in needed[:3])
        gradients = iter(b.emit("AttentionGrad", [*op.inputs[:3], grads[0], *op.inputs[3:]], attributes))
        result[:3] = [next(gradients) if wanted else None for wanted in needed[:3]]
        return result


@register
class AttentionGrad(_Attention):
    summary = "Gradients of Attention in q, k and v, those of `wants`, from (q, k, v, gy, [mask])"

    def evaluate(self, op: Bound, inputs: Sequence[Any]) -> tuple[Any, ...]:
        q, k, v, shares, slope = self.parts(op, inputs)
        s, alpha = _sizes(op), q.dtype.type(op.get_float("alpha", 1.0))
        gy = strided_view(inputs[3], (0, *op.get_ints("y"), 1), (*q.shape[:4], s.width))
        by_share = np.matmul(gy, v.swapaxes(-1, -2))
        by_score = shares * (by_share - (by_share * shares).sum(axis=-1, keepdims=True))
        if slope is not None:
            by_score = by_score * slope
        gradients = (
            np.matmul(by_score, k) * alpha,
            (np.matmul(by_score.swapaxes(-1, -2), q) * alpha).sum(axis=2),
            np.matmul(shares.swapaxes(-1, -2), gy).sum(axis=2),
        )
        results = []
        for operand, name, gradient, wanted in zip(inputs, "qkv", gradients, _wants(op), strict=False):
            if wanted:
                whole = np.zeros_like(operand)
                strided_view(whole, (0, *op.get_ints(name), 1), gradient.shape)[...] = gradient
                results.append(whole)
        return tuple(results)
