"""A board as a client of a fleet: it trains on data of its own, and a serial line takes the weights there and back."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from msgspec import UNSET

from poetc.artifact import Artifact
from poetc.commands.programs import graph_of
from poetc.commands.weights import require_floats
from poetc.datasets import batch_size
from poetc.errors import UsageError
from poetc.fleet.frames import MOST_BYTES, PROTOCOL, Channel, Request
from poetc.fleet.opening import open_line
from poetc.fleet.participant import Trained
from poetc.fleet.update import Quantizer
from poetc.fleet.weights import FleetModel, UnsoundUpdate, Weight, require_sound
from poetc.graph import Array
from poetc.program import Manifest, manifest_of

LEAST_PAYLOAD_BYTES = 128  # of fleet.c: a request of `masked` for one number is shorter
_UPDATE_FIELDS = struct.Struct("<5I")  # after `poetc_update`: offset, first, count, whether there is `before`, mask


class Board:
    """A board with the firmware of `poetc emit --fleet`, at the other end of a line.

    `solved` is the directory that the firmware was emitted from, `emitted` the folder with its sources. `line` as
    `open_line` takes it. UsageError where the board has other firmware.
    """

    def __init__(self, solved: Artifact, emitted: Path, line: str, *, channel: Channel | None = None) -> None:
        self.model = FleetModel.of(solved)
        require_floats(solved, solved.problem.name)
        path = emitted / "poetc-emit.json"
        try:
            manifest = manifest_of(path)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror or error}") from None
        self._places = _places(manifest, self.model, emitted)
        step = graph_of(solved)
        self._rows = batch_size([step.tensors[n].shape for n in (*step.inputs, step.target) if step.tensors[n].shape])
        self._rate = {row.name: row.place or None for row in manifest.state.tensors}.get("learning_rate")
        self.channel = channel or Channel(open_line(line), line)
        reply = self.channel.ask(Request.HELLO, reply_bytes=None)
        if len(reply) != 20 or struct.unpack_from("<I", reply)[0] != PROTOCOL:
            raise UsageError(f"{line}: the board speaks another protocol than this poetc; emit its firmware again")
        _, emission, self._capacity, self.state_bytes, self.arena_bytes = struct.unpack("<5I", reply)
        if self._capacity < LEAST_PAYLOAD_BYTES:
            raise UsageError(
                f"{line}: the board takes {self._capacity} bytes in a frame; {LEAST_PAYLOAD_BYTES} are needed"
            )
        self._capacity = min(self._capacity, MOST_BYTES)
        # Firmware of version 0.2 tells the identity of its state, which was that of the emission.
        of_files = manifest.session.emission
        if emission != (manifest.state.identity if of_files is UNSET else of_files):
            raise UsageError(f"{line}: the board's firmware is not that of {emitted}: build and flash it again")

    def fit(
        self,
        state: Mapping[str, Array],
        *,
        epochs: int = 1,
        learning_rate: float | None = None,
        max_update_norm: float | None = None,
    ) -> Trained:
        """Train on the board's own data for `epochs`, from these weights and from fresh optimizer state.

        `learning_rate`: by default the one that was solved with. `max_update_norm`: of the change of all weights, as
        an L2 norm; the weights are read for it. BoardError where the board stops, UnsoundUpdate where its loss is no
        number or the norm is above the limit.
        """
        if not 1 <= epochs < 1 << 32:
            raise UsageError(f"local-epochs {epochs}: must be at least 1")
        self.model.require_whole(state)
        self.channel.ask(Request.RESET)
        for weight in self.model.weights:
            self._write(self._places[weight.tensor], np.ascontiguousarray(state[weight.tensor], "<f4").tobytes())
        if learning_rate is not None:
            self._set_rate(learning_rate)
        steps, loss = struct.unpack("<If", self.channel.ask(Request.TRAIN, struct.pack("<I", epochs), reply_bytes=8))
        if not math.isfinite(loss):
            raise UnsoundUpdate(f"the board's loss is {loss}: the training diverged")
        if max_update_norm is not None:
            require_sound(state, self.state(), max_update_norm)
        return Trained(loss=loss, samples=steps // epochs * self._rows, steps=steps)

    def state(self) -> dict[str, Array]:
        """The weights that travel, as they are now, by the names of the graph. UnsoundUpdate: one is not finite."""
        arrays = {w.tensor: self._read(w) for w in self.model.weights}
        require_sound({}, arrays)
        return arrays

    def masked(self, quantizer: Quantizer, weight: Weight, before: Array | None, terms: Array, first: int) -> Array:
        """The words of one weight as it is now, less `before`, with the terms of a mask added: made by the board.

        The board keeps no copy of the old weights: `before` is sent there again, piece by piece.
        """
        head = quantizer.bytes()
        each = 4 if before is None else 8  # bytes an element of the request, more than of the reply
        most = (self._capacity - len(head) - _UPDATE_FIELDS.size) // each
        mask = np.ascontiguousarray(terms, "<u4").reshape(-1)
        old = None if before is None else np.ascontiguousarray(before, "<f4").reshape(-1)
        pieces = []
        for start in range(0, mask.size, most):
            part = slice(start, start + most)
            count = mask[part].size
            fields = _UPDATE_FIELDS.pack(
                self._places[weight.tensor] + 4 * start, first + start, count, old is not None, quantizer.mask
            )
            payload = head + fields + (b"" if old is None else old[part].tobytes()) + mask[part].tobytes()
            pieces.append(np.frombuffer(self.channel.ask(Request.UPDATE, payload, reply_bytes=4 * count), "<u4", count))
        return np.concatenate(pieces).astype(np.uint32).reshape(weight.shape)

    def close(self) -> None:
        """End the firmware's program, and close the line."""
        try:
            self.channel.ask(Request.END)
        finally:
            self.channel.close()

    def _set_rate(self, rate: float) -> None:
        if not 0 <= rate < 3.4028235e38:
            raise UsageError(f"learning-rate: {rate:g}, not a finite number that is 0 or more")
        if self._rate is None or self._rate.offset_bytes is UNSET:
            raise UsageError("learning-rate: the model's optimizer keeps none in RAM")
        self._write(self._rate.offset_bytes, struct.pack("<f", rate))

    def _write(self, place: int, data: bytes) -> None:
        for start, size in _pieces(len(data), self._capacity - 4):
            self.channel.ask(Request.WRITE, struct.pack("<I", place + start) + data[start : start + size])

    def _read(self, weight: Weight) -> Array:
        place, total = self._places[weight.tensor], 4 * int(np.prod(weight.shape, dtype=np.int64))
        data = b"".join(
            self.channel.ask(Request.READ, struct.pack("<II", place + start, size), reply_bytes=size)
            for start, size in _pieces(total, self._capacity)
        )
        return np.frombuffer(data, "<f4").astype(np.float32).reshape(weight.shape)


def _pieces(total: int, most: int) -> Iterator[tuple[int, int]]:
    for start in range(0, total, most):
        yield start, min(most, total - start)


def _places(manifest: Manifest, model: FleetModel, emitted: Path) -> dict[str, int]:
    """The offset of each weight in the arena."""
    rows = {row.name: row.place for row in manifest.state.tensors if row.place}
    missing = [w.tensor for w in model.weights if w.tensor not in rows]
    if missing:
        raise UsageError(f"{emitted}: holds no {missing[0]}: it was not emitted from this solved directory")
    stored = [w.name for w in model.weights if rows[w.tensor].memory != "ram"]
    if stored:
        remedy = "where no gateway reaches it; solve with --state ram"
        raise UsageError(f"{emitted}: {stored[0]} lives on the store, {remedy}")
    return {w.tensor: rows[w.tensor].offset_bytes or 0 for w in model.weights}
