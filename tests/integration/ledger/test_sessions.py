"""Whatever a server, a database or the environment sets for a session, the same is frozen, loaded and proven."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from logbus.errors import WarehouseUnavailable
from logbus.loads.engine import connect, libpq_uri
from logbus.model import Interval, milliseconds
from logbus.windows import catch_up
from sqlalchemy import make_url

from tests.support.ledgers import NOW, World, opened, stamps
from tests.support.loads import Loading

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
SETTINGS = {"timezone": "Europe/Berlin", "datestyle": "German", "intervalstyle": "iso_8601", "client_encoding": "LATIN1"}


@pytest.fixture
def abroad(empty_warehouse_url: str) -> Iterator[World]:
    """A log and a ledger in a database whose sessions begin with other settings than ours."""
    with psycopg.connect(libpq_uri(empty_warehouse_url), autocommit=True) as connection:
        for name, value in SETTINGS.items():
            connection.execute(f"alter database \"{connection.info.dbname}\" set {name} to '{value}'".encode())
    with opened(empty_warehouse_url) as world:
        yield world


@pytest.mark.parametrize(("first", "last"), [((3, 20), (6, 10)), ((10, 20), (11, 5))], ids=["spring", "autumn"])
def test_days_that_are_frozen_together_have_24_hours(abroad: World, first: tuple[int, int], last: tuple[int, int]) -> None:
    noons = [datetime(2015, *day, 12, tzinfo=UTC) for day in (first, last)]
    abroad.log.append("t", *map(milliseconds, noons))
    abroad.register(interval=DAY)
    catch_up.freeze_plan(abroad.ledger.engine, abroad.ledger.plan_load("p", abroad.log, NOW), abroad.log, NOW)
    midnight, end = noons[0].replace(hour=0), noons[1].replace(hour=0)
    days = [midnight + number * DAY for number in range((end - midnight).days + 1)]
    assert [window.interval for window in abroad.ledger.windows("p")] == [Interval(day, day + DAY) for day in days]


@pytest.mark.parametrize("stamp", [253_402_300_799_999, -62_135_596_800_000], ids=["end of 9999", "begin of year 1"])
def test_stamps_at_the_ends_of_the_calendar_are_read(abroad: World, empty_warehouse_url: str, stamp: int) -> None:
    abroad.log.append("t", *stamps(10, 10.1), stamp, *stamps(10.2, 11.5))
    abroad.register()
    assert Loading.of(abroad, 10).load().loaded == 4


class Umlauts(Loading):
    def value(self, partition: int, offset: int) -> bytes:
        return "Zürich 20 €".encode()


def test_texts_are_stored_as_they_are_whatever_the_client_encoding(
    abroad: World, empty_warehouse_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    abroad.fill(10, 11.5)
    Umlauts.of(abroad, 10).load()
    assert abroad.one("select line from t") == "Zürich 20 €"


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_in_another_encoding_is_refused_with_what_to_do(empty_warehouse_url: str, encoding: str) -> None:
    name = f"in_{encoding}_{make_url(empty_warehouse_url).database}".lower()
    with psycopg.connect(libpq_uri(empty_warehouse_url), autocommit=True) as connection:
        connection.execute(f"create database {name} template template0 encoding '{encoding}' locale 'C'".encode())
    url = make_url(empty_warehouse_url).set(database=name).render_as_string(hide_password=False)
    with pytest.raises(WarehouseUnavailable, match=f"encoding {encoding}, and records are UTF8: .*createdb --encoding UTF8"):
        connect(url)


def test_the_options_of_a_url_reach_every_session(empty_warehouse_url: str) -> None:
    url = f"{empty_warehouse_url}&options=-c%20search_path%3Dapp%20-c%20statement_timeout%3D7s"
    with connect(url).connect() as by_ledger, psycopg.connect(libpq_uri(url)) as by_task:
        for settings in (by_ledger.connection.driver_connection, by_task):
            assert isinstance(settings, psycopg.Connection)
            shown = [settings.execute(f"show {name}".encode()).fetchone() for name in ("search_path", "statement_timeout")]
            assert shown == [("app",), ("7s",)]
