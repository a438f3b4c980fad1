"""Frames over a serial line between a gateway and a board: the counterpart of `fleet.c`, which describes them."""

from __future__ import annotations

import enum
import struct
import time
import zlib

from poetc.errors import CheckFailed, UsageError
from poetc.fleet.lines import Line
from poetc.fleet.signed import GREETING

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

    def ask(self, kind: Request, payload: bytes = b"", *, reply_bytes: int | None = 0) -> bytes:
        """The payload of the reply. BoardError where the board refuses, CheckFailed where it does not answer.

        `reply_bytes`: the size that the reply must have; None: any.
        """
        self._sequence = (self._sequence + 1) % 256
        request = frame(kind, self._sequence, payload)
        needed_s = self._timeout_s + (len(payload) + MOST_BYTES) / SLOWEST_BYTES_A_SECOND
        timeout_s = needed_s + (self._training_timeout_s if kind is Request.TRAIN else 0.0)
        for attempt in range(TRIES):
            self.retries += attempt > 0
            # A damaged head may let the board wait for a longer payload: zeros fill that up.
            padding = bytes(MOST_BYTES + CRC_BYTES) if attempt >= 2 else b""
            self._line.write(padding + request, timeout_s)
            self.sent_bytes += len(padding) + len(request)
            reply = self._reply(kind, timeout_s)
            if reply is not None:
                if reply_bytes is not None and len(reply) != reply_bytes:
                    raise CheckFailed(
                        f"{self._where}: the board answers {kind.name} with {len(reply)} bytes, not {reply_bytes}"
                    )
                return reply
            if kind is Request.TRAIN:
                timeout_s = needed_s  # a board that has trained answers at once, and one that trains still is too slow
            elif kind is not Request.HELLO:
                timeout_s *= 2  # a busy machine emulates boards slowly
        raise CheckFailed(f"{self._where}: the board gives no whole answer to {kind.name} in {TRIES} attempts")

    def _reply(self, kind: Request, timeout_s: float) -> bytes | None:
        """The reply to the last request; None: it did not come in time, or came damaged."""
        end, is_over = time.monotonic() + timeout_s, False
        while True:
            frame = self._take_frame(is_over)
            if frame is None:
                if is_over:
                    return None
                data = self._line.read(1 << 16, end - time.monotonic()) if time.monotonic() < end else b""
                is_over = not data
                self._received += data
                self.received_bytes += len(data)
                if self._received.startswith(GREETING):
                    raise UsageError(f"{self._where}: a relay that wants a key is there; write {self._where},key=FILE")
                continue
            answered, sequence, payload = frame
            if answered == FAILED and len(payload) == 8:
                code, step = struct.unpack("<iI", payload)
                if code == ECORRUPT:
                    return None
                if sequence == self._sequence:
                    where = f"{self._where}: the board stopped in {kind.name} at step {step}"
                    raise BoardError(f"{where}, code {code}", code)
            elif sequence == self._sequence and answered == kind + REPLY:
                return payload

    def _take_frame(self, is_over: bool = False) -> tuple[int, int, bytes] | None:
        """The next whole frame of the bytes that came; those before it are noise, and are dropped.

        `is_over`: nothing more comes, so a frame that is not whole is noise, too.
        """
        received, at = self._received, 0
        while (at := received.find(TAG, at)) >= 0:
            left = len(received) - at
            if left >= HEAD.size:
                _, kind, sequence, size, complement = HEAD.unpack_from(received, at)
                body, end = at + HEAD.size, at + HEAD.size + size + CRC_BYTES
                if size == ~complement & 0xFFFF and size <= MOST_BYTES:
                    if end <= len(received):
                        whole = received[at : end - CRC_BYTES]
                        if zlib.crc32(whole) == struct.unpack_from("<I", received, end - CRC_BYTES)[0]:
                            self._received = received[end:]
                            return kind, sequence, received[body : end - CRC_BYTES]
                    elif not is_over:
                        break
            elif not is_over:
                break
            at += 1
        # Of noise the last byte may be the first of a tag.
        self._received = received[at:] if at >= 0 else received[-1:] if received.endswith(TAG[:1]) else b""
        return None

    def close(self) -> None:
        self._line.close()
