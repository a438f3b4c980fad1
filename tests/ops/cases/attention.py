import math
from collections.abc import Sequence

import numpy as np

from poetc.graph import Attribute
from tests.support.kernels import Case, Input

LONG = {"heads": 2, "queries": 9, "keys": 11, "size": 6, "width": 5}


def heads_last(batch: int, heads: int, rows: int, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """[batch, rows, heads, size] as a model has it, and its steps along batch, heads and rows."""
    return (batch, rows, heads, size), (rows * heads * size, size, heads * size)


def heads_first(batch: int, heads: int, rows: int, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (batch, heads, rows, size), (heads * rows * size, rows * size, size)


def attention(
    batch: int = 1,
    groups: int = 2,
    times: int = 1,
    queries: int = 9,
    keys: int = 11,
    size: int = 6,
    width: int = 5,
    mask: Input | None = None,
    band: tuple[int, int] | None = None,
    cap: float = 0.0,
    wants: Sequence[int] = (),
    gradient: bool = True,
    turned: bool = True,
) -> Case:
    lay = heads_last if turned else heads_first
    q_shape, (q_batch, q_head, q_row) = lay(batch, groups * times, queries, size)
    y_shape, (y_batch, y_head, y_row) = lay(batch, groups * times, queries, width)
    (k_shape, k), (v_shape, v) = lay(batch, groups, keys, size), lay(batch, groups, keys, width)
    attributes: dict[str, Attribute] = {
        "sizes": (batch, groups, times, queries, keys, size, width),
        "q": (q_batch, times * q_head, q_head, q_row),
        "k": k,
        "v": v,
        "y": (y_batch, times * y_head, y_head, y_row),
        "alpha": 1 / math.sqrt(size),
    }
    if cap:
        attributes |= {"cap": 1 / cap, "capped": cap}
    if band is not None:
        attributes["band"] = band
    more: tuple[Input, ...] = ()
    if mask is not None:
        shape = mask if isinstance(mask, tuple) else np.shape(mask)  # type: ignore[arg-type]
        wide = (*shape[:1], *((shape[1] // times, times) if shape[1] > 1 else (1, 1)), *shape[2:])
        steps = np.empty(wide, np.int8).strides
        attributes["mask"] = tuple(0 if n == 1 else step for n, step in zip(wide, steps, strict=True))
        attributes["hides"] = -np.inf
        more = (mask,)
    note = "grad" if wants else ""
    if wants:
        attributes["wants"] = tuple(wants)
        inputs: tuple[Input, ...] = (q_shape, k_shape, v_shape, y_shape, *more)
        return Case("AttentionGrad", inputs, attributes, 3e-6, 3e-6, gradient=False, note=note)
    attributes["shape"] = y_shape
    return Case("Attention", (q_shape, k_shape, v_shape, *more), attributes, 3e-6, 3e-6, gradient, wrt=(0, 1, 2))


def seen(*shape: int) -> np.ndarray:
    """Keys of which some are hidden, and all of the first query."""
    found = (np.random.default_rng(5).random(shape) < 0.7).astype(np.uint8)
    found[..., 0, :] = 0
    return found


LARGE = {"queries": 150, "keys": 140, "size": 20, "width": 70, "gradient": False}
CASES = [
    attention(),
    attention(batch=2, groups=1, queries=3, keys=4, size=4, width=2, turned=False),
    attention(batch=2, times=2, queries=5, keys=5, size=4, width=4, band=(-5, 0)),
    attention(queries=6, keys=5, size=3, width=2, band=(-2, 0), cap=0.7),
    attention(queries=6, keys=5, size=3, width=2, band=(2, 3)),
    attention(batch=2, times=2, queries=4, keys=6, size=3, width=3, mask=(2, 1, 1, 6)),
    attention(batch=2, queries=4, keys=6, size=3, width=3, mask=(1, 2, 4, 6), band=(-4, 1)),
    attention(queries=4, keys=6, size=3, width=3, mask=seen(1, 2, 4, 6)),
    attention(**LARGE),  # type: ignore[arg-type]
    attention(**{**LARGE, "keys": 1100}, band=(-30, 2)),  # type: ignore[arg-type]
    attention(**LARGE, wants=(1, 1, 1)),  # type: ignore[arg-type]
    attention(**LARGE, times=3, band=(-150, 0), wants=(1, 1, 1)),  # type: ignore[arg-type]
    attention(**LARGE, times=2, band=(-70, -10), cap=1.5, wants=(0, 1, 1)),  # type: ignore[arg-type]
    attention(**LARGE, batch=2, mask=(2, 1, 1, 140), wants=(1, 1, 0)),  # type: ignore[arg-type]
    attention(**LARGE, mask=seen(1, 1, 150, 140), wants=(0, 0, 1)),  # type: ignore[arg-type]
    attention(**LARGE, mask=(1, 2, 150, 140), cap=2.0, wants=(1, 0, 0), turned=False),  # type: ignore[arg-type]
    attention(queries=150, keys=1100, size=8, width=8, band=(900, 960), wants=(1, 1, 1)),
]
