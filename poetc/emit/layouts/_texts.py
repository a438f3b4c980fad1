"""Files of other languages in the folder `texts`. Names between @ stand for parts of an emission."""

from __future__ import annotations

import re
from pathlib import Path

_FOLDER = Path(__file__).with_name("texts")


def text_of(name: str, /, **values: str) -> str:
    """A file of the folder. `values`: by name, the text for @NAME@. KeyError where one is missing."""
    text = (_FOLDER / name).read_text(encoding="utf-8")
    return re.sub(r"@([A-Z_]+)@", lambda match: values[match[1].lower()], text)
