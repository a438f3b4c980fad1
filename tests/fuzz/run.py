"""One Python target under Atheris: `python -m tests.fuzz.run TARGET [options of libFuzzer]`."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import atheris

with atheris.instrument_imports(include=["poetc"]):
    from tests.fuzz.targets import TARGETS, check

MEMORY = Path("/dev/shm")


def main() -> None:
    name = sys.argv[1]
    target = TARGETS[name]

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)
        if target.mutate is not None and random.random() < 0.7:
            made = target.mutate(data, random)
            if len(made) <= most:
                return made
        return bytes(atheris.Mutate(data, most))

    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        options = {"custom_mutator": mutate} if target.mutate is not None else {}
        atheris.Setup([sys.argv[0], *sys.argv[2:]], lambda data: check(name, data, Path(folder)), **options)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
