"""Since when a record is there: for each partition, when its end offset was first seen to be that far.

A broker finds the offset of a time, not the time of an offset, and reading a record of each partition at each scrape would
cost more than all else. So each scrape leaves a note, and a group's lag in seconds is the age of the first note behind the
offset that it reads next: what the exporter saw itself, nothing between two notes guessed. What was there before the first
note has no known age.

Bounded: of a partition's notes the older half is thinned out when there are too many, so old answers get coarser (and smaller: an
age counts from the note that proves it), never wrong.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from logbus.kafka.client import Place

# A note at each scrape while records arrive: two hours at one in 15 s, days after thinning; 40 KB a partition at the most.
NOTES_MAX = 512


class Arrivals:
    """Notes of all partitions. Times are seconds of any clock that does not go back."""

    def __init__(self, notes_max: int = NOTES_MAX) -> None:
        self._notes_max = notes_max
        self._notes: dict[Place, tuple[list[int], list[float]]] = {}

    def observe(self, ends: Mapping[Place, int], now: float) -> None:
        """Notes where the partitions end now. One that is not there any more is forgotten; one that shrank was made again."""
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
        """How long the record at the offset has been there; 0 where none is there yet, None where nobody saw it come."""
        offsets, times = self._notes.get(place, ([], []))
        found = bisect_right(offsets, offset)
        if found == len(offsets):
            return 0.0 if offsets else None
        return None if found == 0 else now - times[found]
