"""How long a record has been waiting: for each partition, when its end offset was first seen past that record.

A broker finds the offset for a time, not the time of an offset, and reading a record of each partition at each scrape would
cost more than everything else. So each scrape leaves a note, and a group's lag in seconds is the age of the first note past the
offset that it reads next: only what the exporter saw itself, with no guess between two notes. Records older than the first
note have no known age.

Bounded: when a partition has too many notes, the older half is thinned out, so old answers get coarser (and smaller: an age
counts from the note that proves it), never wrong.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from logbus.kafka.client import Place

# One note per scrape while records arrive: two hours at one scrape in 15 s, days after thinning; at most 40 KB per partition.
NOTES_MAX = 512


class Arrivals:
    """The notes of all partitions. Times are seconds of any monotonic clock."""

    def __init__(self, notes_max: int = NOTES_MAX) -> None:
        self._notes_max = notes_max
        self._notes: dict[Place, tuple[list[int], list[float]]] = {}

    def observe(self, ends: Mapping[Place, int], now: float) -> None:
        """Notes the current end offsets. A partition no longer listed is forgotten; one whose end went back starts afresh."""
        self._notes = {place: self._notes.get(place, ([], [])) for place in ends}
        for place, end in ends.items():
            offsets, times = self._notes[place]
            if offsets and end < offsets[-1]:
                offsets.clear()
                times.clear()
            if not offsets or end > offsets[-1]:
                offsets.append(end)
                times.append(now)
            if len(offsets) > self._notes_max:
                older = slice(1, len(offsets) // 2, 2)
                del offsets[older], times[older]

    def waiting_seconds(self, place: Place, offset: int, now: float) -> float | None:
        """How long the record at the offset has been in the log; 0 if there is none yet, None if it predates the first note."""
        offsets, times = self._notes.get(place, ([], []))
        found = bisect_right(offsets, offset)
        if found == len(offsets):
            return 0.0 if offsets else None
        return None if found == 0 else now - times[found]
