"""Where to begin and where to end, in kcat's syntax for `-o`, as offsets of each partition.

    beginning | end | stored | N (an offset) | -N (N records before the end) | s@TIME (begin there) | e@TIME (end before it)

A time is milliseconds since the epoch, as in kcat, or an instant such as 2015-05-17T10:00:00Z. `stored` is the committed offset
of the given group. An offset outside the log is clamped to it, as a broker would.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from logbus.errors import UserError
from logbus.kafka.topics import OffsetLog
from logbus.model import milliseconds, parse_instant


class PositionKind(StrEnum):
    BEGINNING = "beginning"
    END = "end"
    STORED = "stored"
    OFFSET = "offset"
    BEFORE_END = "before end"
    SINCE = "since"


# Both spellings of kcat, and those of other tools for the same.
WORDS: Mapping[str, PositionKind] = {
    "beginning": PositionKind.BEGINNING,
    "earliest": PositionKind.BEGINNING,
    "end": PositionKind.END,
    "latest": PositionKind.END,
    "stored": PositionKind.STORED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionSpan:
    """What to read: from where, and up to which time. `number` is an offset, a count or milliseconds, depending on the kind."""

    kind: PositionKind = PositionKind.BEGINNING
    number: int = 0
    until_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetStretch:
    """In one partition, the first offset to read and the offset to stop before."""

    start_offset: int
    end_offset: int


def parse_span(words: Iterable[str]) -> PositionSpan:
    """The meaning of one or two `-o` together: a beginning, `e@TIME`, or both."""
    kind, number, until_ms, has_beginning = PositionKind.BEGINNING, 0, None, False
    for word in words:
        if word.startswith("e@"):
            until_ms = parse_time(word[2:])
            continue
        if has_beginning:
            raise ValueError(f"{word!r} is a second place to begin at")
        (kind, number), has_beginning = parse_beginning(word), True
    return PositionSpan(kind=kind, number=number, until_ms=until_ms)


def parse_beginning(word: str) -> tuple[PositionKind, int]:
    if word in WORDS:
        return WORDS[word], 0
    if word.startswith("s@"):
        return PositionKind.SINCE, parse_time(word[2:])
    try:
        number = int(word)
    except ValueError:
        raise ValueError(f"{word!r} is not a place in a topic: beginning, end, stored, N, -N, s@TIME or e@TIME") from None
    return (PositionKind.BEFORE_END, -number) if word.startswith("-") else (PositionKind.OFFSET, number)


def parse_time(text: str) -> int:
    """Milliseconds since the epoch."""
    if text.lstrip("-").isdecimal():
        return int(text)
    try:
        return milliseconds(parse_instant(text))
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time: write milliseconds since 1970, or an instant like 2015-05-17T10:00:00Z"
        ) from None


def stretches(
    log: OffsetLog, topic: str, partitions: list[int], span: PositionSpan, isolation_level: str, stored: Mapping[int, int]
) -> dict[int, OffsetStretch]:
    """By partition, what to read of the log as it is now. `stored` are the group's committed offsets, if a group was given."""
    starts, ends = log.start_offsets(topic, partitions), log.end_offsets(topic, partitions, isolation_level)
    begins = {
        partition: min(max(offset, starts[partition]), ends[partition])
        for partition, offset in beginnings(log, topic, partitions, span, (starts, ends), stored).items()
    }
    if span.until_ms is not None:
        behind = log.first_at_or_after(topic, partitions, span.until_ms)
        ends = {partition: min(end, behind[partition].offset) if partition in behind else end for partition, end in ends.items()}
    return {partition: OffsetStretch(start_offset=begins[partition], end_offset=ends[partition]) for partition in partitions}


Limits = tuple[Mapping[int, int], Mapping[int, int]]  # first offsets, end offsets


def beginnings(
    log: OffsetLog, topic: str, partitions: list[int], span: PositionSpan, limits: Limits, stored: Mapping[int, int]
) -> Mapping[int, int]:
    """Where to begin in each partition, possibly outside the log."""
    starts, ends = limits
    if span.kind is PositionKind.SINCE:
        found = log.first_at_or_after(topic, partitions, span.number)
        return {partition: found[partition].offset if partition in found else ends[partition] for partition in partitions}
    if span.kind is PositionKind.STORED:
        return {partition: stored.get(partition, starts[partition]) for partition in partitions}
    return {
        PositionKind.BEGINNING: starts,
        PositionKind.END: ends,
        PositionKind.OFFSET: dict.fromkeys(partitions, span.number),
        PositionKind.BEFORE_END: {partition: ends[partition] - span.number for partition in partitions},
    }[span.kind]


def chosen_partitions(topic: str, there: Iterable[int], wanted: Iterable[int]) -> list[int]:
    """The requested partitions, or all."""
    known, asked = sorted(there), sorted(set(wanted))
    if strange := [partition for partition in asked if partition not in known]:
        raise UserError(f"topic {topic} has no partition {', '.join(map(str, strange))}: it has 0 to {known[-1]}")
    return asked or known
