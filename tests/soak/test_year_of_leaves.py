"""A year of hourly leaves: what maintenance makes of it, with concurrent readers. Nine minutes on a busy machine."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from logbus.loads.engine import connect
from logbus.loads.maintenance import leaves, merge_closed_days
from logbus.loads.sinks.postgres import PostgresSink
from logbus.model import Pipeline, instant_text
from logbus.windows.migrations import create_ledger
from logbus.windows.table_names import leaf_name, parse_table
from sqlalchemy import Connection, Engine, text

from tests.support.postgres import postgres_server, server_directory, warehouse_url  # noqa: F401

START = datetime(2015, 1, 1, tzinfo=UTC)
HOURS = 365 * 24
TARGET = parse_table("t")


def make_leaves(engine: Engine) -> None:
    """A leaf and one row for each hour, as a year of loads leaves them."""
    for day in range(365):
        with engine.begin() as connection:
            for hour in range(24):
                make_leaf(connection, START + timedelta(days=day, hours=hour))


def make_leaf(connection: Connection, start: datetime) -> None:
    leaf, limits = leaf_name(TARGET, start), (instant_text(start), instant_text(start + timedelta(hours=1)))
    connection.execute(text(f"create table {leaf.sql} partition of t for values from ('{limits[0]}') to ('{limits[1]}')"))
    row = "insert into {} (_topic, _partition, _offset, _window_start, _fingerprint, line) values ('t', 0, 1, '{}', 5, 'x')"
    connection.execute(text(row.format(leaf.sql, limits[0])))


def read_all(engine: Engine, stop: threading.Event, seen: list[int]) -> None:
    """Keeps reading everything, as a dashboard does."""
    while not stop.wait(5):
        with engine.connect() as connection:
            seen.append(connection.execute(text("select count(*) from t")).scalar_one())


@pytest.mark.timeout(1_800)
def test_a_year_of_hours_becomes_a_year_of_days_beside_readers(warehouse_url: str) -> None:  # noqa: F811
    engine = connect(warehouse_url)
    create_ledger(engine)
    PostgresSink(Pipeline(name="p", topic="t", table="t", parse="lines"), engine).ensure_target({"line": "text"})
    make_leaves(engine)
    seen: list[int] = []
    stop = threading.Event()
    reader = threading.Thread(target=read_all, args=(engine, stop, seen))
    reader.start()
    merged = 0
    for _ in range(5):  # five nights
        merged += len(merge_closed_days(engine, TARGET, START + timedelta(days=400), time.sleep)[0])
    stop.set()
    reader.join()
    with engine.begin() as connection:
        assert (merged, len(leaves(connection, TARGET))) == (365, 365)
        assert connection.execute(text("select count(*) from t")).scalar_one() == HOURS
    assert seen
    assert set(seen) == {HOURS}
    engine.dispose()
