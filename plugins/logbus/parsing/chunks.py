"""A chunk of values through a parser: columns of what parsed, and the rest one by one with the reason.

A parser may have a QUICK way, which takes many values at once and gives Arrow columns, or None where at least one of them wants
to be looked at alone. Then the chunk is halved and tried again, down to a few values that go one by one: a bad record among
ten thousand costs a few dozen single looks and not ten thousand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa

from logbus.parsing import Filtered, Parser, Unparsable, parse_value
from logbus.parsing.schemas import to_batch

# A chunk of this many is not worth halving again.
ONE_BY_ONE_MAX = 64


@dataclass(slots=True, kw_only=True)
class Parsed:
    """What became of a chunk. `rows` came from `places`; every other place was refused, with the reason, or filtered."""

    rows: pa.RecordBatch
    places: Sequence[int]
    refused: Sequence[tuple[int, Unparsable]] = ()
    filtered: Sequence[int] = ()


@dataclass(slots=True)
class Gathered:
    """What is known while a chunk is worked through."""

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
    """Takes what can be taken quickly, in order; gives the spans between that cannot."""
    if parser.quick is None:
        yield 0, len(values)
        return
    waiting = [(0, len(values))]
    while waiting:
        start, end = waiting.pop()
        columns = quick_columns(parser, values[start:end])
        if columns is not None:
            found.batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
            found.places.extend(range(start, end))
        elif end - start <= ONE_BY_ONE_MAX:
            yield start, end
        else:
            middle = (start + end) // 2
            waiting += [(middle, end), (start, middle)]


def quick_columns(parser: Parser, values: Sequence[bytes | None]) -> Sequence[pa.Array] | None:
    if parser.quick is None or None in values:
        return None
    return parser.quick(cast(Sequence[bytes], values))


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


# What Arrow raises over a value that is not of its column's type; its own kinds are of these.
WRONG_TYPE = (TypeError, ValueError, OverflowError)


def add_rows(rows: Mapping[int, Sequence[Any]], schema: pa.Schema, found: Gathered) -> None:
    """Rows by their places. A parser of the user's own may give values of any type: those rows are refused, one by one."""
    try:
        batch = to_batch(rows.values(), schema)
    except WRONG_TYPE as error:
        if len(rows) > 1:
            for place, row in rows.items():
                add_rows({place: row}, schema, found)
        else:
            reason = f"the parser's values are not of its columns' types: {error}"
            found.refused += [(place, Unparsable("WrongType", reason)) for place in rows]
        return
    found.batches.append(batch)
    found.places.extend(rows)


def joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """One batch of many, or of none."""
    arrays = [
        pa.concat_arrays([batch.column(place) for batch in batches]) if batches else pa.array([], kind)
        for place, kind in enumerate(schema.types)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
