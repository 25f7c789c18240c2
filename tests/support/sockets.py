"""Sockets for tests of connections and of the loop: they return what they were fed and collect what is sent."""

from __future__ import annotations

import itertools
import os
import socket

from logbus_broker.filesystem import FileSlice
from logbus_broker.network.buffers import Output

_NUMBERS = itertools.count(1000)


class ScriptedSocket:
    """Returns what it was fed, at most `piece` bytes per read; collects what is sent, at most `room` bytes in all. `fails` names
    the methods that raise."""

    def __init__(self, piece: int = 1 << 20, room: int = 1 << 30) -> None:
        self.incoming = bytearray()
        self.ended = False  # by the peer, after what is incoming
        self.sent = bytearray()
        self.piece = piece
        self.room = room
        self.largest_view = 0
        self.closed = False
        self.fails: dict[str, Exception] = {}
        self._number = next(_NUMBERS)

    def _check(self, method: str) -> None:
        if method in self.fails:
            raise self.fails[method]

    def fileno(self) -> int:
        return self._number

    def setblocking(self, blocks: bool) -> None:
        self._check("setblocking")

    def setsockopt(self, *option: int) -> None:
        self._check("setsockopt")

    def recv_into(self, view: memoryview) -> int:
        self._check("recv_into")
        self.largest_view = max(self.largest_view, len(view))
        if not self.incoming:
            if self.ended:
                return 0
            raise BlockingIOError
        count = min(len(view), len(self.incoming), self.piece)
        view[:count] = self.incoming[:count]
        del self.incoming[:count]
        return count

    def send(self, data: memoryview, flags: int = 0) -> int:
        return self.sendmsg([data])

    def sendmsg(self, buffers: list[memoryview], ancillary: tuple = (), flags: int = 0) -> int:
        self._check("send")
        data = b"".join(buffers)[: self.room]
        if not data:
            raise BlockingIOError
        self.room -= len(data)
        self.sent += data
        return len(data)

    def close(self) -> None:
        self.closed = True
        self._check("close")


class ScriptedOutput(Output):
    """For a scripted socket, which has no sendfile: slices are read."""

    def _send_slice(self, sock: socket.socket, head: FileSlice, budget: int) -> int:
        sent = sock.send(os.pread(head.fileno(), min(head.length, budget), head.position))
        head.position += sent
        head.length -= sent
        if not head.length:
            self._parts.popleft()
            head.release()
        return sent


class ScriptedListener:
    """A listening socket: accepts the sockets in `knocking` one after the other, and raises exceptions among them."""

    def __init__(self) -> None:
        self.knocking: list[tuple[ScriptedSocket, str] | OSError] = []
        self.closed = False

    def fileno(self) -> int:
        return -1 if self.closed else 1

    def accept(self) -> tuple[ScriptedSocket, tuple[str, int]]:
        if not self.knocking:
            raise BlockingIOError
        first = self.knocking.pop(0)
        if isinstance(first, OSError):
            raise first
        sock, host = first
        return sock, (host, sock.fileno())

    def close(self) -> None:
        self.closed = True


def metadata_frame(correlation_id: int, body: bytes = b"") -> bytes:
    """A Metadata request; tests whose requests are not handled put anything into its body."""
    content = b"\0\x03\0\x04" + correlation_id.to_bytes(4, "big") + b"\0\0" + body
    return len(content).to_bytes(4, "big") + content
