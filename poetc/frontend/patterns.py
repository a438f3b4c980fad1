"""Operators that exporters spell out in many, put back into one. Each pattern is a small function on the last operator.

A pattern returns True when it changed something. None changes the model's function; the results differ by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from poetc.frontend._rewriter import Rewriter
from poetc.graph import Attribute, Operator


def number(attributes: Mapping[str, Attribute], name: str, default: float = 0.0) -> float:
    value = attributes.get(name, default)
    assert isinstance(value, (int, float))
    return float(value)


def ints(attributes: Mapping[str, Attribute], name: str) -> tuple[int, ...]:
    value = attributes.get(name, ())
    assert isinstance(value, tuple)
    return tuple(int(v) for v in value)


def _close(a: float, b: float, tolerance: float = 1e-4) -> bool:
    """Exporters write constants with few digits."""
    return abs(a - b) <= tolerance * max(abs(b), 1e-30)


def _scaled(r: Rewriter, tensor: str) -> tuple[str, float]:
    """(x, k) where tensor = k · x through scalings without offset."""
    factor = 1.0
    while (op := r.producer(tensor, "Affine")) is not None and number(op.attributes, "beta") == 0.0:
        factor *= number(op.attributes, "alpha", 1.0)
        tensor = op.inputs[0]
    return tensor, factor


# --- views and scalings ---


def merge_reshapes(r: Rewriter, op: Operator) -> bool:
    """A view of a view is a view of the first; one that changes nothing is none."""
    inner = r.producer(op.inputs[0], "Reshape")
    source = inner.inputs[0] if inner is not None else op.inputs[0]
    if r.type(source) == r.type(op.outputs[0]) and r.forward(op, source):
        return True
    return inner is not None and r.replace(op, "Reshape", [source], op.attributes)


def merge_transposes(r: Rewriter, op: Operator) -> bool:
    """Two transpositions are one, or none."""
    inner = r.producer(op.inputs[0], "Transpose")
    if inner is None:
        return False
    first, second = ints(inner.attributes, "perm"), ints(op.attributes, "perm")
    perm = tuple(first[a] for a in second)
    if perm == tuple(range(len(perm))) and r.forward(op, inner.inputs[0]):
        return True
    return r.replace(op, "Transpose", [inner.inputs[0]], {"perm": perm})


def merge_affines(r: Rewriter, op: Operator) -> bool:
    """Two affine operators in a row, a2 · (a1 · x + b1) + b2, become one."""
    inner = r.producer(op.inputs[0], "Affine")
    if inner is None or not r.only_use(op.inputs[0]):
        return False
    a1, b1 = number(inner.attributes, "alpha", 1.0), number(inner.attributes, "beta")
    a2, b2 = number(op.attributes, "alpha", 1.0), number(op.attributes, "beta")
    alpha, beta = a1 * a2, a2 * b1 + b2
    source = r.producer(inner.inputs[0])
    if _close(alpha, 1.0, 1e-6) and beta == 0.0:
        if r.forward(op, inner.inputs[0]):
            return True
        if source is not None and len(source.outputs) == 1 and r.only_use(inner.inputs[0]):
            return r.replace(op, source.kind, source.inputs, source.attributes)
    return r.replace(op, "Affine", [inner.inputs[0]], {"alpha": alpha, "beta": beta})


def scale_into_matmul(r: Rewriter, op: Operator) -> bool:
    """Attention's scaling of the scores is the product's alpha."""
    product = r.producer(op.inputs[0], "MatMul")
    if product is None or number(op.attributes, "beta") != 0.0:
        return False
    if len(product.inputs) != 2 or not r.only_use(op.inputs[0]):
        return False
    alpha = number(op.attributes, "alpha", 1.0) * number(product.attributes, "alpha", 1.0)
    return r.replace(op, "MatMul", product.inputs, {**product.attributes, "alpha": alpha})


def slice_of_concat(r: Rewriter, op: Operator) -> bool:
    """A slice of one of the parts just joined, seen through views and transpositions.

    The last step of an unrolled recurrent layer is such a slice. The other parts do not matter to it.
    """
    if op.outputs[0] in r.outputs or any(s != 1 for s in ints(op.attributes, "steps")):
        return False
    tensor, starts, sizes = op.inputs[0], ints(op.attributes, "starts"), ints(op.attributes, "sizes")
    again: list[tuple[str, dict[str, Attribute]]] = []  # The operators to apply to the slice of the part, last first.
    while (maker := r.producer(tensor)) is not None and maker.kind in ("Reshape", "Transpose"):
        source = r.type(maker.inputs[0]).shape
        if maker.kind == "Transpose":
            perm = ints(maker.attributes, "perm")
            again.append(("Transpose", {"perm": perm}))
            starts, sizes = (tuple(x[perm.index(a)] for a in range(len(perm))) for x in (starts, sizes))
        else:
            again.append(("Reshape", {"shape": sizes}))
            seen = _slice_of_view(source, r.type(tensor).shape, starts, sizes)
            if seen is None:
                return False
            starts, sizes = seen
        tensor = maker.inputs[0]
    if maker is None or maker.kind != "Concat":
        return False
    axis = int(number(maker.attributes, "axis"))
    at = 0
    for part in maker.inputs:
        whole = r.type(part).shape
        if at <= starts[axis] and starts[axis] + sizes[axis] <= at + whole[axis]:
            break
        at += whole[axis]
    else:
        return False
    starts = (*starts[:axis], starts[axis] - at, *starts[axis + 1 :])
    if sizes != whole:
        part = r.insert(op, "Slice", [part], {"starts": starts, "sizes": sizes, "steps": (1,) * len(sizes)})
    for kind, attributes in reversed(again):
        if kind == "Transpose" or attributes["shape"] != r.type(part).shape:
            part = r.insert(op, kind, [part], attributes)
    return r.forward(op, part)


def _slice_of_view(
    source: tuple[int, ...], shape: tuple[int, ...], starts: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(starts, sizes) in `source` of a slice of a tensor that is seen in `shape`.

    None where that is no slice, or one along several axes.
    """
    cut = [a for a, size in enumerate(sizes) if size != shape[a]]
    if len(cut) != 1:
        return None
    outer, inner = math.prod(shape[: cut[0]]), math.prod(shape[cut[0] + 1 :])
    start, size = starts[cut[0]] * inner, sizes[cut[0]] * inner
    for axis, length in enumerate(source):
        within = math.prod(source[axis + 1 :])
        if math.prod(source[:axis]) == outer and length > 1 and start % within == 0 and size % within == 0:
            new_starts = tuple(start // within if a == axis else 0 for a in range(len(source)))
            return new_starts, tuple(size // within if a == axis else n for a, n in enumerate(source))
    return None


def expand_into_broadcast(r: Rewriter, op: Operator) -> bool:
    """Arithmetic broadcasts by itself, so an operand need not be expanded for it."""
    for k, t in enumerate(op.inputs):
        wide = r.producer(t, "Expand")
        if wide is None:
            continue
        inputs = [*op.inputs[:k], wide.inputs[0], *op.inputs[k + 1 :]]
        shape = np.broadcast_shapes(*(r.type(i).shape for i in inputs))
        if shape == r.type(op.outputs[0]).shape:
            return r.replace(op, op.kind, inputs, op.attributes)
    return False


# --- matrix products and convolutions ---


def transpose_into_matmul(r: Rewriter, op: Operator) -> bool:
    """A transposition of the last two axes is a flag of the product, so a weight keeps the shape it has in the file."""
    for k, flag in ((0, "trans_a"), (1, "trans_b")):
        swap = r.producer(op.inputs[k], "Transpose")
        if swap is None:
            continue
        perm = ints(swap.attributes, "perm")
        rank = len(perm)
        if perm == (*range(rank - 2), rank - 1, rank - 2):
            inputs = list(op.inputs)
            inputs[k] = swap.inputs[0]
            attributes = {**op.attributes, flag: not op.attributes.get(flag, False)}
            return r.replace(op, "MatMul", inputs, attributes)
    return False


def scaled_operand_of_matmul(r: Rewriter, op: Operator) -> bool:
    """Scaling of an operand (both, in scaled dot product attention as PyTorch exports it) is the product's alpha."""
    if len(op.inputs) != 2:
        return False
    (a, ka), (b, kb) = _scaled(r, op.inputs[0]), _scaled(r, op.inputs[1])
    if (a, b) == op.inputs:
        return False
    alpha = number(op.attributes, "alpha", 1.0) * ka * kb
    return r.replace(op, "MatMul", [a, b], {**op.attributes, "alpha": alpha})


def bias_operands(r: Rewriter, op: Operator, kind: str) -> tuple[Operator, str] | None:
    """(the product, the summand) when one operand of an Add is a product without bias or other use."""
    for product, other in (op.inputs, op.inputs[::-1]):
        maker = r.producer(product, kind)
        if maker is None or len(maker.inputs) != 2 or not r.only_use(product) or not r.is_leaf(other):
            continue
        if r.type(product) == r.type(op.outputs[0]):
            return maker, other
    return None


def matmul_bias(r: Rewriter, op: Operator) -> bool:
    """MatMul + Add of a vector along the last axis."""
    operands = bias_operands(r, op, "MatMul")
    if operands is None:
        return False
    product, bias = operands
    columns, shape = r.type(product.outputs[0]).shape[-1], r.type(bias).shape
    if not shape or shape[-1] != columns or math.prod(shape) != columns:
        return False
    vector = bias if shape == (columns,) else r.insert(op, "Reshape", [bias], {"shape": (columns,)})
    return r.replace(op, "MatMul", [*product.inputs, vector], product.attributes)


def conv_bias(r: Rewriter, op: Operator) -> bool:
    """Conv + Add of [C, 1, 1]."""
    for kind in ("Conv", "ConvTranspose"):
        operands = bias_operands(r, op, kind)
        if operands is None:
            continue
        conv, bias = operands
        channels, shape = r.type(conv.outputs[0]).shape[1], r.type(bias).shape
        if len(shape) < 3 or (1, *shape)[-3:] != (channels, 1, 1) or math.prod(shape) != channels:
            continue
        vector = r.insert(op, "Reshape", [bias], {"shape": (channels,)})
        return r.replace(op, kind, [*conv.inputs, vector], conv.attributes)
    return False


def pad_into_window(r: Rewriter, op: Operator) -> bool:
    """Zeros around the image are the convolution's (or counting average pool's) own pads."""
    view = r.producer(op.inputs[0], "Reshape")  # of a signal [N, C, L] as an image [N, C, 1, L]
    pad = r.producer(view.inputs[0] if view is not None else op.inputs[0], "Pad")
    if pad is None or pad.attributes.get("mode") != "constant" or number(pad.attributes, "value") != 0.0:
        return False
    around, image = ints(pad.attributes, "pads"), r.type(pad.inputs[0]).shape
    half = len(around) // 2
    if any(around[k] for k in (0, 1, half, half + 1)):
        return False
    if view is not None:
        padded = r.type(view.inputs[0]).shape
        if len(padded) != 3 or r.type(op.inputs[0]).shape != (*padded[:2], 1, padded[2]):
            return False
        around, image = (0, 0, 0, around[2], 0, 0, 0, around[5]), (*image[:2], 1, image[2])
    if len(image) != 4:
        return False
    pads = ints(op.attributes, "pads")
    if op.kind == "AveragePool" and (not op.attributes.get("count_include_pad") and any(pads)):
        return False
    top, left, bottom, right = around[2], around[3], around[6], around[7]
    new = (pads[0] + top, pads[1] + left, pads[2] + bottom, pads[3] + right)
    attributes = {**op.attributes, "pads": new}
    if op.kind == "AveragePool":
        kernel = ints(op.attributes, "kernel")
        if op.attributes.get("ceil_mode") or any(new[k] >= kernel[k % 2] for k in range(4)):
            return False
        attributes["count_include_pad"] = True
    source = pad.inputs[0] if view is None else r.insert(op, "Reshape", [pad.inputs[0]], {"shape": image})
    return r.replace(op, op.kind, [source, *op.inputs[1:]], attributes)


# --- activations ---


def gelu(r: Rewriter, op: Operator) -> bool:
    """x/2 · (1 + erf(x/√2)) and x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))), factors in any order."""
    for left, right in (op.inputs, op.inputs[::-1]):
        gate = _gelu_gate(r, left)
        if gate is None:
            continue
        x, gate_scale, approximate = gate
        other, factor = _scaled(r, right)
        if other != x:
            continue
        # gate_scale · (1 + f(x)) · factor · x = 2 · gate_scale · factor · gelu(x)
        scale = 2.0 * gate_scale * factor
        if _close(scale, 1.0):
            return r.replace(op, "Gelu", [x], {"approximate": approximate})
        inner = r.insert(op, "Gelu", [x], {"approximate": approximate})
        return r.replace(op, "Affine", [inner], {"alpha": scale, "beta": 0.0})
    return False


def _gelu_gate(r: Rewriter, tensor: str) -> tuple[str, float, str] | None:
    """(x, s, spelling) where tensor = s · (1 + erf or tanh of x)."""
    tensor, outer = _scaled(r, tensor)
    shifted = r.producer(tensor, "Affine")
    if shifted is None:
        return None
    a, b = number(shifted.attributes, "alpha", 1.0), number(shifted.attributes, "beta")
    if not _close(a, b):
        return None
    if (erf := r.producer(shifted.inputs[0], "Erf")) is not None:
        x, k = _scaled(r, erf.inputs[0])
        return (x, a * outer, "none") if _close(k, math.sqrt(0.5)) else None
    if (tanh := r.producer(shifted.inputs[0], "Tanh")) is not None:
        x3 = _tanh_argument(r, tanh.inputs[0])
        return (x3, a * outer, "tanh") if x3 is not None else None
    return None


def _tanh_argument(r: Rewriter, tensor: str) -> str | None:
    """x of √(2/π) (x + 0.044715 x³), also written √(2/π) x (1 + 0.044715 x²)."""
    tensor, k = _scaled(r, tensor)
    if (total := r.producer(tensor, "Add")) is not None:
        for left, right in (total.inputs, total.inputs[::-1]):
            x, kx = _scaled(r, left)
            cube, kc = _scaled(r, right)
            if power(r, cube) == (x, 3) and _close(k * kx, math.sqrt(2 / math.pi), 1e-3) and _close(kc / kx, 0.044715):
                return x
    if (product := r.producer(tensor, "Mul")) is not None:
        for left, right in (product.inputs, product.inputs[::-1]):
            x, kx = _scaled(r, left)
            inner = r.producer(right, "Affine")
            if inner is None or power(r, inner.inputs[0]) != (x, 2):
                continue
            a, b = number(inner.attributes, "alpha", 1.0), number(inner.attributes, "beta")
            if b and _close(k * kx * b, math.sqrt(2 / math.pi), 1e-3) and _close(a / b, 0.044715):
                return x
    return None


def power(r: Rewriter, tensor: str) -> tuple[str, int]:
    """(x, n) where `tensor` is the n-th power of x, n at most 3; (tensor, 1) for any other."""
    if (op := r.producer(tensor, "Power")) is not None and number(op.attributes, "exponent") in (2.0, 3.0):
        return op.inputs[0], int(number(op.attributes, "exponent"))
    if (op := r.producer(tensor, "Mul")) is not None:
        a, b = op.inputs
        if a == b:
            return a, 2
        for one, other in ((a, b), (b, a)):
            x, n = power(r, other)
            if x == one and n == 2:
                return x, 3
    return tensor, 1


def gated(r: Rewriter, op: Operator) -> bool:
    """x · sigmoid(x), x · hard_sigmoid(x), x · relu6(x + 3) / 6, x · tanh(softplus(x))."""
    for x, gate in (op.inputs, op.inputs[::-1]):
        maker = r.producer(gate)
        if maker is None:
            continue
        if maker.kind == "Sigmoid" and maker.inputs[0] == x:
            return r.replace(op, "Silu", [x])
        if maker.kind == "HardSigmoid" and maker.inputs[0] == x:
            a, b = number(maker.attributes, "alpha"), number(maker.attributes, "beta")
            if _close(a, 1 / 6) and _close(b, 0.5):
                return r.replace(op, "HardSwish", [x])
        if (
            maker.kind == "Tanh"
            and (soft := r.producer(maker.inputs[0], "Softplus")) is not None
            and soft.inputs[0] == x
        ):
            return r.replace(op, "Mish", [x])
        core, scale = _scaled(r, gate)
        clip = r.producer(core, "Clip")
        if clip is None or (number(clip.attributes, "min"), number(clip.attributes, "max")) != (0.0, 6.0):
            continue
        shift = r.producer(clip.inputs[0], "Affine")
        source, factor = _scaled(r, x)
        if shift is None or shift.inputs[0] != source:
            continue
        if (number(shift.attributes, "alpha", 1.0), number(shift.attributes, "beta")) != (1.0, 3.0):
            continue
        if _close(scale * factor, 1 / 6):
            return r.replace(op, "HardSwish", [source])
        inner = r.insert(op, "HardSwish", [source])
        return r.replace(op, "Affine", [inner], {"alpha": 6.0 * scale * factor, "beta": 0.0})
    return False


def hard_sigmoid(r: Rewriter, op: Operator) -> bool:
    """relu6(x + 3) / 6."""
    if not _close(number(op.attributes, "alpha", 1.0), 1 / 6) or number(op.attributes, "beta") != 0.0:
        return False
    clip = r.producer(op.inputs[0], "Clip")
    if clip is None or not r.only_use(op.inputs[0]):
        return False
    shift = r.producer(clip.inputs[0], "Affine")
    if shift is None or (number(clip.attributes, "min"), number(clip.attributes, "max")) != (0.0, 6.0):
        return False
    if (number(shift.attributes, "alpha", 1.0), number(shift.attributes, "beta")) != (1.0, 3.0):
        return False
    return r.replace(op, "HardSigmoid", [shift.inputs[0]], {"alpha": 1 / 6, "beta": 0.5})
