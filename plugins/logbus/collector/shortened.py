"""A topic that ends before what was noted: lines that it had acknowledged are gone, after a restore or an unclean election.

Each record says which line of which file it was, so the topic itself tells what it still holds; what a file has and the topic
has not is sent again. That holds as long as nothing else explains why a line is not there: where retention has deleted records
that may lie among the lost ones, nobody can tell the two apart, and nothing is sent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from logbus.collector.errors import TopicShortened
from logbus.collector.sources import Source

# By source and partition, the positions of its lines that the topic holds.
Held = Mapping[str, Mapping[int, set[int]]]

# Lines of one file may lie in the topic in another order than in the file where an interrupted run was resumed: by no more than
# it had sent since a checkpoint. So many lines before the last one that is held are looked at again.
LINES_LOOKED_BACK = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortened:
    """By partition where the topic ends and what was noted, of those that end too early; none of them: nothing is lost."""

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
    """The sources as far as the topic holds them: from a place before the first lost line on, without the lines it has."""
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
