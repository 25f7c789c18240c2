"""What a table must hold: a single-threaded read of the topic, split at the windows' offsets. No ledger rules, no Spark, no SQL.

Each record of a loaded window is present once, as a row or a dead letter, with the bytes that were sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from confluent_kafka import Message
from logbus.model import FrozenWindow
from logbus.parsing import Parser
from sqlalchemy import Engine, text

from tests.support.fake_log import FakeLog, value_of
from tests.support.in_process import is_dead
from tests.support.topics import read_topic


@dataclass(frozen=True, slots=True)
class LogRecord:
    partition: int
    offset: int
    value: bytes | None


@dataclass(frozen=True, slots=True, order=True)
class LoadedRecord:
    """A record at the place where a load put it."""

    window_start: datetime
    partition: int
    offset: int
    is_dead: bool


def everything_in(log: FakeLog, topic: str) -> list[LogRecord]:
    """All records of a topic in memory, including deleted ones."""
    return [
        LogRecord(number, found.offset, value_of(log.ids[topic], number, found.offset))
        for number, part in enumerate(log.topics[topic])
        for found in part.all_records(0, len(part.stamps_ms))
    ]


def everything_at(bootstrap: str, topic: str) -> list[LogRecord]:
    """All records of a topic that a broker holds, read by a stock consumer."""

    def record(partition: int, message: Message) -> LogRecord:
        offset = message.offset()
        assert offset is not None
        return LogRecord(partition, offset, message.value())

    return [record(partition, message) for partition, found in read_topic(bootstrap, topic).items() for message in found]


def expected(windows: Iterable[FrozenWindow], records: Iterable[LogRecord], parser: Parser) -> list[LoadedRecord]:
    """What table and dead letters hold if exactly these windows are loaded."""
    records = list(records)
    return sorted(
        LoadedRecord(window.interval.start, record.partition, record.offset, is_dead(parser, record.value))
        for window in windows
        for part in window.ranges
        for record in records
        if record.partition == part.partition and part.readable_from <= record.offset < part.end_offset
    )


def found(engine: Engine, pipeline_name: str, table: str) -> list[LoadedRecord]:
    """What they actually hold."""
    dead = (
        'select w.starts_at, d."partition", d."offset", true from logbus.dead_letter d '
        "join logbus.window w on w.id = d.window_id where w.pipeline = :pipeline"
    )
    with engine.connect() as connection:
        is_there = connection.execute(text("select to_regclass(:table) is not null"), {"table": table}).scalar_one()
        rows = f"select _window_start, _partition, _offset, false from {table} union all " if is_there else ""
        return sorted(LoadedRecord(*row) for row in connection.execute(text(rows + dead), {"pipeline": pipeline_name}))
