"""Every column type from JSON through Arrow and COPY into PostgreSQL, extremes included."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from logbus.errors import UserError
from logbus.ledger.table_names import parse_table
from logbus.warehouse.target import ensure_target
from sqlalchemy import text

from tests.support.ledgers import World, stamps
from tests.support.loads import Loading

COLUMNS = {
    "host": "text",
    "status": "integer",
    "size": "bigint",
    "seconds": "double precision",
    "ok": "boolean",
    "at": "timestamptz",
    "more": "jsonb",
}
ROWS: list[dict[str, Any]] = [
    {
        "host": "h\u00e9",
        "status": 2**31 - 1,
        "size": -(2**63),
        "seconds": 0.1,
        "ok": False,
        "at": "2015-05-17T10:00:00.123456Z",
        "more": {"a": [1]},
    },
    {"host": "", "status": 0, "size": 0, "seconds": -1e308, "ok": True, "at": "0001-01-01T00:00:00Z", "more": "\u2028"},
    {},
]


class JsonLoading(Loading):
    """Records whose values are `ROWS`."""

    def value(self, partition: int, offset: int) -> bytes:
        return json.dumps(ROWS[offset]).encode()


@pytest.fixture
def loaded(world: World, warehouse_url: str) -> World:
    world.log.append("t", *stamps(10, 10.1, 10.2))
    world.register(parse="json", settings={"columns": COLUMNS})
    JsonLoading(world=world, url=warehouse_url, window=world.freeze(10)).load()
    return world


def test_values_arrive_as_they_are(loaded: World) -> None:
    with loaded.ledger.engine.connect() as connection:
        connection.execute(text("set local timezone = 'UTC'"))  # west of UTC the first instant is in 1 BC, which Python lacks
        found = connection.execute(text(f"select {', '.join(COLUMNS)} from t order by _offset")).all()
    assert tuple(found[0]) == (
        "h\u00e9",
        2**31 - 1,
        -(2**63),
        0.1,
        False,
        datetime(2015, 5, 17, 10, 0, 0, 123456, UTC),
        {"a": [1]},
    )
    assert tuple(found[1])[:5] == ("", 0, 0, -1e308, True)
    assert found[1].more == "\u2028"
    assert set(found[2]) == {None}


def test_a_column_declared_later_is_added_and_older_rows_have_none(loaded: World, warehouse_url: str) -> None:
    loaded.register(parse="json", settings={"columns": {**COLUMNS, "region": "text"}})
    JsonLoading(world=loaded, url=warehouse_url, window=loaded.freeze(11)).load()
    with loaded.ledger.engine.connect() as connection:
        assert connection.execute(text("select count(*), count(region) from t")).one() == (3, 0)


def test_a_column_of_another_type_is_refused_before_anything_is_read(loaded: World) -> None:
    with pytest.raises(UserError, match=r"column status of table public\.t is integer, but the pipeline loads text"):
        ensure_target(loaded.ledger.engine, parse_table("t"), {"status": "text"})


def test_filtered_records_are_counted_and_the_equation_holds(world: World, warehouse_url: str) -> None:
    world.log.append("t", *stamps(10, 10.1, 10.2))
    world.register(parse="json", settings={"columns": COLUMNS, "filter": {"status": [0, None]}})
    counts = JsonLoading(world=world, url=warehouse_url, window=world.freeze(10)).load()
    assert (counts.read, counts.loaded, counts.dead_lettered, counts.filtered) == (3, 2, 0, 1)
    with world.ledger.engine.connect() as connection:
        assert connection.execute(text("select array_agg(_offset order by _offset) from t")).scalar_one() == [1, 2]
