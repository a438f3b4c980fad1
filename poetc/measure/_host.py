"""Builds emitted C with the host's compiler as a shared library and runs it through ctypes, measured."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import mmap
import os
import shutil
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from poetc.boards import Numerics, telling
from poetc.emit import Module, emit
from poetc.errors import CheckFailed, UsageError
from poetc.files import require_tmpdir, scratch_directory
from poetc.graph import Array, Value
from poetc.program import (
    PIECE,
    Copies,
    Operand,
    Page,
    Program,
    ProgramBundle,
    all_inputs,
    find_binding,
    fit_input,
    initial_pages,
    pack_state,
    regions,
)
from poetc.runtime.library import SOURCE, Config, Library, Processors, Runtime, aligned, callbacks, touched_bytes

LIBRARY = "libmodel.so"
LARGE_BYTES = 1 << 25  # of state: from here on the image is read part by part
GUARD_BYTES = 4096  # on either side of the arena
_GUARD = 0xC3
PATTERNS = (0x55, 0xAA)  # fillings of the arena: a byte that a step writes differs from one of them
_TRANSFER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)
_OBSERVER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)


def address_of(callback: Any) -> int | None:
    """Of a function of Python for C. `ctypes.cast` would make a circle, which keeps the callback's model alive."""
    return ctypes.c_void_p.from_buffer(callback).value


def give_back(begin: int, end: int) -> int:
    """Let go the whole pages of a mapped file in this range of addresses, which is read no more; where the rest begins.

    They are read from the file again if somebody asks for them.
    """
    first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first and hasattr(mmap, "MADV_DONTNEED"):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)
    return max(begin, last)


# page_out or page_in of a store: (first block, block count, address) -> 0 or a negative code
Transfer = Callable[[int, int, int], int]


class StepError(CheckFailed):
    """A function of the runtime returned a code other than 0; `text` is the runtime's sentence on it.

    `where`: the operator that it came from, as of `Program.where`.
    """

    def __init__(self, what: str, code: int, text: str, where: str = "") -> None:
        super().__init__(f"{what} stopped with code {code}{where}: {text}")
        self.code = code


def compiler_words(variables: Sequence[str] = ()) -> list[str]:
    """The compiler of this machine and its options: CC of a Makefile's `variables`, else $CC, else gcc."""
    chosen = [v.removeprefix("CC=") for v in variables if v.startswith("CC=")]
    return [*chosen, os.environ.get("CC", "")][0].split() or ["gcc"]


def require_compiler() -> None:
    """UsageError where this machine has no make, or not the compiler that it would call."""
    for name in ("make", compiler_words()[0]):
        if shutil.which(name) is None:
            raise UsageError(f"{name} not found: install make and gcc to build on this machine")


@functools.cache
def fused_flags() -> str:
    """The option for a fused multiply-add of this processor that a compiler does not use by itself; or nothing."""
    command = [*compiler_words(), "-march=native", "-dM", "-E", "-x", "c", os.devnull]
    macros = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return " -mfma" if "__FMA__" in macros else ""


def make_library(sources: Path, *variables: str) -> Path:
    """Build libmodel.so in an emitted directory; `variables` are of its Makefile.

    Raises CheckFailed with the compiler's message.
    """
    command, environment = making(sources, variables)
    completed = subprocess.run([*command, LIBRARY], capture_output=True, text=True, env=environment, check=False)
    if completed.returncode != 0 or not (sources / LIBRARY).exists():
        _require_working(variables)
        lines = (completed.stderr or completed.stdout).strip().splitlines()
        raise CheckFailed(f"the emitted C does not build: {' | '.join(telling(lines))}")
    return sources / LIBRARY


def _require_working(variables: Sequence[str]) -> None:
    """UsageError where the compiler fails at the smallest program, so that the emitted C is not to blame."""
    compiler = compiler_words(variables)
    with tempfile.TemporaryDirectory(prefix="poetc-") as directory:
        command = [*compiler, "-c", "-x", "c", "-o", str(Path(directory) / "empty.o"), "-"]
        completed = subprocess.run(
            command,
            input="#include <math.h>\n#include <string.h>\nint poetc_no;\n",
            capture_output=True,
            text=True,
            check=False,
        )
        works = completed.returncode == 0 and (Path(directory) / "empty.o").exists()
    if not works:
        why = " | ".join(telling((completed.stderr or completed.stdout).strip().splitlines())) or (
            f"exit code {completed.returncode}" if completed.returncode else "it writes no object"
        )
        source = "CC=" if compiler == os.environ.get("CC", "").split() else ""
        raise UsageError(f"{source}{' '.join(compiler)} does not compile C: {why}")


def making(sources: Path, variables: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The command that builds an emitted directory, without a goal, and its environment, by ccache if it is here."""
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CFLAGS")}
    if not environment.get("CC", "").strip():
        environment.pop("CC", None)
    command = ["make", "-s", f"-j{os.cpu_count() or 1}", "-C", str(sources), *variables]
    compiler = compiler_words(variables)
    native = None if Path(compiler[0]).name == "ccache" else _native_through_ccache(compiler, environment)
    if native is None:
        return command, environment
    return [*command, f"CC=ccache {' '.join(compiler)}"], environment | {
        "CCACHE_NAMESPACE": f"{environment.get('CCACHE_NAMESPACE', '')}{native}"
    }


def _native_through_ccache(compiler: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """A digest of the options behind `-march=native` here: machines may share a cache, and ccache sees that word.

    None where ccache is not installed, or stops at a cache that it cannot write.
    """
    command = ["ccache", *compiler, "-march=native", "-###", "-S", "-o", os.devnull, "-x", "c", os.devnull]
    try:
        told = subprocess.run(command, capture_output=True, env=dict(environment), check=False)
    except OSError:
        return None
    return None if told.returncode else hashlib.sha256(told.stderr).hexdigest()


def compile_library(
    programs: Sequence[Program],
    values: Mapping[str, Value],
    directory: Path,
    *,
    model: str = "model",
    cflags: str = "-O2",
    threads: int = 0,
    bundle: ProgramBundle | None = None,
    numerics: Numerics = "separate",
) -> Path:
    """Emit for the host into `directory` / src and build; returns the shared library.

    `threads`: the most that kernels run in, 0: built without. `numerics`: fused ones take the instruction of this
    processor, or the same arithmetic without it. UsageError if there is no compiler.
    """
    sources = host_sources(programs, values, directory, model=model, bundle=bundle, numerics=numerics)
    return make_library(sources, *make_variables(cflags, numerics, threads))


def host_sources(
    programs: Sequence[Program],
    values: Mapping[str, Value],
    directory: Path,
    *,
    model: str = "model",
    bundle: ProgramBundle | None = None,
    numerics: Numerics = "separate",
) -> Path:
    """The sources of `compile_library`, of the kernels that are called alone."""
    require_compiler()
    how: dict[str, Any] = {"target": "host", "numerics": numerics, "only_used": True}
    return emit(programs, values, model=model, out_dir=directory / "src", bundle=bundle, **how)


def make_variables(cflags: str, numerics: Numerics, threads: int = 0) -> list[str]:
    """Variables of the Makefile, as `compile_library` takes them."""
    if numerics != "separate":
        cflags += fused_flags()
    variables = [f"CFLAGS={cflags} -fPIC -Werror"]
    if threads:
        variables.append(f"THREADS={threads}")
    return variables


class _Unheld(dict[str, Array]):
    """Gradients that nobody asks for."""

    def __setitem__(self, name: str, view: Array) -> None:
        pass


class HostModel:
    """Emitted programs in this process; the first runs until `select`, on as many threads as it has queues.

    The store is a file, unless `store` gives two functions.
    """

    def __init__(
        self,
        library: Path,
        programs: Sequence[Program],
        values: Mapping[str, Value],
        *,
        model: str = "model",
        store: tuple[Transfer, Transfer] | None = None,
        pattern: int = 0,
    ) -> None:
        """`pattern`: as of `reset`."""
        self.program = programs[0]
        self._programs = tuple(programs)
        self.run_ns = 0  # processor time of the last run in the calling thread
        self.probes: MutableMapping[str, Array] = Copies()  # whole gradients of the last run, by parameter
        self._library = Library(library)
        self._dll = self._library.dll
        self._values = values
        self._module = module = Module(model, self._programs)
        self._names = module.prefix
        self._memory, start = aligned(module.arena_bytes, GUARD_BYTES)
        self._memory[...] = _GUARD
        self.arena: Array = self._memory[start : start + module.arena_bytes]
        self._before, self._after = self._memory[:start], self._memory[start + module.arena_bytes :]
        self._config, self._runtime = Config(), Runtime()
        self._probes_at: dict[int, list[tuple[str, Operand]]] = {}
        self._store = store
        require_tmpdir()
        self._temporary = tempfile.TemporaryDirectory(prefix="poetc-store-")
        self._keep: list[object] = []  # callbacks must outlive the calls
        self._processors: Processors | None = None
        self.reset(pattern)
        if module.queues is not None:
            self._processors = Processors(self._library, self._runtime, module.queues)

    # --- life ---------------------------------------------------------------------------------------------------------

    def reset(self, pattern: int = 0) -> None:
        """Start anew from the initial values, the rest of the arena filled with the byte `pattern`, the store empty."""
        self._close_store()
        self._keep.clear()
        self.arena[...] = pattern
        self._config.arena = self.arena.ctypes.data
        self._config.arena_bytes = self.arena.size
        self._config.flash = self._address("constants") if any(p.flash_bytes for p in self._programs) else None
        if any(p.pages for p in self._programs):
            self._open_store()
        self._use(self._programs[0])
        state = self._address("state") if self.program.state_bytes else None
        is_large = self.program.state_bytes > LARGE_BYTES
        program = self._address(self.program.name)
        self._check(
            "poetc_init",
            self._dll.poetc_init(
                ctypes.byref(self._runtime),
                ctypes.c_void_p(program),
                ctypes.byref(self._config),
                ctypes.c_void_p(None if is_large else state),
            ),
        )
        if state and is_large:
            self._set_state(state)
        for page, data in initial_pages(self.program, self._values):
            self._check("poetc_load_page", self._dll.poetc_load_page(ctypes.byref(self._runtime), page, data))

    def _set_state(self, image: int) -> None:
        """As poetc_init does it, part by part: no page of the library's image stays in memory beside the arena."""
        for region in regions(self.program):
            if region.page is None:
                self.arena[region.arena_offset_bytes :][: region.size_bytes] = 0
        at, kept = image, image
        while (head := PIECE.unpack(ctypes.string_at(at, PIECE.size)))[1]:
            place, size = head
            at += PIECE.size
            for start in range(0, size, LARGE_BYTES):
                part = min(LARGE_BYTES, size - start)
                ctypes.memmove(self._config.arena + place + start, at + start, part)
                kept = give_back(kept, at + start + part)
            at += size

    def select(self, program: Program) -> None:
        """Go on with another of the programs (from training to inference and back); the state stays."""
        self._use(program)
        address = ctypes.c_void_p(self._address(program.name))
        self._check("poetc_select", self._dll.poetc_select(ctypes.byref(self._runtime), address))

    def _use(self, program: Program) -> None:
        self.program = program
        self._probes_at = {}
        for parameter, (index, operand) in sorted(program.probes.items()):
            self._probes_at.setdefault(index, []).append((parameter, operand))
        observer = _OBSERVER(self._observe) if self._probes_at else _OBSERVER()
        self._keep.append(observer)
        self._config.observer = address_of(observer)

    def close(self) -> None:
        if self._processors is not None:
            self._processors.end()
        self._close_store()
        self._keep.clear()  # which hold this model, and with it the arena
        self._temporary.cleanup()
        self._library.close()
        self._dll = self._library.dll

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _address(self, name: str) -> int:
        return self._library.address(f"{self._names}_{name}")

    @property
    def store_path(self) -> Path:
        """The file of the store, if it is one."""
        return Path(self._temporary.name) / "store.bin"

    def _open_store(self) -> None:
        if self._store is not None:
            transfers = [self._transfer(f) for f in self._store]
            self._keep.extend(transfers)
            self._config.store.page_out = address_of(transfers[0])
            self._config.store.page_in = address_of(transfers[1])
            return
        self.store_path.unlink(missing_ok=True)
        code = self._library.open_store(self._config.store, self.store_path, self.program.block_bytes)
        self._check("poetc_host_open", code)

    @staticmethod
    def _transfer(function: Transfer) -> Any:
        return _TRANSFER(lambda _, first, count, address: function(first, count, address))

    def _close_store(self) -> None:
        if self._store is None:
            self._check("poetc_host_close", self._library.close_store(self._config.store))

    def _check(self, what: str, code: int, where: str = "") -> None:
        if code != 0:
            raise StepError(what, code, self._library.text(code), where)

    # --- running ------------------------------------------------------------------------------------------------------

    def run(self, inputs: Mapping[str, Array]) -> float:
        """One step; returns the loss.

        StepError if the runtime returns a code, CheckFailed if it wrote past the arena.
        """
        for binding in sorted(all_inputs(self.program), key=lambda b: b.page is None):
            if binding.page is None:
                self._view(binding.operand)[...] = fit_input(binding, inputs)
            else:
                self._write_input(binding.page, fit_input(binding, inputs).tobytes())
        start_ns = time.thread_time_ns()
        with callbacks():
            if self._processors is None:
                code = self._dll.poetc_run(ctypes.byref(self._runtime))
            else:
                code = self._dll.poetc_processors_run(self._processors.memory, ctypes.byref(self._runtime))
        self.run_ns = time.thread_time_ns() - start_ns
        if not (self._before == _GUARD).all() or not (self._after == _GUARD).all():
            raise CheckFailed("the emitted C wrote outside its arena")
        # Of several processors each counts its own instructions.
        where = "" if self._processors is not None else self.program.where(self._runtime.instruction)
        self._check("poetc_run", code, where)
        return float(self._dll.poetc_loss(ctypes.byref(self._runtime)))

    def _write_input(self, page: int, data: bytes) -> None:
        """An input that lies on the store."""

        def give(_context: int, offset: int, to: int, size_bytes: int) -> int:
            ctypes.memmove(to, data[offset : offset + size_bytes], size_bytes)
            return 0

        program = ctypes.c_void_p(self._address(self.program.name))
        with callbacks():
            runtime = ctypes.byref(self._runtime)
            code = self._dll.poetc_write_input(runtime, program, ctypes.c_uint32(page), SOURCE(give), None)
        self._check("poetc_write_input", code)

    def _observe(self, _context: int, _runtime: int, index: int) -> int:
        for parameter, operand in self._probes_at.get(index, ()):
            self.probes[parameter] = self._view(operand)
        return 0

    def gradients_crc(self) -> int:
        """A checksum of all gradients of the last run, as the training program of boards logs it."""
        total = 0
        for seed, name in enumerate(sorted(self.program.probes)):
            total += zlib.crc32(np.ascontiguousarray(self.probes[name]).tobytes(), seed)
        return total & 0xFFFFFFFF

    def _view(self, operand: Operand) -> Array:
        data = self.arena[operand.offset_bytes : operand.offset_bytes + operand.type.size_bytes]
        return data.view(operand.type.dtype.numpy).reshape(operand.type.shape)

    def state(self, name: str) -> Array:
        """A copy of a state tensor, in RAM or in the store's file. KeyError if there is none."""
        return self.held_state(name).copy()

    def held_state(self, name: str) -> Array:
        """The same in its place, if it is in RAM: it changes with the next run."""
        for page in self.program.pages:
            if page.image and not page.is_sums and page.tensor == name:
                return self._page(page)
        return self._view(find_binding(self.program.state, name).operand)

    def _page(self, page: Page) -> Array:
        """A copy of a page of state in the store's file."""
        assert page.type is not None
        slot = (self._runtime.run_count + self._runtime.version_offset) % page.slots
        with self.store_path.open("rb") as file:
            file.seek((page.first_block + slot * page.block_count) * self.program.block_bytes)
            data = file.read(page.size_bytes)
        return np.frombuffer(data, page.type.dtype.numpy).reshape(page.type.shape)

    def set_state(self, name: str, array: Array) -> None:
        """Overwrite a state tensor in RAM, such as the learning rate. KeyError if there is none."""
        self._view(find_binding(self.program.state, name).operand)[...] = array

    def save(self, directory: Path) -> None:
        """Write trained.bin with the state that a training program leaves, and store.bin if there is a store."""
        main, steps = self._programs[0], self._runtime.run_count
        data = pack_state(main, steps, self.arena, lambda i: self._page(main.pages[i]).tobytes())
        (directory / "trained.bin").write_bytes(data)
        if self.program.pages and self._store is None:
            shutil.copyfile(self.store_path, directory / "store.bin")

    def state_names(self) -> list[str]:
        """Everything that `state` can return, sorted."""
        return sorted({b.name for b in self.program.state} | {p.tensor for p in self.program.pages if p.image})

    def output(self, name: str) -> Array:
        return self._view(find_binding(self.program.outputs, name).operand).copy()

    @property
    def page_ins(self) -> int:
        return int(self._runtime.page_ins)

    @property
    def page_outs(self) -> int:
        return int(self._runtime.page_outs)

    def measure_high_water(self, inputs: Mapping[str, Array]) -> int:
        """End of the highest byte of the arena that a step touches.

        Two runs from two fillings: a byte that is written cannot equal both. Leaves the model reset.
        """
        ends = [0]
        for pattern in self._fillings(inputs):
            ends.append(touched_bytes(self.arena, pattern))
        return max(ends)

    def measure_peaks(self, inputs: Mapping[str, Array]) -> tuple[int, ...]:
        """The same as `touched_bytes` has it."""
        first, second = (self.touched_bytes(pattern) for pattern in self._fillings(inputs))
        return tuple(map(max, first, second))

    def touched_bytes(self, pattern: int) -> tuple[int, ...]:
        """The end of the highest byte that is not `pattern`, in each bank from where its part begins, else of all."""
        parts = [self.arena[b.offset_bytes : b.end] for b in self.program.banks] or [self.arena]
        return tuple(touched_bytes(part, pattern) for part in parts)

    def _fillings(self, inputs: Mapping[str, Array]) -> Iterator[int]:
        """A run from each of two fillings of the arena."""
        program, probes = self.program, self.probes
        self.probes = _Unheld()
        for pattern in PATTERNS:
            self.reset(pattern)
            if program is not self.program:
                self.select(program)
            self.run(inputs)
            yield pattern
        self.probes = probes
        self.reset()


def build_host(
    programs: Sequence[Program],
    values: Mapping[str, Value],
    *,
    directory: Path | None = None,
    cflags: str = "-O2",
    numerics: Numerics = "separate",
) -> HostModel:
    """Emit, compile and load `programs`; the model runs the first.

    Sources stay in `directory`, else they are dropped.
    """
    with scratch_directory("poetc-build-") as scratch:
        library = compile_library(programs, values, directory or scratch, cflags=cflags, numerics=numerics)
        return HostModel(library, programs, values)
