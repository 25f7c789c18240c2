"""The lines of many files as one stream in the order of their times, each with the time its record will carry.

Windows are cut where the log's time passes an hour, so two hosts' files sent one after the other would make all of the
second one late. Merged by time they lie in the topic as they happened; each file keeps its own order. A line without a
time has that of the line before it; the first lines of a file have that of the first line with one, and a file where no line
has one has the time it was last written. A time further ahead of the clock than brokers accept is not believed.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from logbus.collector import line_reader
from logbus.collector.sources import Source
from logbus.collector.timestamps import recognise

AHEAD_MS_MAX = 3_600_000  # Kafka's default for message.timestamp.after.max.ms: a broker refuses what lies further ahead
LOOK_AHEAD_LINES = 1000  # a banner is shorter than this


class StampedLine(NamedTuple):
    """One line on its way to the topic; `text` is None where it was too long to send."""

    timestamp_ms: int
    source_id: str
    position: int
    end: int
    text: bytes | None
    host: bytes | None
    has_own_time: bool


class Reading(NamedTuple):
    """How lines are read: the limits, the clock's reading at the start, and whether an unfinished last line counts."""

    now_ms: int
    line_bytes_max: int
    include_partial_line: bool


def merged(sources: Iterable[Source], reading: Reading) -> Iterator[StampedLine]:
    """All lines not yet sent, oldest first."""
    return heapq.merge(*(_stamped(source, reading) for source in sources), key=lambda line: line.timestamp_ms)


def _stamped(source: Source, reading: Reading) -> Iterator[StampedLine]:
    timestamp_ms = source.timestamp_ms
    if timestamp_ms is None:
        timestamp_ms = _first_time_ms(source, reading)
    latest_ms = reading.now_ms + AHEAD_MS_MAX
    for position, end, text in _lines(source, reading):
        own_ms, host = recognise(text) if text is not None else (None, None)
        has_own_time = False
        if own_ms is not None and 0 <= own_ms <= latest_ms:
            timestamp_ms, has_own_time = own_ms, True
        yield StampedLine(timestamp_ms, source.source_id, position, end, text, host, has_own_time)


def _first_time_ms(source: Source, reading: Reading) -> int:
    for _, _, text in islice(_lines(source, reading), LOOK_AHEAD_LINES):
        own_ms = recognise(text).timestamp_ms if text is not None else None
        if own_ms is not None and 0 <= own_ms <= reading.now_ms + AHEAD_MS_MAX:
            return own_ms
    written_ms = Path(source.path).stat().st_mtime_ns // 1_000_000
    return max(0, min(written_ms, reading.now_ms))


def _lines(source: Source, reading: Reading) -> Iterator[line_reader.Line]:
    path = Path(source.path)
    complete = reading.include_partial_line or line_reader.is_compressed(path)
    try:
        with line_reader.open_log(path) as file:
            file.seek(source.position)
            yield from line_reader.read_lines(
                file, position=source.position, line_bytes_max=reading.line_bytes_max, last_line_is_complete=complete
            )
    except (EOFError, OSError, zlib.error) as error:
        raise line_reader.damaged(path, error) from error
