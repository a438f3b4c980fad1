"""Kernels with less workspace and the same bits: one C function with fewer columns, images, tiles or outputs at a time.

No sum has other terms, nor another order: blocks of terms stay as they are. Kernels without workspace add up in another
order, Winograd's filters compute something else: they are no variants of packing kernels. A convolution that Helium
computes without packing where its workspace has room (kernels/convolution_packed*.c, direct_*) has no variant for which
the room decides otherwise: chosen by shape alone, for all targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from poetc.ops import _turned, _winograd
from poetc.ops._packing import COLUMNS, DEEP_BYTES, panel_columns, workspace_floats
from poetc.ops._registry import Kernel

WORTH = 8  # a variant saves at least this part of the workspace of the one before
PANELS = (4, 2, 1)
STRIP_ROWS = 48  # of kernels/sgd_of.c

Sized = tuple[tuple[int, ...], int]  # the ints that follow the operator's own, and floats of workspace


def leaner(kernel: Kernel) -> tuple[Kernel, ...]:
    """Variants of `kernel`, each with less workspace than the one before."""
    found: list[Kernel] = []
    rule = _rule(kernel.symbol.removeprefix("poetc_op_"))
    if rule is None or not kernel.workspace_bytes:
        return ()
    least, direct = kernel.workspace_bytes, _direct(kernel)
    for ints, floats in rule(kernel.ints):
        variant = replace(kernel, ints=ints, workspace_bytes=4 * floats, alternative=1 + len(found))
        if WORTH * variant.workspace_bytes <= (WORTH - 1) * least and _direct(variant) == direct:
            found.append(variant)
            least = variant.workspace_bytes
    return tuple(found)


def _rule(name: str) -> Callable[[tuple[int, ...]], Iterator[Sized]] | None:
    kind, _, how = name.rpartition("_")
    if how == "winograd":
        return _winograd_sums if "grad_weight" in kind else lambda ints: _winograd_products(ints, kind)
    if how == "turned":
        return _turned_images
    if how != "packed":
        return None
    if kind.startswith("conv_grad_weight"):
        return lambda ints: _grad_weight(ints, "norm" in kind, "sgd" in kind)
    return {"conv": _conv, "conv_grad_input": _grad_input, "matmul": _matmul, "matmul_sgd": _matmul_sgd}.get(kind)


def _matmul(ints: tuple[int, ...]) -> Iterator[Sized]:
    *own, _, terms = ints
    for panels in PANELS:
        floats = workspace_floats(ints[1], terms, panels, ints[5] != 1)
        yield (*own, floats, terms), floats


def _matmul_sgd(ints: tuple[int, ...]) -> Iterator[Sized]:
    rows, columns, k, _, terms, _ = ints
    for panels in PANELS:
        width = panels * COLUMNS
        floats = workspace_floats(width, terms, panels, True)
        total = -(-k // terms) * floats + STRIP_ROWS * width
        yield (rows, columns, k, floats, terms, width), total


def _conv(ints: tuple[int, ...]) -> Iterator[Sized]:
    terms = ints[18]
    for panels in PANELS:
        floats = workspace_floats(ints[0] * ints[5] * ints[6], terms, panels, False)
        yield (*ints[:17], floats, terms), floats


def _grad_input(ints: tuple[int, ...]) -> Iterator[Sized]:
    _, terms, held, block_rows, block = ints[17:]
    for panels in PANELS:
        floats = workspace_floats(block_rows * ints[6], terms, panels, True) + held
        yield (*ints[:17], floats, terms, held, block_rows, block), floats
    while held and block > 4:  # fewer channels at a time
        held, block = held // block * (block // 2 // 4 * 4), block // 2 // 4 * 4
        floats = workspace_floats(block_rows * ints[6], terms, 1, True) + held
        yield (*ints[:17], floats, terms, held, block_rows, block), floats


def _grad_weight(ints: tuple[int, ...], makes_norm: bool, descends: bool) -> Iterator[Sized]:
    from poetc.ops.convolution import norm_table_floats, window_strip

    batch, channels, _, _, outputs, oh, ow, kh, kw = ints[:9]
    _, terms, *_ = ints[17:]
    columns, blocks = channels // ints[15] * kh * kw, batch if oh * ow <= terms else -(-oh * ow // terms)
    strip = window_strip(ints, terms) if makes_norm else 0
    more = strip + norm_table_floats(channels) if makes_norm else 0
    for panels in PANELS:
        floats = workspace_floats(columns, terms, panels, False)
        sized = (*ints[:17], floats + more, terms, strip)
        if descends:
            total = floats + more + outputs // ints[15] * panel_columns(columns, blocks, floats, terms)
            yield (*sized, total), total
        else:
            yield sized, floats + more


def _turned_images(ints: tuple[int, ...]) -> Iterator[Sized]:
    each, least = _turned.floats_of(ints)
    sums = ints[4] // ints[15] * ints[7] * ints[8] * _turned.CHANNELS
    images = _turned.images_at_once(ints[-1], ints)
    while images > 1:
        images = -(-images // 2)
        floats = least + sums + images * each
        yield (*ints[:-1], floats), floats


def _winograd_products(ints: tuple[int, ...], kind: str) -> Iterator[Sized]:
    shape, block = _winograd.shape_of(ints, kind), ints[-1]
    tiles, _ = _winograd.plan_products(ints[-2], shape, block)
    while tiles > 12:
        tiles = _winograd.round_up(tiles // 2, 12)
        floats = _winograd.product_floats(shape, block, tiles)
        yield (*ints[:-2], floats, block), floats
        tiles = tiles if tiles > 12 else 0


def _winograd_sums(ints: tuple[int, ...]) -> Iterator[Sized]:
    shape = _winograd.shape_of(ints, "conv_grad_weight")
    smaller = sorted((p[1:] for p in _winograd.sum_plans(shape) if p[1] < ints[-2]), reverse=True)
    for floats, block in smaller:
        yield (*ints[:-2], floats, block), floats


def _direct(kernel: Kernel) -> tuple[int, ...]:
    """What of a convolution's result depends on the room in its workspace, on Helium: whether direct_* of
    kernels/convolution_packed*.c does it, and the rows that the gradient of the weights takes at a time.
    """
    name, ints = kernel.symbol.removeprefix("poetc_op_"), kernel.ints
    if not name.startswith("conv") or not name.endswith("_packed") or "sgd" in name or "norm" in name:
        return ()
    n, c, height, width, o, oh, ow, kh, kw, sh, sw, top, left, dh, dw, group = ints[:16]
    size, terms = ints[17:19]
    if 4 * (n * c * height * width + n * o * oh * ow + o * c // group * kh * kw) >= DEEP_BYTES:
        return ()  # no Helium: no microcontroller trains what is larger
    inputs, reach = c // group, (kh - 1) * dh
    padded = top > 0 or left > 0 or (oh - 1) * sh + reach >= height or (ow - 1) * sw + (kw - 1) * dw >= width
    if sw != 1:
        return ()
    if "grad_weight" in name:
        row, offsets = (ow - 1) * sw + (kw - 1) * dw + 1, -(-inputs * kh * kw // 4) * 4
        each = 6 * ow + (inputs * sh * row if padded else 0)
        room = size - 1 - offsets - (inputs * (reach + 1 - sh) * row if padded else 0)
        most = min(oh, (terms + ow - 1) // ow)
        held = 0 if room < each else min(most, room // each)
        return (held,) if held and 2 * held >= most else ()
    if dw != 1 or kw not in (3, 5):
        return ()
    if "grad_input" in name:
        taps, row = kh * kw, width + kw - 1
        at_once = 1 if taps > 64 else 150 // taps if taps > 16 else 64 // taps
        room = (size - 1 - 6 * at_once * taps - 4) // (at_once * row)
        held = height if room >= oh else min(height, room - kh + 1)
        return (1,) if held * width >= 16 else ()
    row, used = ow + kw - 1 if padded else width, 6 * inputs * kh * kw
    room = (size - 1 - used - 4) // (inputs * row) - reach - 1
    fit = (0 if room < 0 else room // sh + 1) if padded else oh if used < size else 0
    return (1,) if min(oh, fit) * ow >= 32 else ()
