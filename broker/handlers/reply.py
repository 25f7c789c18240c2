"""What a handler gives back: the parts of a body at once, a Pending to be completed later, or nothing (acks=0).

A part is bytes or a slice of a log file, which the network sends from the page cache without reading it.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.storage.file_slice import FileSlice

Part = bytes | FileSlice
Parts = list[Part]


def part_size(part: Part) -> int:
    """How many bytes the part takes on the wire."""
    return part.length if isinstance(part, FileSlice) else len(part)


class Pending:
    """A response that is not there yet. Completed once; cancelled when its connection closes first."""

    __slots__ = ("closes", "on_cancel", "on_complete", "parts", "silent", "stops_reading")

    def __init__(self, *, stops_reading: bool = False, silent: bool = False) -> None:
        self.parts: Parts | None = None
        self.on_complete: Callable[[], None] | None = None
        self.on_cancel: Callable[[], None] | None = None
        self.stops_reading = stops_reading  # a waiting fetch: what is pipelined behind it waits unread
        self.silent = silent  # acks=0: completing sends nothing
        self.closes = False  # a silent one that failed: the closed connection is its only answer

    @property
    def done(self) -> bool:
        return self.parts is not None

    def complete(self, parts: Parts) -> None:
        assert self.parts is None, "completed twice"
        self.parts = parts
        if self.on_complete is not None:
            self.on_complete()

    def fail_silently(self) -> None:
        """An acks=0 request failed: close the connection, as Kafka does."""
        self.closes = True
        self.complete([])

    def cancel(self) -> None:
        self.on_complete = None
        if self.on_cancel is not None:
            self.on_cancel()
