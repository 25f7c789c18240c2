"""Record batches of Arrow: the schemas between a task and its sink, columns declared in a pipeline's settings and how text
becomes their types, and a chunk of values through a parser: columns of what parsed, and each of the rest with the reason.

    {"columns": {"host": "text", "status": "integer", "at": "timestamptz"}}

JSON is passed as text. A timestamp outside the years 1 to 9999 is null.

A parser may have a QUICK path, which takes many values at once and returns Arrow columns, or None where at least one of them must
be parsed individually. Then the chunk is halved and tried again, down to a few values that are parsed one by one: a bad record
among ten thousand costs a few dozen individual parses, not ten thousand.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from logbus.errors import LogbusError, UserError
from logbus.parsing import Filtered, Parser, Unparsable, parse_value, shown
from logbus.parsing.json_records import stored_json, to_date, to_integer
from logbus.parsing.times import instant
from logbus.pipeline_settings import COLUMN_BYTES_MAX, COLUMN_NAMES, COLUMNS_OF_POSTGRES, is_column_name

NOT_OF_A_NAME = re.compile(r"\W+")
HEADER_NAME_BYTES_MAX = COLUMN_BYTES_MAX - len("_9999")  # room for the number of a name that occurs again


def declared_columns(settings: Mapping[str, Any]) -> dict[str, str]:
    """The columns declared in the settings, name to type; possibly none."""
    columns: Mapping[str, str] = settings.get("columns") or {}
    unknown = {str(kind) for kind in columns.values() if kind not in ARROW_TYPES or kind == "bytea"}
    reserved = [repr(name) for name in columns if not is_column_name(name)]
    if unknown or reserved:
        raise UserError(
            f"settings.columns: types are {', '.join(kind for kind in ARROW_TYPES if kind != 'bytea')}, and {COLUMN_NAMES}; "
            f"got {', '.join([*sorted(unknown), *reserved])}"
        )
    return dict(columns)


def columns_named(names: Collection[str], settings: Mapping[str, Any], what: str) -> dict[str, str]:
    """A column for each of the names, in their order: text, unless the settings declare another type. `what` the names are."""
    declared = declared_columns(settings)
    if strangers := [name for name in declared if name not in names]:
        raise UserError(f"settings.columns: {', '.join(strangers)} is not {what}")
    return declared_columns({"columns": {name: declared.get(name, "text") for name in names}})


def column_names(words: Sequence[str]) -> list[str]:
    """A column's name for each word of a header line, in their order: as the word without capitals, blanks and punctuation, each
    once, and one that a column may have. Names made by this function stay as they are."""
    names: list[str] = []
    for number, word in enumerate(words, 1):
        plain = NOT_OF_A_NAME.sub("_", word.casefold()).encode(errors="ignore")[:HEADER_NAME_BYTES_MAX].decode(errors="ignore")
        name = plain.strip("_") or f"field_{number}"
        name += "_" if name in COLUMNS_OF_POSTGRES else ""
        same = itertools.count(2)
        unique = name
        while unique in names:
            unique = f"{name}_{next(same)}"
        names.append(unique)
    return names


def from_text(name: str, kind: str, text: str | None) -> Any:
    """A text as its column's value; null stays null. Raises `Unparsable` where the text is not of the column's type."""
    if text is None or kind == "text":
        return text
    convert = TEXT_CONVERTERS[kind]
    try:
        return convert(text)
    except (TypeError, ValueError, OverflowError, OSError, KeyError, RecursionError):
        raise Unparsable("WrongType", f"{name} is not a valid {kind}: {shown(text)}") from None


BOOLEANS = {"true": True, "t": True, "yes": True, "1": True, "false": False, "f": False, "no": False, "0": False}


def _to_double(text: str) -> float:
    if "_" in text:  # which Python accepts between digits
        raise ValueError(text)
    number = float(text)
    if math.isinf(number) and text.strip("+- \t")[:1] not in ("i", "I"):  # 1e400, which no double holds
        raise OverflowError(text)
    return number


def _integers(bits: int) -> Callable[[str], int]:
    convert = to_integer(bits)
    return lambda text: convert(int(text) if "_" not in text else None)


TEXT_CONVERTERS: Mapping[str, Callable[[str], Any]] = {
    "integer": _integers(32),
    "bigint": _integers(64),
    "double precision": _to_double,
    "boolean": lambda text: BOOLEANS[text.lower()],
    "timestamptz": instant,
    "date": to_date,
    "jsonb": stored_json,
}


# Record batches of Arrow: the schemas between a task and its sink, and a chunk of values through a parser: columns of what
# parsed, and each of the rest with the reason.


TIMESTAMP = pa.timestamp("us", tz="UTC")

# The Arrow types of a parser's columns, by PostgreSQL's type names (logbus.loads.target.COLUMN_TYPES).
ARROW_TYPES: Mapping[str, pa.DataType] = {
    "text": pa.string(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "double precision": pa.float64(),
    "boolean": pa.bool_(),
    "timestamptz": TIMESTAMP,
    "date": pa.date32(),
    "jsonb": pa.string(),
    "bytea": pa.binary(),
}

# Beside these, decimals of a schema's own precision and scale.
NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")


def arrow_type(kind: str) -> pa.DataType:
    """Of a column's type by PostgreSQL's name."""
    if (numeric := NUMERIC.fullmatch(kind)) is not None:
        return pa.decimal128(int(numeric[1]), int(numeric[2]))
    return ARROW_TYPES[kind]


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
FIXED_BYTES: Mapping[pa.DataType, int] = {
    pa.int32(): 4,
    pa.int64(): 8,
    pa.float64(): 8,
    pa.bool_(): 1,
    pa.date32(): 4,
    TIMESTAMP: 8,
}
DECIMAL_BYTES = 24  # of 38 digits at most, four in two bytes

CALENDAR_MS_MIN = -62_135_596_800_000  # year 1: the range that Python, Arrow and PostgreSQL all have
CALENDAR_MS_MAX = 253_402_300_799_999  # year 9999
CALENDAR_US_MIN, CALENDAR_US_MAX = CALENDAR_MS_MIN * 1000, CALENDAR_MS_MAX * 1000 + 999


def parser_schema(columns: Mapping[str, str]) -> pa.Schema:
    """The parser's columns; in a row they follow `ROW_FIELDS`, which say where it comes from."""
    return pa.schema(
        [pa.field(name, arrow_type(kind), metadata=JSON_FIELD if kind == "jsonb" else None) for name, kind in columns.items()]
    )


def unstorable(batch: pa.RecordBatch) -> str | None:
    """What is among the values that a sink cannot store, although it is of the column's type. All sinks have one rule, that of
    PostgreSQL: a pipeline can change its sink, and a window's dead letters do not depend on it."""
    for column, values in zip(batch.schema, batch.columns, strict=True):
        if column.type == pa.string():
            # The texts all lie in one buffer, which is copied and searched fifty times as fast as Arrow matches a substring (7 ns
            # instead of 340 for a text of 200 bytes). Only Arrow can tell whether a NUL in the buffer is in one of these texts
            # or in another one, which the array is a slice without.
            characters = values.buffers()[2]
            may_hold_nul = characters is not None and b"\0" in characters.to_pybytes()
            if may_hold_nul and pc.any(pc.match_substring(values, "\0")).as_py():
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
    size = DECIMAL_BYTES if pa.types.is_decimal(column.type) else FIXED_BYTES.get(column.type)
    if size is not None:
        begins = pc.bit_wise_and(pc.add(ends, size - 1), -size)  # a number lies at a multiple of its size
        return pc.if_else(pc.is_valid(values), pc.add(begins, size), ends)
    lengths = pc.binary_length(values).cast(pa.int64())
    if is_json(column):
        sizes = pc.min_element_wise(pc.add(lengths, JSONB_BYTES), INLINE_BYTES_MAX, skip_nulls=False)
    else:
        sizes = pc.if_else(pc.less(lengths, INLINE_BYTES_MAX), pc.add(lengths, 1), POINTER_BYTES)
    return pc.add(ends, pc.fill_null(sizes, 0))


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


# A chunk of this size is not worth halving again.
ONE_BY_ONE_MAX = 64


@dataclass(slots=True)
class Parsed:
    """The result for a chunk. `rows` are the values at `indexes`; every other value was rejected, with a reason, or filtered."""

    rows: pa.RecordBatch = field(init=False)  # all of them, once the chunk is parsed
    batches: list[pa.RecordBatch] = field(default_factory=list)  # the same, part by part
    indexes: list[int] = field(default_factory=list)
    rejected: list[tuple[int, Unparsable]] = field(default_factory=list)
    filtered: list[int] = field(default_factory=list)


def parse_chunk(parser: Parser, schema: pa.Schema, values: Sequence[bytes | None]) -> Parsed:
    """Every value becomes a row, a rejection, or is filtered. `schema` is that of the parser's columns."""
    result = Parsed()
    for start, end in _spans(parser, schema, values, result):
        rows: dict[int, Sequence[Any]] = {}
        for index, value in enumerate(values[start:end], start):
            try:
                rows[index] = parse_value(parser, value)
            except Filtered:
                result.filtered.append(index)
            except Unparsable as error:
                result.rejected.append((index, error))
        if rows:
            _add_rows(rows, schema, result)
    result.rows = result.batches[0] if len(result.batches) == 1 else _joined(result.batches, schema)
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
    except (MemoryError, LogbusError):
        raise
    except Exception:
        return None
    return None if rows is None or rows.num_rows != len(values) or unstorable(rows) or too_long(rows) else rows


# What Arrow raises for a value that is not of its column's type; Arrow's own exceptions are subclasses of these.
WRONG_TYPE = (TypeError, ValueError, OverflowError)


def _add_rows(rows: Mapping[int, Sequence[Any]], schema: pa.Schema, result: Parsed) -> None:
    """Rows by their indexes. A user's parser may return values of the wrong type, or what no sink can store, or too much for a
    row of a table: only those rows are rejected."""
    try:
        columns = zip(zip(*rows.values(), strict=True), schema.types, strict=True)
        batch = pa.RecordBatch.from_arrays([pa.array(values, kind) for values, kind in columns], schema=schema)
        reason = unstorable(batch)
    except WRONG_TYPE as error:
        reason = f"the parser's values are not of its columns' types: {error}"
    indexes = list(rows)
    if reason is not None and len(rows) == 1:
        result.rejected.append((indexes[0], Unparsable("WrongType", reason)))
        return
    if reason is not None:
        middle = len(rows) // 2
        for half in (indexes[:middle], indexes[middle:]):
            _add_rows({index: rows[index] for index in half}, schema, result)
        return
    if too_long_rows := too_long(batch):
        result.rejected += [(indexes[row], Unparsable("RowTooLong", reason)) for row, reason in too_long_rows.items()]
        fitting = [row for row in range(len(indexes)) if row not in too_long_rows]
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
