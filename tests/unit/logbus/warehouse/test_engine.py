from __future__ import annotations

import pytest
from logbus.errors import UserError
from logbus.warehouse.engine import libpq_uri, warehouse_url


@pytest.mark.parametrize(
    "url",
    [
        "postgres://me:a%40b@db:5432/logs",
        "postgresql://me:a%40b@db:5432/logs",
        "postgresql+psycopg2://me:a%40b@db:5432/logs",
        "postgresql+psycopg://me:a%40b@db:5432/logs",
    ],
)
def test_every_spelling_of_a_postgresql_url_is_taken(url: str) -> None:
    assert warehouse_url(url).drivername == "postgresql+psycopg"
    assert libpq_uri(url) == "postgresql://me:a%40b@db:5432/logs"


def test_a_unix_socket_stays_one() -> None:
    assert libpq_uri("postgresql+psycopg://postgres@/logbus?host=/tmp/pg") == "postgresql://postgres@/logbus?host=%2Ftmp%2Fpg"


def test_a_space_is_written_as_libpq_reads_it_and_settings_are_added() -> None:
    url = "postgresql://me:a%20b%2Bc@db/logs?options=-c%20search_path%3Dapp"
    assert libpq_uri(url) == "postgresql://me:a%20b+c@db/logs?options=-c%20search_path%3Dapp"
    assert libpq_uri(url, client_encoding="UTF8").endswith("search_path%3Dapp&client_encoding=UTF8")


@pytest.mark.parametrize("url", ["mysql://me@db/logs", "sqlite:///x.db", "nonsense", ""])
def test_what_is_no_postgresql_url_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="postgresql://"):
        warehouse_url(url)
