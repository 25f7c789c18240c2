"""Which file descriptors may be used for what, and the sealed segments that stay open for their next reader.

A record becomes visible only if its flush can open a directory, write an index, replace a checkpoint. So whoever adds descriptors
has to leave some of the last ones to those who need them more urgently:

    new partitions                  half of the limit, since their active segments stay open for good
    connections                     4 times `kept`
    segments, pinned directories    2 times: a new one is refused with a retriable error
    segments opened by readers      once: a fetch that cannot be served now is retried
    flushes, checkpoints, indexes   nothing: each thread opens one file at a time, and closes it at once

The system always gives out the lowest free number. So a descriptor's own number says how many are left, and only partitions are
counted.

A sealed segment that is on disk stays open for its next reader, which is a cache: the least recently read one is closed when
there are more than a quarter of the limit, or when a descriptor is needed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

KEPT = 16  # flush threads (4), helper threads (2), the small files' thread and the loop, twice
_KEPT_PART_MAX = 8  # of a very low limit not everything is kept
_IDLE_PART = 4
_PARTITIONS_PART = 2


class Closable(Protocol):
    """A sealed segment."""

    def forget(self) -> None:
        """Close the file if nothing prevents it. Any thread."""


class OpenFiles:
    """`descriptors_max` is the process's limit: the first number that the system does not give out. Any thread, except `keep` and
    `drop`, which are the loop's."""

    def __init__(self, descriptors_max: int = 1 << 20, kept: int = KEPT) -> None:
        kept = min(kept, descriptors_max // _KEPT_PART_MAX)
        # The first numbers that may not be used any more.
        self.readers_end = descriptors_max - kept
        self.new_files_end = descriptors_max - 2 * kept
        self.connections_end = descriptors_max - 4 * kept
        self.partitions_max = descriptors_max // _PARTITIONS_PART
        self._idle_max = descriptors_max // _IDLE_PART
        self._idle: OrderedDict[Closable, None] = OrderedDict()  # the least recently read one first

    def keep(self, segment: Closable) -> None:
        """A reader has come to this segment."""
        idle = self._idle
        idle[segment] = None
        idle.move_to_end(segment)
        if len(idle) > self._idle_max:
            self.close_oldest()

    def drop(self, segment: Closable) -> None:
        """It is closed, or gone."""
        self._idle.pop(segment, None)

    def close_oldest(self) -> bool:
        """Close the segment that was not read for longest; False if there is none."""
        try:
            segment, _ = self._idle.popitem(last=False)
        except KeyError:
            return False
        segment.forget()
        return True
