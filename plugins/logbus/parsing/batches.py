"""Record batches of Arrow: the schemas between a task and its sink, and a chunk of values through a parser: columns of what
parsed, and each of the rest with the reason.

JSON is passed as text. A timestamp outside the years 1 to 9999 is null.

A parser may have a QUICK path, which takes many values at once and returns Arrow columns, or None where at least one of them must
be parsed individually. Then the chunk is halved and tried again, down to a few values that are parsed one by one: a bad record
among ten thousand costs a few dozen individual parses, not ten thousand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from logbus.parsing import Filtered, Parser, Unparsable, parse_value

TIMESTAMP = pa.timestamp("us", tz="UTC")

# The Arrow types of a parser's columns, by PostgreSQL's type names (logbus.loads.target.COLUMN_TYPES).
ARROW_TYPES: Mapping[str, pa.DataType] = {
    "text": pa.string(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "double precision": pa.float64(),
    "boolean": pa.bool_(),
    "timestamptz": TIMESTAMP,
    "jsonb": pa.string(),
    "bytea": pa.binary(),
}

# Marks a field whose text is JSON, for sinks that have a JSON type.
JSON_FIELD = {b"logbus": b"json"}

ROW_FIELDS = (
    pa.field("_topic", pa.string()),
    pa.field("_partition", pa.int32()),
    pa.field("_offset", pa.int64()),
    pa.field("_timestamp", TIMESTAMP),
    pa.field("_key", pa.binary()),
    pa.field("_headers", pa.string(), metadata=JSON_FIELD),
    pa.field("_window_start", TIMESTAMP),
    pa.field("_fingerprint", pa.int64()),
)

DEAD_LETTER_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("window_id", pa.int64()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.string(), metadata=JSON_FIELD),
        pa.field("error_class", pa.string()),
        pa.field("error", pa.string()),
        pa.field("attempt", pa.int32()),
        pa.field("fingerprint", pa.int64()),
    ]
)

# PostgreSQL keeps a row in one page of 8 KiB. Where room is short, texts of more than 23 bytes are moved out and leave a pointer.
ROW_BYTES_MAX = 8_160  # with the row's header
POINTER_BYTES = 18
INLINE_BYTES_MAX = 24  # of a text that is never moved, with one byte for its length
JSONB_BYTES = 16  # that a short text of JSON gets longer at most in PostgreSQL's own form
ORIGIN_BYTES_MAX = 200  # of the columns in front of the parser's and a task's number, aligned, and of the header without nulls
FIXED_BYTES: Mapping[pa.DataType, int] = {pa.int32(): 4, pa.int64(): 8, pa.float64(): 8, pa.bool_(): 1, TIMESTAMP: 8}

CALENDAR_MS_MIN = -62_135_596_800_000  # year 1: the range that Python, Arrow and PostgreSQL all have
CALENDAR_MS_MAX = 253_402_300_799_999  # year 9999
CALENDAR_US_MIN, CALENDAR_US_MAX = CALENDAR_MS_MIN * 1000, CALENDAR_MS_MAX * 1000 + 999


def row_schema(columns: Mapping[str, str]) -> pa.Schema:
    """The columns that say where a row comes from, then the parser's."""
    return pa.schema([*ROW_FIELDS, *parser_schema(columns)])


def parser_schema(columns: Mapping[str, str]) -> pa.Schema:
    """The parser's columns alone."""
    return pa.schema(
        [pa.field(name, ARROW_TYPES[kind], metadata=JSON_FIELD if kind == "jsonb" else None) for name, kind in columns.items()]
    )


def unstorable(batch: pa.RecordBatch) -> str | None:
    """What is among the values that a sink cannot store, although it is of the column's type. All sinks have one rule, that of
    PostgreSQL: a pipeline can change its sink, and a window's dead letters do not depend on it."""
    for column, values in zip(batch.schema, batch.columns, strict=True):
        if column.type == pa.string():
            if holds_nul(values):
                return f"{column.name} holds a NUL character, which PostgreSQL's text cannot hold"
        elif column.type == TIMESTAMP:
            span = pc.min_max(values.cast(pa.int64())).as_py()
            if span["min"] is not None and not CALENDAR_US_MIN <= span["min"] <= span["max"] <= CALENDAR_US_MAX:
                return f"{column.name} holds an instant outside the years 1 to 9999"
    return None


def too_long(batch: pa.RecordBatch) -> Mapping[int, str]:
    """The rows that do not fit into PostgreSQL's page, by their index, and why."""
    count = batch.num_columns
    room = ROW_BYTES_MAX - ORIGIN_BYTES_MAX - count // 8
    if count * INLINE_BYTES_MAX <= room:  # whatever they hold
        return {}
    ends = pa.repeat(pa.scalar(0, pa.int64()), len(batch))
    for column, values in zip(batch.schema, batch.columns, strict=True):
        ends = _ends_with(column, values, ends)
    return {
        row: f"{count} columns take {end:,} bytes of a row, which has room for {room:,} once PostgreSQL has moved long texts "
        "out of it (TOAST): declare fewer columns, or one of the type jsonb for many members"
        for row, end in enumerate(ends.to_pylist())
        if end > room
    }


def _ends_with(column: pa.Field, values: pa.Array, ends: pa.Array) -> pa.Array:
    """Where each row ends with this column, if it ended at `ends` before: long texts are moved out, null takes nothing."""
    size = FIXED_BYTES.get(column.type)
    if size is not None:
        begins = pc.bit_wise_and(pc.add(ends, size - 1), -size)  # a number lies at a multiple of its size
        return pc.if_else(pc.is_valid(values), pc.add(begins, size), ends)
    lengths = pc.binary_length(values).cast(pa.int64())
    if is_json(column):
        sizes = pc.min_element_wise(pc.add(lengths, JSONB_BYTES), INLINE_BYTES_MAX, skip_nulls=False)
    else:
        sizes = pc.if_else(pc.less(lengths, INLINE_BYTES_MAX), pc.add(lengths, 1), POINTER_BYTES)
    return pc.add(ends, pc.fill_null(sizes, 0))


def holds_nul(texts: pa.StringArray) -> bool:
    """Whether any of the texts holds a NUL. They all lie in one buffer, which is copied and searched fifty times as fast as Arrow
    matches a substring (7 ns instead of 340 for a text of 200 bytes). Only Arrow can tell whether a NUL in the buffer is in one
    of these texts, or in another one that the array is a slice without."""
    characters = texts.buffers()[2]
    return characters is not None and b"\0" in characters.to_pybytes() and bool(pc.any(pc.match_substring(texts, "\0")).as_py())


def is_json(field: pa.Field) -> bool:
    return bool(field.metadata) and field.metadata.get(b"logbus") == b"json"


def timestamps(stamps_ms: pa.Array) -> pa.Array:
    """Records' timestamps in milliseconds as instants; null where there is none (-1) or it is out of range."""
    span = pc.min_max(stamps_ms).as_py()
    if span["min"] < 0 or span["max"] > CALENDAR_MS_MAX:
        return pa.array([stamp * 1000 if _on_calendar(stamp) else None for stamp in stamps_ms.to_pylist()], TIMESTAMP)
    return stamps_ms.cast(pa.timestamp("ms", tz="UTC")).cast(TIMESTAMP)


def _on_calendar(stamp_ms: int) -> bool:
    return stamp_ms != -1 and CALENDAR_MS_MIN <= stamp_ms <= CALENDAR_MS_MAX


def to_batch(rows: Iterable[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows, at least one, as columns."""
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# A chunk of this size is not worth halving again.
ONE_BY_ONE_MAX = 64


@dataclass(slots=True)
class Parsed:
    """The result for a chunk. `rows` are the values at `indexes`; every other value was rejected, with a reason, or filtered."""

    batches: list[pa.RecordBatch] = field(default_factory=list)  # while the chunk is parsed; then one, with all rows
    indexes: list[int] = field(default_factory=list)
    rejected: list[tuple[int, Unparsable]] = field(default_factory=list)
    filtered: list[int] = field(default_factory=list)

    @property
    def rows(self) -> pa.RecordBatch:
        return self.batches[0]


def parse_chunk(parser: Parser, schema: pa.Schema, values: Sequence[bytes | None]) -> Parsed:
    """Every value becomes a row, a rejection, or is filtered. `schema` is that of the parser's columns."""
    result = Parsed()
    for start, end in _spans(parser, schema, values, result):
        _one_by_one(parser, schema, values[start:end], start, result)
    if len(result.batches) != 1:
        result.batches = [_joined(result.batches, schema)]
    return result


def _spans(parser: Parser, schema: pa.Schema, values: Sequence[bytes | None], result: Parsed) -> Iterator[tuple[int, int]]:
    """Adds to `result`, in order, what the quick path can take; yields the spans in between that it cannot."""
    if parser.quick is None:
        yield 0, len(values)
        return
    waiting = [(0, len(values))]
    while waiting:
        start, end = waiting.pop()
        rows = _quick_rows(parser, schema, values[start:end])
        if rows is not None:
            result.batches.append(rows)
            result.indexes.extend(range(start, end))
        elif end - start <= ONE_BY_ONE_MAX:
            yield start, end
        else:
            middle = (start + end) // 2
            waiting += [(middle, end), (start, middle)]


def _quick_rows(parser: Parser, schema: pa.Schema, values: Sequence[bytes | None]) -> pa.RecordBatch | None:
    """None, too, where the quick path fails: one by one, it turns out which values it fails on."""
    if parser.quick is None or None in values:
        return None
    try:
        columns = parser.quick(cast(Sequence[bytes], values))
        rows = None if columns is None else pa.RecordBatch.from_arrays(columns, schema=schema)
    except MemoryError:
        raise
    except Exception:
        return None
    return None if rows is None or rows.num_rows != len(values) or unstorable(rows) or too_long(rows) else rows


def _one_by_one(parser: Parser, schema: pa.Schema, values: Sequence[bytes | None], start: int, result: Parsed) -> None:
    rows: dict[int, Sequence[Any]] = {}
    for index, value in enumerate(values, start):
        try:
            rows[index] = parse_value(parser, value)
        except Filtered:
            result.filtered.append(index)
        except Unparsable as error:
            result.rejected.append((index, error))
    if rows:
        _add_rows(rows, schema, result)


# What Arrow raises for a value that is not of its column's type; Arrow's own exceptions are subclasses of these.
WRONG_TYPE = (TypeError, ValueError, OverflowError)


def _add_rows(rows: Mapping[int, Sequence[Any]], schema: pa.Schema, result: Parsed) -> None:
    """Rows by their indexes. A user's parser may return values of the wrong type, or what no sink can store: only those rows are
    rejected."""
    try:
        batch = to_batch(rows.values(), schema)
        reason = unstorable(batch)
    except WRONG_TYPE as error:
        reason = f"the parser's values are not of its columns' types: {error}"
    if reason is None:
        _add_fitting(batch, list(rows), result)
    elif len(rows) == 1:
        result.rejected += [(index, Unparsable("WrongType", reason)) for index in rows]
    else:
        items = list(rows.items())
        middle = len(items) // 2
        for half in (items[:middle], items[middle:]):
            _add_rows(dict(half), schema, result)


def _add_fitting(batch: pa.RecordBatch, indexes: Sequence[int], result: Parsed) -> None:
    """Rows of a batch and their indexes; those that are too long for a table are rejected."""
    reasons = too_long(batch)
    if reasons:
        result.rejected += [(indexes[row], Unparsable("RowTooLong", reason)) for row, reason in reasons.items()]
        fitting = [row for row in range(len(indexes)) if row not in reasons]
        batch, indexes = batch.take(pa.array(fitting, pa.int64())), [indexes[row] for row in fitting]
    if indexes:
        result.batches.append(batch)
        result.indexes.extend(indexes)


def _joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Many batches, or none, as one."""
    arrays = [
        pa.concat_arrays([batch.column(index) for batch in batches]) if batches else pa.array([], kind)
        for index, kind in enumerate(schema.types)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
