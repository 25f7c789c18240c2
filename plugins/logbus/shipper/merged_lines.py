"""The lines of many files as one stream in the order of their times, each with the time its record will carry.

Windows are cut where the log's time passes an hour, so two hosts' files sent one after the other would make all of the
second one late. Merged by time, lines are stored in the topic as they happened; each file keeps its own order. A line without
a time has that of the line before it; the first lines of a file have that of the first line with one, and a file where no line
has one has the time it was last written. A time further ahead of the clock than brokers accept is not believed, nor one of 1970.

How a file writes its times is chosen once for the file (timestamp_extractor.py). A time without a zone is read in the zone that
the caller names, or as UTC. In the hour that occurs twice in autumn a file's lines still move forward in time: a line that would
be five minutes before the previous line belongs to the second occurrence.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import IO, NamedTuple

from logbus.errors import UnreadableLog
from logbus.model import instant
from logbus.shipper import line_reader, line_timestamps, timestamp_extractor
from logbus.shipper.line_reader import is_compressed, open_log, whole_lines
from logbus.shipper.sources import UNKNOWN_INODE, Source

EARLIEST_MS = 365 * 86_400_000  # a machine that lost its clock starts in 1970: its lines would make half a million empty hours
DAY_MS = 86_400_000
FEW_SHARE = 0.1  # fewer records on the other side of such a gap are more likely misdated than a part of the log
JOIN_WAIT_MS = 5_000  # a stack trace is written within milliseconds; after this a record is complete
OUT_OF_ORDER_MS = 300_000  # a time further back than this is in the second occurrence of an hour that occurs twice


class TimeOf(StrEnum):
    """Where a line's time comes from."""

    LINE = "its own"
    LINE_BEFORE = "that of the line before"
    LINE_AFTER = "that of the first line after it that has one"
    FILE = "when the file was last written"


class TimestampedLine(NamedTuple):
    """One line on its way to the topic; `text` is None if it was too long to send."""

    timestamp_ms: int
    source_id: str
    position: int
    end: int
    text: bytes | None
    host: bytes | None
    time_of: TimeOf
    is_zoneless: bool = False  # it has its own time, written without a zone
    is_ahead: bool = False  # it has its own time, which is not believed because it is ahead of the clock
    first_text: bytes | None = None  # as in line_reader.Line
    is_followed: bool = False


class LineReading(NamedTuple):
    """How lines are read: the limits, the clock's reading at the start, and whether an unfinished last line counts."""

    now_ms: int
    line_bytes_max: int
    include_partial_line: bool
    times: timestamp_extractor.TimeOptions = timestamp_extractor.TimeOptions()
    # By source; those of other sources are chosen when they are read.
    extractors: Mapping[str, timestamp_extractor.TimestampExtractor] = MappingProxyType({})
    joins: bool = False  # a line without a time of its own continues the record of the line before


@dataclass(slots=True)
class ReadingNotes:
    """What was noticed of the sources beside their lines."""

    damaged: list[UnreadableLog] = field(default_factory=list)  # errors of damaged files; the other files are read all the same
    days: dict[str, dict[int, list[int]]] = field(default_factory=dict)  # how many lines have a time of each day since 1970
    unfinished: dict[str, bool] = field(default_factory=dict)  # whose last line waits, as it has no newline: is "\\r" in it?
    holes: dict[str, dict[int, int]] = field(default_factory=dict)  # length of each run of zero bytes passed over, by position
    waiting: set[str] = field(default_factory=set)  # whose last record waits, because their next line may belong to it


def merged(sources: Iterable[Source], reading: LineReading, notes: ReadingNotes | None = None) -> Iterator[TimestampedLine]:
    """All lines not yet sent, oldest first. Of a damaged file those before the damage, which is noted, or raised if there are no
    notes."""
    return heapq.merge(*(_readable(source, reading, notes) for source in sources), key=lambda line: line.timestamp_ms)


def _readable(source: Source, reading: LineReading, notes: ReadingNotes | None) -> Iterator[TimestampedLine]:
    try:
        yield from _stamped(source, reading, notes or ReadingNotes())
    except UnreadableLog as error:
        if notes is None:
            raise
        notes.damaged.append(error)


def _stamped(source: Source, reading: LineReading, notes: ReadingNotes) -> Iterator[TimestampedLine]:
    extractor = reading.extractors.get(source.source_id) or timestamp_extractor.extractor_for(
        Path(source.path), reading.line_bytes_max, reading.times
    )
    timestamp_ms, borrowed_of = source.timestamp_ms, TimeOf.LINE_BEFORE
    if timestamp_ms is None:
        timestamp_ms, borrowed_of = _first_time(source, reading, notes, extractor)
    latest_ms = reading.now_ms + timestamp_extractor.AHEAD_MS_MAX
    days = notes.days.setdefault(source.source_id, {})
    day_ms, tally = -DAY_MS, [0]
    source_id, new_line = source.source_id, tuple.__new__  # as in line_reader.read_lines
    for position, end, text, first_text, is_followed in _records(source, reading, notes, extractor):
        stamp = extractor.stamp(text) if text is not None else line_timestamps.NO_STAMP
        own_ms = stamp.timestamp_ms
        if stamp.again_ms is not None and borrowed_of is TimeOf.LINE_BEFORE:
            own_ms = _one_of_two(stamp, timestamp_ms)
        if own_ms is not None and EARLIEST_MS <= own_ms <= latest_ms:
            timestamp_ms, borrowed_of = own_ms, TimeOf.LINE_BEFORE
            if not day_ms <= own_ms < day_ms + DAY_MS:
                day = own_ms // DAY_MS
                day_ms, tally = day * DAY_MS, days.setdefault(day, [0])
            tally[0] += 1
            time_of, is_zoneless, is_ahead = TimeOf.LINE, stamp.is_zoneless, False
        else:
            time_of, is_zoneless, is_ahead = borrowed_of, False, own_ms is not None and own_ms > latest_ms
        fields = (
            timestamp_ms,
            source_id,
            position,
            end,
            text,
            stamp.host,
            time_of,
            is_zoneless,
            is_ahead,
            first_text,
            is_followed,
        )
        yield new_line(TimestampedLine, fields)


def _one_of_two(stamp: line_timestamps.Stamp, before_ms: int) -> int | None:
    """In which occurrence of its hour a line was written, judged by the time of the line before."""
    first_ms = stamp.timestamp_ms
    return first_ms if first_ms is None or first_ms > before_ms - OUT_OF_ORDER_MS else stamp.again_ms


def months_away(days: Mapping[int, int]) -> dict[int, int]:
    """Of a file's records, counted by the day (since 1970) of their own time, the few that lie months away from the others. A
    quoted date, or a clock that was wrong for a moment, is more likely than such a log, and makes thousands of empty hours."""
    groups: list[dict[int, int]] = []
    last = None
    for day in sorted(days):
        if last is None or day - last > timestamp_extractor.APART_DAYS:
            groups.append({})
        groups[-1][day] = days[day]
        last = day
    most = max(groups, key=lambda group: sum(group.values()), default={})
    few = {day: count for group in groups if group is not most for day, count in group.items()}
    return few if sum(few.values()) <= FEW_SHARE * sum(days.values()) else {}


def day_text(day: int) -> str:
    """`2015-05-17`, of a day since 1970."""
    return instant(day * DAY_MS).date().isoformat()


def _first_time(
    source: Source, reading: LineReading, notes: ReadingNotes, extractor: timestamp_extractor.TimestampExtractor
) -> tuple[int, TimeOf]:
    """The time for lines before any line that has one."""
    for line in islice(_lines(source, reading, notes), timestamp_extractor.LOOKED_AT_LINES):
        own_ms = extractor.stamp(line.text).timestamp_ms if line.text is not None else None
        if own_ms is not None and EARLIEST_MS <= own_ms <= reading.now_ms + timestamp_extractor.AHEAD_MS_MAX:
            return own_ms, TimeOf.LINE_AFTER
    written_ms = Path(source.path).stat().st_mtime_ns // 1_000_000
    return max(0, min(written_ms, reading.now_ms)), TimeOf.FILE


def _records(
    source: Source, reading: LineReading, notes: ReadingNotes, extractor: timestamp_extractor.TimestampExtractor
) -> Iterator[line_reader.Line]:
    """Lines, or if they are to be joined, those that belong together as one, with the file's own line endings between them, so
    that what was sent can be compared with the file byte by byte. The last record of a file that is being written waits for the
    next run, because its next line may belong to it."""
    lines = whole_lines(
        _lines(source, reading, notes),
        line_bytes_max=reading.line_bytes_max,
        time_of=lambda text: extractor.stamp(text).timestamp_ms,
        may_go_on=lambda: _waits(source, reading, notes),
    )
    if not reading.joins:
        yield from lines
        return
    record: line_reader.Line | None = None
    record_text, line_end = b"", b"\n"
    for line in lines:
        if record is not None and line.text is not None and extractor.stamp(line.text).timestamp_ms is None:
            text = record_text + line_end + line.text
            if len(text) <= reading.line_bytes_max:
                first_text = record.first_text or record.text
                record, record_text = line._replace(position=record.position, text=text, first_text=first_text), text
                line_end = _line_end(line)
                continue
        if record is not None:
            yield record
        if line.text is None:
            record = None
            yield line
        else:
            record, record_text, line_end = line, line.text, _line_end(line)
    if record is not None and not _waits(source, reading, notes):
        yield record


def _line_end(line: line_reader.Line) -> bytes:
    return b"\r\n" if line.text is not None and line.end - line.position - len(line.text) == 2 else b"\n"


def _waits(source: Source, reading: LineReading, notes: ReadingNotes) -> bool:
    """Whether the file's last record may still go on, so that it waits for the next run, which is noted."""
    if waits := _is_being_written(Path(source.path), reading):
        notes.waiting.add(source.source_id)
    return waits


def _is_being_written(path: Path, reading: LineReading) -> bool:
    try:
        if reading.include_partial_line or is_compressed(path):
            return False
    except FileNotFoundError:  # just renamed: it will soon be quiet under its new name
        return True
    return path.stat().st_mtime_ns // 1_000_000 > reading.now_ms - JOIN_WAIT_MS


def _lines(source: Source, reading: LineReading, notes: ReadingNotes) -> Iterator[line_reader.Line]:
    path = Path(source.path)
    try:
        complete = reading.include_partial_line or is_compressed(path)
        with open_log(path, source.position) as file:
            if _is_another(file, source):
                return
            unfinished = yield from line_reader.read_lines(
                file,
                position=source.position,
                line_bytes_max=reading.line_bytes_max,
                last_line_is_complete=complete,
                holes=notes.holes.setdefault(source.source_id, {}),
            )
            if unfinished:
                notes.unfinished[source.source_id] = b"\r" in unfinished.rstrip(b"\r")
    except FileNotFoundError:
        return  # as for another file under this name
    except (EOFError, OSError) as error:
        raise line_reader.damaged(path, error, sent=True) from error


def _is_another(file: IO[bytes], source: Source) -> bool:
    """Rotation may rename the file after it was identified: the file that has its name now must not be read from this source's
    position. The next run finds both."""
    status = os.fstat(file.fileno())
    return source.inode != UNKNOWN_INODE and (status.st_dev, status.st_ino) != (source.device, source.inode)
