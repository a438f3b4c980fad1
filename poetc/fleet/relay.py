"""Serves a board's line over TCP, signed with a shared key: python -m poetc.fleet.relay LINE --listen HOST:PORT.

It runs on the machine that the board is plugged into. One gateway at a time is served.
"""

from __future__ import annotations

import argparse
import select
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from poetc.errors import CheckFailed, PoetcError, UsageError
from poetc.fleet.frames import SLOWEST_BYTES_A_SECOND
from poetc.fleet.lines import Descriptor
from poetc.fleet.opening import address, open_line
from poetc.fleet.signed import MOST_RECORD_BYTES, SignedLine, read_key

_TIMEOUT_S = 2 * MOST_RECORD_BYTES / SLOWEST_BYTES_A_SECOND
_ALL_BYTES = 1 << 20  # more than a line holds: `select` does not tell of bytes that have left the socket
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}  # seconds, seconds, probes


def listen(where: str) -> socket.socket:
    """A socket that accepts connections at HOST:PORT. UsageError where it cannot."""
    host, port = address(where)
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise UsageError(f"--listen {where}: {error.strerror or error}") from None


def serve(server: socket.socket, board: str, key: bytes, *, connections: int | None = None) -> None:
    """Serve `board` to one caller after the other who knows the key; after `connections` of them it returns.

    The line of the board is open while somebody is served.
    """
    while connections is None or connections > 0:
        caller, whence = server.accept()
        connections = None if connections is None else connections - 1
        _notice_loss(caller)
        try:
            gateway = SignedLine(caller, key, f"{whence[0]}:{whence[1]}", accepts=True)
        except (PoetcError, OSError) as error:
            _say(error)
            continue
        try:
            line = open_line(board)
            try:
                _pass(gateway, line)
            finally:
                line.close()
        except (PoetcError, OSError) as error:
            _say(error)
        finally:
            gateway.close()


def _notice_loss(caller: socket.socket) -> None:
    """A gateway that lost its power hangs up within minutes: the next one is served only then."""
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            caller.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _pass(gateway: SignedLine, board: Descriptor | SignedLine) -> None:
    """Bytes in both directions, until the gateway hangs up."""
    while True:
        ready, _, _ = select.select([gateway, board], [], [])
        if gateway in ready:
            board.write(gateway.read(_ALL_BYTES, 0.0), _TIMEOUT_S)
        if board in ready:
            data = board.read(_ALL_BYTES, 0.0)
            if not data:
                raise CheckFailed("the board's line ended")
            gateway.write(data, _TIMEOUT_S)


def _say(error: Exception) -> None:
    print(f"poetc relay: {error}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until it is stopped; 2 for a wrong call."""
    parser = argparse.ArgumentParser(prog="python -m poetc.fleet.relay", description=__doc__)
    parser.add_argument("line", metavar="LINE", help="of the board, as a gateway takes it: /dev/ttyACM0")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="where gateways call")
    parser.add_argument("--key", required=True, type=Path, metavar="FILE", help="the shared key, 16 to 4,096 bytes")
    arguments = parser.parse_args(argv)
    try:
        key = read_key(arguments.key)
        with listen(arguments.listen) as server:
            open_line(arguments.line).close()  # a wrong one is told now, and not to the first gateway
            serve(server, arguments.line, key)
    except (PoetcError, OSError) as error:
        _say(error)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
