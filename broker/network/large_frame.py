"""One request of more than a megabyte while it arrives.

A bytearray would be cleared and copied as a whole whenever it grows, which touches every page of it in one turn of the loop: for
a frame of 100 MiB that held up every client for half a second. The kernel allocates pages of an anonymous mapping when they are
first written to, so a turn touches only what arrived in it. The mapping is as long as the frame, which costs address space, not
memory; it is freed with the last view of it, when the turn that handled the request has ended.
"""

from __future__ import annotations

import mmap
import socket

_READ_BYTES_MAX = 1 << 20  # in one turn: about half a millisecond, pages included


class LargeFrame:
    """The content of a frame, without its four length bytes; the first `arrived` bytes of `view` have been received."""

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
