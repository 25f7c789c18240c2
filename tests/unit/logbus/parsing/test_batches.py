"""Parsed in bulk or one by one, halved or not: the same rows, the same refusals, each value once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logbus.loads.target import COLUMN_TYPES
from logbus.parsing import Filtered, Parser, Unparsable
from logbus.parsing.batches import (
    ARROW_TYPES,
    ROW_FIELDS,
    TIMESTAMP,
    parse_chunk,
    parser_schema,
    timestamps,
    too_long,
    unstorable,
)
from logbus.windows.table_names import SYSTEM_COLUMNS

SCHEMA = pa.schema([("text", pa.string())])
looked_at: list[bytes] = []


def batch_of(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def parse(value: bytes) -> Sequence[str]:
    """`bad` does not parse, `drop` is filtered, everything else is a row."""
    looked_at.append(value)
    if value == b"bad":
        raise Unparsable("Bad", "it is bad")
    if value == b"drop":
        raise Filtered
    return (value.decode(),)


def quick(values: Sequence[bytes]) -> Sequence[pa.Array] | None:
    return None if {b"bad", b"drop"} & set(values) else [pa.array([value.decode() for value in values])]


ALONE = Parser(columns={"text": "text"}, parse=parse)
QUICK = Parser(columns={"text": "text"}, parse=parse, quick=quick)


@given(st.lists(st.sampled_from([b"good", b"fine", b"bad", b"drop", None]), max_size=400))
def test_both_ways_give_the_same_and_account_for_every_value(values: list[bytes | None]) -> None:
    alone, fast = (parse_chunk(parser, SCHEMA, values) for parser in (ALONE, QUICK))
    assert fast.rows == alone.rows
    assert list(fast.indexes) == list(alone.indexes)
    assert fast.filtered == alone.filtered
    kinds = [[(index, error.kind) for index, error in parsed.rejected] for parsed in (alone, fast)]
    assert kinds[0] == kinds[1]
    assert sorted([*fast.indexes, *fast.filtered, *(index for index, _ in fast.rejected)]) == list(range(len(values)))
    assert [values[index] for index in fast.indexes] == [text.encode() for text in fast.rows["text"].to_pylist()]


def test_one_bad_value_among_many_costs_few_single_looks() -> None:
    looked_at.clear()
    parsed = parse_chunk(QUICK, SCHEMA, [b"good"] * 5_000 + [b"bad"] + [b"good"] * 5_000)
    assert parsed.rows.num_rows == 10_000
    assert [index for index, _ in parsed.rejected] == [5_000]
    assert len(looked_at) <= 64


def test_a_record_without_value_is_refused_whatever_the_parser() -> None:
    (refused,) = parse_chunk(QUICK, SCHEMA, [None]).rejected
    assert (refused[0], refused[1].kind) == (0, "NoValue")


@pytest.mark.parametrize("quickly", [True, False])
def test_a_row_that_no_sink_can_store_is_refused_alone(quickly: bool) -> None:
    """A NUL in a text, an instant outside the calendar."""
    schema = pa.schema([("text", pa.string()), ("at", TIMESTAMP)])
    times = {b"fine": ("fine", 0), b"late": ("late", 2**62), b"early": ("early", -(2**62))}
    rows = {**times, b"nul": ("a\0b", 0), b"none": (None, None)}
    parser = Parser(
        columns={"text": "text", "at": "timestamptz"},
        parse=lambda value: rows[value],
        quick=(lambda values: batch_of([rows[value] for value in values], schema).columns) if quickly else None,
    )
    parsed = parse_chunk(parser, schema, [b"fine", b"nul", b"late", b"early", b"none"])
    assert list(parsed.indexes) == [0, 4]
    assert parsed.rows["text"].to_pylist() == ["fine", None]
    assert [(index, error.kind) for index, error in parsed.rejected] == [(index, "WrongType") for index in (1, 2, 3)]


def test_a_nul_is_found_in_a_slice_alone_and_not_in_its_neighbour() -> None:
    texts = batch_of([["a\0b"], ["fine"]], SCHEMA)
    assert unstorable(texts)
    assert not unstorable(texts[1:])
    assert not unstorable(batch_of([[None], [None]], SCHEMA))


def test_whatever_a_parser_raises_makes_a_dead_letter_but_a_lack_of_memory() -> None:
    def parse(value: bytes) -> Sequence[str]:
        raise {b"deep": RecursionError, b"full": MemoryError}[value]("too much")

    parser = Parser(columns={"text": "text"}, parse=parse)
    (refused,) = parse_chunk(parser, SCHEMA, [b"deep"]).rejected
    assert (refused[1].kind, str(refused[1])) == ("RecursionError", "too much")
    with pytest.raises(MemoryError):
        parse_chunk(parser, SCHEMA, [b"full"])


def test_a_timestamp_becomes_an_instant_and_one_that_no_calendar_reaches_is_null() -> None:
    for stamp in (-1, 2**62, -(2**62)):
        assert timestamps(pa.array([stamp, 0])).to_pylist() == [None, datetime(1970, 1, 1, tzinfo=UTC)]
    assert timestamps(pa.array([1_431_856_800_123])).to_pylist() == [datetime(2015, 5, 17, 10, 0, 0, 123_000, tzinfo=UTC)]


@pytest.mark.parametrize(
    ("count", "kind", "value", "fits"),
    [
        (325, "text", "x" * 23, True),
        (500, "text", None, True),
        (500, "text", "x" * 14, True),
        (500, "text", "x" * 15, False),
        (500, "text", "x" * 9_000, False),
        (430, "bytea", b"x" * 9_000, True),
        (970, "timestamptz", 0, True),
        (970, "boolean", True, True),
        (1_000, "bigint", 0, False),
        (350, "jsonb", "[1]", True),
        (500, "jsonb", "[]", False),
    ],
)
def test_a_row_that_postgresqls_page_cannot_hold_is_found_before_it_is_stored(
    count: int, kind: str, value: object, fits: bool
) -> None:
    schema = parser_schema({f"c{number}": kind for number in range(count)})
    short = [None] * count
    assert list(too_long(batch_of([short, [value] * count, short], schema))) == ([] if fits else [1])


def test_every_type_and_column_of_a_target_has_its_arrow_side() -> None:
    assert set(ARROW_TYPES) == set(COLUMN_TYPES)
    assert [field.name for field in ROW_FIELDS] == list(SYSTEM_COLUMNS)
