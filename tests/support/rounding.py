"""Every operator of a compiled step beside a simulated one: float64, and each rounding as its format defines it.

Each operator is computed anew from the operands that the C had, so an error has one place and does not grow. Floats of
32 bits may be off by what last bits of the operands change. A number in fewer bits must be the nearest one of its
format to a number within that distance. The roundings here are written from the formats' definitions, not from poetc.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from poetc import measure
from poetc.devices import build_problem, load_profile
from poetc.graph import Array, DType, TrainingGraph, Value
from poetc.ops import Bound, spec
from poetc.ops.narrow import plain
from poetc.program import Call, Operand, Program, Space, constants_image, lower
from poetc.scheduling import keep_all, pack

# Bits of the significand, the least exponent of a normal number, and the largest number.
FLOATS = {DType.F16: (11, -14, 65504.0), DType.BF16: (8, -126, (2 - 2.0**-7) * 2.0**127)}
OF_FORMAT = {"f16": DType.F16, "bf16": DType.BF16}
BLOCK = 128  # elements of int8 with one scale
DRAWS = 4
LAST_BIT = 2.0**-24
CONDITION = 16  # times what last bits of the operands change
OWN = 2.0**-21  # of a result: the last bits of functions such as exp
LEAST = 2.0**-140  # of a result below the normal numbers


@dataclass(slots=True)
class Count:
    """Of numbers in fewer bits: all, and those beside the nearest one to the float64 result."""

    checked: int = 0
    neighbours: int = 0
    operators: int = 0


def nearest(x: Array, dtype: DType) -> Array:
    """To the nearest number of `dtype`, ties to even, from float64 at once; beyond the largest an infinity."""
    digits, least, most = FLOATS[dtype]
    _, exponent = np.frexp(x)  # x = m 2^exponent, m in [.5, 1)
    unit = np.exp2(np.maximum(exponent - 1, least) - (digits - 1.0))
    rounded = np.rint(x / unit) * unit
    return np.where(np.abs(rounded) > most, np.copysign(np.inf, x), rounded)


def decoded(code: Array, dtype: DType) -> Array:
    """The numbers of 16 bits as sign, exponent and fraction, in float64."""
    digits, least, _ = FLOATS[dtype]
    fraction_bits = digits - 1
    word = code.astype(np.int64)
    fraction, exponent = word & ((1 << fraction_bits) - 1), (word & 0x7FFF) >> fraction_bits
    top = 0x7FFF >> fraction_bits
    normal = np.ldexp(1 + fraction * 2.0**-fraction_bits, exponent + least - 1)
    small = np.ldexp(fraction * 2.0**-fraction_bits, least)
    size = np.where(exponent == 0, small, normal)
    size = np.where(exponent == top, np.where(fraction == 0, np.inf, np.nan), size)
    return np.where(word & 0x8000, -size, size)


def keep_all_program(step: TrainingGraph) -> Program:
    problem = build_problem(step, load_profile("host"), budget_bytes=1 << 40)
    schedule = keep_all(problem)
    return lower(step, problem, schedule, pack(problem, schedule))


def check_step(step: TrainingGraph, batch: Mapping[str, Array], folder: Path) -> Count:
    """Compile `step`, run it on `batch`, and assert that each of its operators is right. See above."""
    program, count = keep_all_program(step), Count()
    for call, inputs, outputs in _calls(program, step.values, batch, folder):
        if call.kind in ("NarrowedSgd",) or spec(call.kind).is_view:
            continue
        count.operators += 1
        _check(call, inputs, outputs, count)
    return count


def _calls(
    program: Program, values: Mapping[str, Value], batch: Mapping[str, Array], folder: Path
) -> Iterator[tuple[Call, list[Array], list[Array]]]:
    """The operators of a step of the compiled C, with the bits of their operands before and their results after."""
    calls = {i: call for i, call in enumerate(program.instructions) if isinstance(call, Call)}
    assert len(calls) == len(program.instructions), "nothing but operators"
    flash = np.frombuffer(constants_image(program, values), np.uint8)
    watched: dict[int, list[tuple[str, Operand]]] = {}
    for i, call in calls.items():
        watched.setdefault(i, []).extend((f"{i} in {k}", o) for k, o in enumerate(call.inputs) if _in_arena(o))
        watched.setdefault(i + 1, []).extend((f"{i} out {k}", o) for k, o in enumerate(call.outputs))
    library = measure.compile_library([program], values, folder)
    with measure.HostModel(library, [program], values) as model:
        model._probes_at = watched
        model.run(batch)
        found = dict(model.probes)
        for name, operand in watched.get(len(program.instructions), ()):
            found[name] = model._view(operand).copy()
    for i, call in calls.items():
        inputs = [found[f"{i} in {k}"] if _in_arena(o) else _constant(flash, o) for k, o in enumerate(call.inputs)]
        yield call, inputs, [found[f"{i} out {k}"] for k in range(len(call.outputs))]


def _in_arena(operand: Operand) -> bool:
    return operand.space is Space.ARENA


def _constant(flash: Array, operand: Operand) -> Array:
    data = flash[operand.offset_bytes :][: operand.type.size_bytes]
    return data.view(operand.type.dtype.numpy).reshape(operand.type.shape)


def _check(call: Call, inputs: list[Array], outputs: list[Array], count: Count) -> None:
    bound = Bound(call.attributes, tuple(o.type for o in call.inputs), tuple(o.type for o in call.outputs))
    if call.kind == "Encode":
        _check_code(call, inputs[0].ravel().astype(np.float64), outputs[0], count)
        return
    if call.kind == "Decode":
        floats = _floats_of_code(call, inputs[0], outputs[0].size)
        np.testing.assert_array_equal(outputs[0].ravel(), floats.astype(np.float32), err_msg=call.operator)
        return
    kind, types, scales = call.kind, [o.type.dtype for o in call.outputs], [0] * len(call.outputs)
    given = [x.astype(np.float64) if x.dtype == np.float32 else x for x in inputs]
    if kind in ("Narrow", "Widen"):
        scale = bound.get_int("scale")
        if kind == "Widen":
            given[0] = decoded(inputs[0], bound.inputs[0].dtype) * 2.0**-scale
        else:
            scales = [scale]
        exact, error = [given[0]], [np.zeros(given[0].shape)]
    else:
        if kind == "Narrowed":
            given, scales = _of_narrowed(bound, inputs, given)
            kind, bound = bound.get_str("of"), plain(bound)
        exact, error = _evaluated(kind, bound, given)
    for k, (found, dtype) in enumerate(zip(outputs, types, strict=True)):
        where = f"{call.operator} ({call.kind} {call.attributes.get('of', '')}), result {k}"
        if dtype in FLOATS:
            low, high = (2.0 ** scales[k] * (exact[k] + sign * error[k]) for sign in (-1, 1))
            _check_between(decoded(found, dtype), low, high, dtype, 2.0 ** scales[k] * exact[k], count, where)
        elif found.dtype == np.float32:
            usual = np.isfinite(exact[k])
            np.testing.assert_array_equal(found[~usual], exact[k][~usual].astype(np.float32), err_msg=where)
            # Within an operator numbers near 1 may cancel, as where a probability is sure.
            own = OWN * np.abs(exact[k][usual]).max(initial=0)
            assert (np.abs(found[usual] - exact[k][usual]) <= error[k][usual] + own + LEAST).all(), where
        else:
            np.testing.assert_array_equal(found, exact[k], err_msg=where)


def _of_narrowed(bound: Bound, inputs: list[Array], given: list[Array]) -> tuple[list[Array], list[int]]:
    """The operands as such an operator computes with them, and the scales of its results."""
    dtype = DType(bound.get_str("dtype"))
    forms, scales = bound.get_ints("forms"), bound.get_ints("scales")
    floats = list(given)
    for k, (x, form, scale) in enumerate(zip(inputs, forms, scales, strict=False)):
        if form == 1:
            floats[k] = decoded(x, dtype) * 2.0**-scale
        elif form == 2:
            floats[k] = nearest(given[k] * 2.0**scale, dtype) * 2.0**-scale
    return floats, list(scales[len(inputs) :])


def _evaluated(kind: str, bound: Bound, given: list[Array]) -> tuple[list[Array], list[Array]]:
    """Results in float64, and how far one of 32 bits may be from them."""
    random = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        exact = [np.asarray(y) for y in spec(kind).evaluate(bound, [x.copy() for x in given])]
        change = [np.zeros(y.shape) for y in exact]
        for _ in range(DRAWS):
            moved = [
                x * (1 + LAST_BIT * random.choice((-1.0, 1.0), x.shape)) if x.dtype == np.float64 else x.copy()
                for x in given
            ]
            for k, y in enumerate(spec(kind).evaluate(bound, moved)):
                if exact[k].dtype == np.float64:
                    difference = np.abs(np.asarray(y) - exact[k])
                    change[k] = np.fmax(change[k], np.where(np.isfinite(difference), difference, 0))
        own = [OWN * np.abs(y) if y.dtype == np.float64 else 0 for y in exact]
        return exact, [CONDITION * c + o for c, o in zip(change, own, strict=True)]


def _check_between(found: Array, low: Array, high: Array, dtype: DType, exact: Array, count: Count, where: str) -> None:
    """Each number is the nearest one to some number from `low` to `high`."""
    usual = np.isfinite(exact)
    np.testing.assert_array_equal(found[~usual], exact[~usual], err_msg=where)
    right = (nearest(low, dtype) <= found) & (found <= nearest(high, dtype))
    assert right[usual].all(), where
    count.checked += found.size
    count.neighbours += int((found != nearest(exact, dtype))[usual].sum())


def _check_code(call: Call, x: Array, code: Array, count: Count) -> None:
    form = str(call.attributes["format"])
    found = _floats_of_code(call, code, x.size)
    if form in OF_FORMAT:
        _check_between(found, x, x, OF_FORMAT[form], x, count, call.operator)
        return
    blocks = np.pad(x, (0, -x.size % BLOCK)).reshape(-1, BLOCK)
    unit = np.repeat(np.abs(blocks).max(axis=1) / 127, BLOCK)[: x.size]  # of float64
    # A multiple of the unit, the nearest one but for the last bits of floats of 32 bits on either side of a half.
    assert (np.abs(found - x) <= unit * (0.5 + 127 * 4 * LAST_BIT)).all(), call.operator
    multiple = np.divide(found, unit, out=np.zeros_like(found), where=unit > 0)
    assert (np.abs(multiple - np.rint(multiple)) <= 127 * 4 * LAST_BIT).all(), call.operator
    count.checked += x.size
    wanted = np.divide(x, unit, out=np.zeros_like(x), where=unit > 0)
    count.neighbours += int((np.rint(multiple) != np.copysign(np.floor(np.abs(wanted) + 0.5), wanted)).sum())


def _floats_of_code(call: Call, code: Array, size: int) -> Array:
    form = str(call.attributes["format"])
    if form in OF_FORMAT:
        return decoded(code.view("<u2"), OF_FORMAT[form])
    blocks = -(-size // BLOCK)
    units = code[-4 * blocks :].view("<f4").astype(np.float64)
    # The product of a whole number below 128 and a float of 32 bits, in 32 bits.
    return (code[:size].view(np.int8) * np.repeat(units, BLOCK)[:size]).astype(np.float32).astype(np.float64)
