"""The table of translations: the function that makes our operators of an ONNX operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from poetc.frontend._importer import Importer, Value
from poetc.frontend._node import Node

# The result of a translation for each output of the node: a tensor that it emitted, or a Value (an alias, a constant).
Result = str | Value | Sequence[str | Value]
Translation = Callable[[Importer, Node], Result]
T = TypeVar("T", bound=Translation)
# By operator; one of another domain than the default has the domain before its name: com.microsoft.Gelu.
TRANSLATIONS: dict[str, Translation] = {}
MICROSOFT = "com.microsoft"
DOMAINS = {"", "ai.onnx", "ai.onnx.ml", MICROSOFT}  # and those of other packages


def onnx_operator(*names: str, domain: str = "") -> Callable[[T], T]:
    """Registers a translation for ONNX operators of a domain."""

    def add(translation: T) -> T:
        DOMAINS.add(domain)
        for name in (f"{domain}.{name}" if domain else name for name in names):
            if name in TRANSLATIONS:
                raise RuntimeError(f"ONNX operator {name} is translated twice")
            TRANSLATIONS[name] = translation
        return translation

    return add
