"""From the name of a line, as a gateway is given it, to the line."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from pathlib import Path

from poetc.errors import UsageError
from poetc.fleet.lines import Descriptor
from poetc.fleet.signed import SignedLine, read_key


def open_line(where: str) -> Descriptor | SignedLine:
    """The line that `where` names: a serial device such as /dev/ttyACM0, tcp:HOST:PORT, or unix:PATH.

    A device runs at 115,200 baud. Frames are neither secret nor signed, so a TCP line is to this machine alone, where a
    tunnel may end. `tcp:HOST:PORT,key=FILE` signs them: a relay (relay.py) with the same key is at the other end.
    `tcp-open:HOST:PORT` says that the network between is trusted. UsageError where it cannot be opened.
    """
    try:
        kind, _, rest = where.partition(":")
        if kind in ("tcp", "tcp-open"):
            return _open_tcp(where, kind, rest)
        if kind == "unix":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(rest)
                return Descriptor(connection.detach())
        return Descriptor(_open_device(where))
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror or error}") from None
    except ValueError as error:  # a host that is no name, or a path with a zero byte
        raise UsageError(f"{where}: {error}") from None


def _open_tcp(where: str, kind: str, rest: str) -> Descriptor | SignedLine:
    place, is_signed, key_file = rest.partition(",key=")
    host, port = address(place, where, kind)
    if is_signed and not key_file:
        raise UsageError(f"{where}: names no key; write {kind}:HOST:PORT,key=FILE")
    key = read_key(Path(key_file)) if is_signed else b""
    if kind == "tcp" and not is_signed and not is_here(host, port):
        raise UsageError(
            f"{where}: is another machine, and frames are not signed: give {where},key=FILE and a relay there, a"
            f" tunnel (ssh -L), or trust the network (tcp-open:{host}:{port})"
        )
    connection = socket.create_connection((host, port), timeout=10)
    return SignedLine(connection, key, where, accepts=False) if is_signed else Descriptor(connection.detach())


def address(place: str, where: str = "", kind: str = "") -> tuple[str, int]:
    """Host and port of HOST:PORT. UsageError, which names `where`."""
    host, _, port = place.rpartition(":")
    if not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 1 << 16:
        raise UsageError(f"{where or place}: write {kind}{':' * bool(kind)}HOST:PORT")
    return host.strip("[]"), int(port)


def is_here(host: str, port: int) -> bool:
    """Whether all addresses of the host are of this machine. OSError where it has none."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in addresses)


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
