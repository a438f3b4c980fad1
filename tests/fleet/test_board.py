"""A board in a fleet: frames on a bad line, and an emulated Cortex-M that has the bits of this machine."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from poetc.errors import CheckFailed, UsageError
from poetc.fleet import Board, Participant, Quantizer, read_data
from poetc.fleet.frames import BoardError, Channel, Request, frame, open_line
from tests.commands.trained import DIGITS
from tests.fleet.conftest import Firmware
from tests.support.fleet_board import BOARD, running


class Echo:
    """A board that answers each whole frame with its payload, over a line that spoils bytes."""

    def __init__(self, spoil: Callable[[bytes], bytes], reply: Callable[[int, int, bytes], bytes]) -> None:
        self._spoil, self._reply, self._waiting = spoil, reply, b""
        self.requests = 0

    def write(self, data: bytes) -> None:
        self.requests += 1
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
        assert channel.ask(Request.WRITE, payload) == payload
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
        assert channel.ask(Request.READ, payload) == payload
    assert channel.retries > 5


class Slow(Echo):
    """A board that takes ten seconds to answer."""

    def read(self, size: int, timeout_s: float) -> bytes:
        return super().read(size, timeout_s) if timeout_s > 10 else b""


def test_a_slow_board_gets_more_time_in_each_attempt() -> None:
    channel = Channel(Slow(lambda data: data, echoed), "line")
    assert channel.ask(Request.WRITE, b"weights") == b"weights"
    with pytest.raises(CheckFailed, match="no whole answer to HELLO"):  # a wrong line is soon known
        channel.ask(Request.HELLO)


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
            board.channel.ask(Request.READ, struct.pack("<II", board.state_bytes - 2, 4))
        board.close()
    participant.close()


def test_firmware_for_a_gateway_needs_a_serial_line(digits_directory: Path, tmp_path: Path) -> None:
    from poetc.commands.emit import emit

    for target, board in (("host", None), ("generic-m33", "mps2-an505"), ("c99", None)):
        with pytest.raises(UsageError, match=r"--fleet: there is a serial line for firmware of .*mps2-an386"):
            emit(digits_directory, target, tmp_path / "src", board=board, fleet=True)
    assert not (tmp_path / "src").exists()
