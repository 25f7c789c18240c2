"""What a connection still has to send (`Output`: bytes gathered into one sendmsg, file slices by sendfile, in order), and one
large request while it arrives (`LargeFrame`).

Hot path: a short slice is read and gathered with the parts before and after it: that saves a system call per slice, and the
receiver is woken once for all of it. Up to GATHERED_BYTES_MAX, this measured cheaper for both sides than avoiding the copy. For
longer slices, MSG_MORE on the preceding bytes lets the kernel put header and records into one packet. A short file (a segment
that shrank under us) closes the connection: a client must never see a truncated frame.
"""

from __future__ import annotations

import mmap
import os
import socket
from collections import deque
from collections.abc import Iterable

from logbus_broker.api.handler import Part
from logbus_broker.filesystem import FileSlice

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


_READ_BYTES_MAX = 1 << 20  # in one turn: about half a millisecond, pages included


class LargeFrame:
    """One request of more than a megabyte while it arrives: the content of its frame, without the four length bytes; the first
    `arrived` bytes of `view` have been received.

    A bytearray would be cleared and copied as a whole whenever it grows, which touches every page of it in one turn of the loop:
    for a frame of 100 MiB that held up every client for half a second. The kernel allocates pages of an anonymous mapping when
    they are first written to, so a turn touches only what arrived in it. The mapping is as long as the frame, which costs address
    space, not memory; it is freed with the last view of it, when the turn that handled the request has ended."""

    __slots__ = ("arrived", "view")

    def __init__(self, length: int, begun: memoryview) -> None:
        try:
            mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"no addresses for a request of {length} bytes: {error.strerror or error}") from error
        self.view = memoryview(mapping)
        self.view[: len(begun)] = begun
        self.arrived = len(begun)

    def receive(self, sock: socket.socket) -> int:
        """Read once, and nothing beyond the frame; returns how many bytes arrived. Raises OSError."""
        count = sock.recv_into(self.view[self.arrived : self.arrived + _READ_BYTES_MAX])
        self.arrived += count
        return count

    @property
    def is_whole(self) -> bool:
        return self.arrived == len(self.view)
