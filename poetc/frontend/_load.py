"""`load`: an ONNX file → Graph. Orders the nodes, folds or translates each, recognises patterns, decides roles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from poetc.entry_points import own_modules
from poetc.errors import PoetcError, UnsupportedModelError, UsageError
from poetc.frontend import _folding, facts
from poetc.frontend._blocked import with_plain_channels
from poetc.frontend._bound_inputs import bind_inputs
from poetc.frontend._caches import without_caches
from poetc.frontend._constants import fold_constants
from poetc.frontend._control_flow import CONTROL_FLOW, unrolled
from poetc.frontend._exported import is_module_name, restore
from poetc.frontend._exported_notes import names_notes
from poetc.frontend._importer import Importer, Rebatch, Value, our_dtype
from poetc.frontend._input_shapes import Sizes, resolve
from poetc.frontend._new_head import NewHead, replace_head
from poetc.frontend._node import Malformed, Node, Unsupported
from poetc.frontend._node_order import live_in_order, refuse_duplicates
from poetc.frontend._opset import effective_opset
from poetc.frontend._patterns_table import PATTERNS
from poetc.frontend._quantized_forms import require_qdq, with_floats
from poetc.frontend._reading import (
    MOST_ELEMENTS,
    check_size,
    element_dtype,
    external_location,
    is_float,
    one_line,
    read_model,
    read_tensor,
    tensor_dtype,
    widened,
)
from poetc.frontend._rewriter import Rewriter
from poetc.frontend._traced_batch import batch_of, merging, other_batches
from poetc.frontend._training_step import with_forward_part
from poetc.frontend._translations import DOMAINS, TRANSLATIONS
from poetc.frontend._values import constant, constant_of_shape, dequantized, eye_like, fill_for, fill_roles, shape_of
from poetc.frontend.roles import GATES, assign_roles, doubtful_masks
from poetc.graph import Array, Coded, DType, Fill, Graph, Operator, Role, Tensor, TensorType
from poetc.ops import load_others

own_modules("poetc.frontend", "onnx_")  # the translations register themselves

_WITHOUT_NUMBERS = frozenset({"Constant", "ConstantOfShape", "Shape", "Size", "EyeLike"})  # shapes are all they read
# Facts about the file, unless made of a tensor with a parameter's name, or of different numbers.
_MOSTLY_FOLDED = frozenset({"NonZero", "Range", "OneHot", "Trilu", "IsNaN", "IsInf"})


def load(
    path: str | Path,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    constants: Mapping[str, int] | None = None,
    rows: int | None = None,
    random_weights: int | None = None,
    new_head: NewHead | None = None,
    quantized: bool = False,
) -> Graph:
    """The graph of an ONNX model, with `batch` in place of the leading dimension of its inputs, and with `new_head`.

    `dims` gives lengths to symbolic dimensions by name, `shapes` whole shapes to inputs, `constants` values to integer
    inputs. `rows` takes the place of the batch, whichever of the others fixed it.
    `quantized`: a QDQ model keeps its QuantizeLinear and DequantizeLinear; else it becomes a float model.
    `random_weights` is the seed of the numbers that stand for weights whose external file is absent. UsageError: such
    weights without a seed; the file cannot be read, breaks the ONNX rules, or leaves a length open.
    UnsupportedModelError: lists every node that cannot be trained.
    """
    load_others()
    path = Path(path)
    sizes = Sizes(batch, dims or {}, shapes or {}, rows)
    model = read_model(path)
    try:
        notes = [
            *bind_inputs(model, constants or {}),
            *with_forward_part(model),
            *without_caches(model),
            *with_plain_channels(model, path.parent),
        ]
        if quantized:
            require_qdq(model)
        else:
            notes += with_floats(model, path.parent)
        if new_head is not None:
            notes.insert(0, replace_head(model, new_head))
        graph = _import(model, path, sizes, random_weights, quantized)
        return replace(graph, notes=(*notes, *graph.notes))
    except PoetcError as error:
        elements = error.details.get("elements")
        if batch is not None and isinstance(elements, int) and (most := MOST_ELEMENTS * batch // elements):
            text = f"{path}: --batch {batch}: {_printable(str(error))}; give at most --batch {most}"
            raise UsageError(text) from None
        raise type(error)(f"{path}: {_printable(str(error))}") from None
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply") from None


def _printable(text: str) -> str:
    """Names come from the file: characters that a terminal would obey are spelled out."""
    return "".join(x if x.isprintable() or x == "\n" else repr(x)[1:-1] for x in text)


def _import(model: onnx.ModelProto, path: Path, sizes: Sizes, random_weights: int | None, quantized: bool) -> Graph:
    source = _Source(model, path, random_weights, quantized)
    shapes = resolve(source.inputs, sizes)
    if shapes.old_batch is None or shapes.new_batch is None:
        return _at_symbolic_batch(source, shapes.shapes)
    _, file_shapes = source.build(shapes.file_shapes, None)
    graph, _ = source.build(shapes.shapes, Rebatch(shapes.old_batch, shapes.new_batch, file_shapes))
    note = f"the file fixes batch {shapes.old_batch}; imported at {shapes.new_batch}"
    return replace(graph, notes=(*graph.notes, note))


def _at_symbolic_batch(source: _Source, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """The graph at this batch, whether or not constants hold that of the export."""
    symbolic = batch_of(source.inputs, shapes)
    if symbolic is None:
        return source.build(shapes, None)[0]
    names, batch = symbolic
    try:
        graph, values = source.build(shapes, None)
    except UsageError:
        mended = _at_traced_batch(source, shapes, names, batch)
        if mended is None:
            raise
        return mended
    merged = merging(source.nodes, source.initializers, values, batch)
    if merged is None:
        return graph
    mended = _at_traced_batch(source, shapes, names, batch)
    if mended is not None and _has_batch(mended, batch) and not _has_batch(graph, batch):
        return mended
    node, target = merged
    note = f"{node.label} moves the batch of {batch} into another axis: its shape is the constant {list(target)}"
    return replace(graph, notes=(*graph.notes, note))


def _has_batch(graph: Graph, batch: int) -> bool:
    return all(graph.tensors[o].shape[:1] == (batch,) for o in graph.outputs)


def _at_traced_batch(
    source: _Source, shapes: Mapping[str, tuple[int, ...]], names: Sequence[str], batch: int
) -> Graph | None:
    """The graph of a file whose constants hold the batch of its export. None: they do not. `names`: of the inputs."""
    for old in other_batches(source.nodes, source.initializers, batch):
        try:
            _, before = source.build({n: (old, *s[1:]) if n in names else s for n, s in shapes.items()}, None)
            graph, _ = source.build(shapes, Rebatch(old, batch, before))
        except PoetcError:
            continue
        note = f"the batch is symbolic, but constants of Reshape hold batch {old}; imported at {batch}"
        return replace(graph, notes=(*graph.notes, note))
    return None


class _Source:
    """The decoded file: initializers, live nodes in order, notes. Independent of the batch."""

    def __init__(self, model: onnx.ModelProto, path: Path, random_weights: int | None, quantized: bool) -> None:
        graph = model.graph
        self.quantized = quantized
        self.notes: list[str] = []
        self.name = path.name
        self.seed = random_weights or 0
        if graph.sparse_initializer:
            raise UnsupportedModelError("sparse initializers; export the model with dense weights")
        refuse_duplicates([t.name for t in graph.initializer], "initializer")
        self.exported = restore(graph)
        self.notes += self.exported.notes
        self.outputs = [o.name for o in graph.output if o.type.tensor_type.elem_type != onnx.TensorProto.STRING]
        self.notes += [f"output {o.name!r} is text: dropped" for o in graph.output if o.name not in self.outputs]
        self.nodes = live_in_order(graph, self.outputs)
        self.opset = effective_opset(model, self.nodes, self.notes)
        read = {i for n in self.nodes for i in n.reads if i} | set(self.outputs)
        initializer_names = [t.name for t in graph.initializer]
        refuse_duplicates([i.name for i in graph.input], "input")
        refuse_duplicates(self.outputs, "output")
        known = set(initializer_names)
        self.inputs = [i for i in graph.input if i.name not in known and i.name in read]
        self._note_unused("input", [i.name for i in graph.input if i.name not in known and i.name not in read])
        self._note_unused("initializer", [n for n in initializer_names if n not in read])
        used = [t for t in graph.initializer if t.name in read]
        self.in_file = known & read
        self.initializers = self._decode(used, path.parent, random_weights)

    def _note_unused(self, what: str, names: Sequence[str]) -> None:
        if names:
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            self.notes.append(f"dropped {len(names)} unused {what}{'s' * (len(names) > 1)}: {shown}")

    def _decode(self, tensors: Sequence[onnx.TensorProto], folder: Path, random_weights: int | None) -> list[Value]:
        roles, gates = fill_roles(self.nodes), _gates(self.nodes)
        result, absent, narrowed = [], [], []
        for tensor in tensors:
            dtype = tensor_dtype(tensor)
            shape = tuple(int(d) for d in tensor.dims)
            array: Array | Fill | None = read_tensor(tensor, folder)
            if isinstance(array, np.ndarray):
                array = widened(array)
            if array is None:
                absent.append(tensor.name)
                array = fill_for(tensor.name, shape, dtype, roles.get(tensor.name, ""), self.seed)
            if is_float(dtype) and dtype != np.float32:
                narrowed.append(tensor.name)
            # One number is a weight only where it has the name of a module's parameter, or a function is taken of it.
            known = tensor.name in self.exported.parameters or is_module_name(tensor.name) or tensor.name in gates
            weight = is_float(dtype) and (math.prod(shape) > 1 or known)
            origin = self.exported.origin(tensor.name, dtype.name)
            held = np.dtype(np.float32) if is_float(dtype) and dtype.itemsize == 2 else dtype
            result.append(Value(tensor.name, shape, held, array, weight=weight, in_file=True, origin=origin))
        if absent:
            absence = f"{len(absent)} weight{'s are' if len(absent) > 1 else ' is'} external data whose file is absent"
            if random_weights is None:
                names = {external_location(t) for t in tensors if t.name in absent}
                shown = ", ".join(map(repr, sorted(names)[:3])) + (", ..." if len(names) > 3 else "")
                raise UsageError(
                    f"{absence} ({shown}): put it beside the model, or pass --random-weights SEED to use seeded numbers"
                )
            self.notes.append(f"{absence}: seeded numbers instead (integers: 0)")
        if narrowed:
            self.notes.append(
                f"{len(narrowed)} weights of another float type than f32 become f32, as does the arithmetic"
            )
        return result

    def build(
        self, shapes: Mapping[str, tuple[int, ...]], rebatch: Rebatch | None
    ) -> tuple[Graph, dict[str, tuple[int, ...]]]:
        """The graph for these input shapes, and the shape of every ONNX value in it."""
        file_bytes = sum(v.elements * v.dtype.itemsize for v in self.initializers)
        c = Importer(self.opset, rebatch, self.seed, self.exported.parameters, file_bytes, self.quantized)
        c.notes.extend(self.notes)
        for info in self.inputs:
            dtype = element_dtype(info.type.tensor_type.elem_type, f"input {info.name!r}")
            shape = shapes[info.name]
            check_size(f"input {info.name!r}", shape, dtype.itemsize)
            is_code = dtype == np.int8
            is_known = dtype.itemsize <= 8 and (is_float(dtype) or dtype.kind in "biu") and dtype != np.uint16
            if not is_known or (is_code and not self.quantized):
                raise UnsupportedModelError(f"input {info.name!r} has element type {dtype}")
            element = DType.I8 if is_code else our_dtype(dtype)
            c.builder.add_tensor(info.name, TensorType(shape, element), Role.INPUT)
            c.values[info.name] = Value(info.name, shape, dtype, tensor=info.name)
        for value in self.initializers:
            c.values[value.name] = replace(value, tensor="")
        _Translator(c).run(self.nodes)
        return self._finish(c), {n: v.shape for n, v in c.values.items()}

    def _finish(self, c: Importer) -> Graph:
        outputs: dict[str, str] = {}
        held = {i.name for i in self.inputs} | {v.name for v in self.initializers}
        for name in self.outputs:
            if name in held:
                c.note(f"output {name!r} is given, not computed: dropped")
                continue
            value = c.value(name)
            if value.is_sequence:
                raise UnsupportedModelError(f"output {name!r} is a sequence")
            if not value.tensor or (value.known and not value.weight):
                c.note(f"output {name!r} does not depend on the inputs: dropped")
                continue
            tensor = value.tensor
            if tensor in outputs.values() or not _made_by_operator(c, tensor):
                # An output of its own name for a tensor that already has one: the same bytes.
                try:
                    tensor = c.emit1("Reshape", [tensor], {"shape": value.shape})
                except Malformed as reason:
                    raise UsageError(f"output {name!r}: {reason}") from None
            outputs[name] = tensor
        if not outputs:
            raise UsageError("no output depends on an input: there is nothing to train")
        own = {v.tensor for v in c.values.values() if v.tensor and v.in_file and self.exported.is_parameter(v.name)}
        declared = {v.tensor for v in c.values.values() if v.tensor and v.name in self.exported.parameters}
        rewriter = Rewriter(c.builder, tuple(outputs.values()), frozenset(own), frozenset(declared))
        rewriter.run(PATTERNS)
        names = {t: v.name if v.in_file else n for n, v in reversed(c.values.items()) if (t := v.tensor)}
        names |= {t: n for n, t in outputs.items()}
        names = _apart(names)
        graph = _frozen(self.name, rewriter, names, tuple(i.name for i in self.inputs), tuple(outputs))
        computed = frozenset(names.get(t, t) for t in c.computed | rewriter.computed)
        graph = assign_roles(graph, computed, c.notes, self.exported.parameters, self.exported.buffers)
        _refuse_fixed_parameters(c, graph, names)
        floats = [t for t in graph.tensors.values() if t.dtype is DType.F32 and t.name in graph.values]
        trained = [t.name for t in floats if t.role is Role.PARAMETER]
        constants = [t.name for t in floats if t.role is Role.CONSTANT and t.name in self.in_file]
        notes = names_notes(self.exported, trained, constants)
        graph = fold_constants(replace(graph, notes=(*graph.notes, *notes)))
        origins = {names[v.tensor]: v.origin for v in reversed(c.values.values()) if v.tensor and v.origin is not None}
        graph = replace(graph, origins={n: o for n, o in origins.items() if n in graph.values})
        known_facts = facts.find(graph, self.exported.parameters, self.exported.folded_norms)
        fixed = {fact.subject for fact in known_facts if fact.kind == facts.FIXED}
        doubts = doubtful_masks(graph, self.exported.parameters | fixed)
        return replace(graph, facts=known_facts, notes=(*graph.notes, *doubts, *facts.notes(known_facts)))


def _is_uniform(value: Value) -> bool:
    """Whether all its numbers are the same, as of a mask that is yet to be cut."""
    if isinstance(value.array, Fill):
        return value.array.kind in ("zeros", "ones", "constant")
    if isinstance(value.array, Coded):
        return False
    return value.array is not None and (not value.elements or bool((value.array == value.array.flat[0]).all()))


def _gates(nodes: Sequence[Node]) -> set[str]:
    """The tensors that a saturating or exponential function is taken of, or of their negatives or views."""
    roots, gates = dict[str, str](), set[str]()
    for n in nodes:
        if not n.is_standard or not n.has_input(0) or not n.has_output(0):
            continue
        root = roots.get(n.inputs[0], n.inputs[0])
        if n.op in ("Identity", "Neg", "Reshape", "Squeeze", "Unsqueeze", "Expand"):
            roots[n.outputs[0]] = root
        elif n.op in GATES:
            gates.add(root)
    return gates


def _refuse_fixed_parameters(c: Importer, graph: Graph, names: Mapping[str, str]) -> None:
    """UnsupportedModelError where a node took the numbers of a tensor as they are now, and that tensor is trained."""
    for value, label in c.read.items():
        tensor = graph.tensors.get(names.get(value.tensor, ""))
        if value.name in c.trained or (tensor is not None and tensor.role is Role.PARAMETER):
            raise UnsupportedModelError(
                f"{label} needs numbers that stay as they are, and {value.name!r}, of which they are made, is trained;"
                " export the model with that tensor as a constant (in PyTorch: a buffer)"
            )


def _made_by_operator(c: Importer, tensor: str) -> bool:
    return c.builder.tensors[tensor].role is Role.ACTIVATION


class _Translator:
    """Goes through the nodes once; collects everything that is not supported before it gives up."""

    def __init__(self, c: Importer) -> None:
        self.c = c
        self.offending: list[str] = []
        self.poisoned: set[str] = set()  # made from something unsupported: not looked at any further

    def run(self, nodes: Sequence[Node]) -> None:
        for n in nodes:
            if any(i in self.poisoned for i in n.reads):
                self.poisoned.update(n.outputs)
                self._check_exists(n)
                continue
            self.c.node = n
            self.c.builder.source = n.name
            try:
                self._one(n)
            except Unsupported as reason:
                self.offending.append(f"{n.label}: {reason}")
                self.poisoned.update(n.outputs)
            except UsageError:
                raise
            except Malformed as reason:
                raise UsageError(f"{n.label}: {reason}{self._batch_hint()}") from None
            except (
                ValueError, TypeError, KeyError, IndexError, ArithmeticError, MemoryError, AssertionError, RuntimeError
            ) as error:  # fmt: skip
                # A translation met a node that the ONNX rules exclude; the file is at fault, and the node is known.
                raise UsageError(f"{n.label} is malformed: {type(error).__name__} {one_line(error)}") from None
        if self.offending:
            lines = "".join(f"\n  {line}" for line in self.offending)
            nodes_ = "1 node" if len(self.offending) == 1 else f"{len(self.offending)} nodes"
            raise UnsupportedModelError(f"{nodes_} cannot be trained:{lines}")

    def _batch_hint(self) -> str:
        """The probable cause where a node does not fit and the batch is not the file's."""
        rebatch = self.c.rebatch
        if rebatch is None:
            return ""
        return (
            f"; the file may hold its batch ({rebatch.old}): use --batch {rebatch.old}, or export with a dynamic batch"
        )

    def _check_exists(self, n: Node) -> None:
        """Behind something unsupported only the operator itself can still be judged."""
        if n.proto.domain not in DOMAINS:
            self.offending.append(f"{n.label}: operators of domain {n.proto.domain!r}")
        elif n.key not in TRANSLATIONS and n.key not in _MOSTLY_FOLDED | _WITHOUT_NUMBERS:
            self.offending.append(f"{n.label}: this operator")

    def _one(self, n: Node) -> None:
        c = self.c
        if n.proto.domain not in DOMAINS:
            raise Unsupported(f"operators of domain {n.proto.domain!r}")
        if not n.is_standard:
            if n.key not in TRANSLATIONS:
                raise Unsupported("this operator")
            self._bind(n, TRANSLATIONS[n.key](c, n))
            self._check_rebatched(n)
            return
        if n.op in CONTROL_FLOW:
            self._bind(n, unrolled(c, n, self._one))
            self._check_rebatched(n)
            return
        inputs = [c.value(i) for i in n.inputs if i]
        if n.op == "Constant":
            self._bind(n, constant(n))
            return
        if n.op in ("Shape", "Size"):
            self._bind(n, shape_of(c, n))
            return
        if n.op == "EyeLike":
            self._bind(n, eye_like(c, n))
            return
        if n.op == "ConstantOfShape" and all(v.known for v in inputs):
            self._bind(n, constant_of_shape(c, n))
            return
        foldable = all(v.known for v in inputs) and not any(v.is_sequence for v in inputs) and bool(inputs)
        foldable = foldable and n.op not in _folding.NOT_FOLDABLE and not n.op.startswith("Sequence")
        foldable = foldable and onnx.defs.has(n.op)
        if foldable and n.op == "DequantizeLinear":
            self._bind(n, dequantized(c, n))
            return
        if foldable and n.op == "Expand" and c.rebatch is not None:
            self._bind(n, TRANSLATIONS["Expand"](c, n), weights_only=True)
            return
        if foldable and n.op == "Identity" and inputs[0].in_file and inputs[0].is_float and not inputs[0].weight:
            self._bind(n, inputs[0])  # a slope of one number remains a parameter
            return
        if foldable and not self._trainable(n, inputs):
            c.fold(n)
            return
        translation = TRANSLATIONS.get(n.op)
        if translation is None:
            if foldable:
                c.fold(n)
                return
            raise Unsupported("this operator")
        if not foldable:
            self._bind(n, translation(c, n))
            self._check_rebatched(n)
            return
        # Made of weights alone: operators in case the weights are trained, a constant where only numbers are asked.
        try:
            self._bind(n, translation(c, n), weights_only=True)
        except (Unsupported, Malformed):
            c.fold(n)

    def _trainable(self, n: Node, inputs: Sequence[Value]) -> bool:
        weights = [v for v in inputs if v.weight]
        if n.op in _MOSTLY_FOLDED:
            leaves = {leaf for v in weights for leaf in self.c.leaves(v)}
            return any(v.name in self.c.trained or is_module_name(v.name) or not _is_uniform(v) for v in leaves)
        return bool(weights)

    def _bind(self, n: Node, result: object, *, weights_only: bool = False) -> None:
        results = list(result) if isinstance(result, (list, tuple)) else [result]
        wanted = [k for k, o in enumerate(n.outputs) if o]
        if wanted and wanted[-1] >= len(results):
            raise Unsupported(f"output {wanted[-1]} of this operator")
        for k in wanted:
            output, name = results[k], n.outputs[k]
            if isinstance(output, Value):
                self.c.values[name] = output
                continue
            assert isinstance(output, str)
            type = self.c.type(output)
            dtype = _NUMPY[type.dtype]
            value = Value(name, type.shape, dtype, tensor=output)
            if weights_only:
                value.node, value.weight = n, any(self.c.value(i).weight for i in n.inputs if i)
            self.c.values[name] = value

    def _check_rebatched(self, n: Node) -> None:
        """Another batch changes one axis of a tensor, in proportion. Anything else: a constant held the old one."""
        rebatch = self.c.rebatch
        if rebatch is None:
            return
        for o in n.outputs:
            value, before = self.c.values.get(o), rebatch.shapes.get(o)
            if value is None or before is None or value.is_sequence:
                continue
            now = value.shape
            changed = [k for k, (a, b) in enumerate(zip(before, now, strict=False)) if a != b]
            fits = len(before) == len(now) and len(changed) <= 1
            if not fits or any(now[k] * rebatch.old != before[k] * rebatch.new for k in changed):
                raise UsageError(
                    f"{n.label} holds the batch of the file ({rebatch.old}) in a constant: its output goes from "
                    f"{list(before)} to {list(now)}; use --batch {rebatch.old}, or export with a dynamic batch"
                )


_NUMPY: dict[DType, np.dtype[np.generic]] = {
    DType.F32: np.dtype(np.float32),
    DType.I32: np.dtype(np.int64),
    DType.U8: np.dtype(np.bool_),
    DType.I8: np.dtype(np.int8),
}


def _apart(names: Mapping[str, str]) -> dict[str, str]:
    """Names of tensors by those of the builder, of which a second one under the same name keeps the builder's.

    Integers of the file and the weights made of them can both be needed.
    """
    first = {new: old for old, new in reversed(list(names.items()))}
    return {old: new if first[new] == old else old for old, new in names.items()}


def _frozen(
    name: str, rewriter: Rewriter, names: Mapping[str, str], inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> Graph:
    """The rewriter's operators under the model's own tensor names."""
    builder = rewriter.builder
    used = {t for op in rewriter.operators for t in (*op.inputs, *op.outputs)}
    taken = {names.get(t, t) for t in used}
    unread = [i for i in inputs if i not in used]
    tensors = {
        new: Tensor(new, old.type, old.role)
        for old in builder.tensors.values()
        if old.name in used or old.name in unread
        for new in (names.get(old.name, old.name),)
    }
    assert len(taken) == len(used), "two tensors under one name"
    operators, operator_names = [], set[str]()
    for op in rewriter.operators:
        renamed = tuple(names.get(t, t) for t in op.outputs)
        operator_name = f"{op.kind}({renamed[0]})"
        assert operator_name not in operator_names
        operator_names.add(operator_name)
        sources = tuple(names.get(t, t) for t in op.inputs)
        operators.append(Operator(operator_name, op.kind, sources, renamed, op.attributes, op.phase, op.source))
    values = {names.get(t, t): v for t, v in builder.values.items() if t in used}
    return Graph(name, tensors, tuple(operators), inputs, outputs, values)
