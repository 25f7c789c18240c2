"""Dead letters: the records of a window that did not parse, kept with their bytes, their error and the run that encountered it.

They belong to the window just as its rows do: a load replaces both, a redrive turns some dead letters into rows. They are
streamed when read, because there may be any number of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, bindparam, func, select, text

from logbus.ledger import schema
from logbus.ledger.table_names import SCHEMA
from logbus.model import instant_text
from logbus.wording import shown_value

# Rows a stream holds at once; a value may be megabytes.
STREAMED_ROWS = 50

# The limits of a batch of values, which always holds at least one.
BATCH_RECORDS_MAX = 1_000
BATCH_BYTES_MAX = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One record. `headers` are pairs of a name and a text, None or `{"base64": ...}`."""

    window_start: datetime
    topic: str
    partition: int
    offset: int
    timestamp: datetime | None
    key: bytes | None
    value: bytes | None
    headers: list[Any] | None
    error_class: str
    error: str
    attempt: int
    run_id: str | None

    def summary(self) -> dict[str, Any]:
        """The record as JSON-ready values."""
        return {
            "window": instant_text(self.window_start),
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "timestamp": self.timestamp and instant_text(self.timestamp),
            **{name.replace("value", "key"): shown for name, shown in shown_value(self.key).items()},
            **shown_value(self.value),
            "headers": self.headers,
            "error_class": self.error_class,
            "error": self.error,
            "attempt": self.attempt,
            "run_id": self.run_id,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorGroup:
    """The dead letters of one class in one window, and the error of one of them."""

    window_start: datetime
    error_class: str
    count: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which dead letters: of windows that start within [since, until], both inclusive, and of one error class or any."""

    pipeline: str
    since: datetime | None = None
    until: datetime | None = None
    error_class: str | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        window, dead = schema.window, schema.dead_letter
        found = [window.c.pipeline == self.pipeline, window.c.id == dead.c.window_id]
        if self.since is not None:
            found.append(window.c.starts_at >= self.since)
        if self.until is not None:
            found.append(window.c.starts_at <= self.until)
        if self.error_class is not None:
            found.append(dead.c.error_class == self.error_class)
        return found


def groups(engine: Engine, selection: Selection) -> list[ErrorGroup]:
    """How many of each class in each window: windows in order, the most frequent class first."""
    window, dead = schema.window, schema.dead_letter
    count = func.count()
    query = (
        select(window.c.starts_at, dead.c.error_class, count, func.min(dead.c.error))
        .where(*selection.conditions())
        .group_by(window.c.starts_at, dead.c.error_class)
        .order_by(window.c.starts_at, count.desc(), dead.c.error_class)
    )
    with engine.connect() as connection:
        rows = connection.execute(query).all()
    return [ErrorGroup(window_start=start, error_class=name, count=number, error=error) for start, name, number, error in rows]


def stream(engine: Engine, selection: Selection, limit: int | None = None) -> Iterator[DeadLetter]:
    """The dead letters by window, partition and offset."""
    window, dead = schema.window, schema.dead_letter
    query = (
        select(dead, window.c.starts_at)
        .where(*selection.conditions())
        .order_by(window.c.starts_at, dead.c.partition, dead.c.offset)
        .limit(limit)
    )
    with engine.connect().execution_options(yield_per=STREAMED_ROWS) as connection:
        for row in connection.execute(query).mappings():
            yield to_dead_letter(row)


def to_dead_letter(row: Any) -> DeadLetter:
    same = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "error_class", "error", "attempt", "run_id")
    return DeadLetter(window_start=row["starts_at"], **{name: row[name] for name in same})


def dead_by_partition(connection: Connection, window_id: int) -> dict[int, int]:
    """How many dead letters a window has, by partition."""
    dead = schema.dead_letter
    query = select(dead.c.partition, func.count()).where(dead.c.window_id == window_id).group_by(dead.c.partition)
    return {partition: count for partition, count in connection.execute(query)}  # noqa: C416  # dict() of rows has no types


@dataclass(frozen=True, slots=True)
class Value:
    """A dead letter's place and value, and the hash of its record."""

    partition: int
    offset: int
    value: bytes | None
    error_class: str
    fingerprint: int


BATCH = text(
    f"""
    with next_ones as (
        select "partition", "offset", coalesce(octet_length(value), 0) size from {SCHEMA}.dead_letter
        where window_id = :window_id and ("partition", "offset") > (:partition, :offset)
        order by "partition", "offset" limit :records
    ), added as (
        select "partition", "offset", sum(size) over (order by "partition", "offset") - size before from next_ones
    )
    select "partition", "offset", value, error_class, fingerprint
    from added join {SCHEMA}.dead_letter using ("partition", "offset")
    where window_id = :window_id and before < :bytes order by "partition", "offset"
    """
).bindparams(bindparam("records", BATCH_RECORDS_MAX), bindparam("bytes", BATCH_BYTES_MAX))


def batches(connection: Connection, window_id: int) -> Iterator[list[Value]]:
    """All values of a window in order, in batches of bounded size. A batch may be deleted before the next is requested."""
    partition, offset = -1, -1
    while True:
        place = {"window_id": window_id, "partition": partition, "offset": offset}
        found = [Value(*row) for row in connection.execute(BATCH, place)]
        if not found:
            return
        yield found
        partition, offset = found[-1].partition, found[-1].offset
