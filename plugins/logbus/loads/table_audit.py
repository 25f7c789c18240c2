"""The audit of a table that others load: hour by hour, which records of a topic are missing from it, and which it has twice.

Hours are those that windows would have: their boundaries are found in the log as freezing finds them, so no pipeline has to be
registered. The table's database reduces its rows to runs of offsets (target.py); what lies between two runs is a gap.

A gap alone proves nothing: transactions leave markers, aborted records and compaction leave offsets that no record has. So the
gaps are read from the log, and only they: a table without gaps costs no read at all. What the log no longer holds is unknown and
not missing. A row of an offset that no record of the topic can have is foreign: another topic's, an unknown partition's, one
after the log's end (asked for after the table was read), or without a number. It has no place in the log, so its hour is that of
its own time, if the table has a column with that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate, islice
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Engine, Table
from sqlalchemy.dialects.postgresql import insert

from logbus import errors, model
from logbus.formatting import many
from logbus.kafka.client import LATEST, READ_COMMITTED
from logbus.kafka.topics import OffsetAndTimestamp, OffsetLog, TopicFacts
from logbus.loads.target import ForeignTable, OffsetRun
from logbus.windows import boundaries, freezing, schema

HOURS = model.Grid()
HOURS_MAX = 366 * 24
HOURS_AT_ONCE = 24  # asked about before the next empty stretch is looked for
RANGES_MAX = 10  # of each kind and hour: enough to look at; the counts are of all

# After a gap the reader goes on to the next one if that is near, because another request costs as much as so many records.
READ_ON_MAX = 50_000

WITHOUT_TIMES = (
    "foreign rows have no hour: the table has no column with the records' time under a usual name (--timestamp-column, "
    "timestamp_column)"
)

EXACT, WRONG, UNKNOWN = "exact", "wrong", "unknown"
VERDICTS = (EXACT, WRONG, UNKNOWN)


@dataclass(slots=True, kw_only=True)
class Spans:
    """How many offsets, and the first spans [start, end) of them."""

    count: int = 0
    first: list[model.OffsetRange] = field(default_factory=list)

    def add(self, topic: str, partition: int, start: int, end: int, count: int) -> None:
        self.count += count
        last = self.first[-1] if self.first else None
        if last is not None and (last.partition, last.end_offset) == (partition, start):
            start = self.first.pop().start_offset
        if len(self.first) < RANGES_MAX:
            self.first.append(model.OffsetRange(topic=topic, partition=partition, start_offset=start, end_offset=end))


@dataclass(slots=True, kw_only=True)
class HourAudit:
    """One hour: `records` in the log, `rows` at their offsets, `missing` records and `doubled` rows. `foreign` rows are those
    with a time in it; None where the table has no times."""

    start: datetime
    records: int = 0
    rows: int = 0
    missing: Spans = field(default_factory=Spans)
    doubled: Spans = field(default_factory=Spans)
    foreign: int | None = None
    unknown: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        return WRONG if self.missing.count or self.doubled.count or self.foreign else UNKNOWN if self.unknown else EXACT

    def remarks(self) -> list[str]:
        """What is wrong, or why it is not known, each as a sentence."""
        spans = {"missing": self.missing, "doubled": self.doubled}
        differences = [f"{name}: {', '.join(map(str, part.first))}" for name, part in spans.items() if part.count]
        if self.foreign:
            differences.append(f"foreign: {many(self.foreign, 'row')}")
        return [*differences, *(f"unknown: {reason}" for reason in self.unknown)]

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return {
            "start": model.instant_text(self.start),
            "verdict": self.verdict,
            "records": self.records,
            "rows": self.rows,
            "missing": self.missing.count,
            "doubled": self.doubled.count,
            "foreign": self.foreign,
            "remarks": self.remarks(),
        }

    def stored(self) -> dict[str, Any]:
        """As columns of the ledger."""
        return {
            "starts_at": self.start,
            "verdict": self.verdict,
            "record_count": self.records,
            "row_count": self.rows,
            "missing_count": self.missing.count,
            "doubled_count": self.doubled.count,
            "foreign_count": self.foreign,
            "remarks": self.remarks(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport:
    """The outcome. `foreign` are rows of the whole table that no record of the topic can have, with the reasons in `problems`."""

    table: str
    topic: str
    hours: Sequence[HourAudit]
    foreign: int
    problems: Sequence[str]
    notes: Sequence[str]

    @property
    def ok(self) -> bool:
        return not self.foreign and not self.wrong

    @property
    def wrong(self) -> list[HourAudit]:
        return [hour for hour in self.hours if hour.verdict == WRONG]

    def failure(self) -> str:
        """For the error of an audit that is not ok."""
        sums = {
            "missing": sum(hour.missing.count for hour in self.hours),
            "doubled": sum(hour.doubled.count for hour in self.hours),
            "foreign": self.foreign,
        }
        counts = ", ".join(f"{count:,} {name}" for name, count in sums.items() if count)
        wrong = f"{len(self.wrong)} of {many(len(self.hours), 'hour')} of topic {self.topic} are wrong in table {self.table}"
        lines = [f"{model.instant_text(hour.start)} {remark}" for hour in self.wrong for remark in hour.remarks()]
        return "\n".join([f"{wrong}: {counts}", *lines[:RANGES_MAX], *self.problems])

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return {
            "table": self.table,
            "topic": self.topic,
            "ok": self.ok,
            "foreign": self.foreign,
            "problems": list(self.problems),
            "notes": list(self.notes),
            "hours": [hour.summary() for hour in self.hours],
        }


def audit_table(
    log: OffsetLog,
    table: ForeignTable,
    topic: str,
    now: datetime,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    is_shared: bool = False,
) -> TableReport:
    """Audits the closed hours from `since` to `until`, by default from the log's first record to now.

    `is_shared`: the table holds other topics too, whose rows are not foreign.
    """
    facts = log.topic(topic)
    edges = find_edges(log, facts, now, since, until)
    hours = [HourAudit(start=start) for start in edges.starts_at]
    for part, offsets in edges.offsets.items():
        begins = edges.log_starts[part]
        for hour, offset in zip(hours, offsets, strict=False):
            if begins > 0 and offset <= begins:
                hour.unknown.append(f"the log of {topic}-{part} begins at {begins}")
    reader = GapReader(log, topic, edges.ends)
    for piece in without_gaps(edges.ranges, table.runs(topic, edges.ranges)):
        judge_piece(hours, edges, piece, reader)
    hours = [hour for hour in hours if hour.records or hour.rows or hour.unknown]
    foreign, problems, notes = judge_places(log, table, facts, edges, hours, is_shared=is_shared)
    return TableReport(
        table=table.name,
        topic=topic,
        hours=hours,
        foreign=foreign,
        problems=problems,
        notes=notes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """Where the hours begin and end: `offsets` has for each partition one more than there are hours."""

    starts_at: Sequence[datetime]
    offsets: Mapping[int, Sequence[int]]
    log_starts: Mapping[int, int]

    @property
    def ranges(self) -> dict[int, tuple[int, int]]:
        """What the log still has of all hours together."""
        return {
            part: (max(offsets[0], self.log_starts[part]), offsets[-1])
            for part, offsets in self.offsets.items()
            if self.starts_at
        }

    @property
    def ends(self) -> dict[int, int]:
        return {part: end for part, (_, end) in self.ranges.items()}


class FirstRecords:
    """By partition the first record at or after an instant whose timestamp is not in the future. A partition in which such a one
    hides what the time index would answer is read, once."""

    def __init__(self, log: OffsetLog, facts: TopicFacts, now: datetime) -> None:
        self._log, self._facts = log, facts
        self._horizon = boundaries.horizon_ms(now)
        self._rising: dict[int, list[OffsetAndTimestamp]] = {}

    def at_or_after(self, at: datetime) -> dict[int, OffsetAndTimestamp]:
        return self.evidence(at, self._log.first_at_or_after(self._facts.name, self._facts.partitions, model.milliseconds(at)))

    def evidence(self, at: datetime, answer: Mapping[int, OffsetAndTimestamp]) -> dict[int, OffsetAndTimestamp]:
        """The same, of what the time index has answered."""
        hidden = [part for part, record in answer.items() if boundaries.needs_scan(record, self._horizon)]
        first = {part: record for part, record in answer.items() if part not in hidden}
        for part in hidden:
            index = bisect_left(self._read(part), model.milliseconds(at), key=attrgetter("timestamp_ms"))
            if index < len(self._rising[part]):
                first[part] = self._rising[part][index]
        return first

    def hour(self, at: datetime) -> datetime | None:
        """The hour of the earliest of them, `at` at the earliest."""
        stamps = [record.timestamp_ms for record in self.at_or_after(at).values()]
        return HOURS.floor(model.instant(min(stamps))) if stamps else None

    def _read(self, part: int) -> list[OffsetAndTimestamp]:
        """Its records with timestamps later than those of all before them."""
        if part not in self._rising:
            topic = self._facts.name
            start = self._log.start_offsets(topic, [part])[part]
            end = self._log.end_offsets(topic, [part], READ_COMMITTED)[part]
            self._rising[part] = boundaries.rising(self._log.records(topic, part, start, end), self._horizon)
        return self._rising[part]


def find_edges(log: OffsetLog, facts: TopicFacts, now: datetime, since: datetime | None, until: datetime | None) -> Edges:
    """The boundaries that freezing would find in this log, of the hours that may have records."""
    pipeline = model.Pipeline(name=facts.name, topic=facts.name, table="", parse="raw")
    closed, first = pipeline.closed_until(now), FirstRecords(log, facts, now)
    begin = model.EPOCH if since is None else HOURS.floor(since)
    end = closed if until is None else min(HOURS.floor(until), closed)
    intervals = list(islice(hours_with_records(first, begin, end), HOURS_MAX + 1))
    if not intervals:
        return Edges(starts_at=(), offsets={}, log_starts=log.start_offsets(facts.name, facts.partitions))
    if len(intervals) > HOURS_MAX:
        raise errors.WrongRequest(
            f"the log of topic {facts.name} has more than {HOURS_MAX:,} hours with records from {intervals[0]} on, too many for "
            "one audit: choose some by --since and --until (since and until)"
        )
    observation = freezing.observe(log, pipeline, intervals, facts.topic_id)
    freezing.refuse_undecided(pipeline, intervals[-1], observation)
    first_records = [first.evidence(at, observation.first[at]) for at in sorted(observation.first)]
    offsets = {
        part: list(accumulate((boundaries.decide(by_part.get(part), end_offset) for by_part in first_records), max))
        for part, end_offset in observation.end_offsets.items()
    }
    if since is None:  # records without a timestamp that are before all others, too
        offsets = {part: [observation.start_offsets[part], *rest] for part, (_, *rest) in offsets.items()}
    return Edges(starts_at=[hour.start for hour in intervals], offsets=offsets, log_starts=observation.start_offsets)


def hours_with_records(first: FirstRecords, begin: datetime, end: datetime) -> Iterator[model.Interval]:
    """The hours of the span, without long stretches in which no partition has a record: there all boundaries are the same."""
    while begin < end:
        hour = first.hour(begin)
        if hour is None or hour >= end:
            return
        begin = min(hour + HOURS_AT_ONCE * model.HOUR, end)
        yield from HOURS.windows(hour, begin)


def without_gaps(ranges: Mapping[int, tuple[int, int]], runs: Iterable[OffsetRun]) -> Iterator[OffsetRun]:
    """The runs, and between them the offsets that occur 0 times: together all offsets of the ranges, ascending by partition."""
    reached = {part: start for part, (start, _) in ranges.items()}
    for run in runs:
        if reached[run.partition] < run.start:
            yield OffsetRun(run.partition, reached[run.partition], run.start, 0)
        yield run
        reached[run.partition] = run.end
    for part, start in reached.items():
        if start < ranges[part][1]:
            yield OffsetRun(part, start, ranges[part][1], 0)


def judge_piece(hours: Sequence[HourAudit], edges: Edges, piece: OffsetRun, reader: GapReader) -> None:
    """Adds offsets that all occur equally often to the hours that they belong to."""
    offsets, start = edges.offsets[piece.partition], piece.start
    while start < piece.end:
        number = bisect_right(offsets, start) - 1
        hour, end = hours[number], min(piece.end, offsets[number + 1])
        if piece.times:
            hour.records += end - start
            hour.rows += (end - start) * piece.times
        if piece.times > 1:
            hour.doubled.add(reader.topic, piece.partition, start, end, (end - start) * (piece.times - 1))
        for offset in reader.records(piece.partition, start, end) if piece.times == 0 else ():
            hour.records += 1
            hour.missing.add(reader.topic, piece.partition, offset, offset + 1, 1)
        start = end


class GapReader:
    """Which offsets of a gap have a record. Gaps are asked for in ascending order; one that is near the last is read along with
    what lies between."""

    def __init__(self, log: OffsetLog, topic: str, ends: Mapping[int, int]) -> None:
        self.topic = topic
        self._log, self._ends = log, ends
        self._records: Iterator[OffsetAndTimestamp] = iter(())
        self._partition, self._reached = -1, 0
        self._next: OffsetAndTimestamp | None = None  # read already, of a later gap

    def records(self, partition: int, start: int, end: int) -> Iterator[int]:
        if partition != self._partition or start - self._reached > READ_ON_MAX:
            self._records = self._log.records(self.topic, partition, start, self._ends[partition])
            self._partition, self._next = partition, next(self._records, None)
        while self._next is not None and self._next.offset < end:
            if self._next.offset >= start:
                yield self._next.offset
            self._next = next(self._records, None)
        self._reached = end


def judge_places(
    log: OffsetLog, table: ForeignTable, facts: TopicFacts, edges: Edges, hours: Sequence[HourAudit], *, is_shared: bool
) -> tuple[int, list[str], list[str]]:
    """How many rows of the whole table are foreign, with the reasons, and notes on rows that nothing can be said about."""
    counts, notes = dict[str, int](), list[str]()
    total, names = (0, []) if is_shared else table.other_topics(facts.name)
    counts[f"of other topics ({', '.join('null' if name is None else name for name in names)})"] = total
    counts["without a partition and an offset"] = table.rows_without_place(facts.name)
    held_offsets = table.held(facts.name, facts.partitions)
    # After the table: what was loaded into it had been written to the log before.
    ends = log.end_offsets(facts.name, facts.partitions, LATEST)
    for part in held_offsets:
        if part.partition is None:
            counts[f"of partitions that the topic does not have, at offsets {part.first} to {part.last}"] = part.rows
            continue
        begins, end = edges.log_starts[part.partition], ends[part.partition]
        if part.first >= begins and part.last < end:
            continue
        before, after = table.rows_outside(facts.name, part.partition, begins, end)
        counts[f"after the end of {facts.name}-{part.partition} at {end}, up to offset {part.last}"] = after
        if before:
            notes.append(f"{many(before, 'row')} of {facts.name}-{part.partition} from before the log begins, at {begins}")
    problems = [f"foreign: {many(count, 'row')} {what}" for what, count in counts.items() if count]
    foreign = sum(counts.values())
    if table.columns.timestamp is not None:
        by_hour = dict[datetime, int]()
        if foreign and hours:
            span = model.Interval(hours[0].start, hours[-1].start + model.HOUR)
            by_hour.update(table.foreign_by_hour(facts.name, ends, span, is_shared=is_shared))
        for hour in hours:
            hour.foreign = by_hour.get(hour.start, 0)
        if elsewhere := foreign - sum(hour.foreign or 0 for hour in hours):
            notes.append(f"{many(elsewhere, 'foreign row')} whose {table.columns.timestamp} is in no hour that was audited")
    elif foreign:
        notes.append(WITHOUT_TIMES)
    return foreign, problems, notes


def record_report(engine: Engine, report: TableReport, now: datetime) -> None:
    """Stores it in the ledger, where pages and metrics find it; each hour keeps its newest verdict."""
    of_table = {"table_name": report.table, "topic": report.topic, "audited_at": now}
    with engine.begin() as connection:
        remarks = [*report.problems, *report.notes]
        store(connection, schema.audited_table, [{**of_table, "foreign_rows": report.foreign, "remarks": remarks}])
        store(connection, schema.audited_hour, [{**of_table, **hour.stored()} for hour in report.hours])


def store(connection: Connection, table: Table, values: Sequence[Mapping[str, Any]]) -> None:
    """Inserts the rows or replaces those with the same key."""
    if values:
        statement = insert(table)
        news = {column.name: statement.excluded[column.name] for column in table.columns if not column.primary_key}
        connection.execute(statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=news), list(values))
