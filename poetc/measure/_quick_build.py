"""A library that is ready soon, and after it the same library with all optimisations.

A compiler takes several times as long for the fastest code as for code with the same bits. A training begins with the
latter. If it lasts, the former is compiled beside it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from poetc.boards import Numerics
from poetc.graph import Value
from poetc.measure._host import LIBRARY, host_sources, make_library, make_variables, making
from poetc.program import Program

LASTS_S = 2.0  # a training that is shorter gains nothing by other code
_NICE = ("nice", "-n", "10")  # the training comes first


def _second(source: str, copy: str) -> None:
    """The same file again; its data, which may be large, only where the file system has no hard links."""
    try:
        os.link(source, copy)
    except OSError:
        shutil.copy2(source, copy)


class QuickBuild:
    """`programs`, compiled for this machine in `directory`, which is there until `close`.

    `library`: the one to begin with. `cflags`: those of the last one. The others: see `compile_library`.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        values: Mapping[str, Value],
        directory: Path,
        *,
        model: str,
        cflags: str,
        numerics: Numerics,
    ) -> None:
        self._sources = host_sources(programs, values, directory, model=model, numerics=numerics)
        self._variables = make_variables(cflags, numerics)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._is_over = False
        quick = shutil.copytree(self._sources, directory / "quick", copy_function=_second)
        self.library = make_library(quick, *make_variables(re.sub(r"-O\w+", "-O1", cflags), numerics))
        self._ready_s = time.monotonic()

    def better(self) -> Path | None:
        """The library with all optimisations, once, when it is ready; None at any other time."""
        if self._is_over or time.monotonic() - self._ready_s < LASTS_S:
            return None
        if self._thread is None:
            self._thread = threading.Thread(target=self._make, name="poetc-build", daemon=True)
            self._thread.start()
        if self._thread.is_alive():
            return None
        self._is_over = True
        library = self._sources / LIBRARY
        return library if self._process is not None and self._process.returncode == 0 else None

    def _make(self) -> None:
        command, environment = making(self._sources, self._variables)
        nice = _NICE if shutil.which(_NICE[0]) else ()
        with self._lock:
            if self._is_over:
                return
            self._process = subprocess.Popen(
                [*nice, *command, LIBRARY], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        self._process.wait()

    def close(self) -> None:
        """Stop the compiler, if it still runs, and wait for the thread."""
        with self._lock:
            self._is_over = True
            if self._process is not None:
                self._process.terminate()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
