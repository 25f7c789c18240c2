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


@dataclass(slots=True, kw_only=True)
class Parsed:
    """The result for a chunk. `rows` are from `places`; every other place was refused, with the reason, or filtered."""

    rows: pa.RecordBatch
    places: Sequence[int]
    refused: Sequence[tuple[int, Unparsable]] = ()
    filtered: Sequence[int] = ()


@dataclass(slots=True)
class Gathered:
    """The results so far of a chunk in progress."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    refused: list[tuple[int, Unparsable]] = field(default_factory=list)
    filtered: list[int] = field(default_factory=list)


def parse_chunk(parser: Parser, schema: pa.Schema, values: Sequence[bytes | None]) -> Parsed:
    """Every value becomes a row, a refusal, or is filtered. `schema` is that of the parser's columns."""
    found = Gathered()
    for start, end in spans(parser, schema, values, found):
        one_by_one(parser, schema, values[start:end], start, found)
    rows = found.batches[0] if len(found.batches) == 1 else joined(found.batches, schema)
    return Parsed(rows=rows, places=found.places, refused=found.refused, filtered=found.filtered)


def spans(parser: Parser, schema: pa.Schema, values: Sequence[bytes | None], found: Gathered) -> Iterator[tuple[int, int]]:
    """Adds to `found`, in order, what the quick path can take; yields the spans in between that it cannot."""
    if parser.quick is None:
        yield 0, len(values)
        return
    waiting = [(0, len(values))]
    while waiting:
        start, end = waiting.pop()
        rows = quick_rows(parser, schema, values[start:end])
        if rows is not None:
            found.batches.append(rows)
            found.places.extend(range(start, end))
        elif end - start <= ONE_BY_ONE_MAX:
            yield start, end
        else:
            middle = (start + end) // 2
            waiting += [(middle, end), (start, middle)]


def quick_rows(parser: Parser, schema: pa.Schema, values: Sequence[bytes | None]) -> pa.RecordBatch | None:
    """None, too, where the quick path fails: one by one, the values that it fails on are found."""
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


def one_by_one(parser: Parser, schema: pa.Schema, values: Sequence[bytes | None], start: int, found: Gathered) -> None:
    rows: dict[int, Sequence[Any]] = {}
    for place, value in enumerate(values, start):
        try:
            rows[place] = parse_value(parser, value)
        except Filtered:
            found.filtered.append(place)
        except Unparsable as error:
            found.refused.append((place, error))
    if rows:
        add_rows(rows, schema, found)


# What Arrow raises for a value that is not of its column's type; Arrow's own exceptions are subclasses of these.
WRONG_TYPE = (TypeError, ValueError, OverflowError)


def add_rows(rows: Mapping[int, Sequence[Any]], schema: pa.Schema, found: Gathered) -> None:
    """Rows by their places. A user's parser may return values of the wrong type, or what no sink can store: only those rows are
    refused."""
    try:
        batch = to_batch(rows.values(), schema)
        reason = unstorable(batch)
    except WRONG_TYPE as error:
        reason = f"the parser's values are not of its columns' types: {error}"
    if reason is None:
        add_fitting(batch, list(rows), found)
    elif len(rows) == 1:
        found.refused += [(place, Unparsable("WrongType", reason)) for place in rows]
    else:
        items = list(rows.items())
        middle = len(items) // 2
        for half in (items[:middle], items[middle:]):
            add_rows(dict(half), schema, found)


def add_fitting(batch: pa.RecordBatch, places: Sequence[int], found: Gathered) -> None:
    """Rows of a batch and their places; those that are too long for a table are refused."""
    reasons = too_long(batch)
    if reasons:
        found.refused += [(places[row], Unparsable("RowTooLong", reason)) for row, reason in reasons.items()]
        fitting = [row for row in range(len(places)) if row not in reasons]
        batch, places = batch.take(pa.array(fitting, pa.int64())), [places[row] for row in fitting]
    if places:
        found.batches.append(batch)
        found.places.extend(places)


def joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Many batches, or none, as one."""
    arrays = [
        pa.concat_arrays([batch.column(place) for batch in batches]) if batches else pa.array([], kind)
        for place, kind in enumerate(schema.types)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
