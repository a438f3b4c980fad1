"""Public headers from C++: they compile alone, and what they declare has the linkage of C."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from poetc.emit import emit
from poetc.runtime import runtime_directory
from tests.program.models import paged_actions, training_case

ROOT = runtime_directory()
HEADERS = sorted(
    p for folder in ("include", "ports") for p in (ROOT / folder).rglob("*.h") if p.name != "semihosting.h"
)
PROGRAMS = ("poetc_hex.h", "poetc_use_processors.h")  # parts of programs in C, which define and declare nothing public
FLAGS = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-Wno-unused-function", f"-I{ROOT / 'include'}"]
FLAGS.append(f"-I{ROOT / 'ports' / 'device'}")
_FUNCTION = re.compile(r"^(?!static|#| |/|\*|typedef|enum)[\w ]+[ *](\w+)\((?:[^()]|\([^()]*\))*\);", re.MULTILINE)
_OBJECT = re.compile(r"^extern const \w+ (\w+)(?:\[\])?;", re.MULTILINE)


def check(header: Path, directory: Path, standard: str, compiler: str = "g++") -> set[str]:
    """Compile it alone, with the address of everything that it declares; the symbols that the linker would look for."""
    text = header.read_text()
    names = [*_FUNCTION.findall(text), *_OBJECT.findall(text)]
    uses = "".join(f"    (const void *)&{name},\n" for name in names)
    (directory / "a.cpp").write_text(
        f'#include "{header}"\nextern const void *const all[];\nconst void *const all[] = {{\n{uses}    0}};\n'
    )
    subprocess.run([compiler, f"-std={standard}", *FLAGS, "-c", "a.cpp", "-o", "a.o"], cwd=directory, check=True)
    found = subprocess.run(["nm", "-u", "a.o"], cwd=directory, check=True, capture_output=True, text=True).stdout
    symbols = set(re.findall(r"U (\w+)", found)) - {"_GLOBAL_OFFSET_TABLE_"}
    assert symbols == set(names) - set(re.findall(r" [TR] (\w+)", found))
    return symbols


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++: apt-get install g++")


@pytest.mark.parametrize("header", HEADERS, ids=lambda p: p.name)
@pytest.mark.parametrize("standard", ["c++98", "c++20"])
def test_headers_of_the_runtime(header: Path, standard: str, tmp_path: Path) -> None:
    if header.name in PROGRAMS or header.name == "sd_card.h":  # a driver's: it declares what the driver defines
        subprocess.run(["g++", f"-std={standard}", *FLAGS, "-fsyntax-only", "-x", "c++", header], check=True)
        return
    symbols = check(header, tmp_path, standard)
    assert symbols or header.name in ("poetc_cold.h", "poetc_fma.h")  # attributes and macros alone
    assert not any(symbol.startswith("_Z") for symbol in symbols)


def test_semihosting() -> None:
    if shutil.which("arm-none-eabi-g++") is None:
        pytest.skip("no arm-none-eabi-g++: make setup-arm")
    header = ROOT / "ports" / "device" / "semihosting.h"
    words = [
        "arm-none-eabi-g++",
        "-mthumb",
        "-mcpu=cortex-m4",
        "-std=c++11",
        *FLAGS,
        "-fsyntax-only",
        "-x",
        "c++",
        header,
    ]
    subprocess.run(words, check=True)


def test_header_of_a_model(tmp_path: Path) -> None:
    case = training_case()
    out = emit(
        [case.program(paged_actions(case, "a"))], case.graph.values, model="mlp", target="host", out_dir=tmp_path / "o"
    )
    assert {"mlp_train", "mlp_train_inputs", "mlp_state"} <= check(out / "model.h", tmp_path, "c++98")
