from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from logbus.parsing.schemas import ARROW_TYPES, row_schema, timestamps
from logbus.warehouse.target import COLUMN_TYPES, SYSTEM_COLUMNS


@pytest.mark.parametrize("stamp", [-1, 2**62, -(2**62)])
def test_a_stamp_that_no_calendar_reaches_is_null(stamp: int) -> None:
    assert timestamps(pa.array([stamp, 0])).to_pylist() == [None, datetime(1970, 1, 1, tzinfo=UTC)]


def test_an_ordinary_stamp_becomes_an_instant() -> None:
    assert timestamps(pa.array([1_431_856_800_123])).to_pylist() == [datetime(2015, 5, 17, 10, 0, 0, 123_000, tzinfo=UTC)]


def test_every_type_and_column_of_a_target_has_its_arrow_side() -> None:
    assert set(ARROW_TYPES) == set(COLUMN_TYPES)
    assert row_schema({}).names == list(SYSTEM_COLUMNS)
