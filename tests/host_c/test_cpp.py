"""Public headers from C++: they compile alone, and what they declare has the linkage of C."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from poetc.emit import emit
from poetc.measure import build_host
from poetc.program import lower_inference
from poetc.runtime import runtime_directory
from poetc.scheduling import keep_all, pack
from tests.layouts.support import bits, sample
from tests.program.models import make_problem, mlp, paged_decisions, training_case

ROOT = runtime_directory()
HEADERS = sorted(
    p for folder in ("include", "ports") for p in (ROOT / folder).rglob("*.h") if p.name != "semihosting.h"
)
PROGRAMS = ("poetc_hex.h", "poetc_use_processors.h")  # parts of programs in C, which define and declare nothing public
HEADERS_ALONE = ("poetc_cache.h", "poetc_cold.h", "poetc_fma.h")  # inline functions, attributes and macros alone
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
@pytest.mark.parametrize("standard", ["c++98", pytest.param("c++20", marks=pytest.mark.long)])
def test_headers_of_the_runtime(header: Path, standard: str, tmp_path: Path) -> None:
    if header.name in PROGRAMS or header.name == "sd_card.h":  # a driver's: it declares what the driver defines
        subprocess.run(["g++", f"-std={standard}", *FLAGS, "-fsyntax-only", "-x", "c++", header], check=True)
        return
    symbols = check(header, tmp_path, standard)
    assert symbols or header.name in HEADERS_ALONE
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
        [case.program(paged_decisions(case, "a"))],
        case.graph.values,
        model="mlp",
        target="host",
        out_dir=tmp_path / "o",
    )
    assert {"mlp_train", "mlp_train_inputs", "mlp_state"} <= check(out / "model.h", tmp_path, "c++98")


SESSION = """
#include "model.h"
#include "poetc.hpp"

#include <array>
#include <cstdio>

static_assert(!std::is_copy_constructible_v<poetc::Session> && std::is_nothrow_move_constructible_v<poetc::Session>);

alignas(POETC_ALIGN) static std::uint8_t arena[POETC_MODEL_ARENA_BYTES];
static unsigned char saved[4096];
static std::uint32_t ticks;

static int require(bool holds, int line)
{
    if (!holds)
        std::printf("line %d\\n", line);
    return holds ? 0 : 1;
}
#define REQUIRE(condition) failures += require(condition, __LINE__)

int main()
{
    int failures = 0;
    std::array<float, 24> x;
    std::int32_t y[4] = {0, 1, 2, 0};
    for (std::size_t i = 0; i < x.size(); i++)
        x[i] = static_cast<float>(i % 5) - 2.0f;

    poetc::Session none;
    REQUIRE(!none.is_open() && none.step(x, y).error == poetc::Error::invalid && none.cancel() != poetc::Error::none);
    REQUIRE(poetc::Session::open(*POETC_MODEL_DESCRIPTION, {arena, 16}).error == poetc::Error::invalid);
    auto [session, error] = poetc::Session::open(*POETC_MODEL_DESCRIPTION, arena);
    REQUIRE(error == poetc::Error::none && session.is_open());
    REQUIRE(session.step(x).error == poetc::Error::invalid && session.step(y, x).error == poetc::Error::invalid);
    const auto first = session.step(x, y);
    REQUIRE(bool(first) && session.steps() == 1);

    std::uint32_t size = 0;
    REQUIRE(session.save([&](const void *data, std::uint32_t count) {
        if (count > sizeof saved - size)
            return -1;
        std::memcpy(saved + size, data, count);
        size += count;
        return 0;
    }) == poetc::Error::none);
    poetc::Session moved = std::move(session);
    REQUIRE(!session.is_open() && moved.is_open());

    float loss = 0.0f;
    int turns = 0;
    moved.set_clock([](void *) { return ticks += 10u; });
    REQUIRE(moved.begin(poetc::Span(x), poetc::Span(y)) == poetc::Error::none);
    REQUIRE(moved.step(x, y).error == poetc::Error::busy);
    poetc::Session other;
    other = std::move(moved);
    for (;; turns++) {
        const auto done = other.proceed(0, 15, loss);
        REQUIRE(bool(done));
        if (done.value == poetc::Progress::complete || !done)
            break;
    }
    REQUIRE(turns > 2 && other.steps() == 2);
    y[1] = 3;
    REQUIRE(other.step(x, y).error == poetc::Error::out_of_range);
    y[1] = 1;
    REQUIRE(other.load(size, [&](std::uint32_t offset, void *data, std::uint32_t count) {
        std::memcpy(data, saved + offset, count);
        return 0;
    }) == poetc::Error::none);
    const auto again = other.step(x, y);
    REQUIRE(bool(again) && std::memcmp(&again.value, &loss, sizeof loss) == 0);
    REQUIRE(other.predict(x) == poetc::Error::none && other.output<float>(0).size() == 12);
    REQUIRE(other.output<float>(1).size() == 0 && other.evaluate(x, y).error == poetc::Error::invalid);
    std::uint32_t bits;
    std::memcpy(&bits, &first.value, sizeof bits);
    std::printf("bits %08x\\n", static_cast<unsigned>(bits));
    return failures;
}
"""


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.long_but("g++")
def test_session_class(compiler: str, tmp_path: Path) -> None:
    """It trains, moves, saves and loads without exceptions, with the loss of the host and no warning."""
    case = training_case()
    program, values = case.program(), case.graph.values
    forward = mlp()
    problem = make_problem(forward)
    schedule = keep_all(problem)
    programs = [program, lower_inference(forward, problem, schedule, pack(problem, schedule), program)]
    out = emit(programs, values, model="model", target="host", out_dir=tmp_path / "o")
    (out / "main.cpp").write_text(SESSION)
    subprocess.run(["make", "-s", "CFLAGS=-O1", "libmodel.a"], cwd=out, check=True)
    words = [compiler, "-std=c++17", "-fno-exceptions", "-fno-rtti", "-O1", "-Wall", "-Wextra", "-Wconversion"]
    words += ["-pedantic", "-Werror", "-I.", "-Iruntime/include", "main.cpp", "libmodel.a", "-o", "main"]
    subprocess.run(words, cwd=out, check=True)
    done = subprocess.run(["./main"], cwd=out, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    with build_host([program], values) as model:
        assert bits(done.stdout) == [int(np.float32(model.run(sample(program))).view(np.uint32))]
