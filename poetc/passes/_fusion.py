"""Operators that work element by element join the one before them, where the result between the two has no other use.

- Batch norm [+ sum] [+ activation]: one operator. Where the gradient of the activation needs its input, the gradients
of the batch norm compute that again and take the activation's in. So it is not kept for them.
- Batch norm [+ activation] before convolutions: the gradients of their weights compute it again while they read. The
gradients of the batch norm take the activation's in, so that the convolutions' input is not kept for them.
- Plain gradient descent and the product that makes a gradient for it alone: the gradient is never stored. On an
  embedding only the rows that were read move.
- A sum of gradients and the product that makes the last of them, in the same way.
- A recurrent cell's gradient and the sum of the gradients of its state, from the next layer and the next step.

Every element is computed by the same operations in the same order: results keep their bits. Fusions that were tried and
left out are in docs/lab/planning.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from poetc.graph import Attribute, Operator, Phase, Role, Tensor, TensorType, TrainingGraph
from poetc.ops import bind, spec
from poetc.ops.batch_norm_activation import ACTIVATIONS, parameters
from poetc.ops.convolution import ConvGradWeight
from poetc.ops.sgd_of import SgdOf
from poetc.passes._indexed import Indexed
from poetc.passes._memory import most_bytes, operator_bytes

PRODUCTS = ("MatMul", "ConvGradWeight", "GatherGrad")  # those of poetc/ops/sgd_of.py
LEAST_PIXELS = 16  # of a channel: with fewer the work once a channel dominates
# Tensors made again for gradients of weights instead of kept: smaller ones take more time than they save
# (a schedule may still make them again).
LEAST_BYTES = 64 << 10
GRADIENTS = {"BatchNormGradParams": "BatchNormActivateGradParams", "BatchNormGradInput": "BatchNormActivateGradInput"}


def fuse(graph: TrainingGraph) -> TrainingGraph:
    """The graph with fewer operators; itself under the training option `fusion: False`."""
    return _Fusion(graph).run() if graph.options.get("fusion", True) else graph


class _Fusion(Indexed):
    def __init__(self, graph: TrainingGraph) -> None:
        super().__init__(graph)
        self.tensors = dict(graph.tensors)
        self.minus_one = "minus one"
        while self.minus_one in self.tensors:
            self.minus_one += "'"
        self.operators: dict[str, Operator] = {op.name: op for op in graph.operators}
        self.results = {graph.loss, *graph.outputs, *graph.updates.values()}

    def run(self) -> TrainingGraph:
        for op in self.graph.operators:
            if op.kind == "BatchNormApply":
                self._batch_norm(op)
            elif op.kind == "Sgd":
                if not op.attributes.get("weight_decay"):
                    self._take_in(op, "Sgd", op.inputs[0], op.inputs[1], op.inputs[2])
            elif op.kind == "Add" and op.phase is Phase.BACKWARD:
                self._sum(op)
            elif op.kind in ("LstmCellGrad", "GruCellGrad"):
                self._cell(op)
        operators = tuple(self.operators.values())
        results = {t for op in operators for t in op.outputs}
        gone = {t for op in self.graph.operators for t in op.outputs} - results
        values = self.graph.values
        if any(self.minus_one in op.inputs for op in operators):
            values = {**values, self.minus_one: np.array([-1], np.float32)}
        else:
            gone.add(self.minus_one)
        return replace(
            self.graph,
            operators=operators,
            tensors={name: t for name, t in self.tensors.items() if name not in gone},
            values=values,
            gradients={p: g for p, g in self.graph.gradients.items() if g not in gone},
        )

    def _only_reader(self, tensor: str) -> Operator | None:
        """The one operator that reads `tensor`; None if there are several, or the tensor is a result."""
        readers = self.readers[tensor]
        return readers[0] if len(readers) == 1 and tensor not in self.results else None

    def _still_there(self, tensors: Iterable[str], op: Operator) -> bool:
        """Whether none of `tensors` is state that is updated before `op`."""
        at = self.place[op.name]
        return all(self.updated.get(self.roots[t], at) >= at for t in tensors)

    def _put(self, place: Operator, kind: str, inputs: tuple[str, ...], attributes: Mapping[str, Attribute]) -> None:
        """An operator in place of `place`, with its outputs.

        It belongs to the backward pass if it makes a gradient.
        """
        name = f"{kind}({place.outputs[0]})"
        phase = Phase.BACKWARD if place.phase is Phase.UPDATE else place.phase
        new = replace(place, name=name, kind=kind, inputs=inputs, attributes=attributes, phase=phase)
        self.operators = {
            (name if op is place else key): (new if op is place else op) for key, op in self.operators.items()
        }
        self.maker.update(dict.fromkeys(new.outputs, new))
        self.place[name] = self.place[place.name]

    @cached_property
    def most_bytes(self) -> int:
        """The memory that some unfused operator of the graph needs."""
        return most_bytes(self.graph)

    def _bytes(self, op: Operator) -> int:
        return operator_bytes(op, self.tensors, self.roots)

    # --- batch norm ---------------------------------------------------------------------------------------------------

    def _batch_norm(self, norm: Operator) -> None:
        x = self.graph.tensors[norm.inputs[0]]
        if x.type.elements < LEAST_PIXELS * math.prod(x.shape[:2]):
            return
        chain, inputs = [norm], norm.inputs
        add = self._only_reader(norm.outputs[0])
        if add is not None and add.kind == "Add" and add.name in self.operators:
            other = add.inputs[add.inputs[0] == norm.outputs[0]]
            if other != norm.outputs[0] and self.graph.tensors[other].type == x.type:
                chain, inputs = [norm, add], (*inputs, other)
        attributes: dict[str, Attribute] = {"epsilon": norm.attributes["epsilon"], "activation": ""}
        activation = self._activation(chain[-1].outputs[0])
        if activation is not None and self._still_there(inputs, activation):
            more = {"activation": activation.kind, **parameters(activation.attributes, activation.kind)}
            slopes = [op for op in self.readers[activation.inputs[0]] if op is not activation]
            if not slopes or (chain == [norm] and self._gradients(norm, slopes, attributes | more)):
                chain.append(activation)
                attributes |= more
        if len(chain) > 1 and self._still_there(inputs, chain[-1]):
            for op in chain[:-1]:
                del self.operators[op.name]
            self._put(chain[-1], "BatchNormActivate", inputs, attributes)
        if inputs == norm.inputs:
            self._make_again(norm, chain[-1].outputs[0], attributes)

    def _make_again(self, norm: Operator, y: str, attributes: Mapping[str, Attribute]) -> None:
        """Let the gradients of weights make `y` again if nothing else keeps it.

        They make it from the inputs of the batch norm's gradients.
        """
        backward = [op for op in self.readers[y] if op.phase is not Phase.FORWARD]
        slopes = [op for op in backward if op.kind == f"{attributes['activation']}Grad" and op.inputs[0] == y]
        weights = [op for op in backward if op not in slopes]
        kept = any(op.kind in GRADIENTS and op.inputs[0] == norm.inputs[0] for op in self.readers[norm.inputs[0]])
        viewed = any(spec(op.kind).is_view for op in self.readers[y])
        if y in self.results or viewed or not weights or not kept or self.tensors[y].size_bytes < LEAST_BYTES:
            return
        kind, again = spec("ConvGradWeight"), {}
        assert isinstance(kind, ConvGradWeight)
        for op in weights:
            if op.kind != kind.kind or op.inputs[0] != y or op.inputs[1] == y or not self._still_there(norm.inputs, op):
                return
            if not kind.takes_norm(bind(op, self.tensors), str(attributes["activation"])):
                return
            again[op.name] = (norm.inputs[0], op.inputs[1], *norm.inputs[1:]), {**op.attributes, **attributes}
            inputs, more = again[op.name]
            if self._bytes(replace(op, inputs=inputs, attributes=more)) > self.most_bytes:
                return
        if slopes and not self._gradients(norm, slopes, attributes):
            return
        for op in weights:
            self._put(op, kind.kind, *again[op.name])

    def _activation(self, tensor: str) -> Operator | None:
        """The activation of `tensor`, if besides it only its gradient reads the tensor."""
        readers = self.readers[tensor]
        forward = [op for op in readers if op.kind in ACTIVATIONS]
        if tensor in self.results or len(forward) != 1:
            return None
        rest = [op for op in readers if op is not forward[0]]
        return forward[0] if all(op.kind == f"{forward[0].kind}Grad" for op in rest) else None

    def _gradients(self, norm: Operator, slopes: list[Operator], attributes: Mapping[str, Attribute]) -> bool:
        """Let the gradients of the batch norm take in the activation's (`slopes`), if it has no other reader."""
        readers = self.readers[slopes[0].outputs[0]]
        fit = len(slopes) == 1 and readers and slopes[0].outputs[0] not in self.results
        for op in readers:
            same = op.kind in GRADIENTS and op.inputs[:3] == norm.inputs[:3] and op.inputs[-1] == slopes[0].outputs[0]
            fit = fit and same and self._still_there(norm.inputs, op)
        if not fit:
            return False
        for op in readers:
            sums = op.inputs[4:6] if op.kind == "BatchNormGradInput" else ()
            self._put(op, GRADIENTS[op.kind], (*norm.inputs, *sums, slopes[0].inputs[1]), attributes)
        del self.operators[slopes[0].name]
        return True

    # --- recurrent cells ----------------------------------------------------------------------------------------------

    def _cell(self, cell: Operator) -> None:
        at = 2 + int(bool(cell.attributes.get("before")))
        if cell.attributes["gradients"] != 1:
            return
        terms, reader = [cell.inputs[at]], cell
        while (add := self.maker.get(terms[0])) is not None and add.kind == "Add" and add.name in self.operators:
            if self._only_reader(terms[0]) is not reader or len({self.tensors[t].type for t in add.inputs}) > 1:
                break
            del self.operators[add.name]
            terms, reader = [*add.inputs, *terms[1:]], add
        inputs = (*cell.inputs[:at], *terms, *cell.inputs[at + 1 :])
        attributes = {**cell.attributes, "gradients": len(terms)}
        self.operators[cell.name] = replace(cell, inputs=inputs, attributes=attributes)

    # --- gradients ----------------------------------------------------------------------------------------------------

    def _sum(self, add: Operator) -> None:
        """The sum is made where the one before was: that must be a tensor of its own, which nothing else reads."""
        total, gradient = add.inputs
        maker = self.maker.get(total)
        if maker is None or spec(maker.kind).is_view or self._only_reader(total) is not add:
            return
        if self.tensors[total].type == self.tensors[add.outputs[0]].type:
            self.tensors[self.minus_one] = Tensor(self.minus_one, TensorType((1,)), Role.CONSTANT)
            self.roots[self.minus_one] = self.minus_one
            self._take_in(add, "Sum", total, gradient, self.minus_one)

    def _take_in(self, op: Operator, suffix: str, target: str, tensor: str, rate: str) -> None:
        """Let `op`, which moves `target`, make `tensor` by itself, if it is a product for `op` alone."""
        between: list[Operator] = []
        while self._only_reader(tensor) is not None and tensor in self.maker:
            between.append(self.maker[tensor])
            if not spec(between[-1].kind).is_view:
                break
            tensor = between[-1].inputs[0]
        if not between or between[-1].kind not in PRODUCTS:
            return
        maker = between[-1]
        kind = spec(f"{maker.kind}{suffix}")
        assert isinstance(kind, SgdOf)
        bound = bind(maker, self.tensors)
        if not kind.fits(bound) or not self._still_there(maker.inputs, op):
            return
        (gradient,) = bound.outputs
        inputs = (target, *maker.inputs, rate)
        whole = replace(op, kind=kind.kind, inputs=inputs, attributes=maker.attributes)
        workspace_bytes = kind.kernel(bind(whole, self.tensors)).workspace_bytes
        # The operands of the gradient stay until the weights may move: no longer than the gradient would have stayed.
        if max(workspace_bytes, *(t.size_bytes for t in bound.inputs)) > gradient.size_bytes:
            return
        # Where weights come from the store, they need not be there while the gradient is made, but for the whole.
        if kind.needs_more(bind(whole, self.tensors), workspace_bytes) and self._bytes(whole) > self.most_bytes:
            return
        for other in between:
            del self.operators[other.name]
        self._put(op, kind.kind, inputs, maker.attributes)
