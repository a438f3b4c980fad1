"""Is a graph well-formed? Knows nothing of who made it."""

from __future__ import annotations

from poetc.errors import PoetcError
from poetc.graph import Graph, Operator, Role, TensorType
from poetc.ops import Bound, registry, spec, view_roots

Types = tuple[TensorType, ...]
# By identity, operators of the last graph with the types that were inferred for them: a pass leaves most of them alone.
_INFERRED: dict[int, tuple[Operator, Types, Types]] = {}


class GraphError(PoetcError):
    """A graph that breaks a rule of the IR: a defect of ours, or a damaged file."""


def check_graph(graph: Graph) -> None:
    """Checks of a graph: SSA, topological order, known kinds and types, values, and reads of updated state.

    Types are those that the registry infers. All tensors that need a value have one, and no state is read after its
    update. Raises GraphError naming the operator or tensor.
    """
    kinds = registry()
    defined: set[str] = set()
    for name, tensor in graph.tensors.items():
        if name != tensor.name:
            raise GraphError(f"tensor {tensor.name!r} is filed under {name!r}")
    results = {t for op in graph.operators for t in op.outputs}
    for name, tensor in graph.tensors.items():
        if name in results:
            continue
        defined.add(name)
        if name not in graph.values and tensor.role not in (Role.INPUT, Role.TARGET):
            raise GraphError(f"{tensor.role} {name!r} has no value and no operator makes it")
    names: set[str] = set()
    checked: dict[int, tuple[Operator, Types, Types]] = {}
    for op in graph.operators:
        if op.name in names:
            raise GraphError(f"operator {op.name!r} appears twice")
        names.add(op.name)
        if op.kind not in kinds:
            raise GraphError(f"operator {op.name!r} is of unknown kind {op.kind!r}")
        for tensor_name in op.inputs:
            if tensor_name not in defined:
                raise GraphError(f"operator {op.name!r} reads {tensor_name!r} before it is made")
        read = tuple([graph.tensors[t].type for t in op.inputs])
        before = _INFERRED.get(id(op))
        inferred = before[2] if before and before[1] == read else kinds[op.kind].infer(Bound(op.attributes, read))
        checked[id(op)] = op, read, inferred  # which keeps the operator, and so its identity
        actual = tuple([graph.tensors[t].type for t in op.outputs])
        if inferred != actual:
            raise GraphError(f"operator {op.name!r} makes {inferred}, the graph says {actual}")
        for tensor_name in op.outputs:
            if tensor_name in defined:
                raise GraphError(f"tensor {tensor_name!r} is made twice (by {op.name!r})")
            defined.add(tensor_name)
    for name in graph.outputs:
        if name not in defined:
            raise GraphError(f"output {name!r} is not made")
    _check_versions(graph)
    _INFERRED.clear()
    _INFERRED.update(checked)


def _check_versions(graph: Graph) -> None:
    """No operator reads a storage, itself or through a view, after the one that updates it in place."""
    roots = view_roots(graph)
    replaced: dict[str, str] = {}
    for op in graph.operators:
        kind = spec(op.kind)
        if kind.is_view:
            continue  # touches no byte; who reads the view does
        for name in op.inputs:
            if roots[name] in replaced:
                raise GraphError(f"operator {op.name!r} reads {name!r} after {replaced[roots[name]]!r} updated it")
        replaced.update((roots[op.inputs[i]], op.name) for i, _ in kind.must_alias)
