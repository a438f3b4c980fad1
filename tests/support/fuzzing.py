"""Damaged and distorted ONNX models, made from small good ones; and what the importer must do with any of them.

A case is a number: the same number gives the same bytes. The good models are those of the onnx package's node tests,
and a few small networks, whose layers the importer's patterns look for.
"""

from __future__ import annotations

import contextlib
import random
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from poetc import training
from poetc.errors import PoetcError
from poetc.frontend import TRANSLATIONS, is_quantized, load
from poetc.graph import Graph, materialize
from poetc.ops import bind, spec
from tests.support.files import write_anew
from tests.support.onnx_cases import every_case

FOLDED = {"Constant", "Shape", "Size", "ConstantOfShape", "Range", "DequantizeLinear"}
HUGE = (0, -1, -7, 1, 2, 3, 5, 1000, 2**16, 2**31 - 1, 2**31, 2**40, 2**62, -(2**63))
LARGEST_SEED_BYTES = 20_000


class WrongResult(Exception):
    """The importer accepted a valid model and made another function of it."""


@cache
def seeds() -> tuple[bytes, ...]:
    """Good models with their numbers in them: the first input stays one, the others become initializers."""
    found = []
    for case in every_case():
        arrays = case.data_sets[0][0]
        if not {n.op_type for n in case.model.graph.node} <= set(TRANSLATIONS) | FOLDED:
            continue
        if not all(isinstance(a, (np.ndarray, np.generic)) for a in arrays):
            continue
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        for info, array in list(zip(list(model.graph.input), arrays, strict=False))[1:]:
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), info.name))
            model.graph.input.remove(info)
        data = model.SerializeToString()
        if len(data) <= LARGEST_SEED_BYTES:
            found.append(data)
    return (*found, *_networks() * NETWORKS_REPEATED)


NETWORKS_REPEATED = 30  # there are few of them among a thousand others
_NETWORKS = (
    """float[2,3,8,8] x) => (float[2,5] y) { c1 = Conv<pads=[1,1,1,1]>(x, w:4x3x3x3, b:4)
    n1 = BatchNormalization<epsilon=0.001>(c1, s:4, o:4, m:4, v:4) r1 = Relu(n1)
    c2 = Conv<group=4,strides=[2,2],auto_pad="SAME_UPPER">(r1, w2:4x1x3x3)
    n2 = BatchNormalization(c2, s2:4, o2:4, m2:4, v2:4) r2 = Clip(n2, low:, high:)
    p = MaxPool<kernel_shape=[2,2],strides=[2,2]>(r2) g = GlobalAveragePool(p) f = Flatten(g)
    y = Gemm<transB=1>(f, w3:5x4, b3:5) }""",
    """float[2,4,6] x) => (float[2,4,3] y) { n = LayerNormalization(x, s:6, o:6) h = MatMul(n, w:6x18) a = Add(h, b:18)
    q, k, v = Split<axis=2,num_outputs=3>(a) t = Transpose<perm=[0,2,1]>(k) d = MatMul(q, t) e = Mul(d, half:)
    i = Softmax<axis=2>(e) u = MatMul(i, v) z = Add(x, u) f = MatMul(z, w2:6x8) f2 = Add(f, b2:8) g = Div(f2, root:)
    l = Erf(g) l1 = Add(l, one:) l2 = Mul(f2, l1) l3 = Mul(l2, half2:) y = MatMul(l3, w3:8x3) }""",
    """float[2,3,4] x) => (float[2,2] y) { t = Transpose<perm=[1,0,2]>(x)
    h, last, cell = LSTM<hidden_size=3>(t, w:1x12x4, r:1x12x3, b:1x24) s = Transpose<perm=[1,0,2]>(last)
    f = Flatten(s) d = Dropout(f) y = Gemm(d, w2:3x2, b2:2) }""",
    """float[1,2,6,6] x) => (float[1,3,12,12] y) { c = Conv<pads=[1,1,1,1]>(x, w:4x2x3x3, b:4)
    a = LeakyRelu<alpha=0.1>(c) p = AveragePool<kernel_shape=[2,2],strides=[2,2],count_include_pad=1>(a)
    u = Resize<mode="linear">(p, none:0, scales:4) j = Concat<axis=1>(u, a)
    k = ConvTranspose<strides=[2,2],output_padding=[1,1],pads=[1,1,1,1]>(j, w2:8x3x3x3, b2:3)
    m = InstanceNormalization(k, s:3, o:3) e = ReduceMean<keepdims=1>(m, axes:2) q = Sub(m, e) y = Sigmoid(q) }""",
)
_NUMBERS = {
    "low": np.float32(0), "high": np.float32(6), "half": np.float32(0.4), "half2": np.float32(0.5),
    "root": np.float32(2**0.5), "one": np.float32(1), "scales": np.float32([1, 1, 2, 2]), "axes": np.int64([2, 3]),
}  # fmt: skip


def _networks() -> tuple[bytes, ...]:
    """`name:4x3` in a text above is a weight of that shape, `name:` a number."""
    made = []
    for number, text in enumerate(_NETWORKS):
        draw = np.random.default_rng(number)
        weights: dict[str, np.ndarray[Any, np.dtype[Any]]] = {}
        for name, dims in re.findall(r"(\w+):([\dx]*)", text):
            shape = tuple(map(int, dims.split("x"))) if dims else ()
            weights[name] = draw.uniform(0.1, 0.9, shape).astype(np.float32)
        weights |= {name: np.asarray(value) for name, value in _NUMBERS.items() if name in weights}
        model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> net ({re.sub(r":[0-9x]*", "", text)}')
        model.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights.items())
        onnx.checker.check_model(model, full_check=True)
        made.append(model.SerializeToString())
    return tuple(made)


def make_case(number: int) -> bytes:
    """The bytes of case `number`: a third has bytes damaged, the others are well-formed files with a distorted graph,
    most of them in one place, so that they get far."""
    draw = random.Random(number)
    good = seeds()
    data = good[draw.randrange(len(good))]
    if draw.random() < 0.35:
        return _damaged(data, draw)
    model = onnx.ModelProto.FromString(data)
    if draw.random() < 0.3:
        _append(model, onnx.ModelProto.FromString(good[draw.randrange(len(good))]))
    gentle = draw.random() < 0.5
    for _ in range(draw.choice((1, 1, 1, 2, 3, 5))):
        change = draw.choice(GENTLE if gentle else CHANGES)
        try:
            change(model.graph, draw)
        except Exception:
            continue  # nothing there to change, or too broken by now for onnx's own helpers
    return bytes(model.SerializeToString())


def _damaged(data: bytes, draw: random.Random) -> bytes:
    result = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 6))):
        if not result:
            break
        at = draw.randrange(len(result))
        match draw.randrange(5):
            case 0 | 1:
                result[at] = draw.randrange(256)
            case 2:
                result[at] ^= 1 << draw.randrange(8)
            case 3:
                del result[at : at + draw.randrange(1, 30)]
            case _:
                result[at:at] = result[at : at + draw.randrange(1, 30)]
    if draw.random() < 0.1:
        del result[draw.randrange(len(result) + 1) :]
    return bytes(result)


# --- distortions of a graph; each raises IndexError or ValueError where there is nothing to distort ---


def _append(model: onnx.ModelProto, other: onnx.ModelProto) -> None:
    """The second model behind the first: what the one makes, the other reads."""
    rename = {n: f"second/{n}" for node in other.graph.node for n in (*node.input, *node.output) if n}
    if not model.graph.output or not other.graph.input:
        return
    rename[other.graph.input[0].name] = model.graph.output[0].name
    for node in other.graph.node:
        for names in (node.input, node.output):
            names[:] = [rename.get(n, n) for n in names]
        model.graph.node.append(node)
    for tensor in other.graph.initializer:
        tensor.name = rename.get(tensor.name, tensor.name)
        model.graph.initializer.append(tensor)
    del model.graph.output[:]
    for info in other.graph.output:
        info.name = rename.get(info.name, info.name)
        model.graph.output.append(info)
    version = max([o.version for m in (model, other) for o in m.opset_import if o.domain == ""], default=13)
    for opset in model.opset_import:
        if opset.domain == "":
            opset.version = version


def _names(graph: onnx.GraphProto) -> list[str]:
    made = [o for n in graph.node for o in n.output]
    return [*made, *(i.name for i in graph.input), *(t.name for t in graph.initializer)]


def _node(graph: onnx.GraphProto, draw: random.Random) -> onnx.NodeProto:
    return draw.choice(graph.node)


def reconnect(graph: onnx.GraphProto, draw: random.Random) -> None:
    node = _node(graph, draw)
    node.input[draw.randrange(len(node.input))] = draw.choice(["", "missing", *_names(graph)])


def rename_output(graph: onnx.GraphProto, draw: random.Random) -> None:
    node = _node(graph, draw)
    node.output[draw.randrange(len(node.output))] = draw.choice(["", "other", *_names(graph)])


def drop_node(graph: onnx.GraphProto, draw: random.Random) -> None:
    graph.node.remove(_node(graph, draw))


def repeat_node(graph: onnx.GraphProto, draw: random.Random) -> None:
    graph.node.append(_node(graph, draw))


def swap_operator(graph: onnx.GraphProto, draw: random.Random) -> None:
    other = onnx.ModelProto.FromString(draw.choice(seeds())).graph
    _node(graph, draw).op_type = _node(other, draw).op_type


def more_inputs(graph: onnx.GraphProto, draw: random.Random) -> None:
    _node(graph, draw).input.append(draw.choice(_names(graph)))


def fewer_inputs(graph: onnx.GraphProto, draw: random.Random) -> None:
    node = _node(graph, draw)
    del node.input[draw.randrange(len(node.input))]


def change_attribute(graph: onnx.GraphProto, draw: random.Random) -> None:
    node = draw.choice([n for n in graph.node if n.attribute])
    attribute = draw.choice(node.attribute)
    match draw.randrange(6):
        case 0:
            node.attribute.remove(attribute)
        case 1:
            attribute.type = draw.randrange(15)
        case 2 if attribute.ints:
            attribute.ints[draw.randrange(len(attribute.ints))] = draw.choice(HUGE)
        case 3 if attribute.ints:
            del attribute.ints[draw.randrange(len(attribute.ints))]
        case 4:
            attribute.f = draw.choice((0.0, -1.0, float("nan"), float("inf"), 1e38))
        case _:
            attribute.i = draw.choice(HUGE)
            attribute.s = draw.choice((b"", b"SAME_UPPER", b"\xff\xfe", b"linear"))


def change_input_shape(graph: onnx.GraphProto, draw: random.Random) -> None:
    shape = draw.choice(graph.input).type.tensor_type.shape
    match draw.randrange(4):
        case 0:
            draw.choice(shape.dim).dim_value = draw.choice(HUGE)
        case 1:
            draw.choice(shape.dim).dim_param = "N"
        case 2:
            shape.dim.add().dim_value = draw.choice(HUGE)
        case _:
            del shape.dim[draw.randrange(len(shape.dim))]


def change_type(graph: onnx.GraphProto, draw: random.Random) -> None:
    draw.choice(graph.input).type.tensor_type.elem_type = draw.randrange(25)


def change_weight(graph: onnx.GraphProto, draw: random.Random) -> None:
    tensor = draw.choice(graph.initializer)
    match draw.randrange(5):
        case 0:
            tensor.dims[draw.randrange(len(tensor.dims))] = draw.choice(HUGE)
        case 1:
            tensor.dims.append(draw.choice(HUGE))
        case 2:
            tensor.data_type = draw.randrange(25)
        case 3:
            tensor.raw_data = tensor.raw_data[: draw.randrange(len(tensor.raw_data))]
        case _:
            array = numpy_helper.to_array(tensor).copy().reshape(-1)
            array[draw.randrange(array.size)] = draw.choice((0, 1, 2, 3, 100))
            changed = numpy_helper.from_array(array.reshape(tuple(tensor.dims)), tensor.name)
            tensor.CopyFrom(changed)


def drop_weight(graph: onnx.GraphProto, draw: random.Random) -> None:
    graph.initializer.remove(draw.choice(graph.initializer))


def external_weight(graph: onnx.GraphProto, draw: random.Random) -> None:
    tensor = draw.choice(graph.initializer)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=draw.choice(("absent.bin", "../up", "/etc/passwd", "")))
    tensor.external_data.add(key="offset", value=draw.choice(("0", "-1", "x", "999999999999")))


def other_domain(graph: onnx.GraphProto, draw: random.Random) -> None:
    _node(graph, draw).domain = draw.choice(("ai.onnx.ml", "com.microsoft", "ai.onnx", "x"))


def reverse_nodes(graph: onnx.GraphProto, draw: random.Random) -> None:
    nodes = list(graph.node)
    draw.shuffle(nodes)
    del graph.node[:]
    graph.node.extend(nodes)


def change_output(graph: onnx.GraphProto, draw: random.Random) -> None:
    draw.choice(graph.output).name = draw.choice(["missing", *_names(graph)])


CHANGES: Sequence[Callable[[onnx.GraphProto, random.Random], None]] = (
    reconnect, rename_output, drop_node, repeat_node, swap_operator, more_inputs, fewer_inputs, change_attribute,
    change_attribute, change_attribute, change_input_shape, change_type, change_weight, change_weight, drop_weight,
    external_weight, other_domain, reverse_nodes, change_output,
)  # fmt: skip
GENTLE = (change_attribute, change_weight, change_input_shape, swap_operator, reconnect)


# --- what must hold ---


def examine(data: bytes, folder: Path, *, compare: bool = True) -> str:
    """Import and differentiate the model: "refused", "read", or "agrees" where its numbers could be compared.

    Whatever escapes is a defect: WrongResult, or any exception that is not one of poetc.errors.
    """
    path = folder / "case.onnx"
    write_anew(path, data)
    try:
        graph = load(path, batch=None, random_weights=0)
    except PoetcError as error:
        if not str(error).isprintable() and "cannot be trained" not in str(error):
            raise WrongResult(f"a message of several lines: {error!r}") from None
        return "refused"
    with contextlib.suppress(PoetcError):
        training.build(graph, training.TrainingOptions(loss="mse"))
    return "agrees" if compare and _compared(graph, data) else "read"


def _compared(graph: Graph, data: bytes) -> bool:
    """Whether both evaluators have an answer. WrongResult when they differ."""
    model = onnx.ModelProto.FromString(data)
    small = all(max(t.shape, default=0) < 2**20 for t in graph.tensors.values())
    if not small or sum(t.size_bytes for t in graph.tensors.values()) > 2**22 or _free(model):
        return False
    draw = np.random.default_rng(0)
    feeds = {}
    for name in graph.inputs:
        (info,) = (i for i in model.graph.input if i.name == name)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        shape = graph.tensors[name].shape
        feeds[name] = (
            draw.integers(0, 2, shape).astype(dtype)
            if dtype.kind in "iub"
            else draw.uniform(0.1, 0.9, shape).astype(dtype)
        )
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            onnx.checker.check_model(model, full_check=True)
            answers = ReferenceEvaluator(model).run(None, feeds)
        except Exception:
            return False  # not a valid model, or beyond the reference: nothing to compare with
        ours = evaluate(graph, feeds)
    try:
        _assert_alike(model, ours, answers)
    except WrongResult:
        # ONNX's evaluator has defects too: onnxruntime has the casting vote, where it reads the model.
        try:
            answers = _session(data).run(None, feeds)
        except Exception:
            answers = []
        if not answers:
            raise
        _assert_alike(model, ours, answers)
    return True


def _session(data: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(data, options)


def _assert_alike(model: onnx.ModelProto, ours: Mapping[str, Any], answers: Sequence[Any]) -> None:
    for info, answer in zip(model.graph.output, answers, strict=True):
        if info.name in ours and isinstance(answer, (np.ndarray, np.generic)):
            _assert_close(info.name, ours[info.name], np.asarray(answer))


# What ONNX leaves open; and its evaluator compares fractions with places where the text says that OneHot rounds them.
_OPEN = frozenset({"RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial", "OneHot"})


def _evaluated_wrongly(node: onnx.NodeProto, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Where onnx's evaluator does not do what the text of the standard says. `shapes`: of the initializers."""
    given = {a.name: a.i for a in node.attribute}
    match node.op_type:
        case "LpNormalization":
            return given.get("p") == 1  # forgets the absolute value
        case "NegativeLogLikelihoodLoss":
            return given.get("ignore_index") == -1  # divides by those ignored, for this number only
        case "Attention":
            mask = shapes.get(node.input[3], (0,)) if len(node.input) > 3 and node.input[3] else (0, 0)
            if len(mask) < 2 or mask[-2] == 1:
                return True  # takes the rows of a mask that is repeated for each query for those of the queries
            return len(node.output) > 3 and not given.get("qk_matmul_output_mode")  # the product, but softcapped
        case "Resize" | "Upsample":  # rounds in double precision, aligns corners at a length that is not whole
            words = {a.s for a in node.attribute}
            smooth = bool(words & {b"linear", b"cubic"})
            return not smooth or bool(words & {b"align_corners", b"pytorch_half_pixel", b"tf_crop_and_resize"})
    return False


def _free(model: onnx.ModelProto) -> bool:
    nodes = [*model.graph.node, *(n for f in model.functions for n in f.node)]
    trained = any(a.name == "training_mode" and a.i for n in nodes for a in n.attribute)
    trained |= any(n.op_type == "Dropout" and len(n.input) > 2 for n in nodes)  # drops where the file says so
    absent = any(t.data_location == onnx.TensorProto.EXTERNAL for t in model.graph.initializer)
    opened = any(n.op_type in _OPEN for n in nodes)
    shapes = {t.name: t.dims for t in model.graph.initializer}
    wrong = any(_evaluated_wrongly(n, shapes) for n in nodes)
    return trained or absent or opened or is_quantized(model) or wrong


def evaluate(graph: Graph, feeds: Mapping[str, Any]) -> dict[str, Any]:
    held: dict[str, Any] = {name: materialize(v, graph.tensors[name].type) for name, v in graph.values.items()}
    held.update({name: np.asarray(feeds[name]).astype(graph.tensors[name].dtype.numpy) for name in graph.inputs})
    for op in graph.operators:
        results = spec(op.kind).evaluate(bind(op, graph.tensors), [held[t] for t in op.inputs])
        for name, result in zip(op.outputs, results, strict=True):
            if np.shape(result) != graph.tensors[name].shape:
                raise WrongResult(f"{op.name} makes {np.shape(result)}, not {graph.tensors[name].shape}")
            held[name] = np.asarray(result).astype(graph.tensors[name].dtype.numpy)
    return {name: held[name] for name in graph.outputs}


def _assert_close(name: str, actual: Any, expected: Any) -> None:
    if actual.shape != expected.shape:
        raise WrongResult(f"{name!r} has shape {actual.shape}, ONNX says {expected.shape}")
    if expected.dtype.kind not in "fiub":
        return
    # Distorted models cancel: single precision itself may be off by a thousandth there.
    relative = 2e-2 if expected.dtype.itemsize <= 2 and expected.dtype.kind == "f" else 1e-2
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(actual) & np.isfinite(expected)
    scale = float(np.abs(expected[finite]).max(initial=1.0))
    if not np.allclose(actual[finite], expected[finite], rtol=relative, atol=relative * scale):
        raise WrongResult(f"{name!r} is {actual.reshape(-1)[:4]}, ONNX says {expected.reshape(-1)[:4]}")
