"""`package.module:function`: a function of the user's own, whose result yields the batches of an epoch."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from poetc.datasets._matching import TARGET_NAMES
from poetc.datasets._slots import Slot
from poetc.errors import PoetcError, UsageError
from poetc.graph import Array
from poetc.program import require_values

PATTERN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class BatchFunction:
    """A source that makes its own batches.

    It is called anew for each epoch and yields (inputs..., target) or a dictionary by name. A batch may hold fewer
    samples than a step takes. Nothing in it is shuffled.
    """

    name: str
    function: Callable[..., Any]
    takes_epoch: bool

    @property
    def where(self) -> str:
        return self.name

    def batches(self, slots: Sequence[Slot], epoch: int) -> Iterator[dict[str, Array]]:
        """The batches of one epoch, each checked. Raises UsageError, which names the batch."""
        number = 0
        try:
            for batch in self.function(epoch=epoch) if self.takes_epoch else self.function():
                yield self._checked(batch, slots, number)
                number += 1
        except PoetcError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise UsageError(f"{self.name}: {type(error).__name__} in batch {number}: {error}") from error

    def _checked(self, batch: Any, slots: Sequence[Slot], number: int) -> dict[str, Array]:
        where = f"{self.name}, batch {number}"
        arrays: dict[str, Array] = {}
        if isinstance(batch, Mapping):
            for slot in slots:
                names = (slot.name, *(TARGET_NAMES if slot is slots[-1] and slot.is_target else ()))
                name = next((n for n in names if n in batch), None)
                if name is None:
                    raise UsageError(f"{where}: has no array {names[0]!r} (it has {', '.join(map(str, batch))})")
                arrays[slot.name] = np.asarray(batch[name])
        elif isinstance(batch, tuple | list) and len(batch) == len(slots):
            arrays = {slot.name: np.asarray(array) for slot, array in zip(slots, batch, strict=True)}
        else:
            raise UsageError(f"{where}: needed is a tuple of {len(slots)} arrays, or a dictionary of them by name")
        for slot in slots:
            array = arrays[slot.name]
            if array.dtype.kind not in "fiub" or array.ndim == 0 or array.shape[1:] != slot.sample_shape:
                raise UsageError(
                    f"{where}: {slot.name} has shape {list(array.shape)} of {array.dtype}; needed are {slot.shape_text}"
                )
            require_values(
                array,
                slot.dtype,
                slot.limit,
                where,
                slot.name,
                is_target=slot.is_target,
                missing=slot.may_miss,
                boxes=slot.boxes,
            )
        if len({len(array) for array in arrays.values()}) > 1 or not len(arrays[slots[0].name]):
            raise UsageError(f"{where}: its arrays hold {', '.join(str(len(a)) for a in arrays.values())} samples")
        return arrays


def load_function(text: str) -> BatchFunction:
    """Import `module:function`; modules in the working directory are found. Raises UsageError."""
    module_name, _, name = text.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module_name), name)
    except AttributeError:
        raise UsageError(f"--data {text}: module {module_name} has no function {name!r}") from None
    except Exception as error:  # a module of the user may raise anything
        raise UsageError(f"--data {text}: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise UsageError(f"--data {text}: {name} is not a function")
    try:
        takes_epoch = "epoch" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        takes_epoch = False
    return BatchFunction(text, function, takes_epoch)
