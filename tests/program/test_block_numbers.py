"""The numbers of a step in blocks, as C reads them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from poetc.emit._instruction_tables import _block_ints


def test_lists_of_kernels_with_fewer_loops_are_as_long_as_the_others() -> None:
    """C finds list k at k times the length of one; a last block of one unit may have a loop less."""
    numbers = {"first": (0, 2, 133, 6, 1, 0), "last": (0, 1, 133, 1)}
    blocks = SimpleNamespace(
        ints=(numbers["first"], numbers["first"], numbers["last"]),
        counts=(3,),
        units=(6,),
        extents=(13,),
        strides=((0, 0),),
        own=None,
        windows=(),
        buffer=SimpleNamespace(type=SimpleNamespace(size_bytes=512)),
        begin=-1,
    )
    found = _block_ints(cast(Any, SimpleNamespace(ints=numbers["last"], blocks=blocks)))
    length = found[2]
    assert length == len(numbers["first"])
    lists = found[-2 * length :]
    assert tuple(lists[:length]) == numbers["first"]
    assert tuple(lists[length : length + len(numbers["last"])]) == numbers["last"]
