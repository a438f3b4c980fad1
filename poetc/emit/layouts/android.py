"""A phone: one static program for 64-bit Arm with its data beside it, and scripts that push and run it with adb."""

from __future__ import annotations

from pathlib import Path

from poetc.emit.layouts import makefile
from poetc.emit.layouts._contents import Contents
from poetc.emit.layouts._layout import Layout
from poetc.emit.layouts._texts import text_of
from poetc.errors import UsageError


def place(contents: Contents) -> dict[str, bytes | Path]:
    """The Makefile's files, linked statically, and the two scripts. UsageError for another machine's program."""
    target = contents.target
    if target.core is None or target.build != "program" or not target.cross_compile.startswith("aarch64-"):
        raise UsageError(f"--layout android: {target.name} is no 64-bit Arm with Linux; use cortex-a or generic-a76")
    files = dict(makefile.place(contents))
    text = files["Makefile"]
    assert isinstance(text, bytes)
    files["Makefile"] = text.replace(b"CFLAGS ?=", b"LDFLAGS ?= -static\nCFLAGS ?=", 1)
    for script in ("push-and-run.sh", "run-on-phone.sh"):  # here, and on the phone
        files[script] = text_of(script).encode()
    page = files["README.md"]
    assert isinstance(page, bytes)
    files["README.md"] = page.replace(b"## Data\n", _how().encode() + b"## Data\n", 1)
    return files


def _how() -> str:
    lines = [
        "## On a phone",
        "",
        "`sh push-and-run.sh big` builds one static program and pushes it with `data.bin`. It runs there, and its",
        "`trained.bin` comes back. `big`, `little` or `all` are the cores, told by their highest frequency. A program",
        "with `THREADS` takes as many threads as cores. Debugging over USB must be on, and `adb` installed.",
        "",
        "",
    ]
    return "\n".join(lines)


LAYOUT = Layout(place, "push it to a phone with push-and-run.sh", programs=True, named=False, target="cortex-a")
