import numpy as np

from poetc.graph import BITS, Attribute, encode, pack
from tests.support.kernels import Case, integers


def coded(
    form: str, rows: int, depth: int, block: int, zeros: int
) -> tuple[tuple[np.ndarray, ...], dict[str, Attribute]]:
    """Operands and attributes of a matrix of random codes. `zeros`: 2: floats."""
    draw = np.random.default_rng(rows + depth)
    attributes: dict[str, Attribute] = {"form": form, "rows": rows, "depth": depth, "block": block, "has_zeros": zeros}
    made = encode(draw.standard_normal((rows, depth)).astype(np.float32), form, block or 32)
    if made.scales is None:
        return (made.codes,), attributes
    operands = [made.codes, made.scales]
    if zeros == 2:
        operands.append(draw.uniform(-3, 18, made.scales.shape).astype(np.float32))
    elif zeros:
        operands.append(pack(draw.integers(0, 2 ** BITS[form], made.scales.shape, dtype=np.uint8), BITS[form]))
    return tuple(operands), attributes


def product(x: tuple[int, ...], form: str, rows: int, depth: int, block: int, turned: bool, *more: str) -> Case:
    operands, attributes = coded(form, rows, depth, block, 2 if "points" in more else int("zeros" in more))
    bias = ((rows if turned else depth,),) * ("bias" in more)
    attributes |= {"trans_b": turned, "alpha": 0.5 if "alpha" in more else 1.0}
    return Case("MatMulCoded", (x, *operands, *bias), attributes, 2e-5, 5e-5, gradient=False, note=form)


CASES = [
    product((2, 9, 70), "int4", 133, 70, 16, True, "bias", "zeros"),
    product((5, 133), "int4", 133, 70, 16, False, "alpha"),
    product((13, 300), "int8", 41, 300, 128, True, "alpha", "bias"),
    product((13, 41), "int8", 41, 300, 300, False, "zeros"),
    product((3, 96), "int4", 20, 96, 32, True, "zeros", "alpha"),
    product((4, 70), "int4", 21, 70, 16, True, "points", "bias"),
    product((4, 21), "int4", 21, 70, 16, False, "points"),
    product((3, 33), "int8", 9, 33, 32, True, "points"),
    # Rows that take codes from vectors: ends of rows, columns and blocks of terms; zero points of three kinds.
    product((1, 96), "int4", 75, 96, 32, True, "bias"),
    product((3, 320), "int4", 64, 320, 64, True, "zeros"),
    product((15, 64), "int4", 96, 64, 16, True, "points"),
    product((6, 128), "int8", 64, 128, 32, True, "zeros", "bias"),
    product((1, 40), "int4", 40, 320, 32, False, "zeros"),
    product((7, 70), "int4", 70, 170, 64, False, "bias"),
    product((14, 9), "int4", 9, 160, 32, False, "points"),
    product((2, 70), "int8", 70, 292, 32, False, "zeros"),
    product((4, 9), "int8", 9, 192, 192, False, "bias"),
    product((7, 33), "f16", 20, 33, 0, True),
    product((7, 20), "bf16", 20, 33, 0, False, "bias"),
]
for _form, _depth, _block, _zeros in (
    ("int4", 31, 16, 1),
    ("int8", 32, 16, 1),
    ("int4", 33, 16, 2),
    ("int4", 32, 32, 0),
    ("f16", 9, 0, 0),
):
    _operands, _attributes = coded(_form, 11, _depth, _block, _zeros)
    CASES.append(Case("GatherCoded", (*_operands, integers((2, 5), -11, 11)), _attributes, 1e-6, 1e-6, gradient=False))
