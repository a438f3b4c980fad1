"""A TCP line signed with a shared key: neither end takes bytes of another machine, or bytes that came before.

Each end sends a nonce. HMAC-SHA256 of the shared key over both makes a key for each direction of this connection alone.
A record is its length, data, and the first 16 bytes of the HMAC over its number and both. Data are not encrypted.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import time
from pathlib import Path

from poetc.errors import CheckFailed, UsageError
from poetc.files import read_file
from poetc.fleet.lines import Descriptor

NONCE_BYTES, SIGNATURE_BYTES = 32, 16
LEAST_KEY_BYTES, MOST_KEY_BYTES = 16, 4096
MOST_RECORD_BYTES = 8192
HANDSHAKE_S = 10.0
GREETING = b"poetc line 1\n"
_HEAD = struct.Struct("<H")


def read_key(path: Path) -> bytes:
    """A shared key: a file of 16 to 4,096 bytes. UsageError, which names it, for any other."""
    try:
        key = read_file(path, MOST_KEY_BYTES)
    except OSError as error:
        raise UsageError(f"the key {path}: {error.strerror or error}") from None
    if len(key) < LEAST_KEY_BYTES:
        raise UsageError(f"{path}: a key has at least {LEAST_KEY_BYTES} bytes, as of head -c 32 /dev/urandom > {path}")
    return key


class SignedLine:
    """A `Line` over a connected socket, which it owns. `accepts`: this end was called, the other one calls.

    UsageError where the other end does not know the key. Later a record that is not signed raises CheckFailed, and no
    further one is taken.
    """

    def __init__(self, connection: socket.socket, key: bytes, where: str, *, accepts: bool) -> None:
        self._line, self._where = Descriptor(connection.detach()), where
        self._received, self._ready = bytearray(), bytearray()
        self._sent_records = self._taken_records = 0
        self._is_broken = False
        try:
            self._greet(key, accepts)
        except BaseException:
            self.close()
            raise

    def _greet(self, key: bytes, accepts: bool) -> None:
        end = time.monotonic() + HANDSHAKE_S
        own = secrets.token_bytes(NONCE_BYTES)
        self._line.write(GREETING + own, HANDSHAKE_S)
        greeting = self._exactly(len(GREETING) + NONCE_BYTES, end)
        if not greeting.startswith(GREETING):
            raise UsageError(f"{self._where}: the other end signs nothing; give it the key, or leave key= out")
        theirs = greeting[len(GREETING) :]
        nonces = theirs + own if accepts else own + theirs  # the caller's first
        directions = [hmac.digest(key, label + nonces, "sha256") for label in (b"from caller", b"to caller")]
        self._out, self._in = reversed(directions) if accepts else directions
        self.write(b"", HANDSHAKE_S)
        try:
            while self._taken_records == 0:
                self._wait(end)
        except CheckFailed:
            raise UsageError(f"{self._where}: the other end has another key") from None

    def _exactly(self, size: int, end: float) -> bytes:
        while len(self._received) < size:
            data = self._line.read(size - len(self._received), end - time.monotonic())
            if not data:
                raise UsageError(f"{self._where}: the other end sends no greeting, or hung up: has it the same key?")
            self._received += data
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def _wait(self, end: float) -> None:
        data = self._line.read(MOST_RECORD_BYTES, end - time.monotonic())
        if not data:
            raise CheckFailed(f"{self._where}: the other end hung up")
        self._take(data)

    def _signature(self, key: bytes, number: int, record: bytes) -> bytes:
        return hmac.digest(key, struct.pack("<Q", number) + record, "sha256")[:SIGNATURE_BYTES]

    def _take(self, data: bytes) -> None:
        """Add bytes of the socket; the data of whole records become ready."""
        self._received += data
        while len(self._received) >= _HEAD.size:
            end = _HEAD.size + _HEAD.unpack_from(self._received)[0]
            if len(self._received) < end + SIGNATURE_BYTES:
                break
            record, signature = bytes(self._received[:end]), self._received[end : end + SIGNATURE_BYTES]
            if self._is_broken or not hmac.compare_digest(
                self._signature(self._in, self._taken_records, record), bytes(signature)
            ):
                self._is_broken = True
                raise CheckFailed(f"{self._where}: bytes that are not signed with the key, or were sent before")
            self._taken_records += 1
            self._ready += record[_HEAD.size :]
            del self._received[: end + SIGNATURE_BYTES]

    def write(self, data: bytes, timeout_s: float) -> None:
        pieces = [data[i : i + MOST_RECORD_BYTES] for i in range(0, len(data), MOST_RECORD_BYTES)] or [b""]
        for piece in pieces:
            record = _HEAD.pack(len(piece)) + piece
            self._line.write(record + self._signature(self._out, self._sent_records, record), timeout_s)
            self._sent_records += 1

    def read(self, size: int, timeout_s: float) -> bytes:
        end = time.monotonic() + timeout_s
        while not self._ready and self._line.waits(end - time.monotonic()):
            self._wait(end)
        taken = bytes(self._ready[:size])
        del self._ready[:size]
        return taken

    def fileno(self) -> int:
        return self._line.fileno()

    def close(self) -> None:
        self._line.close()
