"""Einsum as transposes, views, matrix products and sums, two operands at a time from the left."""

from __future__ import annotations

import math
from collections.abc import Sequence

from poetc.frontend._importer import Importer
from poetc.frontend._node import Malformed, Node
from poetc.frontend._translations import onnx_operator

_Operand = tuple[str, str]  # (tensor, one letter an axis)


@onnx_operator("Einsum")
def einsum(c: Importer, n: Node) -> str:
    values = [c.input(n, k) for k in range(len(n.inputs))]
    terms, result = _parse(n.get_str("equation"), [len(v.shape) for v in values])
    operands = [_diagonal(c, c.tensor(v), letters) for v, letters in zip(values, terms, strict=True)]
    lengths: dict[str, int] = {}
    for tensor, letters in operands:
        for letter, length in zip(letters, c.shape(tensor), strict=True):
            if lengths.setdefault(letter, length) != length:
                raise Malformed(f"index {letter!r} has lengths {lengths[letter]} and {length}")
    total = operands[0]
    for k, other in enumerate(operands[1:], start=2):
        later = set(result).union(*(letters for _, letters in operands[k:]))
        total = _product(c, total, other, later, lengths)
    tensor, letters = _summed(c, total, set(result))
    if set(letters) != set(result):
        raise Malformed("the result has an index that no operand has")
    return c.transpose(tensor, [letters.index(letter) for letter in result])


def _parse(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Letters of every operand and of the result; "..." becomes capital letters from the right."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise Malformed(f"equation {equation!r} for {len(ranks)} operands")
    spare = [chr(code) for code in range(0x0391, 0x0391 + 32)]
    widest = 0
    for k, (term, rank) in enumerate(zip(terms, ranks, strict=True)):
        hidden = rank - len(term.replace("...", ""))
        if hidden < 0 or (hidden and "..." not in term):
            raise Malformed(f"{term!r} does not fit an operand of rank {rank}")
        widest = max(widest, hidden)
        terms[k] = term.replace("...", "".join(spare[32 - hidden :]))
    batch = "".join(spare[32 - widest :])
    if not arrow:
        joined = "".join(terms)
        right = batch + "".join(sorted(x for x in set(joined) if joined.count(x) == 1 and x not in batch))
    return terms, right.replace("...", batch)


def _diagonal(c: Importer, tensor: str, letters: str) -> _Operand:
    """An index that an operand has twice stands for the diagonal: every n + 1st of the n · n elements."""
    for letter in letters:
        if letters.count(letter) == 1:
            continue
        first, second = letters.index(letter), letters.rindex(letter)
        others = [k for k in range(len(letters)) if k not in (first, second)]
        outer, n = [c.shape(tensor)[k] for k in others], c.shape(tensor)[first]
        if c.shape(tensor)[second] != n:
            raise Malformed(f"index {letter!r} has lengths {n} and {c.shape(tensor)[second]}")
        flat = c.reshape(c.transpose(tensor, [*others, first, second]), [*outer, n * n])
        tensor = c.axis_slice(flat, len(outer), 0, n, n + 1)
        return _diagonal(c, tensor, "".join(letters[k] for k in others) + letter)
    return tensor, letters


def _summed(c: Importer, operand: _Operand, keep: set[str]) -> _Operand:
    """Sum over the letters that nobody needs."""
    tensor, letters = operand
    axes = tuple(k for k, letter in enumerate(letters) if letter not in keep)
    if not axes:
        return operand
    return c.emit1("ReduceSum", [tensor], {"axes": axes, "keepdims": False}), "".join(x for x in letters if x in keep)


def _product(c: Importer, a: _Operand, b: _Operand, later: set[str], lengths: dict[str, int]) -> _Operand:
    """Letters in both and needed later are batch axes, in both and not needed are summed over."""
    a, b = _summed(c, a, later | set(b[1])), _summed(c, b, later | set(a[1]))
    batch = [x for x in a[1] if x in b[1] and x in later]
    inner = [x for x in a[1] if x in b[1] and x not in later]
    rows = [x for x in a[1] if x not in b[1]]
    columns = [x for x in b[1] if x not in a[1]]

    def arranged(operand: _Operand, *groups: list[str]) -> str:
        order = [x for group in groups for x in group]
        tensor = c.transpose(operand[0], [operand[1].index(x) for x in order])
        sizes = [math.prod(lengths[x] for x in group) for group in groups[1:]]
        return c.reshape(tensor, [*(lengths[x] for x in groups[0]), *sizes])

    y = c.emit1("MatMul", [arranged(a, batch, rows, inner), arranged(b, batch, inner, columns)])
    letters = "".join(batch + rows + columns)
    return c.reshape(y, [lengths[x] for x in letters]), letters
