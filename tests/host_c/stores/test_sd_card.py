"""The driver of a card on SPI beside a card that is slow, refuses blocks, or does not write what it accepted."""

from __future__ import annotations

import subprocess
from pathlib import Path

from poetc.runtime import runtime_directory

FLAGS = ("-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined")


def test_a_slow_and_a_faulty_card(tmp_path: Path) -> None:
    runtime = runtime_directory()
    folders = (runtime / "include", runtime / "ports" / "drivers", runtime / "ports" / "device")
    sources = (Path(__file__).with_name("sd_card.c"), runtime / "ports" / "drivers" / "sd_spi.c")
    words = ["gcc", *FLAGS, *(f"-I{folder}" for folder in folders), *map(str, sources), "-o", str(tmp_path / "card")]
    subprocess.run(words, check=True)
    assert subprocess.run([tmp_path / "card"], check=False).returncode == 0
