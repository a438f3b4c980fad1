"""Frames over a serial line between a gateway and a board: the counterpart of `fleet.c`, which describes them."""

from __future__ import annotations

import enum
import os
import re
import select
import socket
import struct
import time
import zlib
from typing import Protocol

from poetc.errors import CheckFailed, UsageError

PROTOCOL = 1
HEAD, CRC_BYTES = struct.Struct("<2sBBHH"), 4
REPLY, FAILED = 128, 255
TAG = b"pt"
TRIES = 5
MOST_BYTES = 4096  # of a payload: a damaged frame is sent whole again
SLOWEST_BYTES_A_SECOND = 2000  # of a line
ECORRUPT = -84


class Request(enum.IntEnum):
    """The kinds of requests of a gateway."""

    HELLO = 1
    RESET = 2
    WRITE = 3
    READ = 4
    TRAIN = 5
    UPDATE = 6
    END = 7


class Line(Protocol):
    """Bytes in both directions."""

    def write(self, data: bytes) -> None: ...

    def read(self, size: int, timeout_s: float) -> bytes:
        """At most `size` bytes, at least one; none: nothing came in time."""
        ...

    def close(self) -> None: ...


class BoardError(CheckFailed):
    """The board refused a request; `code` is one of `enum poetc_error`."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def frame(kind: int, sequence: int, payload: bytes = b"") -> bytes:
    """The bytes of a frame."""
    head = HEAD.pack(TAG, kind, sequence, len(payload), ~len(payload) & 0xFFFF) + payload
    return head + struct.pack("<I", zlib.crc32(head))


class Channel:
    """Requests to a board, each sent again until its reply is whole. `where` names the line in messages."""

    def __init__(self, line: Line, where: str, *, timeout_s: float = 2.0, training_timeout_s: float = 3600.0) -> None:
        self._line, self._where = line, where
        self._timeout_s, self._training_timeout_s = timeout_s, training_timeout_s
        self._sequence = 0
        self._received = b""
        self.sent_bytes = self.received_bytes = self.retries = 0

    def ask(self, kind: Request, payload: bytes = b"") -> bytes:
        """The payload of the reply. BoardError where the board refuses, CheckFailed where it does not answer."""
        self._sequence = (self._sequence + 1) % 256
        request = frame(kind, self._sequence, payload)
        timeout_s = self._training_timeout_s if kind is Request.TRAIN else self._timeout_s
        timeout_s += (len(payload) + MOST_BYTES) / SLOWEST_BYTES_A_SECOND
        for attempt in range(TRIES):
            self.retries += attempt > 0
            self._line.write(request)
            self.sent_bytes += len(request)
            reply = self._reply(kind, timeout_s)
            if reply is not None:
                return reply
            if kind not in (Request.HELLO, Request.TRAIN):
                timeout_s *= 2  # a busy machine emulates boards slowly
        raise CheckFailed(f"{self._where}: the board gives no whole answer to {kind.name} in {TRIES} attempts")

    def _reply(self, kind: Request, timeout_s: float) -> bytes | None:
        """The reply to the last request; None: it did not come in time, or came damaged."""
        end = time.monotonic() + timeout_s
        while True:
            found = self._take_frame()
            if found is None:
                data = self._line.read(1 << 16, end - time.monotonic()) if time.monotonic() < end else b""
                if not data:
                    return None
                self._received += data
                self.received_bytes += len(data)
                continue
            answered, sequence, payload = found
            if answered == FAILED and len(payload) == 8:
                code, step = struct.unpack("<iI", payload)
                if code == ECORRUPT:
                    return None
                if sequence == self._sequence:
                    where = f"{self._where}: the board stopped in {kind.name} at step {step}"
                    raise BoardError(f"{where}, code {code}", code)
            elif sequence == self._sequence and answered == kind + REPLY:
                return payload

    def _take_frame(self) -> tuple[int, int, bytes] | None:
        """The next whole frame of the bytes that came; those before it are noise."""
        while (at := self._received.find(TAG)) >= 0:
            rest = self._received[at:]
            if len(rest) < HEAD.size:
                break
            _, kind, sequence, size, complement = HEAD.unpack_from(rest)
            if size != ~complement & 0xFFFF:
                self._received = rest[1:]
                continue
            end = HEAD.size + size + CRC_BYTES
            if len(rest) < end:
                break
            if zlib.crc32(rest[: end - CRC_BYTES]) != struct.unpack_from("<I", rest, end - CRC_BYTES)[0]:
                self._received = rest[1:]
                continue
            self._received = rest[end:]
            return kind, sequence, rest[HEAD.size : end - CRC_BYTES]
        return None

    def close(self) -> None:
        self._line.close()


class _Descriptor:
    """A line over a file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]

    def read(self, size: int, timeout_s: float) -> bytes:
        ready, _, _ = select.select([self._descriptor], [], [], max(0.0, timeout_s))
        return os.read(self._descriptor, size) if ready else b""

    def close(self) -> None:
        os.close(self._descriptor)


def open_line(where: str) -> Line:
    """The line that `where` names: a serial device such as /dev/ttyACM0, tcp:HOST:PORT, or unix:PATH.

    A device runs at 115,200 baud. UsageError where it cannot be opened.
    """
    try:
        kind, _, rest = where.partition(":")
        if kind == "tcp":
            host, _, port = rest.rpartition(":")
            if not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 1 << 16:
                raise UsageError(f"{where}: write tcp:HOST:PORT")
            return _Descriptor(socket.create_connection((host, int(port)), timeout=10).detach())
        if kind == "unix":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(rest)
                return _Descriptor(connection.detach())
        return _Descriptor(_open_device(where))
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror or error}") from None
    except ValueError as error:  # a host that is no name, or a path with a zero byte
        raise UsageError(f"{where}: {error}") from None


def _open_device(path: str) -> int:
    import termios
    import tty

    descriptor = os.open(path, os.O_RDWR | os.O_NOCTTY)
    try:
        tty.setraw(descriptor)
        settings = termios.tcgetattr(descriptor)
        settings[4] = settings[5] = termios.B115200
        termios.tcsetattr(descriptor, termios.TCSANOW, settings)
    except termios.error as error:
        os.close(descriptor)
        raise UsageError(f"{path}: is no serial line ({error.args[-1]})") from None
    return descriptor
