"""The layout for MicroPython: its two build files, its functions, and MicroPython itself where its sources are."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from poetc.emit import Form
from poetc.errors import UsageError
from poetc.graph import Array
from tests.layouts.support import Model, make_model, run, write
from tests.layouts.test_layouts import needs_cmake

HEADERS = Path(__file__).parent / "micropython"  # what a module uses of MicroPython's
LISTS = """
cmake_minimum_required(VERSION 3.20)
project(port C ASM)
add_library(usermod INTERFACE)
include(${MODULE}/micropython.cmake)
add_library(port SHARED port.c)
target_compile_options(port PRIVATE $<$<COMPILE_LANGUAGE:C>:-Wall> $<$<COMPILE_LANGUAGE:C>:-Wextra>
                       $<$<COMPILE_LANGUAGE:C>:-Werror>)
target_include_directories(port PRIVATE ${HEADERS})
target_link_libraries(port PRIVATE usermod)
"""
PORT = """#include "py/runtime.h"
const mp_obj_base_t mp_type_module, mp_type_ValueError;
const mp_obj_t mp_const_none;
"""
PRINT = "$(info $(SRC_USERMOD_C) $(SRC_USERMOD_LIB_C) $(SRC_USERMOD_LIB_ASM))\nall: ;"
SCRIPT = """
import poetc_mlp as model
from array import array
x, target = array("f", [i % 5 - 2 for i in range(24)]), array("i", [i % 3 for i in range(4)])
losses = [model.step(x, target), model.step(bytes(x), target)]
state = model.save()
model.reset()
assert model.steps() == 0 and model.step(x, target) == losses[0]
model.load(state)
assert model.steps() == 2 and 0 < model.learning_rate() < 1
for wrong in ((x, array("f", target)), (array("f"), target), (x, array("i", [9] * 4))):
    try:
        model.step(*wrong)
        assert False
    except ValueError:
        pass
print([bytes(array("f", [loss])) for loss in losses])
"""


@pytest.fixture(scope="module")
def model() -> Model:
    return make_model(4)


def record(model: Model) -> list[Array]:
    return list(model.record().values())


@needs_cmake
def test_cmake_builds_the_module(model: Model, tmp_path: Path) -> None:
    """Without a warning; its steps give the losses of the host. make has the same sources."""
    out = write([model.part()], Form("micropython"), tmp_path / "poetc_mlp", "c99")
    (tmp_path / "CMakeLists.txt").write_text(LISTS)
    (tmp_path / "port.c").write_text(PORT)
    run(["cmake", "-G", "Ninja", "-B", "build", f"-DMODULE={out}", f"-DHEADERS={HEADERS}"], tmp_path)
    run(["cmake", "--build", "build"], tmp_path)
    library = ctypes.CDLL(str(tmp_path / "build" / "libport.so"), os.RTLD_LAZY)
    assert library.mlp_python_init() == 0
    arrays, loss, losses = record(model), ctypes.c_float(), []
    inputs = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    for _ in range(2):
        assert library.mlp_python_step(inputs, ctypes.byref(loss)) == 0
        losses.append(int(np.float32(loss.value).view(np.uint32)))
    assert losses == model.losses(2)
    size = ctypes.c_uint32()
    assert library.mlp_python_save(None, 0, ctypes.byref(size)) == 0
    state = ctypes.create_string_buffer(size.value)
    assert library.mlp_python_save(state, size.value - 1, ctypes.byref(size)) != 0
    assert library.mlp_python_save(state, len(state), ctypes.byref(size)) == 0
    assert library.mlp_python_init() == 0 and library.mlp_python_steps() == 0
    assert library.mlp_python_load(state, len(state)) == 0 and library.mlp_python_steps() == 2

    (tmp_path / "Makefile").write_text(f"USERMOD_DIR := {out}\ninclude {out}/micropython.mk\n{PRINT}\n")
    by_make = {str(Path(word).relative_to(out)) for word in run(["make", "-s"], tmp_path).split()}
    text = (out / "micropython.cmake").read_text()
    assert by_make == {line.split("}/")[1] for line in text.splitlines() if line.endswith((".c", ".S"))}


def test_what_a_module_cannot_hold_is_refused(model: Model, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a module holds one model, and a build of MicroPython one such module"):
        write([model.part("a"), model.part("b")], Form("micropython"), tmp_path / "o", "c99")
    assert not (tmp_path / "o").exists()


@pytest.mark.conformance
@pytest.mark.skipif("POETC_MICROPYTHON" not in os.environ, reason="POETC_MICROPYTHON: a source tree of MicroPython")
def test_micropython_trains(model: Model, tmp_path: Path) -> None:
    """The Unix port with the module, built from a copy of the tree, gives the losses of the host."""
    write([model.part()], Form("micropython"), tmp_path / "modules" / "poetc_mlp", "c99")
    tree = tmp_path / "micropython"
    shutil.copytree(os.environ["POETC_MICROPYTHON"], tree, ignore=shutil.ignore_patterns(".git", "build*"))
    run(["make", "-C", "mpy-cross"], tree)
    without = [f"MICROPY_{name}=0" for name in ("PY_SSL", "SSL_MBEDTLS", "PY_BTREE", "PY_FFI")]
    port = ["make", "-C", "ports/unix", "FROZEN_MANIFEST=", *without, f"USER_C_MODULES={tmp_path / 'modules'}"]
    run(port, tree)
    (tmp_path / "script.py").write_text(SCRIPT)
    said = run([tree / "ports/unix/build-standard/micropython", "script.py"], tmp_path)
    assert said.strip() == repr([np.uint32(bits).tobytes() for bits in model.losses(2)])
