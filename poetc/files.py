"""Directories that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from poetc.errors import UsageError


@contextmanager
def replacing_directory(out: Path, marker: str) -> Iterator[Path]:
    """A new directory that takes the place of `out` when the block ends well, and vanishes otherwise.

    Raises UsageError if `out` is a file, or a directory with content that we did not write (no `marker` in it).
    """
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out}: exists and is not a directory; choose another with -o")
    if out.is_dir() and any(out.iterdir()) and not (out / marker).exists():
        raise UsageError(f"{out}: holds files that poetc did not write; choose another directory with -o")
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield staging
        umask = os.umask(0)
        os.umask(umask)
        staging.chmod(0o777 & ~umask)
        if out.exists():
            shutil.rmtree(out)
        staging.replace(out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
