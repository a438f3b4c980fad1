"""PyTorch's exporters change a model's parameters: undone where the file proves it, else told in a note.

Both exporters keep one copy of equal tensors. So the norms of a model that was never trained share one scale of ones
and one shift of zeros. Layers that were copied share their weights. They drop a shift of zeros, and compute beforehand
all that depends on parameters alone. The default exporter says in each node's metadata which call it stands for, with
the parameters it read:

    %linear : call_function[target=torch.ops.aten.linear.default](args = (%x, %p_0_weight, %p_0_bias))

The older one leaves the module's path in a node's name: /0/act/Mul.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

from poetc.frontend._calls import Call, call_of, declared, mangled
from poetc.frontend._names import free_name
from poetc.graph import Array, Origin

_MODULE_NAME = re.compile(r"[A-Za-z_0-9]+(\.[A-Za-z_0-9]+)+")
_REPEAT = re.compile(r"_\d+$")
_LARGEST = 1 << 24  # bytes of an initializer that is looked into
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
# Operator → names of its inputs in PyTorch, from number 1 on.
_SLOTS = {
    "BatchNormalization": ("weight", "bias", "running_mean", "running_var"), "LayerNormalization": ("weight", "bias"),
    "GroupNormalization": ("weight", "bias"), "InstanceNormalization": ("weight", "bias"),
    "RMSNormalization": ("weight",), "Conv": ("weight", "bias"), "ConvTranspose": ("weight", "bias"),
    "Gemm": ("weight", "bias"), "PRelu": ("weight",),
}  # fmt: skip
_PLAIN = {
    "Gemm": 2,
    "Conv": 2,
    "ConvTranspose": 2,
    "MatMul": 1,
}  # Operator → the place of its shift, or the part that it lacks for one.
_ELEMENTWISE = ("Add", "Sub", "Mul", "Div")
_OWN = "/"  # owner of the ones and zeros that the exporter writes for a norm without scale or shift
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_WITH_SHIFT = ("linear", "addmm", "conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d")


def is_module_name(name: str) -> bool:
    """Whether a tensor is named as a module's parameters and buffers are, rather than by an exporter."""
    return len(name) < 500 and _MODULE_NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Parted:
    """A weight that gets its own initializer, since the file shares one among equal weights.

    Nodes are named by their first output. `readers`: (node, number of the input); `identities`: nodes that gave the
    weight its name, which the initializer takes.
    """

    name: str
    of: str
    readers: tuple[tuple[str, int], ...]
    identities: tuple[str, ...] = ()

    def apply(self, graph: onnx.GraphProto, makers: dict[str, onnx.NodeProto], tensor: onnx.TensorProto) -> None:
        """`makers`: the graph's nodes by first output. `tensor` becomes the initializer."""
        for output in self.identities:
            graph.node.remove(makers.pop(output))
        graph.initializer.append(tensor)
        for output, k in self.readers:
            makers[output].input[k] = self.name


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A shift of zeros that the file does not have.

    It is a further input of `node`. Where that can have none, it is an Add behind it, whose input is `product`.
    """

    name: str
    node: str
    product: str = ""
    added: str = ""  # name of the Add

    def apply(self, graph: onnx.GraphProto, makers: dict[str, onnx.NodeProto], tensor: onnx.TensorProto) -> None:
        """As `Parted.apply`."""
        graph.initializer.append(tensor)
        node = makers[self.node]
        if not self.product:
            node.input.append(self.name)
            return
        node.output[0] = self.product
        added = helper.make_node("Add", [self.product, self.name], [self.node], name=self.added)
        added.metadata_props.extend(node.metadata_props)
        graph.node.insert(list(graph.node).index(node) + 1, added)
        makers[self.product], makers[self.node] = node, graph.node[list(graph.node).index(node) + 1]


@dataclass(slots=True)
class Exported:
    """`parameters`, `buffers`: initializers that the file itself says are one or the other."""

    parameters: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()
    notes: list[str] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)  # initializer → the parameter of the module that it holds
    missing: tuple[str, ...] = ()  # parameters that the program reads and no initializer holds
    gone: tuple[str, ...] = ()  # parameters that the file lists, neither held by an initializer nor read by a call
    folded_norms: int = 0  # batch norms of the program of which the file has no operator
    merged_norms: tuple[str, ...] = ()  # convolutions that hold a batch norm's numbers too
    places: dict[str, str] = field(default_factory=dict)  # initializer with an exporter's name → module that reads it
    numbers: tuple[str, ...] = ()  # single numbers that have a parameter's name
    edits: list[Parted | LeftOut] = field(default_factory=list)  # in order
    copies: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # parameter → see `Origin.copies`

    def is_parameter(self, initializer: str) -> bool:
        """Whether the file says so: by the calls that read it, else by a name that no constant has."""
        named = is_module_name(initializer) or initializer.startswith("onnx::")
        return initializer in self.parameters or (named and initializer not in self.buffers)

    def origin(self, initializer: str, dtype: str) -> Origin:
        """The place in the file of an initializer's numbers."""
        parted = {e.name: e.of for e in self.edits if isinstance(e, Parted)}
        left_out = any(e.name == initializer for e in self.edits if isinstance(e, LeftOut))
        copies = tuple(self.copies.get(initializer, ()))
        alias = self.aliases.get(initializer, "")
        module = alias.rpartition(".")[0] if alias else self.places.get(initializer, "")
        return Origin(initializer, "initializer", dtype, parted.get(initializer, ""), left_out, copies, module)


def restore(graph: onnx.GraphProto) -> Exported:
    """Undo the exporter's changes in place, where that is possible."""
    return _Restoring(graph).run()


class _Restoring:
    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.initializers = {t.name: t for t in graph.initializer}
        self.makers = makers(graph)
        self.names = {*self.initializers, *(i.name for i in graph.input), *(o for n in graph.node for o in n.output)}
        self.readers: dict[str, list[tuple[onnx.NodeProto, int]]] = defaultdict(list)
        self.users: dict[str, list[onnx.NodeProto]] = defaultdict(list)  # Origins of tensors that nodes make.
        for node in graph.node:
            for k, name in enumerate(node.input):
                if name in self.initializers:
                    self.readers[name].append((node, k))
                else:
                    self.users[name].append(node)
        self.calls = {id(node): call for node in graph.node if (call := call_of(node)) is not None}
        self.mangled = {mangled(name): name for name in self.initializers}
        self.declared = declared(graph)
        self.modules = {name.rpartition(".")[0] for name in self.names if is_module_name(name)}
        self.modules |= {path[:k] for path in set(self.modules) for k, x in enumerate(path) if x == "."}
        self.prefixes = [(mangled(p) + "_", p) for p in sorted(self.modules, key=len, reverse=True) if p]
        self.result = Exported()
        self.separated: list[str] = []
        self.constants: list[str] = []
        self.added: list[str] = []
        self.unfolded: list[str] = []
        self.tied: list[str] = []
        self.replaced: set[str] = set()

    def run(self) -> Exported:
        for name in list(self.initializers):
            self._separate(name)
        if self.calls:
            self._add_dropped_shifts()
        self._unfold_first_steps()
        self._tie_again()
        read = {i for node in self.graph.node for i in node.input} | {o.name for o in self.graph.output}
        for name in sorted(self.replaced - read):
            self.graph.initializer.remove(self.initializers.pop(name))
        self._know()
        notes = self.result.notes
        for names, what in (
            (self.separated, "an exporter had merged with equal ones: trained apart again"),
            (self.added, "an exporter had left out because all of it is zero: trained again"),
            (self.tied, "an exporter had copied, transposed, for one of their readers: one weight again"),
            (self.unfolded, "an exporter had added up beforehand, for a state of zeros: read as the parameter again"),
        ):
            if names:
                notes.append(f"{some(names)}, which {what}")
        return self.result

    # --- equal tensors that became one ---

    def _separate(self, name: str) -> None:
        """Give every owner its own copy: where the file proves that it had one, or all elements are the same number."""
        readers, tensor = self.readers[name], self.initializers[name]
        if len(readers) < 2 or tensor.data_type not in _FLOATS:
            return
        owners = [self._owner(name, node, k) for node, k in readers]
        unproven = not all(proven for _, proven in owners) and not self._is_uniform(tensor)
        if unproven and not self._is_of_numbered_layers(name, readers):
            owners = [(owner if proven else "", proven) for owner, proven in owners]
        groups: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for reader, (owner, _) in zip(readers, owners, strict=True):
            groups.setdefault(owner, []).append(reader)
        if len(groups) < 2:
            return
        owned = mangled(name)
        if owned not in groups:  # those of which nothing is known stay, else the first
            groups[owned] = groups.pop("" if "" in groups else next(o for o in groups if o != _OWN))
        else:
            groups[owned] += groups.pop("", [])
        for owner, members in groups.items():
            if owner == owned:
                self.readers[name] = members
                continue
            aliases = [node for node, _ in members if node.op_type == "Identity"]
            identities = tuple(node.output[0] for node in aliases)
            self.names -= set(identities)
            copy = onnx.TensorProto()
            copy.CopyFrom(tensor)
            name_of_copy = (
                f"{first_output(members[0][0])}/{name}" if owner == _OWN else self._name_of(owner, members[0][0])
            )
            copy.name = identities[0] if aliases else self._fresh(name_of_copy)
            self.readers[copy.name] = [(node, k) for node, k in members if node not in aliases]
            places = tuple((first_output(node), k) for node, k in self.readers[copy.name])
            self._edit(Parted(copy.name, name, places, identities), copy)
            (self.constants if owner == _OWN else self.separated).append(copy.name)

    def _is_of_numbered_layers(self, name: str, readers: list[tuple[onnx.NodeProto, int]]) -> bool:
        """Whether the readers of a matrix that the older exporter made, or norms, are one place in numbered layers.

        Layers that were copied have equal numbers at first. A layer that is called again has one path.
        """
        of_norms = all(node.op_type == "LayerNormalization" for node, _ in readers)
        if self.calls or not (of_norms or name.startswith("onnx::MatMul")):
            return False
        paths = []
        for node, _ in readers:
            users = self.users[node.output[0]] if node.op_type == "Identity" else [node]
            paths.append(self._module_path(users[0].name) if len(users) == 1 else "")
        shapes = {re.sub(r"(?<=\.)[0-9]+(?=\.|$)" if of_norms else r"[0-9]+", "0", path) for path in paths}
        return all(paths) and len(set(paths)) == len(paths) and len(shapes) == 1

    def _owner(self, name: str, node: onnx.NodeProto, k: int) -> tuple[str, bool]:
        """The module whose parameter a node reads there, mangled, and whether that is certain or only likely.

        The name is "" if the file does not say. Who is the same stays tied."""
        call, word = self.calls.get(id(node)), _slot(node, k)
        if node.op_type == "Identity" and is_module_name(node.output[0]):
            return mangled(node.output[0]), True  # of a tied weight the older exporter knows one name only
        if node.op_type == "Identity":  # The initializers that it made of a parameter: perhaps the same twice.
            places = [(n, list(n.input).index(node.output[0])) for n in self.users[node.output[0]]]
            owners = {(self._module_path(n.name), _slot(n, k) or name) for n, k in places}
            path, own = owners.pop() if len(owners) == 1 else ("", "")
            return (mangled(f"{path}.{own}") if path else ""), False
        if call is not None and node.op_type in ("LSTM", "GRU", "RNN") and 1 <= k <= 3:
            zeros = self._is_uniform(self.initializers[name], 0)  # of a layer without a shift
            return ("" if zeros else mangled(f"{call.scopes[-2] if len(call.scopes) > 1 else ''}.{'WRB'[k - 1]}")), True
        if call is not None and not call.parameters_and_buffers and node.op_type in _SLOTS and k:
            return (_OWN if self._is_uniform(self.initializers[name], 0, 1) else ""), True
        if call is not None:
            return self._read_by(call, node, k), True
        return self._likely_owner(name, node, word, node.input[1] if k > 1 else ""), False

    def _likely_owner(self, name: str, node: onnx.NodeProto, word: str, weight: str) -> str:
        """The most likely name of a parameter: by the module in the node's name, or by the weight `weight` it."""
        path = self._module_path(node.name)
        if word and node.op_type in _PLAIN and is_module_name(weight) and weight.endswith(".weight"):
            return mangled(f"{weight.removesuffix('weight')}{word}")
        if path and word:
            return mangled(f"{path}.{word}")
        if path and is_module_name(name) and path != name.rpartition(".")[0]:
            return mangled(f"{path}.{name.rpartition('.')[2]}")
        if path and not is_module_name(name) and len(self.initializers[name].dims):
            return mangled(f"{path}.{name}") if node.op_type in ("Mul", "Add") else ""
        if node.op_type.endswith("Normalization") and is_module_name(name):
            return mangled(f"{node.output[0]}.{word}")
        return ""

    def _module_path(self, node: str) -> str:
        """The module path in a node's name of the older exporter: body.0.norm of /body/body.0/norm/Mul.

        A repeated call's _1 is left out.
        """
        parts: list[str] = []
        before = ""
        for part in node.split("/")[1:-1]:
            own = part.removeprefix(before + ".") if before else part
            path = ".".join([*parts, own])
            if _REPEAT.search(own) and path not in self.modules:
                own = _REPEAT.sub("", own)
            parts.append(own)
            before = part
        return ".".join(parts)

    def _read_by(self, call: Call, node: onnx.NodeProto, k: int) -> str:
        """The parameter or buffer (mangled) that the call reads where the node has input `k`; "" if not clear."""
        name, reads = node.input[k], call.parameters_and_buffers
        slots = _SLOTS.get(node.op_type, ())
        if node.op_type == "InstanceNormalization" and call.target != "instance_norm":
            return ""  # a step of a group norm, which scales and shifts behind it
        if 1 <= k <= len(slots) and len(node.input) - 1 == len(reads):
            return reads[k - 1]
        if node.op_type == "BatchNormalization" and k > 2 and len(reads) > 1:
            return reads[k - 5]  # its statistics come last, whether or not it has a scale and a shift
        if mangled(name) in reads:
            return mangled(name)
        lost = [p for p in reads if p not in self.mangled]
        if node.op_type in _PLAIN and k == 1 and len(reads) > 1 and call.target in _WITH_SHIFT:
            shift = reads[0 if call.target == "addmm" else -1]  # which the exporter leaves out if all of it is zero
            lost = [p for p in lost if p != shift]
        foreign = [i for i in node.input if i in self.initializers and mangled(i) not in reads]
        foreign = [i for i in foreign if self.initializers[i].data_type in _FLOATS]
        if len(lost) == len(foreign):
            return lost[foreign.index(name)] if name in foreign else ""
        if lost and len(foreign) == 1 and node.op_type in ("MatMul", "Mul", "Add"):
            return lost[-1 if node.op_type == "Add" else 0]
        return ""

    def _unmangled(self, call: Call, parameter: str) -> str:
        """The parameter's name in the module tree: the innermost known module that it begins with, the attribute."""
        return self._split(parameter, call.scopes)

    def _split(self, flat: str, scopes: Iterable[str] = ()) -> str:
        """A mangled name with the dots that belong into it, as far as modules are known."""
        if flat in self.declared:
            return self.declared[flat][1]
        for path in sorted((p for p in scopes if p), key=len, reverse=True):
            if flat.startswith(mangled(path) + "_") and path not in self.modules:
                return f"{path}.{flat[len(path) + 1 :]}"
        for prefix, path in self.prefixes:
            if flat.startswith(prefix):
                return f"{path}.{flat[len(prefix) :]}"
        return flat

    def _name_of(self, owner: str, node: onnx.NodeProto) -> str:
        call = self.calls.get(id(node))
        if call is not None:
            return self._unmangled(call, owner)
        return self._split(owner, [self._module_path(node.name)])

    def _is_uniform(self, tensor: onnx.TensorProto, *numbers: float) -> bool:
        """Whether all elements are the same number, one of `numbers` if any are given."""
        array = self._array(tensor)
        if array is None or not array.size:
            return False
        first = array.reshape(-1)[0]
        return bool((array == first).all()) and (not numbers or float(first) in numbers)

    def _array(self, tensor: onnx.TensorProto) -> Array | None:
        """Its numbers; None where the file does not hold them, or too many."""
        if tensor.data_location == onnx.TensorProto.EXTERNAL or not 0 <= math.prod(tensor.dims) * 4 <= _LARGEST:
            return None
        try:
            return np.asarray(numpy_helper.to_array(tensor))
        except (ValueError, TypeError, RuntimeError):
            return None  # reading the file refuses it, with its name

    # --- shifts of zeros that were dropped ---

    def _add_dropped_shifts(self) -> None:
        groups: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in self.graph.node:
            if id(node) in self.calls:
                groups[self.calls[id(node)].text].append(node)
        for nodes in groups.values():
            call = self.calls[id(nodes[0])]
            is_folded_norm = "batch_norm" in call.target and nodes[0].op_type in _PLAIN
            if not (call.target in _WITH_SHIFT or is_folded_norm) or len(call.parameters) < 2:
                continue
            shift = call.parameters[-1]
            plain = [n for n in nodes if n.op_type in _PLAIN]
            if shift in self.mangled or not shift.endswith("bias") or len(plain) != 1:
                continue
            float_reads = [i for n in nodes for i in n.input if i in self.initializers]
            if sum(self.initializers[i].data_type in _FLOATS for i in float_reads) == 1:
                self._add_shift(plain[0], self._unmangled(call, shift))

    def _add_shift(self, node: onnx.NodeProto, name: str) -> None:
        weight = self.initializers.get(node.input[1]) if len(node.input) == 2 else None
        if weight is None or len(weight.dims) < 2:
            return
        attributes = {a.name: a for a in node.attribute}
        if node.op_type == "Gemm":
            length = weight.dims[0 if "transB" in attributes and attributes["transB"].i else 1]
        elif node.op_type == "ConvTranspose":
            length = weight.dims[1] * (attributes["group"].i if "group" in attributes else 1)
        else:
            length = weight.dims[-1 if node.op_type == "MatMul" else 0]
        if not 0 < length * 4 <= _LARGEST:
            return
        name, result = self._fresh(name), node.output[0]
        edit = LeftOut(name, result)
        if node.op_type == "MatMul":
            edit = LeftOut(name, result, self._fresh(f"{result}.product"), self._fresh(f"{node.name}.shift"))
            self.names.add(edit.product)
        self._edit(edit, numpy_helper.from_array(np.zeros(length, np.float32), name))
        self.added.append(name)

    # --- the first step of a loop from a state of zeros ---

    def _unfold_first_steps(self) -> None:
        """`Add` of a constant whose rows are all a shift that other nodes read: W·0 + b, computed beforehand."""
        shifts: dict[bytes, str] = {}
        for name, tensor in self.initializers.items():
            # All the same numbers could be any constant.
            if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 1 and not self._is_uniform(tensor):
                array = self._array(tensor)
                if array is not None:
                    shifts.setdefault(array.tobytes(), name)
        for name in [n for n, t in self.initializers.items() if len(t.dims) > 1]:
            tensor, readers = self.initializers[name], self.readers[name]
            if tensor.data_type != onnx.TensorProto.FLOAT or not readers or any(n.op_type != "Add" for n, _ in readers):
                continue
            array = self._array(tensor)
            if array is None or not array.size:
                continue
            rows = array.reshape(-1, array.shape[-1])
            shift = shifts.get(rows[0].tobytes())
            if shift is None or not (rows == rows[0]).all() or is_module_name(name):
                continue
            shape = self._fresh(f"{name}.shape")
            self._add(numpy_helper.from_array(np.array(array.shape, np.int64), shape))
            repeated = self._fresh(f"{name}.repeated")
            self.names.add(repeated)
            self.graph.node.insert(0, helper.make_node("Expand", [shift, shape], [repeated], name=repeated))
            for node, k in readers:
                node.input[k] = repeated
            self.unfolded.append(shift)
            self.replaced.add(name)
            self.result.copies.setdefault(shift, []).append((name, "repeated"))

    # --- a shared weight of which one reader got a transposed copy ---

    def _tie_again(self) -> None:
        """`MatMul` with a transposed copy of a matrix that others read as it is: an embedding and the last layer."""
        tables: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for name, readers in self.readers.items():
            if readers and is_module_name(name) and len(self.initializers[name].dims) == 2:
                tables[tuple(self.initializers[name].dims)].append(name)
        for node in list(self.graph.node):
            copy = node.input[1] if node.op_type == "MatMul" and len(node.input) == 2 else ""
            if copy not in self.initializers or is_module_name(copy) or len(self.initializers[copy].dims) != 2:
                continue
            call = self.calls.get(id(node))
            if call is None and not copy.startswith("onnx::"):
                continue
            rows, columns = self.initializers[copy].dims
            possible = [t for t in tables[columns, rows] if call is None or mangled(t) in call.parameters]
            array = self._array(self.initializers[copy]) if possible else None
            for table in possible:
                other = self._array(self.initializers[table])
                if array is None or other is None or not np.array_equal(array[:, 0], other[0]):
                    continue
                if not np.array_equal(array.T, other):
                    continue
                if call is None and self._is_uniform(self.initializers[copy]):
                    continue
                turned = self._fresh(f"{copy}.turned")
                self.names.add(turned)
                self.graph.node.insert(0, helper.make_node("Transpose", [table], [turned], name=turned, perm=[1, 0]))
                node.input[1] = turned
                self.tied.append(table)
                self.replaced.add(copy)
                self.result.copies.setdefault(table, []).append((copy, "transposed"))
                break

    # --- knowledge that is left ---

    def _know(self) -> None:
        result = self.result
        own: set[str] = set()
        buffers: set[str] = set()
        lost: dict[str, str] = {}
        for node in self.graph.node:
            call = self.calls.get(id(node))
            self._note_places(node, call)
            if call is None:
                continue
            packed = call.target in _RECURRENT  # an input of the node holds several parameters
            own |= {self.mangled[p] for p in call.parameters if p in self.mangled}
            buffers |= {self.mangled[p] for p in call.buffers if p in self.mangled}
            lost |= {p: self._unmangled(call, p) for p in call.parameters if p not in self.mangled and not packed}
            own |= {i for i in node.input[1:4] if node.op_type in ("LSTM", "GRU", "RNN") and i in self.initializers}
            for k, name in enumerate(node.input):
                if name in self.initializers and self.initializers[name].data_type in _FLOATS and not packed:
                    read = self._read_by(call, node, k)
                    if read in call.parameters and read not in self.mangled:
                        result.aliases.setdefault(name, self._unmangled(call, read))
        for kind, name in self.declared.values():
            if name in self.initializers:
                (own if kind == "PARAMETER" else buffers).add(name)
        result.parameters = frozenset(own | result.aliases.keys())
        if self.calls:  # the exporter's own: an initial state of zeros, the scale of a norm without one
            foreign = {n: t for n, t in self.initializers.items() if not is_module_name(n)}
            absent = self._absent()
            listed = any(kind == "PARAMETER" for kind, _ in self.declared.values())
            whole = listed and not absent  # so that none was made into a factor or summand
            factors = {n for n in foreign if whole and all(r.op_type in _ELEMENTWISE for r, _ in self.readers[n])}
            buffers |= factors | {n for n, t in foreign.items() if self._is_uniform(t, 0, 1)}
        result.buffers = frozenset(buffers - result.parameters)
        result.missing = tuple(sorted(set(lost.values()) - set(result.aliases.values())))
        if self.calls:
            result.gone = tuple(sorted(absent - set(result.missing)))
        if not any(n.op_type in ("BatchNormalization", "InstanceNormalization") for n in self.graph.node):
            means = {t for _, t in self.declared.values()} | {b for c in self.calls.values() for b in c.buffers}
            folded = sum(t.endswith("running_mean") for t in {mangled(m) for m in means})
            result.folded_norms = max(folded, len(result.merged_norms))
        if not self.calls:
            floats = [n for n, t in self.initializers.items() if t.data_type in _FLOATS and math.prod(t.dims) == 1]
            scales = {n for n in floats if all(r.op_type == "DequantizeLinear" for r, _ in self.readers[n])}
            paths = {n for n in floats if n.isidentifier() and all(r.name.startswith("/") for r, _ in self.readers[n])}
            result.numbers = tuple(n for n in floats if (is_module_name(n) or n in paths) and n not in scales)

    def _absent(self) -> set[str]:
        """Parameters of the program, as far as the file lists them, that it holds under no name.

        Of tied parameters it lists all names, and the calls read one.
        """
        listed = {target for kind, target in self.declared.values() if kind == "PARAMETER"}
        absent = listed - {*self.initializers, *self.result.aliases.values()}
        packed = {p for c in self.calls.values() if c.target in _RECURRENT for p in c.parameters}
        absent -= {self.declared[p][1] for p in packed if p in self.declared}
        for call in self.calls.values() if absent else ():
            module = max(call.scopes[:-1], key=len, default="")
            read = [self._unmangled(call, p) for p in call.parameters]
            if module and any(not p.startswith(module + ".") for p in read):  # another module's
                absent -= {f"{module}.{p.rpartition('.')[2]}" for p in read}
        return absent

    def _note_places(self, node: onnx.NodeProto, call: Call | None) -> None:
        path = self._module_path(node.name) if call is None else max(call.scopes[:-1], key=len, default="")
        for name in node.input:
            if name in self.initializers and (name.startswith("onnx::") if call is None else not is_module_name(name)):
                self.result.places.setdefault(name, path)
        if node.op_type == "Conv" and len(node.input) == 3 and all(i.startswith("onnx::Conv_") for i in node.input[1:]):
            self.result.merged_norms += (node.name,)

    def _edit(self, edit: Parted | LeftOut, tensor: onnx.TensorProto) -> None:
        edit.apply(self.graph, self.makers, tensor)
        self.result.edits.append(edit)
        self._know_initializer(tensor)

    def _add(self, tensor: onnx.TensorProto) -> None:
        self.graph.initializer.append(tensor)
        self._know_initializer(tensor)

    def _know_initializer(self, tensor: onnx.TensorProto) -> None:
        self.initializers[tensor.name] = tensor
        self.mangled[mangled(tensor.name)] = tensor.name
        self.names.add(tensor.name)

    def _fresh(self, name: str) -> str:
        return free_name(name, self.names)


def _slot(node: onnx.NodeProto, k: int) -> str:
    """The name in PyTorch of input `k` of a node, "" if it has none."""
    slots = _SLOTS.get(node.op_type, ())
    return slots[k - 1] if 1 <= k <= len(slots) else ""


def first_output(node: onnx.NodeProto) -> str:
    return next((o for o in node.output if o), "")


def makers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """The nodes of a graph by their first output."""
    return {first_output(node): node for node in graph.node}


def some(names: Iterable[str], what: str = "parameter") -> str:
    """How many, and the first few."""
    each = list(dict.fromkeys(names))
    shown = ", ".join(repr(n) for n in each[:5]) + (f" and {len(each) - 5} more" if len(each) > 5 else "")
    return f"{len(each)} {what}{'s' * (len(each) > 1)} ({shown})"
