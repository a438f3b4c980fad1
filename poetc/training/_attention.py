"""The operators of an attention become one: the product of queries and keys, its mask, the softmax, the second product.

The model is looked at as the importer leaves it, whoever exported it: each file has the same few operators there.
Transpositions of queries, keys, values and results, and copies of keys for several heads of queries, become steps of
the operator. Another operator between the products, or another reader, leaves all as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from poetc.graph import Array, Attribute, DType, Fill, Graph, Operator, Role
from poetc.ops import Bound, bind, spec
from poetc.ops._strides import broadcast_strides, contiguous_strides, view_steps
from poetc.training._adapters import SITE
from poetc.training._autodiff import depends_on

LEAST_BYTES = 64 << 10  # of scores: below that they are no more than other tensors of a step
LEAST_QUERIES = 9  # products of fewer rows do not pack
MOST_WORK = 1.0  # of the multiply-adds of the operators apart, in a step
_NOTHING = -1e30  # a score that is as low, or has that added to it, has a share of zero

Ints = tuple[int, ...]


def join_attention(graph: Graph, trained: frozenset[str] = frozenset(), *, drops: bool = False) -> Graph:
    """`graph` with `Attention` in place of operators that are one; itself where there are none.

    A mask that depends on a parameter in `trained` has a gradient, which only the operators apart make. `drops`: shares
    are dropped where the file has a dropout.
    """
    return _Joining(graph, trained, drops).run()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the elements of a matrix product's operand are: steps of `tensor` along the axes that were asked for."""

    tensor: str
    steps: Ints
    depth: int  # operators between


@dataclass(slots=True)
class _Scores:
    """The operators from the first product to the softmax, as they are found from the softmax on."""

    cap: tuple[float, float] | None = None  # factors before the hyperbolic tangent and after it
    mask: tuple[str, Ints] | None = None  # and its steps, along the shape that it is added to
    shape: Ints = ()
    hides: float = -math.inf  # the score of a key that the mask hides
    bands: list[tuple[int, int]] = field(default_factory=list)  # query i sees keys from i plus the one to the other
    is_finite: bool = False  # scores that a band hides


class _Joining:
    def __init__(self, graph: Graph, trained: frozenset[str], drops: bool) -> None:
        self.graph, self.tensors, self.drops = graph, graph.tensors, drops
        self.maker = {t: op for op in graph.operators for t in op.outputs}
        self.readers: dict[str, list[Operator]] = {}
        for op in graph.operators:
            for tensor in dict.fromkeys(op.inputs):
                self.readers.setdefault(tensor, []).append(op)
        self.moving = depends_on(graph.operators, trained)

    def run(self) -> Graph:
        replaced: dict[str, Operator] = {}
        for op in self.graph.operators:
            fused = self._attention(op) if op.kind == "Softmax" else None
            if fused is not None:
                replaced[fused[0].name] = fused[1]
        if not replaced:
            return self.graph
        needed, kept = {*self.graph.outputs}, list[Operator]()
        for op in reversed([replaced.get(op.name, op) for op in self.graph.operators]):
            if not needed.isdisjoint(op.outputs):
                needed.update(op.inputs)
                kept.append(op)
        made_now = {t for op in kept for t in op.outputs}
        tensors = {n: t for n, t in self.tensors.items() if n in made_now or n not in self.maker}
        return replace(self.graph, operators=tuple(reversed(kept)), tensors=tensors)

    def _attention(self, softmax: Operator) -> tuple[Operator, Operator] | None:
        """The operator whose result it makes, and the one in its place."""
        scores = self.tensors[softmax.inputs[0]]
        shape = scores.shape
        if len(shape) < 3 or scores.size_bytes < LEAST_BYTES or scores.dtype is not DType.F32:
            return None
        if softmax.attributes.get("axis", -1) not in (-1, len(shape) - 1) or shape[-2] < LEAST_QUERIES:
            return None
        before, shares = self._unguarded(softmax)
        second, first = self._only_reader(shares), self._scores(before)
        if first is None or second is None or second.kind != "MatMul" or len(second.inputs) != 2:
            return None
        if second.attributes.get("trans_a") or second.attributes.get("alpha", 1.0) != 1.0:
            return None
        if self._seen_through(second.inputs[0]) != shares:
            return None
        return self._joined(*first, second)

    def _unguarded(self, softmax: Operator) -> tuple[str, str]:
        """Scores and shares of a softmax, outside a guard for rows of -infinity. Shares of such a row are zeros anyway.

        The importer writes it so: Where(seen, Softmax(Where(seen, scores, 0)), 0), seen: ReduceMax(scores) > -infinity.
        """
        inside, shares = softmax.inputs[0], softmax.outputs[0]
        soft, zeros = self.maker.get(inside), self._only_reader(shares)
        if soft is None or zeros is None or {soft.kind, zeros.kind} != {"Where"}:
            return inside, shares
        condition, scores, nothing = soft.inputs
        seen = self.maker.get(condition)
        top = self.maker.get(seen.inputs[0]) if seen is not None and seen.kind == "Greater" else None
        if top is None or seen is None or top.kind != "ReduceMax" or top.inputs != (scores,):
            return inside, shares
        constants = [self._constant(t) for t in (seen.inputs[1], nothing, zeros.inputs[2])]
        if [None if c is None or c.size != 1 else float(c.reshape(-1)[0]) for c in constants] != [-math.inf, 0.0, 0.0]:
            return inside, shares
        if (
            zeros.inputs[:2] != (condition, shares)
            or self.readers[scores] != [top, soft]
            or scores in self.graph.outputs
        ):
            return inside, shares
        return scores, zeros.outputs[0]

    def _passes(self, op: Operator) -> bool:
        """Whether the result is the operand, as matrices of the same rows and columns."""
        if op.kind == "DropoutSite" and (self.drops or SITE in op.attributes):
            return False
        if not spec(op.kind).is_view:
            return False
        return self.tensors[op.inputs[0]].shape[-2:] == self.tensors[op.outputs[0]].shape[-2:]

    def _seen_through(self, tensor: str) -> str:
        while (op := self.maker.get(tensor)) is not None and self._passes(op):
            tensor = op.inputs[0]
        return tensor

    def _only_reader(self, tensor: str) -> Operator | None:
        """The operator that alone reads it, perhaps through views of its matrices."""
        while tensor not in self.graph.outputs and len(self.readers.get(tensor, ())) == 1:
            (op,) = self.readers[tensor]
            if not self._passes(op):
                return op
            tensor = op.outputs[0]
        return None

    # --- from the softmax back to the first product ---

    def _scores(self, tensor: str) -> tuple[Operator, _Scores] | None:
        scores, factor, last = _Scores(), 1.0, tensor
        while (op := self.maker.get(tensor)) is not None and (tensor == last or self._only_reader(tensor) is not None):
            if op.kind == "MatMul":
                return None if len(op.inputs) != 2 or factor != 1.0 else (op, scores)
            if self._passes(op):
                before: str | None = op.inputs[0]
            elif op.kind == "Affine" and factor == 1.0 and not op.attributes.get("beta", 0.0):
                before, alpha = op.inputs[0], op.attributes.get("alpha", 1.0)
                assert isinstance(alpha, float)
                if scores.cap is None:
                    factor = alpha
                else:
                    scores.cap = scores.cap[0] * alpha, scores.cap[1]
            elif op.kind == "Tanh" and scores.cap is None:
                before, scores.cap, factor = op.inputs[0], (1.0, factor), 1.0
            elif op.kind in ("Add", "Where") and scores.cap is None and factor == 1.0:
                before = self._masked(op, scores)
            else:
                return None
            if before is None:
                return None
            tensor = before
        return None

    def _masked(self, op: Operator, scores: _Scores) -> str | None:
        """Take the mask of the operator; returns the scores without it, None if that cannot be."""
        shape = self.tensors[op.outputs[0]].shape
        if op.kind == "Where":
            tensor, condition, other, hidden = self._chosen(op)
            fill = self._constant(other)
            if self.tensors[tensor].shape != shape or fill is None or fill.size != 1:
                return None
            value, constant = float(fill.reshape(-1)[0]), self._constant(condition)
            if constant is not None and self._take_band((constant != 0) != hidden, value, shape, scores):
                return tensor
            if hidden and (no := self.maker.get(condition)) is not None and no.kind == "Not":
                condition, hidden = no.inputs[0], False
            return tensor if not hidden and self._take_mask(condition, shape, scores, value) else None
        for tensor, mask in (op.inputs, op.inputs[::-1]):
            if self.tensors[tensor].shape != shape or not self._are_scores(tensor):
                continue
            constant = self._constant(mask)
            if constant is not None and ((constant == 0) | (constant <= _NOTHING)).all():
                most = float(constant.max(where=constant < 0, initial=-np.inf))
                if self._take_band(constant == 0, most, shape, scores):
                    return tensor
            return tensor if self._take_mask(mask, shape, scores, -math.inf) else None
        return None

    def _are_scores(self, tensor: str) -> bool:
        """Whether a product makes it, perhaps through other operators of a chain."""
        op = self.maker.get(tensor)
        if op is None or op.kind == "MatMul":
            return op is not None
        if op.kind in ("Add", "Where"):
            before = op.inputs if op.kind == "Add" else self._chosen(op)[:1]
            return any(self.tensors[t].shape == self.tensors[tensor].shape and self._are_scores(t) for t in before)
        return (op.kind in ("Affine", "Tanh") or self._passes(op)) and self._are_scores(op.inputs[0])

    def _chosen(self, op: Operator) -> tuple[str, str, str, bool]:
        """Of a Where: scores, condition, the number in place of scores, and whether the condition hides them."""
        condition, first, second = op.inputs
        hides = self.tensors[first].type.elements == 1
        return second if hides else first, condition, first if hides else second, hides

    def _take_mask(self, mask: str, shape: Ints, scores: _Scores, hides: float) -> bool:
        """A number that is added to a score, or a byte that hides it.

        None hides keys for good that a band hides, too: a query of which both hide all keys would have other shares.
        """
        while (op := self.maker.get(mask)) is not None and op.kind == "Expand":  # the numbers before they are copied
            mask = op.inputs[0]
        type = self.tensors[mask].type
        if scores.mask is not None or mask in self.moving or type.dtype not in (DType.F32, DType.U8):
            return False
        if math.prod(np.broadcast_shapes(type.shape, shape)) != math.prod(shape):
            return False
        scores.mask, scores.shape, scores.hides = (mask, broadcast_strides(type.shape, shape)), shape, hides
        return True

    def _take_band(self, seen: Array, value: float, shape: Ints, scores: _Scores) -> bool:
        """Whether the same keys near each query are seen in all heads: two numbers tell them. Others score `value`."""
        matrices = seen.reshape(-1, *(1, 1, *seen.shape)[-2:])
        keys = np.broadcast_to(matrices[0], shape[-2:])
        if value > _NOTHING or not keys.any() or (matrices != matrices[:1]).any():
            return False
        if value > -math.inf and not keys.any(axis=1).all():
            return False
        low, high = _band(keys)
        if (keys != _seen_in(low, high, keys.shape)).any():
            return False
        scores.is_finite |= value > -math.inf
        scores.bands.append((low, high))
        return True

    def _constant(self, tensor: str) -> Array | None:
        """The numbers of a constant that is none of the model's weights."""
        root = tensor
        while (op := self.maker.get(root)) is not None and spec(op.kind).is_view:
            root = op.inputs[0]
        value = self.graph.values.get(root)
        if value is None or self.tensors[root].role is not Role.CONSTANT or root in self.moving:
            return None
        shape = self.tensors[tensor].shape
        if isinstance(value, Fill):
            return np.full(shape, {"zeros": 0, "ones": 1}[value.kind]) if value.kind in ("zeros", "ones") else None
        return value.reshape(shape) if isinstance(value, np.ndarray) else None

    # --- the operator ---

    def _joined(self, first: Operator, scores: _Scores, second: Operator) -> tuple[Operator, Operator] | None:
        one, two = bind(first, self.tensors), bind(second, self.tensors)
        *lead, queries, keys = one.outputs[0].shape
        size, width = one.inputs[0].shape[-2 if one.get_int("trans_a") else -1], two.outputs[0].shape[-1]
        heads = math.prod(lead)
        if any(math.prod(t.shape[:-2]) != heads for t in (*one.inputs, two.inputs[1])):
            return None
        if scores.bands and scores.mask is not None and (scores.is_finite or scores.hides > -math.inf):
            return None
        operands = (
            (first.inputs[0], (queries, size), bool(one.get_int("trans_a"))),
            (first.inputs[1], (keys, size), not one.get_int("trans_b")),
            (second.inputs[1], (keys, width), bool(two.get_int("trans_b"))),
        )
        best: tuple[int, Ints, tuple[_Place, ...]] | None = None
        for own in _splits(heads, tuple(lead)):
            places = tuple(self._place(*operand, own, shared=k > 0) for k, operand in enumerate(operands))
            depth = sum(p.depth for p in places if p is not None)
            if None not in places and (best is None or depth > best[0]):
                best = depth, own, places  # type: ignore[assignment]
        if best is None:
            return None
        _, own, (q, k, v) = best
        last, y = self._result(second, (*own, queries, width))
        attributes: dict[str, Attribute] = {
            "sizes": (*own, queries, keys, size, width),
            "q": q.steps,
            "k": (*k.steps[:2], k.steps[3]),
            "v": (*v.steps[:2], v.steps[3]),
            "y": y,
            "shape": self.tensors[last.outputs[0]].shape,
            "alpha": one.get_float("alpha", 1.0),
        }
        if scores.cap is not None:
            attributes["cap"], attributes["capped"] = scores.cap
        if scores.bands:
            band = max(low for low, _ in scores.bands), min(high for _, high in scores.bands)
            if scores.is_finite and not _seen_in(*band, (queries, keys)).any(axis=1).all():
                return None  # a query of which the bands together hide all keys has other shares
            attributes["band"] = band
        inputs = [q.tensor, k.tensor, v.tensor]
        if scores.mask is not None:
            mask, steps = scores.mask
            seen = view_steps(scores.shape, steps, (*own, queries, keys))
            if seen is None:
                return None
            attributes |= {"mask": seen, "hides": scores.hides}
            inputs.append(mask)
        name = f"Attention({last.outputs[0]})"
        new = replace(
            last, name=name, kind="Attention", inputs=tuple(inputs), attributes=attributes, source=second.source
        )
        return (last, new) if self._pays(new, first.outputs[0]) else None

    def _pays(self, new: Operator, scores: str) -> bool:
        """Whether it takes no more multiply-adds than the operators apart, in the forward and the backward pass.

        The backward pass makes the scores again, one product of seven. Keys that a query does not see spare more.
        """
        if scores not in self.moving:
            return True
        op = bind(new, self.tensors)
        types = (*op.inputs[:3], op.outputs[0], *op.inputs[3:])
        back = Bound({**op.attributes, "wants": (1, 1, 1)}, types, op.inputs[:3])
        batch, groups, times, queries, keys, size, width = op.get_ints("sizes")
        apart = 3 * batch * groups * times * queries * keys * (size + width)
        return spec("Attention").work(op).macs + spec("AttentionGrad").work(back).macs <= MOST_WORK * apart

    def _place(self, tensor: str, rows: Ints, turned: bool, own: Ints, *, shared: bool) -> _Place | None:
        """The tensor and the strides by which a product reads an operand, without the movements between them.

        It is the earliest such tensor. None: no strides reach it. `turned`: columns come before rows. `shared`: all
        heads of queries that belong to one head of keys read the same. `own`: extents of batch, group and head.
        """
        want, best = (*own, *(rows[::-1] if turned else rows)), None
        for source, steps, depth in self._steps(tensor, want, 0):
            if turned:
                steps = (*steps[:3], steps[4], steps[3])
            sizes = (*own, *rows)
            moves = [n for n, step in zip(sizes, steps, strict=True) if step]
            reached = [n for axis, n in enumerate(sizes) if not (shared and axis == 2)]
            together = steps[4] == 1 or rows[1] == 1
            alike = not shared or own[2] == 1 or steps[2] == 0
            if together and alike and math.prod(moves) == math.prod(reached) == self.tensors[source].type.elements:
                best = _Place(source, steps[:4], depth)
        return best

    def _steps(self, tensor: str, want: Ints, depth: int) -> Iterator[tuple[str, Ints, int]]:
        """Tensors that have the elements of `tensor`, by steps along `want`: itself first, then those it is made of."""
        yield tensor, _without_ones(want, contiguous_strides(want)), depth
        op = self.maker.get(tensor)
        if op is None or op.kind not in ("Transpose", "Expand", "Reshape"):
            return
        (source,) = op.inputs
        if op.kind == "Reshape":
            yield from self._steps(source, want, depth)
            return
        shape, own = self.tensors[source].shape, self.tensors[tensor].shape
        for there, steps, depth_there in self._steps(source, shape, depth + 1):
            if op.kind == "Transpose":
                seen: Ints = tuple(steps[axis] for axis in bind(op, self.tensors).get_ints("perm"))
            else:
                lead = (0,) * (len(own) - len(shape))
                kept = (0 if n == 1 and m > 1 else s for n, m, s in zip(shape, own[len(lead) :], steps, strict=True))
                seen = (*lead, *kept)
            reached = view_steps(own, seen, want)
            if reached is not None:
                yield there, reached, depth_there

    def _result(self, second: Operator, want: Ints) -> tuple[Operator, Ints]:
        """The operator whose result is to be made, and its steps: a Transpose that alone reads the product, or that."""
        tensor = second.outputs[0]
        while tensor not in self.graph.outputs and len(self.readers.get(tensor, ())) == 1:
            (op,) = self.readers[tensor]
            if op.kind == "Transpose":
                perm = bind(op, self.tensors).get_ints("perm")
                own = contiguous_strides(self.tensors[op.outputs[0]].shape)
                before = tuple(own[perm.index(axis)] for axis in range(len(perm)))
                steps = view_steps(self.tensors[tensor].shape, before, want)
                if steps is not None and (steps[4] == 1 or want[4] == 1):
                    return op, steps[:4]
                break
            if not spec(op.kind).is_view:
                break
            tensor = op.outputs[0]
        return second, _without_ones(want, contiguous_strides(want))[:4]


def _without_ones(shape: Ints, steps: Ints) -> Ints:
    return tuple(0 if n == 1 else step for n, step in zip(shape, steps, strict=True))


def _band(keys: Array) -> tuple[int, int]:
    """The least and the largest j - i of keys j that queries i see."""
    rows, columns = np.nonzero(keys)
    ahead = columns - rows
    return int(ahead.min()), int(ahead.max())


def _seen_in(low: int, high: int, shape: Ints) -> Array:
    """[queries, keys]: whether low <= j - i <= high."""
    ahead = np.arange(shape[1]) - np.arange(shape[0])[:, None]
    seen: Array = (ahead >= low) & (ahead <= high)
    return seen


def _splits(heads: int, lead: Ints) -> Iterator[Ints]:
    """(samples, heads of keys, heads of queries for each): as the product's shape says, else any."""
    batches = [lead[0]] if len(lead) == 2 else [n for n in range(1, heads + 1) if heads % n == 0]
    for batch in batches:
        own = heads // batch
        for times in range(1, own + 1):
            if own % times == 0:
                yield batch, own // times, times
