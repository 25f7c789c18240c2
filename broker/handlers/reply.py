"""What a handler returns: the parts of a body at once, a Pending to be completed later, or nothing (acks=0).

A part is bytes or a slice of a log file, which the network sends from the page cache without reading it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker.storage.file_slice import FileSlice

logger = logging.getLogger("broker.handlers")

Part = bytes | FileSlice
Parts = list[Part]


def part_size(part: Part) -> int:
    """How many bytes the part takes on the wire."""
    return part.length if isinstance(part, FileSlice) else len(part)


class Pending:
    """A response that is not ready yet. Completed once; cancelled if its connection closes first."""

    __slots__ = ("closes", "is_cancelled", "is_framed", "on_cancel", "on_complete", "parts", "silent", "stops_reading")

    def __init__(self, *, stops_reading: bool = False, silent: bool = False) -> None:
        self.parts: Parts | None = None
        self.on_complete: Callable[[], None] | None = None
        self.on_cancel: Callable[[], None] | None = None
        self.stops_reading = stops_reading  # a waiting fetch: requests pipelined after it wait unread
        self.silent = silent  # acks=0: completing sends nothing
        self.closes: str | None = None  # why the connection is closed instead of an answer: a key of NetworkCounters.closed
        self.is_framed = False  # `parts` are the complete response, frame header included
        self.is_cancelled = False  # the connection is gone: work on the answer may stop

    @property
    def done(self) -> bool:
        return self.parts is not None

    def complete(self, parts: Parts) -> None:
        assert self.parts is None, "completed twice"
        self.parts = parts
        if self.on_complete is not None:
            self.on_complete()

    def complete_with(self, make: Callable[[], Parts]) -> None:
        """Complete with the result of `make`. An answer is built long after its request, at the end of a turn that all clients
        share: if that fails, it must cost its own connection and nothing else."""
        try:
            parts = make()
        except Exception:
            self.fail_as_defect()
            return
        self.complete(parts)

    def fail_as_defect(self) -> None:
        """To be called in an exception handler: closes the connection and logs the traceback, whatever was raised."""
        logger.exception("an answer could not be made; this is a defect of the broker")
        if self.parts is None:
            self.close_as_defect()

    def close_as_defect(self) -> None:
        """Close the connection instead of answering."""
        self._close_instead("defect")

    def fail_silently(self) -> None:
        """An acks=0 request failed: close the connection, as Kafka does."""
        self._close_instead("acks_0")

    def _close_instead(self, reason: str) -> None:
        self.silent, self.closes = True, reason
        self.complete([])

    def cancel(self) -> None:
        self.on_complete = None
        self.is_cancelled = True
        if self.on_cancel is not None:
            self.on_cancel()
