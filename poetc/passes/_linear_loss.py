"""A product that runs into cross-entropy, the loss, its gradient and that of the product's input become one operator.

Where logits are large, the planner then has kernels that hold those of a few rows at a time. The weight is frozen: its
gradient would need the logits of all rows at once. Results keep their bits.
"""

from __future__ import annotations

from dataclasses import replace

from poetc.graph import Attribute, Operator, Role, TrainingGraph
from poetc.ops import spec
from poetc.passes._indexed import Indexed

LEAST_BYTES = 256 << 10  # of logits: no microcontroller holds more, and small ones show the accuracy of a step


def join_losses(graph: TrainingGraph) -> TrainingGraph:
    """The graph with its large linear losses in one operator each; itself under the training option `fusion: False`."""
    return _Joining(graph).run() if graph.options.get("fusion", True) else graph


class _Joining(Indexed):
    def __init__(self, graph: TrainingGraph) -> None:
        super().__init__(graph)
        self.results = {*graph.outputs, *graph.updates.values(), *graph.gradients.values()}

    def run(self) -> TrainingGraph:
        operators, gone, tensors = list(self.graph.operators), set[str](), dict(self.graph.tensors)
        for op in self.graph.operators:
            chain = self._chain(op) if op.kind == "CrossEntropy" else None
            if chain is None:
                continue
            new, dropped = chain
            operators[self.place[op.name]] = new
            gone.update(o.name for o in dropped)
            tensors[new.outputs[1]] = replace(tensors[new.outputs[1]], role=Role.GRADIENT)
        if not gone:
            return self.graph
        kept = tuple(o for o in operators if o.name not in gone)
        used = {t for o in kept for t in (*o.inputs, *o.outputs)}
        lost = {t for o in self.graph.operators if o.name in gone for t in o.outputs} - used
        return replace(self.graph, operators=kept, tensors={n: t for n, t in tensors.items() if n not in lost})

    def _chain(self, loss: Operator) -> tuple[Operator, list[Operator]] | None:
        """The operator in place of `loss`, and those that it makes superfluous; None where it does not fit."""
        type = self.graph.tensors[loss.inputs[0]]
        if type.size_bytes < LEAST_BYTES or loss.attributes.get("class_weights") or loss.attributes.get("gamma"):
            return None
        product = self.maker.get(self.roots[loss.inputs[0]])
        if product is None or product.kind != "MatMul" or product.attributes.get("trans_a"):
            return None
        x, weight = product.inputs[:2]
        logits, w = self.graph.tensors[product.outputs[0]], self.graph.tensors[weight]
        along = loss.attributes.get("axis", -1)
        if len(w.shape) != 2 or logits.shape[-1] != type.shape[-1] or along not in (-1, len(type.shape) - 1):
            return None
        views, readers = self._readers(product.outputs[0])
        gradients = [o for o in readers if o.kind == "CrossEntropyGrad" and o.inputs[1] == loss.inputs[1]]
        if len(readers) != 2 or len(gradients) != 1 or loss not in readers:
            return None
        back_views, back = self._readers(gradients[0].outputs[0])
        if len(back) != 1 or not self._is_gradient(back[0], product):
            return None
        if self.graph.tensors[back[0].outputs[0]].type != self.graph.tensors[x].type:
            return None
        upstream = gradients[0].inputs[2:]
        if any(t in self.maker and self.place[self.maker[t].name] > self.place[loss.name] for t in upstream):
            return None
        attributes: dict[str, Attribute] = {
            "trans_b": bool(product.attributes.get("trans_b", False)),
            "alpha": product.attributes.get("alpha", 1.0),
            "has_bias": len(product.inputs) > 2,
            "classes": type.shape[-1],
        }
        attributes |= {n: loss.attributes[n] for n in ("ignore_index", "label_smoothing") if n in loss.attributes}
        new = replace(
            loss,
            name=f"LinearCrossEntropy({loss.outputs[0]})",
            kind="LinearCrossEntropy",
            inputs=(*product.inputs, loss.inputs[1], *upstream),
            outputs=(loss.outputs[0], back[0].outputs[0]),
            attributes=attributes,
        )
        return new, [product, *views, gradients[0], *back_views, back[0]]

    def _readers(self, tensor: str) -> tuple[list[Operator], list[Operator]]:
        """Views of a tensor, and the operators that read it or them. None of the latter where it is a result."""
        views, readers = list[Operator](), list[Operator]()
        if tensor in self.results:
            return [], []
        for op in self.readers[tensor]:
            if not spec(op.kind).is_view:
                readers.append(op)
                continue
            more_views, more = self._readers(op.outputs[0])
            views += [op, *more_views]
            readers += more or [op]
        return views, readers

    def _is_gradient(self, op: Operator, product: Operator) -> bool:
        """Whether `op` multiplies the gradient of the logits and the weight of `product`."""
        a = product.attributes
        return (
            op.kind == "MatMul"
            and op.inputs[1:] == (product.inputs[1],)
            and not op.attributes.get("trans_a")
            and bool(op.attributes.get("trans_b", False)) != bool(a.get("trans_b", False))
            and op.attributes.get("alpha", 1.0) == a.get("alpha", 1.0)
        )
