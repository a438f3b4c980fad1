"""The version of poetc, for files of packages that have one."""

from __future__ import annotations

import re
from importlib import metadata


def version() -> str:
    """Three numbers, as every package format takes them."""
    try:
        parts = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", metadata.version("poetc"))
    except metadata.PackageNotFoundError:
        parts = None
    return "0.0.0" if parts is None else ".".join(number or "0" for number in parts.groups())
