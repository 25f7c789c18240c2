"""A topic that ends before the recorded offsets: lines that it had acknowledged are gone, after a restore or an unclean election.

Each record names its line and file, so the topic itself shows what it still holds; lines that a file has and the topic lacks are
sent again. That works only if nothing else explains why a line is missing: if retention has deleted records that may be among the
lost ones, the two cannot be told apart, and nothing is sent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from logbus.collector.sources import Source
from logbus.errors import TopicShortened

# By source and partition, the positions of its lines that the topic holds.
Held = Mapping[str, Mapping[int, set[int]]]

# If an interrupted run was resumed, the topic may hold a file's lines in another order than the file, but only within what was
# sent since a checkpoint. So this many lines before the last one held are checked again.
LINES_LOOKED_BACK = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortened:
    """For each partition that ends too early, its end and the recorded offset; if there are none, nothing is lost."""

    topic: str
    ends: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, topic: str, noted: Mapping[int, int], end_offsets: Mapping[int, int]) -> Shortened:
        short = {part: (end_offsets[part], offset) for part, offset in noted.items() if end_offsets.get(part, offset) < offset}
        return cls(topic=topic, ends=short)

    @property
    def records(self) -> int:
        return sum(noted - end for end, noted in self.ends.values())

    def __str__(self) -> str:
        return ", ".join(f"{self.topic}-{part} ends at {end}, {noted} was noted" for part, (end, noted) in self.ends.items())


def rewound(
    sources: Mapping[str, Source], shortened: Shortened, held: Held, start_offsets: Mapping[int, int]
) -> dict[str, Source]:
    """The sources, set back to a position before the first lost line, with the later lines that the topic still holds."""
    return {
        name: rewound_one(source, shortened, held.get(name, {}), start_offsets) if source.position else source
        for name, source in sources.items()
    }


def rewound_one(source: Source, shortened: Shortened, held: Mapping[int, set[int]], start_offsets: Mapping[int, int]) -> Source:
    there = sorted(position for positions in held.values() for position in positions)
    last_held = min(max(held.get(partition, {0}), default=0) for partition in shortened.ends)
    place = max(0, bisect_left(there, last_held) - LINES_LOOKED_BACK)
    position = there[place] if place else 0
    for partition, start in start_offsets.items():
        if start and min(held.get(partition, ()), default=source.position) > position:
            raise TopicShortened(
                f"records are gone that {shortened.topic} had acknowledged ({shortened}), and retention has deleted others: "
                f"nobody can tell which lines of {source.path} are to be sent again. To send all of them, move the state file "
                "away; to go on without those that are gone, --accept-loss"
            )
    return replace(
        source,
        position=position,
        timestamp_ms=None,
        ahead=tuple(there[place:] if place else there),
    )
