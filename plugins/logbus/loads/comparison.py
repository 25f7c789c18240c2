"""Do two loads hold the same records? Attempts at a window, two windows, or a window and the broker as it is now.

Each side is one `WindowReading`: how many records in which range of which partition, and the fingerprint of just those. Two
readings with the same fingerprints are of the same records; if they differ, the partition is named, and what the broker no
longer holds is listed by offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from logbus import errors, model
from logbus.fingerprint import as_text, combine, headers_of, record_hash
from logbus.kafka.topics import OffsetLog
from logbus.loads.history import AttemptRecord, WindowHistory
from logbus.windows.log_changes import refuse_if_recreated

# Per partition; a compacted topic may have a gap at every second offset.
HOLES_TOLD_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPartition:
    """What was read from a partition's range. `holes` are ranges of offsets [start, end) that held no record."""

    range: tuple[int, int]
    read: int
    fingerprint: str
    holes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowReading:
    """One side of a comparison. `partitions` None: the ledger has only the window's totals."""

    name: str
    read: int
    fingerprint: str
    partitions: Mapping[int, ComparedPartition] | None
    results: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDifference:
    """One property in which two readings differ."""

    what: str
    left: Any
    right: Any


def compare(left: WindowReading, right: WindowReading) -> list[RecordDifference]:
    """Everything in which two readings differ; empty means that they hold the same records, with the same results."""
    pairs: list[tuple[str, Any, Any]] = [("records", left.read, right.read), ("fingerprint", left.fingerprint, right.fingerprint)]
    both = sorted(set(left.results) & set(right.results))
    pairs += [(name, left.results[name], right.results[name]) for name in both]
    if left.partitions is not None and right.partitions is not None:
        for part in sorted({*left.partitions, *right.partitions}):
            pairs += partition_pairs(part, left.partitions.get(part), right.partitions.get(part))
    return [RecordDifference(what=what, left=before, right=other) for what, before, other in pairs if before != other]


def partition_pairs(part: int, left: ComparedPartition | None, right: ComparedPartition | None) -> Iterator[tuple[str, Any, Any]]:
    if left is None or right is None:
        yield f"partition {part}", left and "there", right and "there"
        return
    yield f"partition {part} offsets", list(left.range), list(right.range)
    yield f"partition {part} records", left.read, right.read
    yield f"partition {part} fingerprint", left.fingerprint, right.fingerprint
    if left.fingerprint != right.fingerprint:  # otherwise both have the same gaps, from transactions and compaction
        yield f"partition {part} offsets without a record", list(map(list, left.holes)), list(map(list, right.holes))


def attempt_reading(history: WindowHistory, number: int) -> WindowReading:
    """What an attempt loaded; `WindowUnknown` if it was never committed."""
    window, record = history.window, history.attempt(number)
    if record is None or record.counts is None or record.fingerprint is None:
        what = "is not there" if record is None else f"is {record.state}: only what was committed can be compared"
        raise errors.WindowUnknown(f"attempt {number} at window {window.interval} of {window.pipeline} {what}")
    return ledger_reading(f"attempt {number}", record.counts, record.fingerprint, partitions_of(window, record))


def ledger_reading(
    name: str, counts: model.WindowCounts, fingerprint: str, partitions: Mapping[int, ComparedPartition] | None
) -> WindowReading:
    results = {"loaded": counts.loaded, "dead-lettered": counts.dead_lettered, "filtered": counts.filtered}
    return WindowReading(name=name, read=counts.read, fingerprint=fingerprint, partitions=partitions, results=results)


def partitions_of(window: model.FrozenWindow, record: AttemptRecord | None) -> Mapping[int, ComparedPartition] | None:
    if record is None or record.partitions is None:
        return None
    nothing = {"read": 0, "fingerprint": as_text(0)}  # partitions without records are absent
    ranges = {part.partition: (part, record.partitions.get(str(part.partition), nothing)) for part in window.ranges}
    return {
        number: ComparedPartition(
            range=(part.readable_from, part.end_offset), read=values["read"], fingerprint=values["fingerprint"]
        )
        for number, (part, values) in ranges.items()
    }


def loaded_reading(history: WindowHistory) -> WindowReading:
    """What is public of a window; `WindowUnknown` if nothing is."""
    window = history.window
    if window.loaded_attempt is None or window.counts is None or window.fingerprint is None:
        raise errors.WindowUnknown(f"window {window.interval} of {window.pipeline} is not loaded: there is nothing to compare")
    partitions = partitions_of(window, history.attempt(window.loaded_attempt))
    return ledger_reading(f"{window.pipeline} {window.interval}", window.counts, window.fingerprint, partitions)


class ComparedRecord(Protocol):
    """What its hash needs of a consumed message."""

    def offset(self) -> int: ...

    def timestamp(self) -> tuple[int, int]: ...

    def key(self) -> bytes | None: ...

    def value(self) -> bytes | None: ...

    def headers(self) -> list[tuple[str, bytes | None]] | None: ...


ReadRange = Callable[[model.OffsetRange], Iterable[ComparedRecord]]


def broker_reading(window: model.FrozenWindow, log: OffsetLog, read: ReadRange) -> WindowReading:
    """Reads what the broker holds of a window now. `read` returns the records of a range; its head may already be deleted.

    Raises `TopicRecreated`, `ShortRead` or `BrokerUnavailable`.
    """
    refuse_if_recreated(window.topic, window.topic_id, log.topic(window.topic).topic_id)
    starts = log.start_offsets(window.topic, [part.partition for part in window.ranges])
    partitions = {part.partition: read_partition(part, starts[part.partition], read) for part in window.ranges}
    return WindowReading(
        name="broker",
        read=sum(part.read for part in partitions.values()),
        fingerprint=as_text(combine(int(part.fingerprint, 16) for part in partitions.values())),
        partitions=partitions,
    )


def read_partition(part: model.OffsetRange, log_start: int, read: ReadRange) -> ComparedPartition:
    first = min(max(part.readable_from, log_start), part.end_offset)
    rest = model.OffsetRange(topic=part.topic, partition=part.partition, start_offset=first, end_offset=part.end_offset)
    count, total, expected, holes = 0, 0, part.readable_from, list[tuple[int, int]]()
    for record in read(rest) if rest.count else ():
        offset = record.offset()
        if offset != expected:
            holes.append((expected, offset))
        expected = offset + 1
        count += 1
        stamp, headers = record.timestamp()[1], headers_of(record)
        total = combine([total, record_hash(part.partition, offset, stamp, record.key(), record.value(), headers)])
    if expected != part.end_offset:
        holes.append((expected, part.end_offset))
    return ComparedPartition(
        range=(part.readable_from, part.end_offset), read=count, fingerprint=as_text(total), holes=tuple(holes[:HOLES_TOLD_MAX])
    )
