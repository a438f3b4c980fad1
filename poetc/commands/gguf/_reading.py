"""A GGUF file: its fields by name and its tensors, as the package `gguf` reads them (the extra `text`)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from poetc.errors import UsageError, printable, shortened
from poetc.files import open_file
from poetc.graph import Array

TAG = b"GGUF"
_HEADER = struct.Struct("<4sIQQ")  # tag, version, number of tensors, number of fields
_ENDS = ("out of bounds", "larger dtype", "cannot reshape")  # of numpy, behind the end of the file


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor: its type in llama.cpp, its shape as PyTorch has it, and its bytes or numbers."""

    name: str
    type: str
    shape: tuple[int, ...]
    data: Array


@dataclass(frozen=True, slots=True)
class Gguf:
    path: Path
    fields: Mapping[str, Any]
    tensors: Mapping[str, Stored]

    def number(self, name: str, default: float | None = None) -> float:
        """A field of the architecture. UsageError where it is missing or no number."""
        key = f"{self.architecture}.{name}"
        value = self.fields.get(key, default)
        value = value[0] if isinstance(value, list) and value and len(set(value)) == 1 else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"{self.path}: its field {key!r} is {'missing' if value is None else 'no number'}")
        return value

    def count(self, name: str, default: int | None = None) -> int:
        """The same, a whole number of at least 1."""
        value = self.number(name, default)
        if value != int(value) or not 1 <= value < 2**31:
            raise UsageError(f"{self.path}: its field '{self.architecture}.{name}' is {value}, no count")
        return int(value)

    @property
    def architecture(self) -> str:
        return str(self.fields.get("general.architecture", ""))

    def tensor(self, name: str, *shape: int) -> Stored:
        """A tensor. UsageError where it is missing or has another shape."""
        stored = self.tensors.get(name)
        if stored is None:
            raise UsageError(f"{self.path}: has no tensor {name!r}")
        if stored.shape != shape:
            raise UsageError(f"{self.path}: tensor {name!r} is {list(stored.shape)}, not {list(shape)}")
        return stored


def _reason(path: Path, error: Exception) -> str:
    """The fault, in the words of a file where the reader has those of arrays."""
    if not any(ending in str(error) for ending in _ENDS):
        return shortened(error, 120)
    with open_file(path) as file:
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return "it ends within its header"
    _, _, tensors, fields = _HEADER.unpack(header)
    return f"it does not hold the {tensors:,} tensors and {fields:,} fields that its header counts"


def read_gguf(path: Path) -> Gguf:
    """UsageError for a file that is none, or is damaged."""
    try:
        from gguf import GGUFReader
    except ImportError:
        raise UsageError("GGUF files need the package gguf: pip install '.[text]' in the clone") from None
    with open_file(path) as file:
        if file.read(len(TAG)) != TAG:
            raise UsageError(f"{path}: not a GGUF file")
    try:
        with np.errstate(all="ignore"):
            reader = GGUFReader(str(path))
        fields = {printable(str(name)): field.contents() for name, field in reader.fields.items()}
        tensors = {}
        for t in reader.tensors:
            shape = tuple(int(n) for n in reversed(t.shape))
            tensors[t.name] = Stored(printable(t.name), t.tensor_type.name, shape, t.data)
    except Exception as error:  # the reader indexes into a mapped file, and a damaged one raises a dozen kinds
        raise UsageError(f"{path}: a damaged GGUF file ({_reason(path, error)})") from error
    return Gguf(path, fields, tensors)
