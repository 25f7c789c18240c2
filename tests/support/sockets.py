"""A socket for tests of connections: gives out what it was fed, collects what is sent."""

from __future__ import annotations


class ScriptedSocket:
    """Gives out what it was fed, at most `piece` bytes a read; collects what is sent, at most `room` bytes in all."""

    def __init__(self, piece: int = 1 << 20, room: int = 1 << 30) -> None:
        self.incoming = bytearray()
        self.sent = bytearray()
        self.piece = piece
        self.room = room
        self.largest_view = 0
        self.closed = False

    def recv_into(self, view: memoryview) -> int:
        self.largest_view = max(self.largest_view, len(view))
        if not self.incoming:
            raise BlockingIOError
        count = min(len(view), len(self.incoming), self.piece)
        view[:count] = self.incoming[:count]
        del self.incoming[:count]
        return count

    def send(self, data: memoryview, flags: int = 0) -> int:
        return self.sendmsg([data])

    def sendmsg(self, buffers: list[memoryview], ancillary: tuple = (), flags: int = 0) -> int:
        data = b"".join(buffers)[: self.room]
        if not data:
            raise BlockingIOError
        self.room -= len(data)
        self.sent += data
        return len(data)

    def close(self) -> None:
        self.closed = True
