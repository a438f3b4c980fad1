"""Files that a test writes thousands of times."""

from __future__ import annotations

from pathlib import Path


def write_anew(path: Path, data: bytes | bytearray) -> None:
    """A new file: ext4 waits for the disk where an old one is emptied and written again."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)
