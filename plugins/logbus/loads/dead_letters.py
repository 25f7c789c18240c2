"""Dead letters: the records of a window that did not parse, kept with their bytes, their error and the run that encountered it;
and one record followed into the tables: which window of a pipeline holds its offset, and what became of it there.

They belong to the window just as its rows do: a load replaces both, a redrive turns some dead letters into rows. They are
streamed when read, because there may be any number of them.

A record is where its offset is, whatever its time says (docs/which-window.md). In a loaded window it is a row, a dead letter,
or was left out by the pipeline's filter. Offsets are those of the topic as it is now: windows of a topic that was recreated since
are of other records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, bindparam, func, select, text
from sqlalchemy.exc import DBAPIError

from logbus import errors, formatting, model
from logbus.formatting import cut, shown_value
from logbus.loads import commit_checks
from logbus.loads.commit_checks import VALUE_BYTES_KEPT_MAX
from logbus.loads.sinks import sink_for
from logbus.model import FrozenWindow, instant_text
from logbus.windows import rows, schema, sql_errors
from logbus.windows.table_names import SCHEMA

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
        conditions = [window.c.pipeline == self.pipeline, window.c.id == dead.c.window_id]
        if self.since is not None:
            conditions.append(window.c.starts_at >= self.since)
        if self.until is not None:
            conditions.append(window.c.starts_at <= self.until)
        if self.error_class is not None:
            conditions.append(dead.c.error_class == self.error_class)
        return conditions


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


def at(connection: Connection, window: FrozenWindow, partition: int, offset: int) -> DeadLetter | None:
    """The dead letter of one record of a window, if it is one."""
    dead = schema.dead_letter
    query = select(dead).where(dead.c.window_id == window.id, dead.c.partition == partition, dead.c.offset == offset)
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else to_dead_letter({**row, "starts_at": window.interval.start})


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
    headers: Sequence[Any] | None = None  # as `DeadLetter` has them


BATCH = text(
    f"""
    with next_ones as (
        select "partition", "offset", coalesce(octet_length(value), 0) size from {SCHEMA}.dead_letter
        where window_id = :window_id and ("partition", "offset") > (:partition, :offset)
        order by "partition", "offset" limit :records
    ), added as (
        select "partition", "offset", sum(size) over (order by "partition", "offset") - size before from next_ones
    )
    select "partition", "offset", value, error_class, fingerprint, headers
    from added join {SCHEMA}.dead_letter using ("partition", "offset")
    where window_id = :window_id and before < :bytes order by "partition", "offset"
    """
).bindparams(bindparam("records", BATCH_RECORDS_MAX), bindparam("bytes", BATCH_BYTES_MAX))


def batches(connection: Connection, window_id: int) -> Iterator[list[Value]]:
    """All values of a window in order, in batches of bounded size. A batch may be deleted before the next is requested."""
    partition, offset = -1, -1
    while True:
        after = {"window_id": window_id, "partition": partition, "offset": offset}
        values = [Value(*row) for row in connection.execute(BATCH, after)]
        if not values:
            return
        yield values
        partition, offset = values[-1].partition, values[-1].offset


# Dead letters of a window by the shape of their error: a thousand that fail in the same way are one thing to look at.
#
# The shape is the error without what is specific to one record: the excerpt of its value at the end, and numbers, which become N.
# Shapes are listed by frequency, the most frequent first, with the first few records of each.


SHAPES_MAX = 10
SAMPLES_OF_SHAPE = 3  # `logbus dead-letter show` has all
ERROR_CHARACTERS_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`count` dead letters of one class with errors of the same shape; `samples` are the first of them, as JSON-ready values."""

    error_class: str
    error: str
    count: int
    samples: list[dict[str, Any]] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return {"error_class": self.error_class, "error": self.error, "count": self.count, "samples": self.samples}


# Parsers end an error with the record's text in quotes (logbus.parsing.shown), after a colon, "in" or "match". The text
# before it may have quotes too ("member 'bytes' is not a valid bigint: ..."), so one of these is required. Numbers are masked
# after that: "line 1 column 20" and "line 1 column 33" are the same.
# Only the beginning of an error is used: a custom parser may write megabytes, and a back reference scans a long text over and
# over.
HEAD = f"left(error, {ERROR_CHARACTERS_MAX})"
WITHOUT_VALUE = rf"""regexp_replace(regexp_replace({HEAD}, '^(.*?)(:| in| match) ([''"]).*\3$', '\1\2'), '(:| in)$', '')"""
SHAPE = rf"regexp_replace({WITHOUT_VALUE}, '\d+', 'N', 'g')"

# Only partitions and offsets are ranked, and the few that are shown are looked up again: values may be megabytes, and a million
# records may have failed.
RANKED = text(
    f"""
    with ranked as (
        select "partition", "offset", shape, error_class, count(*) over each of_shape,
            row_number() over (partition by error_class, shape order by "partition", "offset") nth
        from (
            select "partition", "offset", error_class, {SHAPE} shape from {SCHEMA}.dead_letter where window_id = :window_id
        ) shaped
        window each as (partition by error_class, shape)
    )
    select ranked.*, dead."timestamp", left(dead.error, {ERROR_CHARACTERS_MAX}) error,
        substring(dead.key for :bytes) "key", substring(dead.value for :bytes) "value", octet_length(dead.value) value_bytes
    from (
        select * from ranked where nth <= {SAMPLES_OF_SHAPE}
        order by of_shape desc, error_class, shape, nth limit {SHAPES_MAX * SAMPLES_OF_SHAPE}
    ) ranked
    join {SCHEMA}.dead_letter dead on dead.window_id = :window_id
        and dead."partition" = ranked."partition" and dead."offset" = ranked."offset"
    order by of_shape desc, error_class, shape, nth
    """
)


def shapes_of(connection: Connection, window_id: int) -> list[Shape]:
    """The most frequent shapes first, at most `SHAPES_MAX`."""
    shapes: dict[tuple[str, str], Shape] = {}
    for row in connection.execute(RANKED, {"window_id": window_id, "bytes": VALUE_BYTES_KEPT_MAX}).mappings():
        key = row["error_class"], row["shape"]
        shape = shapes.setdefault(key, Shape(error_class=key[0], error=key[1], count=row["of_shape"]))
        shape.samples.append(sample_json(row))
    return list(shapes.values())[:SHAPES_MAX]


def sample_json(row: Mapping[Any, Any]) -> dict[str, Any]:
    """`key` and `value` as text; bytes that are not text are given in base64, with None as the text. Long values are cut."""
    shown: dict[str, Any] = {}
    is_cut = (row["value_bytes"] or 0) > VALUE_BYTES_KEPT_MAX
    for name in ("key", "value"):
        texts = shown_value(cut(row[name], VALUE_BYTES_KEPT_MAX))
        shown |= {name: texts.get("value"), **({f"{name}_base64": texts["value_base64"]} if "value_base64" in texts else {})}
    same = ("partition", "offset", "error", "value_bytes")
    return {
        **{name: row[name] for name in same},
        "value_is_cut": is_cut,
        "timestamp": row["timestamp"] and instant_text(row["timestamp"]),
        **shown,
    }


# One record of a topic, followed into the tables: which window of a pipeline holds its offset, and what became of it there.


class RecordFate(StrEnum):
    """What became of a record."""

    NO_WINDOW = "in no window yet"
    NOT_LOADED = "not loaded yet"
    LOADED = "loaded"
    DEAD_LETTER = "dead letter"
    NO_ROW = "no row"  # a filter left it out, or there never was a record at this offset, or its row was deleted since
    UNKNOWN = "unknown"  # the table did not say


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTrace:
    """Of one record in one pipeline. `problem` is why the table did not say."""

    pipeline: model.Pipeline
    fate: RecordFate
    window: model.FrozenWindow | None = None
    rows: Sequence[Mapping[str, Any]] = ()
    dead_letter: DeadLetter | None = None
    problem: str | None = None

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return {
            "pipeline": self.pipeline.name,
            "table": self.pipeline.table,
            "sink": self.pipeline.options.sink,
            "fate": self.fate.value,
            "window": None if self.window is None else self.window.summary(),
            "rows": [{name: shown(value) for name, value in row.items()} for row in self.rows],
            "dead_letter": self.dead_letter
            and {
                "error_class": self.dead_letter.error_class,
                "error": self.dead_letter.error,
                "attempt": self.dead_letter.attempt,
            },
            "problem": self.problem,
        }


def shown(value: Any) -> Any:
    """A column's value in JSON: bytes as text if they are text, long values cut."""
    if isinstance(value, bytes | memoryview):
        content = formatting.shown_value(formatting.cut(bytes(value), commit_checks.VALUE_BYTES_KEPT_MAX))
        return content.get("value", f"base64 {content.get('value_base64')}")
    if isinstance(value, datetime):
        return model.instant_text(value)
    if isinstance(value, int | float | bool | None):
        return value
    return str(value)[: commit_checks.VALUE_BYTES_KEPT_MAX]


def trace_record(engine: Engine, pipeline: model.Pipeline, partition: int, offset: int) -> RecordTrace:
    """The record at this offset of the pipeline's topic."""
    with engine.connect() as connection:
        window = window_at(connection, pipeline.name, partition, offset)
        if window is None:
            return RecordTrace(pipeline=pipeline, fate=RecordFate.NO_WINDOW)
        if window.counts is None:
            return RecordTrace(pipeline=pipeline, fate=RecordFate.NOT_LOADED, window=window)
        dead_letter = at(connection, window, partition, offset)
    if dead_letter is not None:
        return RecordTrace(pipeline=pipeline, fate=RecordFate.DEAD_LETTER, window=window, dead_letter=dead_letter)
    try:
        in_table = sink_for(pipeline, engine).rows_of(window, partition, offset)
    except (errors.UserError, DBAPIError, OSError) as error:
        reason = sql_errors.reason_of(error) if isinstance(error, DBAPIError) else str(error)
        problem = f"table {pipeline.table} was not asked: {reason}"
        return RecordTrace(pipeline=pipeline, fate=RecordFate.UNKNOWN, window=window, problem=problem)
    fate = RecordFate.LOADED if in_table else RecordFate.NO_ROW
    return RecordTrace(pipeline=pipeline, fate=fate, window=window, rows=in_table)


def window_at(connection: Connection, pipeline_name: str, partition: int, offset: int) -> model.FrozenWindow | None:
    """The window of the topic as it is now that holds this offset."""
    window, part, pipeline = schema.window, schema.window_range, schema.pipeline
    query = (
        select(window)
        .join(part, part.c.window_id == window.c.id)
        .join(pipeline, (pipeline.c.name == window.c.pipeline) & (pipeline.c.topic_id == window.c.topic_id))
        .where(
            window.c.pipeline == pipeline_name,
            part.c.partition == partition,
            part.c.start_offset <= offset,
            part.c.end_offset > offset,
        )
        .order_by(window.c.starts_at.desc())
        .limit(1)
    )
    return next(iter(rows.load_windows(connection, query)), None)
