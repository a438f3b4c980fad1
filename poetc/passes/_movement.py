"""Products read and write in place tensors that would be transposed or sliced first.

Attention turns queries, keys and values round before its products and their results after them, and the backward pass
does the same with the gradients. A product that takes steps for rows and columns (MatMulOfViews) needs none of that. A
Transpose, Slice or Split whose result only such products read goes, and so does a Transpose that alone reads the result
of a product. Sums are of the same terms in the same order: results keep their bits.

Memory: the tensor that is read instead must cost none. It has the size of the one that goes (a Transpose), or is kept
by somebody else as long. Or it is read by as many bytes of slices as it has. No product may need more than the operator
that needs the most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from poetc.graph import DType, Operator, TrainingGraph
from poetc.kernels.gemm.selection import FEW, PackedProduct
from poetc.ops import bind, spec
from poetc.ops._strides import contiguous_strides, view_steps
from poetc.ops.matmul import fits_views
from poetc.ops.movement import slice_steps
from poetc.passes._indexed import Indexed
from poetc.passes._memory import most_bytes, operator_bytes

Ints = tuple[int, ...]
MOVEMENTS = ("Transpose", "Slice", "Split")


class View(NamedTuple):
    """Elements of `tensor`, which is stored: from number `start` on in `steps` along a shape."""

    tensor: str
    start: int
    steps: Ints


def read_in_place(graph: TrainingGraph) -> TrainingGraph:
    """The graph with fewer operators; itself under the training option `fusion: False`."""
    return _Movement(graph).run() if graph.options.get("fusion", True) else graph


class _Movement(Indexed):
    def __init__(self, graph: TrainingGraph) -> None:
        super().__init__(graph)
        self.tensors = graph.tensors
        self.results = {graph.loss, *graph.outputs, *graph.updates.values(), *graph.gradients.values()}
        self.most_bytes = most_bytes(graph)
        self.products = [op for op in graph.operators if op.kind == "MatMul" and self._packs(op)]
        # The operators that go, unless something turns up that speaks against it.
        self.written = {op.name: turned for op in self.products if (turned := self._turned(op)) is not None}
        taken = {op.name for op in self.written.values()}
        self.read = {
            op.name
            for op in graph.operators
            if op.kind in MOVEMENTS and op.name not in taken and self.tensors[op.inputs[0]].dtype is DType.F32
        }
        self.seen_through: dict[str, list[str]] = {}  # by operator that may go, the products behind it
        for op in self.products:
            for mover in (m for t in op.inputs[:2] for m in self._movers(t)):
                self.seen_through.setdefault(mover.name, []).append(op.name)

    def run(self) -> TrainingGraph:
        rewritten: dict[str, Operator] = {}
        while not self._settle(rewritten):
            pass
        gone = self.read | {op.name for op in self.written.values()}
        if not gone:
            return self.graph
        operators = [rewritten.get(op.name, op) for op in self.graph.operators if op.name not in gone]
        needed = {t for op in operators if not spec(op.kind).is_view for t in op.inputs} | self.results
        kept: list[Operator] = []
        for op in reversed(operators):  # views that nothing reads any more go too
            if not spec(op.kind).is_view or op.outputs[0] in needed:
                needed.update(op.inputs)
                kept.append(op)
        outputs = {t for op in kept for t in op.outputs}
        tensors = {name: t for name, t in self.tensors.items() if name in outputs or name not in self.maker}
        return replace(self.graph, operators=tuple(reversed(kept)), tensors=tensors)

    def _settle(self, rewritten: dict[str, Operator]) -> bool:
        """One round: the products as they would be go to `rewritten`. False: something stays after all, look again.

        Those of earlier rounds that nothing changed are in `rewritten` already.
        """
        for op in self.products:
            if op.name in rewritten:
                continue
            product = self._of_views(op)
            if product is None:
                before = set(self.read)
                self._stay(op)
                self._forget(rewritten, before)
                return False
            rewritten[op.name] = product
        before = set(self.read)
        self.read -= {
            op.name for op in self.graph.operators if op.name in self.read and not self._may_go(op, rewritten)
        }
        self._forget(rewritten, before)
        return self.read == before

    def _forget(self, rewritten: dict[str, Operator], before: set[str]) -> None:
        """Drop the products that see an operand through an operator that now stays; all where one may go after all."""
        if self.read - before:
            rewritten.clear()
        for mover in before - self.read:
            for product in self.seen_through.get(mover, ()):
                rewritten.pop(product, None)

    def _stay(self, product: Operator) -> None:
        """Something before or after the product stays.

        An operator that cuts, as its source is large; else one that turns the result; else one that turns operands.
        """
        movers = [mover for t in product.inputs[:2] for mover in self._movers(t)]
        cuts = {mover.name for mover in movers if mover.kind != "Transpose"}
        if not cuts and product.name in self.written:
            self.read.add(self.written.pop(product.name).name)
        else:
            self.read -= cuts or {mover.name for mover in movers}

    def _packs(self, op: Operator) -> bool:
        return isinstance(spec(op.kind).kernel(bind(op, self.tensors)).parameters, PackedProduct)

    def _turned(self, product: Operator) -> Operator | None:
        """The Transpose that alone reads the result of `product`."""
        tensor = product.outputs[0]
        while len(self.readers[tensor]) == 1 and tensor not in self.results:
            (op,) = self.readers[tensor]
            if op.kind == "Transpose":
                return op
            if not spec(op.kind).is_view:
                return None
            tensor = op.outputs[0]
        return None

    def _movers(self, tensor: str) -> Iterator[Operator]:
        """Through which `tensor` is seen."""
        while (op := self.maker.get(tensor)) is not None and (op.name in self.read or spec(op.kind).is_view):
            if op.name in self.read:
                yield op
            tensor = op.inputs[0]

    def _look(self, tensor: str) -> View | None:
        """Where the elements of `tensor` are; None if no steps reach them."""
        op, shape = self.maker.get(tensor), self.tensors[tensor].shape
        if op is None or not (op.name in self.read or spec(op.kind).is_view):
            return View(tensor, 0, contiguous_strides(shape))
        source = self._look(op.inputs[0])
        if source is None:
            return None
        bound = bind(op, self.tensors)
        stored, start, steps = source
        if op.kind == "Transpose":
            return View(stored, start, tuple(steps[axis] for axis in bound.get_ints("perm")))
        if op.kind == "Slice":
            begin, times = bound.get_ints("starts"), slice_steps(bound)
            start += sum(b * s for b, s in zip(begin, steps, strict=True))
            return View(stored, start, tuple(t * s for t, s in zip(times, steps, strict=True)))
        if op.kind == "Split":
            axis = bound.get_int("axis") % len(shape)
            before = sum(bound.get_ints("sizes")[: op.outputs.index(tensor)])
            return View(stored, start + before * steps[axis], steps)
        seen = view_steps(bound.inputs[0].shape, steps, shape)
        return None if seen is None else View(stored, start, seen)

    def _result(self, op: Operator) -> tuple[str, Ints] | None:
        """The tensor that the product is to make, with steps along its own result's shape; None if there is none."""
        tensor, shape = op.outputs[0], self.tensors[op.outputs[0]].shape
        turned = self.written.get(op.name)
        if turned is None:
            return tensor, contiguous_strides(shape)
        (result,), perm = turned.outputs, bind(turned, self.tensors).get_ints("perm")
        own = contiguous_strides(self.tensors[result].shape)
        before = tuple(own[perm.index(axis)] for axis in range(len(perm)))
        steps = view_steps(self.tensors[turned.inputs[0]].shape, before, shape)
        return None if steps is None else (result, steps)

    def _of_views(self, op: Operator) -> Operator | None:
        """The product in place of `op`, itself if it reads nothing through operators that go; None if it cannot be."""
        if op.name not in self.written and not any(True for t in op.inputs[:2] for _ in self._movers(t)):
            return op
        a, b, y = self._look(op.inputs[0]), self._look(op.inputs[1]), self._result(op)
        at = self.place[op.name]
        if a is None or b is None or y is None or any(self.updated.get(v.tensor, at) < at for v in (a, b)):
            return None
        bound = bind(op, self.tensors)
        *batch, m, n = bound.outputs[0].shape
        steps_a, steps_b = (
            _broadcast(v.steps, t.shape, len(batch)) for v, t in zip((a, b), bound.inputs, strict=False)
        )
        if bound.get_int("trans_a"):
            steps_a = (*steps_a[:-2], steps_a[-1], steps_a[-2])
        if bound.get_int("trans_b"):
            steps_b = (*steps_b[:-2], steps_b[-1], steps_b[-2])
        k = bound.inputs[0].shape[-2 if bound.get_int("trans_a") else -1]
        operands, sizes = [a, b], (*batch, m, n, k)
        views = [(a.start, *steps_a), (b.start, *steps_b), (0, *y[1])]
        if not fits_views(*views) and len(op.inputs) == 2:  # the transposed result: op(b)' op(a)'
            operands, sizes = [b, a], (*batch, n, m, k)
            views = [(*v[:-2], v[-1], v[-2]) for v in (views[1], views[0], views[2])]
        if not fits_views(*views):
            return None
        kernel = spec(op.kind).kernel(bound).parameters_as(PackedProduct)
        new = replace(
            op,
            name=f"MatMulOfViews({y[0]})",
            kind="MatMulOfViews",
            inputs=(*(v.tensor for v in operands), *op.inputs[2:]),
            outputs=(y[0],),
            attributes={
                **dict(zip("aby", views, strict=True)),
                "sizes": sizes,
                "shape": self.tensors[y[0]].shape,
                "alpha": bound.get_float("alpha", 1.0),
                "terms": kernel.terms,
            },
        )
        product = spec(new.kind).kernel(bind(new, self.tensors)).parameters_as(PackedProduct)
        if product.rows <= FEW or product.matrices > kernel.matrices:  # each would pack the operand
            return None
        return new if operator_bytes(new, self.tensors, self.roots) <= self.most_bytes else None

    def _may_go(self, mover: Operator, rewritten: dict[str, Operator]) -> bool:
        """Whether only products read the result of `mover`, and its source may be kept for them."""
        last, waiting = -1, list(mover.outputs)
        while waiting:
            tensor = waiting.pop()
            if tensor in self.results:
                return False
            for op in self.readers[tensor]:
                if op.name in self.read or spec(op.kind).is_view:
                    waiting += op.outputs
                elif op.name in rewritten and tensor not in op.inputs[2:]:
                    last = max(last, self.place[op.name])
                else:
                    return False
        if mover.kind == "Transpose":
            return True
        stored = self.roots[mover.inputs[0]]
        sliced = kept = 0
        for op in self._readers_of(stored):
            if op.name in self.read:
                sliced += sum(self.tensors[t].size_bytes for t in op.outputs)
            else:
                kept = max(kept, self.place[op.name])
        return kept >= last or sliced >= self.tensors[stored].size_bytes

    def _readers_of(self, stored: str) -> Iterator[Operator]:
        """Itself or through views."""
        for op in self.readers[stored]:
            if spec(op.kind).is_view:
                yield from self._readers_of(op.outputs[0])
            else:
                yield op


def _broadcast(steps: Ints, shape: Sequence[int], rank: int) -> Ints:
    """Steps along `rank` batch axes, then the matrix's own."""
    own = tuple(0 if n == 1 else s for n, s in zip(shape[:-2], steps[:-2], strict=True))
    return (*(0,) * (rank - len(own)), *own, *steps[-2:])
