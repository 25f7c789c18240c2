"""A chunk of values through a parser: columns of what parsed, and each of the rest with the reason.

A parser may have a QUICK path, which takes many values at once and returns Arrow columns, or None where at least one of them must
be parsed individually. Then the chunk is halved and tried again, down to a few values that are parsed one by one: a bad record
among ten thousand costs a few dozen individual parses, not ten thousand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa

from logbus.parsing import Filtered, Parser, Unparsable, parse_value
from logbus.parsing.schemas import to_batch, too_long, unstorable

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
