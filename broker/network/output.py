"""What a connection still has to send: bytes gathered into one sendmsg, file slices by sendfile, in order.

Hot path: a short slice is read and gathered with the parts before and after it: that saves a system call per slice, and the
receiver is woken once for all of it. Up to GATHERED_BYTES_MAX, this measured cheaper for both sides than avoiding the copy. For
longer slices, MSG_MORE on the preceding bytes lets the kernel put header and records into one packet. A short file (a segment
that shrank under us) closes the connection: a client must never see a truncated frame.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterable

from broker.handlers.reply import Part
from broker.storage.file_slice import FileSlice

_MSG_MORE = getattr(socket, "MSG_MORE", 0)
_GATHER_MAX = 64  # buffers in one sendmsg; IOV_MAX is 1024, but more small responses at once are rare
GATHERED_BYTES_MAX = 128 * 1024  # of file slices in one sendmsg


class ShortFile(Exception):
    """A log file ended before the end of the slice to send."""


class Output:
    """A queue of parts; `bytes_queued` counts bytes held in memory, which excludes file slices."""

    __slots__ = ("_parts", "bytes_queued")

    def __init__(self) -> None:
        self._parts: deque[bytes | memoryview | FileSlice] = deque()
        self.bytes_queued = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def append(self, data: bytes) -> None:
        self._parts.append(data)
        self.bytes_queued += len(data)

    def extend(self, parts: Iterable[Part]) -> None:
        for part in parts:
            if isinstance(part, FileSlice):
                self._parts.append(part)
            elif part:
                self.append(part)

    def send(self, sock: socket.socket, budget: int) -> int:
        """Send until the socket is full, the queue is empty or `budget` bytes are sent; returns how many the socket took."""
        left = budget
        try:
            while self._parts and left > 0:
                head = self._parts[0]
                left -= self._send_slice(sock, head, left) if isinstance(head, FileSlice) else self._send_bytes(sock)
        except BlockingIOError:
            pass
        return budget - left

    def _send_bytes(self, sock: socket.socket) -> int:
        if len(self._parts) == 1:
            return self._send_only(sock)
        buffers: list[bytes | memoryview] = []
        flags, left, total = 0, GATHERED_BYTES_MAX, 0
        for part in self._parts:
            if isinstance(part, FileSlice):
                if part.length > left:
                    flags = _MSG_MORE
                    break
                left -= part.length
                part = self._read(part)
            buffers.append(part)
            total += len(part)
            if len(buffers) == _GATHER_MAX:
                break
        sent = sock.send(buffers[0], flags) if len(buffers) == 1 else sock.sendmsg(buffers, (), flags)
        if sent == total and len(buffers) == len(self._parts):  # nearly always
            self.close()
        else:
            self._forget(buffers, sent)
        return sent

    def _forget(self, buffers: list[bytes | memoryview], remaining: int) -> None:
        """Remove the first `remaining` bytes, which were sent, from the queue; `buffers` are the contents of its first parts.
        Data read from a slice is not kept: no memory is held for a peer that stops reading."""
        for buffer in buffers:
            part, taken = self._parts[0], min(remaining, len(buffer))
            if isinstance(part, FileSlice):
                part.position += taken
                part.length -= taken
            else:
                self.bytes_queued -= taken
            if taken < len(buffer):
                if not isinstance(part, FileSlice):
                    self._parts[0] = memoryview(part)[taken:]
                return
            remaining -= taken
            self._parts.popleft()
            if isinstance(part, FileSlice):
                part.release()

    def _read(self, part: FileSlice) -> bytes:
        data = self._pread(part)
        if len(data) < part.length:
            raise ShortFile(f"{part.length - len(data)} bytes missing")
        return data

    def _pread(self, part: FileSlice) -> bytes:
        return os.pread(part.fileno(), part.length, part.position)

    def _send_only(self, sock: socket.socket) -> int:
        """The usual case, one response: no list, no loop."""
        data = self._parts[0]
        assert not isinstance(data, FileSlice), "the caller looked"
        sent = sock.send(data)
        self.bytes_queued -= sent
        if sent == len(data):
            self._parts.clear()
        else:
            self._parts[0] = memoryview(data)[sent:]
        return sent

    def _send_slice(self, sock: socket.socket, head: FileSlice, budget: int) -> int:
        sent = os.sendfile(sock.fileno(), head.fileno(), head.position, min(head.length, budget))
        if sent == 0:
            raise ShortFile(f"{head.length} bytes missing")
        if sent == head.length:
            self._parts.popleft()
            head.release()
        else:
            head.position += sent
            head.length -= sent
        return sent

    def close(self) -> None:
        """Release what was not sent."""
        for part in self._parts:
            if isinstance(part, FileSlice):
                part.release()
        self._parts.clear()
        self.bytes_queued = 0
