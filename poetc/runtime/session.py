"""Trains and predicts with an emitted model in this process: libmodel.so through ctypes, on numpy arrays.

This file and library.py need numpy alone; `poetc emit --package` copies them into its packages. The way in:

    with Session("libmodel.so", "poetc-emit.json") as session:
        loss = session.step(x, y)
        logits = session.predict(x)
        session.save("trained.bin")
"""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import struct
import tempfile
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .library import (
    ECORRUPT,
    EINVAL,
    EIO,
    ENOENT,
    ENUMBER,
    NONE,
    SINK,
    SOURCE,
    Array,
    Config,
    Hits,
    Library,
    ModelStructure,
    PathLike,
    Processors,
    Scores,
    SessionError,
    SessionStructure,
    aligned,
    callbacks,
    read_manifest,
    touched_bytes,
)

__all__ = ["ENUMBER", "Session", "SessionError", "read_manifest"]


class _Tensor:
    """An input or an output: its row in the manifest, and a view of its place in the arena."""

    __slots__ = ("dtype", "limit", "name", "on_store", "shape", "view")

    def __init__(self, row: Mapping[str, Any], arena: Array) -> None:
        self.name: str = row["name"]
        self.dtype, self.shape = np.dtype(row["dtype"]), tuple(row["shape"])
        self.on_store = row["offset_bytes"] is None  # C takes it from a copy here
        data: Array = (np.zeros(row["size_bytes"], np.uint8) if self.on_store else arena[row["offset_bytes"] :])[
            : row["size_bytes"]
        ]
        self.view: Array = data.view(self.dtype).reshape(self.shape)
        self.limit: Mapping[str, int] | None = row.get("limit")

    def take(self, value: Any) -> None:
        """Copy an array to the arena. ValueError names the input."""
        if type(value) is np.ndarray and value.dtype is self.dtype and value.shape == self.shape:
            np.copyto(self.view, value)
            return
        array = self.convert(value)
        if array.shape != self.shape:
            raise ValueError(f"{self.name}: shape {_shape(array.shape)}, the model takes {_shape(self.shape)}")
        with np.errstate(over="ignore"):  # an infinity, which the step refuses
            np.copyto(self.view, array, casting="unsafe")

    def convert(self, source: Any) -> Array:
        """An array of a type that the tensor's can take over: no fractions to integers, no integers out of range."""
        try:
            array = np.asarray(source)
        except (ValueError, TypeError):
            raise ValueError(f"{self.name}: no array of numbers") from None
        if array.dtype == self.dtype:
            return array
        are_integers = self.dtype.kind in "iu" and array.dtype.kind in "iub"  # which have to fit
        if not are_integers and not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise ValueError(f"{self.name}: {array.dtype}, the model takes {self.dtype}")
        if self.dtype.kind in "iu" and array.size and not np.can_cast(array.dtype, self.dtype):
            allowed = np.iinfo(self.dtype)
            for value in (array.min(), array.max()):
                if not allowed.min <= int(value) <= allowed.max:
                    raise ValueError(f"{self.name}: {value}, not {self.allowed()}")
        return array

    def allowed(self) -> str:
        """The integers that are allowed, in words."""
        if self.limit is None:
            type = np.iinfo(self.dtype)
            return f"{type.min} to {type.max}"
        least, most, ignored = self.limit["least"], self.limit["most"], self.limit["ignored"]
        return f"{least} to {most}" + ("" if least <= ignored <= most else f", or {ignored}")


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "of a single number"


class _Entry:
    """A program that a session calls."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], arena: Array) -> None:
        rows = list(rows)
        self.inputs = [_Tensor(row, arena) for row in rows if row["direction"] == "in"]
        self.outputs = [_Tensor(row, arena) for row in rows if row["direction"] == "out"]
        places = [t.view.ctypes.data for t in self.inputs]  # for C, where one is not in the arena
        self.addresses = (ctypes.c_void_p * len(places))(*places) if any(t.on_store for t in self.inputs) else None

    def release(self) -> None:
        """Hold the arena no longer."""
        for tensor in (*self.inputs, *self.outputs):
            tensor.view = np.empty(0, tensor.dtype)

    def fill(self, arrays: tuple[Any, ...]) -> None:
        """Arrays in the order of the inputs, or one mapping by name."""
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            arrays = tuple(self._by_name(arrays[0]))
        if len(arrays) != len(self.inputs):
            raise ValueError(f"{len(arrays)} arrays, the model takes {len(self.inputs)}: {self._names()}")
        for tensor, array in zip(self.inputs, arrays):  # noqa: B905 - Python 3.9 has no strict
            tensor.take(array)

    def _by_name(self, arrays: Mapping[str, Any]) -> Iterable[Any]:
        for tensor in self.inputs:
            if tensor.name not in arrays:
                raise ValueError(f"{tensor.name}: not given; the model takes {self._names()}")
            yield arrays[tensor.name]
        unknown = sorted(set(arrays) - {t.name for t in self.inputs})
        if unknown:
            raise ValueError(f"{unknown[0]}: no input of the model, which takes {self._names()}")

    def _names(self) -> str:
        return ", ".join(t.name for t in self.inputs)


class Session:
    """An emitted model that is trained step by step, from its initial state.

    `library`: libmodel.so; `manifest`: poetc-emit.json of the same emission, or the result of `read_manifest`.
    `store`: the file for pages and for state that lives on the store; it is made anew. By default a temporary file.
    `undo`: a step that fails leaves the state before it, for a copy of the state a step. `operators`: by program, the
    words of an error on the operator of each instruction.

    Arrays are copied once, to the arena. Integers of other types are taken if the numbers fit, floats are rounded to 32
    bits. A schedule for several processors has a thread each, which sleeps between two instructions. ValueError names
    the input with a wrong shape, type, NaN, or class. SessionError has the runtime's sentence. Threads may share a
    session.
    """

    def __init__(
        self,
        library: PathLike,
        manifest: PathLike | Mapping[str, Any],
        store: PathLike | None = None,
        *,
        undo: bool = False,
        operators: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._raw = SessionStructure()
        self._lock = threading.RLock()
        folder = Path(library).absolute().parent
        if not isinstance(manifest, Mapping):
            folder = Path(manifest).absolute().parent
            manifest = read_manifest(manifest)
        self.manifest: Mapping[str, Any] = manifest
        self._description: Mapping[str, Any] = manifest["session"]
        if "emission" not in self._description:
            raise SessionError(f"{library}: emitted by an earlier poetc; emit it again")
        self._operators = operators or {}
        self._library = Library(library)
        self._functions()
        self._memory, start = aligned(self._description["arena_bytes"])
        self._arena = self._memory[start : start + self._description["arena_bytes"]]
        self._entries = {
            name: _Entry(manifest["accessors"][program["name"]], self._arena)
            for name, program in self._description["programs"].items()
        }
        self._train = self._entries["train"]
        self._hits = Hits()
        self._pressure: Any = None
        self._processors: Processors | None = None
        self._last = self._train
        try:
            self._start(folder, store, undo)
        except BaseException:
            self.close()
            raise

    def _functions(self) -> None:
        dll = self._library.dll
        address = self._library.address("poetc_session_bytes")
        self._require_same(ctypes.c_uint32.from_address(address).value == ctypes.sizeof(SessionStructure))
        self._pointer = ctypes.c_void_p(ctypes.addressof(self._raw))
        self._loss = ctypes.c_float()
        self._loss_pointer = ctypes.c_void_p(ctypes.addressof(self._loss))
        self._c_step, self._c_predict = dll.poetc_session_step, dll.poetc_session_predict
        self._c_evaluate = dll.poetc_session_evaluate
        dll.poetc_session_learning_rate.restype = ctypes.c_float

    def _start(self, folder: Path, store: PathLike | None, undo: bool) -> None:
        config, dll = Config(), self._library.dll
        config.arena, config.arena_bytes = self._arena.ctypes.data, self._arena.size
        if self._description["store_blocks"]:
            if store is None:
                self._temporary = tempfile.TemporaryDirectory(prefix="poetc-store-")
                store = Path(self._temporary.name) / "store.bin"
            self._make_store(folder, Path(store))
            code = self._library.open_store(config.store, store, self._description["block_bytes"])
            self._check(code, f"{store}")
            self._raw.config.store = config.store  # closed by `close`, should the next call fail
        address = self._library.address(self._description["symbol"])
        self._require_same(ModelStructure.from_address(address).emission == self._description["emission"])
        code = dll.poetc_session_init(self._pointer, ctypes.c_void_p(address), ctypes.byref(config))
        self._check(code, "the session cannot start")
        queues = self._description.get("queues")
        if queues is not None:
            self._processors = Processors(self._library, self._raw.runtime, queues)
            self._raw.run = self._processors.run
            self._raw.run_context = ctypes.addressof(self._processors.memory)
        if undo:
            self._backup = np.empty(max(1, self._description["state_bytes"]), np.uint8)
            self._raw.backup = self._backup.ctypes.data

    def _require_same(self, holds: bool) -> None:
        if not holds:
            raise SessionError(f"{self._library.path}: not built from the sources that the manifest describes")

    def _make_store(self, folder: Path, path: Path) -> None:
        image = self._description["store_image"]
        try:
            if image is None:
                path.write_bytes(b"")
            else:
                shutil.copyfile(folder / image, path)
        except OSError as error:
            raise SessionError(f"{error.filename or path}: {error.strerror or error}") from None

    # --- training -----------------------------------------------------------------------------------------------------

    def step(self, *inputs: Any) -> float:
        """One training step; returns the loss.

        Arrays in the order of the record (inputs, then the target), or one mapping of all by name. After a ValueError
        the state is as before. SessionError also where the loss is no finite number.
        """
        with self._lock:
            pointer = self._alive()
            self._train.fill(inputs)
            code = self._c_step(pointer, self._train.addresses, self._loss_pointer)
            self._last = self._train
            if code:
                failed = self._raw.runtime.run_count + (code != ENUMBER or bool(self._raw.backup))
                self._fail(self._train, code, f"step {failed}")
            return self._loss.value

    def count_hits(self, scores: Sequence[Sequence[int]]) -> None:
        """Count, in each training step from now on, the samples whose class has the highest score.

        `scores`: the fields of each `poetc_scores` of the training program, as `poetc.program.class_scores` finds them.
        """
        with self._lock:
            self._alive()
            self._scores = (Scores * len(scores))(*(Scores(*row) for row in scores))
            self._hits = Hits(self._raw.runtime.program, ctypes.addressof(self._scores), len(scores))
            function = self._library.dll.poetc_count_hits
            self._raw.config.observer = ctypes.cast(function, ctypes.c_void_p).value if scores else None
            self._raw.config.observer_context = ctypes.addressof(self._hits)

    def take_hits(self) -> tuple[int, int]:
        """Samples whose class had the highest score, and samples that counted, since the last call of this."""
        with self._lock:
            hits = int(self._hits.hits), int(self._hits.samples)
            self._hits.hits = self._hits.samples = 0
        return hits

    def follow_memory(self, group: PathLike | None = None) -> None:
        """Let training steps of a bundle follow the memory that Linux leaves to this process; the bits are the same.

        `group`: the directory of another control group (cgroup v2). The state is then the initial one: call it before
        state is loaded. Steps of other plans than the first count no hits. SessionError where the model has one plan,
        or the group tells nothing of memory.
        """
        with self._lock:
            dll, symbol = self._library.dll, self._description.get("bundle")
            if symbol is None:
                raise SessionError("follow_memory: the model has one plan; `poetc bundle` makes several")
            size_bytes = ctypes.c_uint32.from_address(self._library.address("poetc_pressure_bytes")).value
            self._pressure = ctypes.create_string_buffer(size_bytes)
            bundle = ctypes.c_void_p(self._library.address(symbol))
            path = None if group is None else os.fsencode(group)
            code = dll.poetc_pressure_begin(self._pressure, self._alive(), bundle, path)
            if code == ENOENT:
                raise SessionError(f"{group or 'the control group of this process'}: tells nothing of memory")
            self._check(code, "follow_memory")

    @property
    def arena_in_use_bytes(self) -> int:
        """The part of the arena that the plan of the next training step takes; more while others of its plans run."""
        with self._lock:
            self._alive()
            if self._pressure is None:
                return int(self._description["arena_bytes"])
            return int(self._library.dll.poetc_arena_in_use(self._pressure))

    def evaluate(self, *inputs: Any) -> float:
        """The loss of a batch in inference mode, given as to `step`; no state changes."""
        with self._lock:
            pointer, entry = self._alive(), self._entry("evaluate")
            entry.fill(inputs)
            code = self._c_evaluate(pointer, entry.addresses, self._loss_pointer)
            self._last = entry
            if code:
                self._fail(entry, code, "evaluation")
            return self._loss.value

    def predict(self, *inputs: Any) -> Any:
        """The model's output for a batch: an array, or a dict of arrays by name where there are several outputs."""
        with self._lock:
            pointer, entry = self._alive(), self._entry("infer")
            entry.fill(inputs)
            code = self._c_predict(pointer, entry.addresses)
            self._last = entry
            if code:
                self._fail(entry, code, "prediction")
            outputs = {t.name: t.view.copy() for t in entry.outputs}
            return outputs if len(outputs) != 1 else outputs.popitem()[1]

    def outputs(self) -> dict[str, Array]:
        """Copies of the outputs of the last call's program, by name: of `step` and `evaluate` the loss is the first."""
        with self._lock:
            self._alive()
            return {t.name: t.view.copy() for t in self._last.outputs}

    @property
    def learning_rate(self) -> float:
        """The rate of the next step. ValueError for a model without one, or a rate that is negative or no number."""
        self._require_rate()
        return float(self._library.dll.poetc_session_learning_rate(self._alive()))

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._require_rate()
        if not 0 <= rate < 3.4028235e38:
            raise ValueError(f"learning_rate: {rate}, not a finite number that is 0 or more")
        with self._lock:
            code = self._library.dll.poetc_session_set_learning_rate(self._alive(), ctypes.c_float(rate))
        self._check(code, "learning_rate")

    def _require_rate(self) -> None:
        if self._description["learning_rate"] is None:
            raise ValueError("learning_rate: the model's optimizer keeps none in RAM")

    @property
    def steps(self) -> int:
        """Complete training steps, those of a loaded state included."""
        return int(self._raw.runtime.run_count)

    @property
    def page_ins(self) -> int:
        """Transfers from the store so far."""
        return int(self._raw.runtime.page_ins)

    @property
    def page_outs(self) -> int:
        """Transfers to the store so far."""
        return int(self._raw.runtime.page_outs)

    @property
    def library(self) -> Library:
        """The emitted library, for functions of the runtime that have no method here."""
        return self._library

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs that can be called: of "train", "infer" and "evaluate"."""
        return tuple(self._entries)

    def inputs(self, program: str = "train") -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and type of each input, in order; for training the target is the last."""
        return {t.name: (t.shape, t.dtype) for t in self._entry(program).inputs}

    def measure_peak(self, *inputs: Any) -> int:
        """Bytes of the arena that a training step on `inputs` needs: the end of the highest that it touches.

        Takes two steps and leaves state and step count as they were.
        """
        with self._lock:
            before, touched = self._save(), int(self._description["state_bytes"])
            for pattern in (0x55, 0xAA):  # a byte that is written cannot equal both
                rest = self._arena[self._description["state_bytes"] :]
                rest[...] = pattern
                try:
                    self.step(*inputs)
                except SessionError as error:
                    if error.code != ENUMBER:  # a loss that is no number took the same memory
                        raise
                finally:
                    touched = max(touched, self._arena.size - rest.size + touched_bytes(rest, pattern))
                    self._load(before)
        return touched

    # --- state --------------------------------------------------------------------------------------------------------

    def state_names(self) -> list[str]:
        """Whole names of all trained state: weights, statistics, optimizer state."""
        return [row["name"] for row in self.manifest["state"]["tensors"]]

    def state_dict(self, names: Iterable[str] | None = None) -> dict[str, Array]:
        """Copies of state tensors by name, wherever they live; of all by default. ValueError for an unknown name."""
        rows = self._rows(self.state_names() if names is None else names)
        if all(row["place"]["memory"] == "ram" for row in rows):
            with self._lock:
                self._recover()
                return {row["name"]: self._in_arena(row).copy() for row in rows}
        data = self._save()
        return {row["name"]: _tensor_in(data, row).copy() for row in rows}

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Take over arrays by name.

        `strict`: all of them must be there. ValueError names the fault; then nothing changes.
        """
        rows = self._rows(state)
        missing = sorted(set(self.state_names()) - set(state))
        if strict and missing:
            more = f" (and {len(missing) - 1} more)" if missing[1:] else ""
            raise ValueError(f"{missing[0]}: not given{more}")
        arrays = [_fitting(row, state[row["name"]]) for row in rows]
        with self._lock:
            if all(row["place"]["memory"] == "ram" for row in rows):
                self._recover()
                for row, array in zip(rows, arrays):  # noqa: B905 - Python 3.9 has no strict
                    self._in_arena(row)[...] = array
                return
            data = bytearray(self._save())
            for row, array in zip(rows, arrays):  # noqa: B905
                _tensor_in(data, row)[...] = array
            self._load(bytes(data[:-4]) + struct.pack("<I", zlib.crc32(data[:-4])))

    def _rows(self, names: Iterable[str]) -> list[Mapping[str, Any]]:
        rows = {row["name"]: row for row in self.manifest["state"]["tensors"]}
        names = list(names)
        unknown = sorted(set(names) - set(rows))
        if unknown:
            raise ValueError(f"{unknown[0]}: no state of this model")
        return [rows[name] for name in names]

    def _in_arena(self, row: Mapping[str, Any]) -> Array:
        start = row["place"]["offset_bytes"]
        data: Array = self._arena[start : start + row["size_bytes"]]
        tensor: Array = data.view(np.dtype(row["dtype"])).reshape(row["shape"])
        return tensor

    def _recover(self) -> None:
        """Bring back the tensors that a failed step left on the store alone."""
        if self._alive() and self._raw.is_lost:
            self._check(self._library.dll.poetc_recover(ctypes.byref(self._raw.runtime)), "the state cannot be read")
            self._raw.is_lost = 0

    def save(self, path: PathLike) -> None:
        """Write all state to a trained.bin atomically; it is on the disk when this returns. Raises SessionError."""
        ctypes.set_errno(0)
        with self._lock:
            code = self._library.dll.poetc_file_save(self._alive(), os.fsencode(path))
        self._check(code, f"{path}", ctypes.get_errno())

    def load(self, path: PathLike) -> None:
        """Go on from a trained.bin of the same model, whatever its schedule: state and step count.

        SessionError, and nothing changes, for one of another model or a damaged one.
        """
        ctypes.set_errno(0)
        with self._lock:
            code = self._library.dll.poetc_file_load(self._alive(), os.fsencode(path))
        self._check_state(code, f"{path}")

    def take_over(self, other: Session) -> None:
        """Go on from the state and the step count of a session with the same model. SessionError for another one."""
        self._load(other._save())

    def _save(self) -> bytes:
        data = bytearray()

        def take(_context: int, piece: int, size_bytes: int) -> int:
            data.extend((ctypes.c_char * size_bytes).from_address(piece))
            return 0

        with self._lock, callbacks():
            code = self._library.dll.poetc_session_save(self._alive(), SINK(take), None)
        self._check(code, "the state cannot be read")
        return bytes(data)

    def _load(self, data: bytes) -> None:
        def give(_context: int, offset: int, to: int, size_bytes: int) -> int:
            ctypes.memmove(to, data[offset : offset + size_bytes], size_bytes)
            return 0

        size = ctypes.c_uint32(len(data))
        with self._lock, callbacks():
            code = self._library.dll.poetc_session_load(self._alive(), size, SOURCE(give), None)
        self._check_state(code, "the state")

    def _check_state(self, code: int, what: str) -> None:
        if code == EINVAL:
            raise SessionError(f"{what}: no trained state of this model: names, types or shapes differ", code)
        if code == ECORRUPT:
            raise SessionError(f"{what}: damaged: its checksum does not hold", code)
        self._check(code, what, ctypes.get_errno())

    # --- life ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the store and the library, and give the arena back.

        The session cannot be used any more; a second call does nothing.
        """
        with self._lock:
            pointer, self._pointer = self._pointer, ctypes.c_void_p(None)
            if pointer and self._processors is not None:
                self._processors.end()
            code = self._library.close_store(self._raw.config.store)
            if self._temporary is not None:
                self._temporary.cleanup()
            why = f"the store cannot be closed: {self._library.text(code)}" if code else ""
            self._library.close()
            for entry in self._entries.values():
                entry.release()
            self._memory = self._arena = self._backup = np.empty(0, np.uint8)
        if why:
            raise SessionError(why, code)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _alive(self) -> ctypes.c_void_p:
        if not self._pointer:
            raise SessionError("the session is closed")
        return self._pointer

    def _entry(self, name: str) -> _Entry:
        if name not in self._entries:
            raise SessionError(f"the model was emitted without a program {name!r} (it has {', '.join(self._entries)})")
        return self._entries[name]

    def _check(self, code: int, what: str, errno: int = 0) -> None:
        if code:
            text = os.strerror(errno) if code == EIO and errno else self._library.text(code)
            raise SessionError(f"{what}: {text}", code)

    def _fail(self, entry: _Entry, code: int, what: str) -> None:
        """Raise the error of a run, which is the caller's if it has a flaw."""
        flaw = self._raw.flaw
        if flaw.input == NONE:
            if code == ENUMBER:
                loss = self._loss.value
                raise SessionError(f"{what}: the loss is {loss}: lower the learning rate, or scale the inputs", code)
            raise SessionError(f"{what}{self._where(entry)}: {self._library.text(code)}", code)
        tensor = entry.inputs[flaw.input]
        index = ", ".join(str(i) for i in np.unravel_index(flaw.element, tensor.shape)) if tensor.shape else ""
        why = "not a finite number" if code == ENUMBER else f"not {tensor.allowed()}"
        raise ValueError(f"{tensor.name}[{index}] is {tensor.view.reshape(-1)[flaw.element]}, {why}")

    def _where(self, entry: _Entry) -> str:
        """The operator that failed; of several processors each counts its own instructions."""
        name, at = next(name for name, known in self._entries.items() if known is entry), self._raw.runtime.instruction
        operators = self._operators.get(self._description["programs"][name]["name"], ())
        return operators[at] if self._processors is None and at < len(operators) else ""


def _fitting(row: Mapping[str, Any], value: Any) -> Array:
    """An array that a state tensor can take over. ValueError names the tensor."""
    array, shape, dtype = np.asarray(value), tuple(row["shape"]), np.dtype(row["dtype"])
    if array.shape != shape:
        raise ValueError(f"{row['name']}: shape {_shape(array.shape)}, the model has {_shape(shape)}")
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ValueError(f"{row['name']}: {array.dtype}, the model has {dtype}")
    return array


def _tensor_in(data: bytes | bytearray, row: Mapping[str, Any]) -> Array:
    """A view of a state tensor in the bytes of a trained.bin."""
    return np.frombuffer(data, row["dtype"], math.prod(row["shape"]), row["offset_bytes"]).reshape(row["shape"])
