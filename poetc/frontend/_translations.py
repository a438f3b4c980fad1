"""The table of translations: the function that makes our operators of an ONNX operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Node

# The result of a translation for each output of the node: a tensor that it emitted, or a Value (an alias, a constant).
Result = str | Value | Sequence[str | Value]
Translation = Callable[[Importer, Node], Result]
TRANSLATIONS: dict[str, Translation] = {}


def onnx_operator(*names: str) -> Callable[[Translation], Translation]:
    """Registers a translation for ONNX operators of the default domain."""

    def add(translation: Translation) -> Translation:
        for name in names:
            if name in TRANSLATIONS:
                raise RuntimeError(f"ONNX operator {name} is translated twice")
            TRANSLATIONS[name] = translation
        return translation

    return add
