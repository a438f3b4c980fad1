"""TCP lines signed with a shared key: a wrong key, no key, bytes that were sent before, and a relay to a board."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from poetc.errors import CheckFailed, UsageError
from poetc.fleet import relay
from poetc.fleet.frames import Channel, Request, frame
from poetc.fleet.opening import open_line
from poetc.fleet.signed import SIGNATURE_BYTES, SignedLine

KEY = b"a key of this test, 16 or more"


def greeted(caller: bytes = KEY, called: bytes = KEY) -> tuple[SignedLine, SignedLine, socket.socket, socket.socket]:
    """Both ends, and copies of their sockets; the bytes between them go straight."""
    ours, theirs = socket.socketpair()
    copies = ours.dup(), theirs.dup()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(SignedLine, theirs, called, "gateway", accepts=True)
        calling = pool.submit(SignedLine, ours, caller, "board", accepts=False)
        return calling.result(), answer.result(), *copies


def test_bytes_arrive_in_both_directions() -> None:
    caller, called, *copies = greeted()
    data = bytes(range(256)) * 100  # several records
    caller.write(data, 5.0)
    called.write(b"answer", 5.0)
    taken = b""
    while len(taken) < len(data):
        taken += called.read(1000, 5.0)
    assert taken == data and caller.read(100, 5.0) == b"answer"
    assert caller.read(100, 0.01) == b""
    for end in (caller, called, *copies):
        end.close()


def test_another_key_is_refused_at_both_ends() -> None:
    ours, theirs = socket.socketpair()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(SignedLine, theirs, KEY + b"!", "gateway", accepts=True)
        calling = pool.submit(SignedLine, ours, KEY, "board", accepts=False)
        for end, where in ((answer, "gateway"), (calling, "board")):
            with pytest.raises(UsageError, match=f"^{where}: the other end has another key$"):
                end.result()


def test_an_end_that_signs_nothing_is_told_apart_from_a_wrong_key() -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(bytes(64))
    with pytest.raises(UsageError, match=r"^board: the other end signs nothing; give it the key, or leave key= out$"):
        SignedLine(theirs, KEY, "board", accepts=False)
    ours.close()


@pytest.mark.parametrize("again", ["replayed", "changed", "reflected", "forged"])
def test_bytes_of_somebody_between_are_refused(again: str) -> None:
    """A record that was sent before, one with another byte, one of the other direction, and one without a key."""
    caller, called, wire, other = greeted()
    caller.write(b"first", 5.0)
    record = other.recv(4096, socket.MSG_PEEK)
    assert called.read(100, 5.0) == b"first"
    called.write(b"first", 5.0)
    reflected = wire.recv(4096, socket.MSG_PEEK)
    wrong = {
        "replayed": record,
        "changed": record[:3] + bytes([record[3] ^ 1]) + record[4:],
        "reflected": reflected,
        "forged": b"\x01\x00x" + bytes(SIGNATURE_BYTES),
    }[again]
    wire.sendall(wrong)
    with pytest.raises(CheckFailed, match=r"^gateway: bytes that are not signed with the key, or were sent before$"):
        called.read(100, 5.0)
    caller.write(b"second", 5.0)
    with pytest.raises(CheckFailed, match="not signed with the key"):  # nothing more is taken
        called.read(100, 5.0)
    for end in (caller, called, wire, other):
        end.close()


def test_a_connection_that_was_recorded_opens_no_other() -> None:
    """All that a caller sent, sent again to the same end: its nonce is a new one."""
    caller, called, wire, other = greeted()
    caller.write(b"data", 5.0)
    ours, theirs = socket.socketpair()
    ours.sendall(b"poetc line 1\n" + bytes(32) + bytes(2 + SIGNATURE_BYTES) + other.recv(4096, socket.MSG_PEEK))
    with pytest.raises(UsageError, match="has another key"):
        SignedLine(theirs, KEY, "gateway", accepts=True)
    for end in (caller, called, wire, other, ours):
        end.close()


@pytest.fixture
def board(tmp_path: Path) -> Iterator[str]:
    """A line to a board that answers HELLO with its own request."""
    path, server = tmp_path / "board", socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen()

    def answer() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                while data := connection.recv(4096):
                    connection.sendall(frame(Request.HELLO + 128, data[3], b"hello"))

    threading.Thread(target=answer, daemon=True).start()
    yield f"unix:{path}"
    server.close()


def test_a_relay_serves_who_has_the_key(board: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    key, wrong = tmp_path / "key", tmp_path / "wrong"
    key.write_bytes(KEY)
    wrong.write_bytes(KEY[::-1])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with relay.listen(f"127.0.0.1:{port}") as server:
        served = threading.Thread(target=relay.serve, args=(server, board, KEY), kwargs={"connections": 4}, daemon=True)
        served.start()
        with pytest.raises(UsageError, match="has another key"):
            open_line(f"tcp:127.0.0.1:{port},key={wrong}")
        plain = open_line(f"tcp:127.0.0.1:{port}")  # no key: the relay hangs up, and passes nothing to the board
        with pytest.raises(UsageError, match=r"^plain: a relay that wants a key is there; write plain,key=FILE$"):
            Channel(plain, "plain", timeout_s=5.0).ask(Request.HELLO, reply_bytes=None)
        plain.close()
        for _ in range(2):
            where = f"tcp:127.0.0.1:{port},key={key}"
            channel = Channel(open_line(where), where)
            assert channel.ask(Request.HELLO, reply_bytes=None) == b"hello"
            channel.close()
        served.join(timeout=30)
        assert not served.is_alive()
    said = capfd.readouterr().err.splitlines()
    assert "has another key" in said[0] and "has it the same key?" in said[1]


def test_no_byte_waits_in_the_relay_for_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a request of two records that ends within the second one; and who loses power is noticed."""
    key, path, alive = tmp_path / "key", tmp_path / "board", list[int]()
    key.write_bytes(KEY)

    def signed(caller: socket.socket, *more: str, **how: bool) -> SignedLine:
        alive.append(caller.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        return SignedLine(caller, *more, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(relay, "SignedLine", signed)
    with socket.socket(socket.AF_UNIX) as board, socket.create_server(("127.0.0.1", 0)) as server:
        board.bind(str(path))
        board.listen()
        given = (server, f"unix:{path}", KEY)
        served = threading.Thread(target=relay.serve, args=given, kwargs={"connections": 1}, daemon=True)
        served.start()
        line = open_line(f"tcp:127.0.0.1:{server.getsockname()[1]},key={key}")
        end, _ = board.accept()
        with end:
            end.settimeout(10.0)
            for size in (8208, 20_000):
                line.write(bytes(size), 5.0)
                taken = 0
                while taken < size:
                    taken += len(end.recv(1 << 16))
                assert taken == size
            line.close()
            served.join(timeout=10)
    assert alive == [1]


def test_bad_keys_and_addresses_end_in_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "short").write_bytes(b"short")
    for words, says in (
        (["--listen", "127.0.0.1:1", "--key", tmp_path / "short"], "a key has at least 16 bytes"),
        (["--listen", "127.0.0.1:1", "--key", tmp_path / "none"], "none: No such file or directory"),
        (["--listen", "127.0.0.1:1", "--key", tmp_path], f"relay: the key {tmp_path}: Is a directory"),
        (["--listen", "nowhere", "--key", __file__], "larger than the 4,096 bytes"),
    ):
        assert relay.main(["/dev/null", *map(str, words)]) == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert says in line
    (tmp_path / "key").write_bytes(KEY)
    assert relay.main(["/dev/null", "--listen", "nowhere", "--key", str(tmp_path / "key")]) == 2
    assert "nowhere: write HOST:PORT" in capfd.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert relay.main(["/dev/null", "--listen", f"127.0.0.1:{port}", "--key", str(tmp_path / "key")]) == 2
    assert "/dev/null: is no serial line" in capfd.readouterr().err  # before anybody calls
    for where, says in (
        ("key=", "names no key; write tcp:HOST:PORT,key=FILE"),
        (f"key={tmp_path}", f"^the key {tmp_path}: Is a directory$"),
        (f"key={tmp_path / 'none'}", "^the key .*none: No such file or directory$"),
        (f"key={tmp_path / 'short'}", "a key has at least 16 bytes"),
    ):
        with pytest.raises(UsageError, match=says):
            open_line(f"tcp:127.0.0.1:9,{where}")
