"""The Arrow schemas between a task and its sink: rows, dead letters, and the types that a parser may declare.

JSON is passed as text. A timestamp outside the years 1 to 9999 is null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

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
    return pa.schema([*ROW_FIELDS, *(column_field(name, kind) for name, kind in columns.items())])


def parser_schema(columns: Mapping[str, str]) -> pa.Schema:
    """The parser's columns alone."""
    return pa.schema([column_field(name, kind) for name, kind in columns.items()])


def column_field(name: str, kind: str) -> pa.Field:
    return pa.field(name, ARROW_TYPES[kind], metadata=JSON_FIELD if kind == "jsonb" else None)


def unstorable(batch: pa.RecordBatch) -> str | None:
    """What is among the values that a sink cannot store, although it is of the column's type. All sinks have one rule, that of
    PostgreSQL: a pipeline can change its sink, and a window's dead letters do not depend on it."""
    for field, values in zip(batch.schema, batch.columns, strict=True):
        if field.type == pa.string():
            if holds_nul(values):
                return f"{field.name} holds a NUL character, which PostgreSQL's text cannot hold"
        elif field.type == TIMESTAMP:
            span = pc.min_max(values.cast(pa.int64())).as_py()
            if span["min"] is not None and not CALENDAR_US_MIN <= span["min"] <= span["max"] <= CALENDAR_US_MAX:
                return f"{field.name} holds an instant outside the years 1 to 9999"
    return None


def too_long(batch: pa.RecordBatch) -> Mapping[int, str]:
    """The rows that do not fit into PostgreSQL's page, by their index, and why."""
    count = batch.num_columns
    room = ROW_BYTES_MAX - ORIGIN_BYTES_MAX - count // 8
    if count * INLINE_BYTES_MAX <= room:  # whatever they hold
        return {}
    ends = pa.repeat(pa.scalar(0, pa.int64()), len(batch))
    for field, values in zip(batch.schema, batch.columns, strict=True):
        ends = _ends_with(field, values, ends)
    return {
        row: f"{count} columns take {end:,} bytes of a row, which has room for {room:,} once PostgreSQL has moved long texts "
        "out of it (TOAST): declare fewer columns, or one of the type jsonb for many members"
        for row, end in enumerate(ends.to_pylist())
        if end > room
    }


def _ends_with(field: pa.Field, values: pa.Array, ends: pa.Array) -> pa.Array:
    """Where each row ends with this column, if it ended at `ends` before: long texts are moved out, null takes nothing."""
    size = FIXED_BYTES.get(field.type)
    if size is not None:
        begins = pc.bit_wise_and(pc.add(ends, size - 1), -size)  # a number lies at a multiple of its size
        return pc.if_else(pc.is_valid(values), pc.add(begins, size), ends)
    lengths = pc.binary_length(values).cast(pa.int64())
    if is_json(field):
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
