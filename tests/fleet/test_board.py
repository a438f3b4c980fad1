"""A board in a fleet: frames on a bad line, and an emulated Cortex-M that has the bits of this machine."""

from __future__ import annotations

import json
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from poetc.artifact import Artifact
from poetc.commands.emit import emit
from poetc.emit import MANIFEST
from poetc.errors import CheckFailed, UsageError
from poetc.fleet import Board, FleetModel, Participant, Quantizer, UnsoundUpdate, read_data
from poetc.fleet.frames import (
    HEAD,
    MOST_BYTES,
    SLOWEST_BYTES_A_SECOND,
    BoardError,
    Channel,
    Request,
    frame,
)
from poetc.fleet.lines import Descriptor
from poetc.fleet.opening import open_line
from poetc.flower.gateway import Gateway
from tests.commands.trained import DIGITS
from tests.fleet.conftest import Firmware
from tests.support.fleet_board import BOARD, running


class Echo:
    """A board that answers each whole frame with its payload, over a line that spoils bytes."""

    def __init__(self, spoil: Callable[[bytes], bytes], reply: Callable[[int, int, bytes], bytes]) -> None:
        self._spoil, self._reply, self._waiting = spoil, reply, b""
        self.requests = 0

    def write(self, data: bytes, timeout_s: float) -> None:
        self.requests += 1
        data = data.lstrip(b"\0")
        kind, sequence = data[2], data[3]
        self._waiting += self._spoil(self._reply(kind, sequence, data[8:-4]))

    def read(self, size: int, timeout_s: float) -> bytes:
        data, self._waiting = self._waiting[:7], self._waiting[7:]
        return data

    def close(self) -> None: ...


def echoed(kind: int, sequence: int, payload: bytes) -> bytes:
    return frame(kind + 128, sequence, payload)


def test_a_frame_is_found_among_noise() -> None:
    channel = Channel(Echo(lambda data: b"xpptp" + data, echoed), "line")
    for payload in (b"", b"pt", bytes(range(256)) * 9):
        assert channel.ask(Request.WRITE, payload, reply_bytes=len(payload)) == payload
    assert channel.retries == 0


def test_a_damaged_reply_is_asked_for_again() -> None:
    draw = random.Random(4)

    def spoil(data: bytes) -> bytes:
        if draw.random() < 0.6:
            return data
        at = draw.randrange(len(data))
        return draw.choice([data[:at], data[:at] + data[at + 1 :], data[:at] + b"\x55" + data[at + 1 :]])

    channel = Channel(Echo(spoil, echoed), "line")
    for number in range(60):
        payload = struct.pack("<I", number) * 5
        assert channel.ask(Request.READ, payload, reply_bytes=20) == payload
    assert channel.retries > 5


class Slow(Echo):
    """A board that takes ten seconds to answer."""

    def read(self, size: int, timeout_s: float) -> bytes:
        return super().read(size, timeout_s) if timeout_s > 10 else b""


def test_a_slow_board_gets_more_time_in_each_attempt() -> None:
    channel = Channel(Slow(lambda data: data, echoed), "line")
    assert channel.ask(Request.WRITE, b"weights", reply_bytes=7) == b"weights"
    with pytest.raises(CheckFailed, match="no whole answer to HELLO"):  # a wrong line is soon known
        channel.ask(Request.HELLO)


def test_a_head_without_a_frame_does_not_swallow_the_next() -> None:
    """A size beyond the limit is noise at once; one within it, when nothing more comes."""
    for size in (65535, 5000, 4096, 300, 8):
        head = HEAD.pack(b"pt", 200, 7, size, ~size & 0xFFFF)
        channel = Channel(Echo(lambda data, head=head: head + data, echoed), "line")  # type: ignore[misc]
        for number in range(3):
            assert channel.ask(Request.WRITE, bytes([number] * 40), reply_bytes=40) == bytes([number] * 40)
        assert channel.retries == 0, size


class Flood(Echo):
    """A line with endless bytes of one kind, and no answer."""

    def __init__(self, noise: bytes) -> None:
        super().__init__(lambda data: b"", echoed)
        self._noise = noise

    def read(self, size: int, timeout_s: float) -> bytes:
        time.sleep(0.001)
        return self._noise * (size // len(self._noise))


@pytest.mark.parametrize("noise", [b"\0", b"p", b"pt", b"\xff" * 7, HEAD.pack(b"pt", 129, 1, 4096, 4096 ^ 0xFFFF)])
def test_a_flood_takes_bounded_memory_and_time(noise: bytes) -> None:
    channel = Channel(Flood(noise), "line", timeout_s=0.02 - MOST_BYTES / SLOWEST_BYTES_A_SECOND)
    with pytest.raises(CheckFailed, match="no whole answer to HELLO"):
        channel.ask(Request.HELLO)
    assert channel.received_bytes > 1 << 17
    assert len(channel._received) <= (1 << 16) + MOST_BYTES + 16


def test_a_line_whose_other_end_takes_nothing_is_named() -> None:
    here, there = socket.socketpair()
    line = Descriptor(here.detach())
    try:
        with pytest.raises(CheckFailed, match="takes no more bytes"):
            line.write(bytes(1 << 22), 0.05)
    finally:
        line.close()
        there.close()


def test_an_answer_of_another_size_is_refused_in_one_line() -> None:
    channel = Channel(Echo(lambda data: data, lambda kind, sequence, _: frame(kind + 128, sequence, b"abc")), "line")
    for kind in Request:
        with pytest.raises(CheckFailed, match=f"^line: the board answers {kind.name} with 3 bytes, not 8$"):
            channel.ask(kind, b"", reply_bytes=8)


class Trainer(Echo):
    """A board that is silent in training; counts the seconds that it was waited for."""

    waited_s = 0.0

    def read(self, size: int, timeout_s: float) -> bytes:
        self.waited_s += timeout_s
        return b""


def test_a_board_that_is_silent_in_training_is_waited_for_once() -> None:
    line = Trainer(lambda data: b"", echoed)
    with pytest.raises(CheckFailed, match="no whole answer to TRAIN"):
        Channel(line, "line", training_timeout_s=1000.0).ask(Request.TRAIN, b"", reply_bytes=8)
    assert 1000 < line.waited_s < 1000 + 5 * 5


def test_firmware_of_an_earlier_poetc_is_still_known(digits_directory: Path, digits: Artifact, tmp_path: Path) -> None:
    """Its manifest has no emission, and the board tells the identity in place of it."""
    emit(digits_directory, "host", tmp_path / "src")
    manifest = json.loads((tmp_path / "src" / MANIFEST).read_text())
    del manifest["session"]["emission"]
    (tmp_path / "src" / MANIFEST).write_text(json.dumps(manifest))
    identity = manifest["state"]["identity"]
    for told in (identity, identity ^ 1):
        channel = answering({Request.HELLO: struct.pack("<5I", 1, told, 4096, 0, 0)})
        if told == identity:
            assert Board(digits, tmp_path / "src", "line", channel=channel).channel is channel
        else:
            with pytest.raises(UsageError, match="the board's firmware is not that of"):
                Board(digits, tmp_path / "src", "line", channel=channel)


def answering(replies: dict[Request, bytes]) -> Channel:
    """A line to a board with these replies."""
    return Channel(
        Echo(lambda data: data, lambda kind, sequence, _: frame(kind + 128, sequence, replies[Request(kind)])), "line"
    )


def test_what_a_board_says_of_itself_is_checked(digits_directory: Path, digits: Artifact, tmp_path: Path) -> None:
    """Any size of frames, and a loss or weights that are no numbers: one line each."""
    emit(digits_directory, "host", tmp_path / "src")
    identity = json.loads((tmp_path / "src" / MANIFEST).read_text())["session"]["emission"]
    for capacity in (0, 3, 60, 127):
        hello = {Request.HELLO: struct.pack("<5I", 1, identity, capacity, 0, 0)}
        with pytest.raises(UsageError, match=f"^line: the board takes {capacity} bytes in a frame; 128 are needed$"):
            Board(digits, tmp_path / "src", "line", channel=answering(hello))
    weights = FleetModel.of(digits)
    begin = {w.tensor: weights.initial[w.name] for w in weights.weights}

    def reply(kind: int, sequence: int, payload: bytes) -> bytes:
        data = {
            Request.HELLO: struct.pack("<5I", 1, identity, 4096, 0, 0),
            Request.TRAIN: struct.pack("<If", 4, loss),
            Request.READ: b"\xff" * (struct.unpack("<II", payload)[1] if kind == Request.READ else 0),
        }.get(Request(kind), b"")
        return frame(kind + 128, sequence, data)

    loss = float("nan")
    board = Board(digits, tmp_path / "src", "line", channel=Channel(Echo(lambda data: data, reply), "line"))
    with pytest.raises(UnsoundUpdate, match="the board's loss is nan"):
        board.fit(begin)
    loss = 0.5
    assert board.fit(begin).loss == 0.5
    with pytest.raises(UnsoundUpdate, match="holds numbers that are not finite"):
        board.state()
    with pytest.raises(UnsoundUpdate, match="holds numbers that are not finite"):
        board.fit(begin, max_update_norm=1.0)


def test_a_line_to_another_machine_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(socket, "create_connection", lambda to, timeout: asked.append(to) or socket.socket())
    for line in ("tcp:192.0.2.7:99", "tcp:[2001:db8::1]:99"):
        with pytest.raises(UsageError, match="is another machine, and frames are not signed: give tcp") as refusal:
            open_line(line)
        assert "\n" not in str(refusal.value) and asked == []
    for line in ("tcp:127.0.0.1:99", "tcp:[::1]:99", "tcp-open:192.0.2.7:99"):
        open_line(line).close()
    assert asked == [("127.0.0.1", 99), ("::1", 99), ("192.0.2.7", 99)]


def test_boards_at_other_lines_do_not_wait(digits_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One lock a line: a message to the second board is answered while the first is silent."""
    begun, end = threading.Event(), threading.Event()

    def ask(self: object, line: str, *_: object) -> str:
        if line == "silent":
            begun.set()
            assert end.wait(20)
        return line

    monkeypatch.setattr(Gateway, "_ask", ask)
    gateway = Gateway(digits_directory, digits_directory, lambda context: str(context), 2.0, 60.0)  # type: ignore[arg-type]
    handle = gateway.handling(lambda *_: None)  # type: ignore[arg-type, return-value]
    with ThreadPoolExecutor() as pool:
        silent = pool.submit(handle, None, "silent")  # type: ignore[arg-type]
        assert begun.wait(20)
        assert pool.submit(handle, None, "other").result(timeout=20) == "other"  # type: ignore[arg-type, comparison-overlap]
        end.set()
        assert silent.result(timeout=20) == "silent"  # type: ignore[comparison-overlap]


def test_a_silent_or_refusing_board_is_named() -> None:
    channel = Channel(Echo(lambda data: b"", echoed), "the line")
    with pytest.raises(CheckFailed, match=r"^the line: the board gives no whole answer to HELLO in 5 attempts$"):
        channel.ask(Request.HELLO)
    refusing = Channel(
        Echo(lambda data: data, lambda kind, sequence, _: frame(255, sequence, struct.pack("<iI", -22, 3))), "the line"
    )
    with pytest.raises(BoardError, match=r"^the line: the board stopped in TRAIN at step 3, code -22$"):
        refusing.ask(Request.TRAIN, b"")


@pytest.mark.parametrize(
    "line",
    [
        "tcp:nowhere",
        "tcp:10.0.0..5:80",
        "tcp:localhost:²",
        "tcp:localhost:65537",  # would be port 1
        "unix:/nonexistent/line",
        "/nonexistent/tty",
        "/dev/null",
        "/dev/\0",
    ],
)
def test_a_line_that_cannot_be_opened_is_named(line: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(line)}: ") as refusal:
        open_line(line)
    assert "\n" not in str(refusal.value)


@pytest.mark.long
def test_a_cortex_m_trains_and_quantises_with_the_bits_of_this_machine(firmware: Firmware, tmp_path: Path) -> None:
    solved = firmware.solved
    participant = Participant(solved)
    with np.load(DIGITS.with_name("digits_new_writer.npz")) as arrays:
        given = [arrays["train_x"][:32], arrays["train_y"][:32]]
    data = read_data(given, participant.slots, normalize="0..255", shuffle=False)
    begin = {w.tensor: participant.model.initial[w.name] * np.float32(0.9) for w in participant.model.weights}
    with running(solved, firmware.emitted, BOARD, list(data.batches.epoch(1)), tmp_path) as line:
        board = Board(solved, firmware.emitted, line)
        for epochs, rate in ((1, None), (2, 0.03)):  # the second round is not touched by the first one's momentum
            here = participant.fit(begin, data, epochs=epochs, learning_rate=rate)
            there = board.fit(begin, epochs=epochs, learning_rate=rate)
            assert (there.steps, there.samples) == (here.steps, here.samples) == (2 * epochs, 32)
            assert there.loss == pytest.approx(here.loss, rel=1e-5)
            own = participant.state()
            for name, array in board.state().items():
                assert array.tobytes() == own[name].tobytes(), name
        quantizer = Quantizer(clip=0.5, range=1 << 20, modulus=1 << 24, factor=0.7, seed=3, round=2)
        first = 0
        for weight in board.model.weights[:4]:
            terms = np.random.default_rng(first).integers(0, 1 << 24, weight.shape, dtype=np.uint32)
            for before in (None, begin[weight.tensor]):
                words = board.masked(quantizer, weight, before, terms, first)
                assert words.tobytes() == participant.masked(quantizer, weight, before, terms, first).tobytes()
            first += terms.size
        with pytest.raises(BoardError, match=r"stopped in TRAIN at step \d+, code -33"):
            board.fit(begin, learning_rate=1e30)
        with pytest.raises(BoardError, match="in READ at step"):
            board.channel.ask(Request.READ, struct.pack("<II", board.state_bytes - 2, 4), reply_bytes=4)
        board.close()
    participant.close()


def test_firmware_for_a_gateway_needs_a_serial_line(digits_directory: Path, tmp_path: Path) -> None:
    from poetc.commands.emit import emit

    for target, board in (("host", None), ("generic-m33", "mps2-an505"), ("c99", None)):
        with pytest.raises(UsageError, match=r"--fleet: there is a serial line for firmware of .*mps2-an386"):
            emit(digits_directory, target, tmp_path / "src", board=board, fleet=True)
    assert not (tmp_path / "src").exists()
