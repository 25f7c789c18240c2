from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from logbus.loads.target import COLUMN_TYPES, SYSTEM_COLUMNS
from logbus.parsing.schemas import ARROW_TYPES, parser_schema, row_schema, timestamps, to_batch, too_long


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
    assert list(too_long(to_batch([short, [value] * count, short], schema))) == ([] if fits else [1])


def test_every_type_and_column_of_a_target_has_its_arrow_side() -> None:
    assert set(ARROW_TYPES) == set(COLUMN_TYPES)
    assert row_schema({}).names == list(SYSTEM_COLUMNS)
