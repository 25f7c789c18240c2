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


@pytest.mark.parametrize("url", ["mysql://me@db/logs", "sqlite:///x.db", "nonsense", ""])
def test_what_is_no_postgresql_url_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="postgresql://"):
        warehouse_url(url)
