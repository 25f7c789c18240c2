"""A ledger entry as the table's own commit carries it: what was loaded of a window, by which attempt, from which offsets.

Rows in files and the ledger in PostgreSQL cannot share a transaction. So the commit that makes the files public carries
this entry. The next attempt that finds the ledger behind brings it up to date; a lost ledger is rebuilt from the entries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from logbus.errors import LogbusError
from logbus.ledger.rows import to_range
from logbus.ledger.values import Published
from logbus.model import Interval, OffsetRange, WindowCounts, counts_json, instant_text, parse_instant
from logbus.proof.tally import TimeSpan
from logbus.warehouse.commit import SealedWindow, by_partition, counts_of, fingerprint_of, hours_of

# Raised with every change that an older reader would misunderstand.
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One window as one attempt loaded it."""

    pipeline: str
    topic: str
    topic_id: str
    interval: Interval
    attempt: int
    ranges: tuple[OffsetRange, ...]
    counts: WindowCounts
    fingerprint: str
    loaded_at: datetime
    head_unknown: bool = False
    key: str | None = None  # the attempt's; None in the entries of an older logbus
    values: Published | None = None
    other_records: tuple[Mapping[str, Any], ...] = ()  # the window's, in case the ledger has to be rebuilt
    spans: Mapping[int, TimeSpan] = field(default_factory=dict)
    partitions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    hours: Mapping[int, int] | None = None  # records by stamped hour; None in the entries of an older logbus

    def to_json(self) -> str:
        """One line of JSON; `from_json` reads it."""
        return json.dumps(
            {
                "format": FORMAT,
                "pipeline": self.pipeline,
                "topic": self.topic,
                "topic_id": self.topic_id,
                "start": instant_text(self.interval.start),
                "end": instant_text(self.interval.end),
                "attempt": self.attempt,
                "ranges": [range_json(part, self.spans.get(part.partition)) for part in self.ranges],
                "counts": counts_json(self.counts),
                "fingerprint": self.fingerprint,
                "loaded_at": instant_text(self.loaded_at),
                "head_unknown": self.head_unknown,
                "key": self.key,
                "values": self.values and self.values.to_json(),
                "other_records": list(self.other_records),
                "partitions": self.partitions,
                "hours": None if self.hours is None else {str(hour): count for hour, count in self.hours.items()},
            }
        )


def entry_of(
    load: SealedWindow, now: datetime, values: Published | None = None, other_records: Sequence[Mapping[str, Any]] | None = None
) -> LedgerEntry:
    """The entry of what a load is about to make public."""
    window = load.window
    return LedgerEntry(
        pipeline=load.pipeline.name,
        topic=window.topic,
        topic_id=window.topic_id,
        interval=window.interval,
        attempt=load.attempt.number,
        ranges=window.ranges,
        counts=counts_of(load),
        fingerprint=fingerprint_of(load),
        loaded_at=now,
        head_unknown=window.head_unknown,
        key=load.attempt.key,
        values=values,
        other_records=tuple(window.other_records if other_records is None else other_records),
        spans=load.staged.spans,
        partitions=by_partition(load),
        hours=hours_of(load),
    )


def from_json(text: str) -> LedgerEntry:
    """An entry as it was written; `LogbusError` if a newer logbus wrote it."""
    found = json.loads(text)
    if found["format"] != FORMAT:
        raise LogbusError(f"a ledger entry has format {found['format']}, this logbus knows {FORMAT}: install a newer logbus")
    ranges, hours = found["ranges"], found.get("hours")
    return LedgerEntry(
        pipeline=found["pipeline"],
        topic=found["topic"],
        topic_id=found["topic_id"],
        interval=Interval(parse_instant(found["start"]), parse_instant(found["end"])),
        attempt=found["attempt"],
        ranges=tuple(to_range(found["topic"], part) for part in ranges),
        counts=WindowCounts(**found["counts"]),
        fingerprint=found["fingerprint"],
        loaded_at=parse_instant(found["loaded_at"]),
        head_unknown=found["head_unknown"],
        key=found.get("key"),  # read with get: missing in the entries of an older logbus
        values=Published.from_json(found["values"]) if found.get("values") else None,
        other_records=tuple(found.get("other_records", ())),
        partitions=found["partitions"],
        hours=None if hours is None else {int(hour): count for hour, count in hours.items()},
        spans={part["partition"]: to_span(part) for part in ranges},
    )


def range_json(part: OffsetRange, span: TimeSpan | None) -> dict[str, Any]:
    first, last = (span.first, span.last) if span else (None, None)
    return {
        "partition": part.partition,
        "start_offset": part.start_offset,
        "end_offset": part.end_offset,
        "lost": part.lost,
        "first": first and instant_text(first),
        "last": last and instant_text(last),
    }


def to_span(part: Mapping[str, Any]) -> TimeSpan:
    first, last = part["first"], part["last"]
    return TimeSpan(first=first and parse_instant(first), last=last and parse_instant(last))
