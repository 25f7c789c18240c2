from __future__ import annotations

import json

import pytest
from logbus.errors import UserError
from logbus.hooks import warehouse as warehouse_module
from logbus.hooks.warehouse import WarehouseHook
from sqlalchemy import make_url


def connection(monkeypatch: pytest.MonkeyPatch, **fields: object) -> None:
    fields.setdefault("conn_type", "logbus_warehouse")
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE_DEFAULT", json.dumps(fields))


def test_a_server_is_named_by_the_connections_own_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    connection(monkeypatch, host="db.example.com", port=5433, login="loader", password="p@ss/word", schema="logs")
    url = make_url(WarehouseHook().url)
    assert (url.drivername, url.host, url.port, url.username, url.database) == (
        *("postgresql+psycopg", "db.example.com", 5433),
        *("loader", "logs"),
    )
    assert url.password == "p@ss/word"


def test_a_host_that_is_a_path_is_a_socket_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    connection(monkeypatch, host="/run/pg", login="postgres", schema="logbus")
    assert WarehouseHook().url == "postgresql+psycopg://postgres@/logbus?host=%2Frun%2Fpg"


def test_a_postgres_connection_works_and_only_libpq_parameters_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    connection(monkeypatch, conn_type="postgres", host="h", schema="d", extra={"sslmode": "require", "cursor": "dictcursor"})
    assert WarehouseHook().url == "postgresql+psycopg://h/d?sslmode=require"


def test_another_type_of_connection_is_refused_with_the_right_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    connection(monkeypatch, conn_type="mysql", host="h")
    with pytest.raises(UserError, match="'logbus_warehouse' or 'postgres'"):
        _ = WarehouseHook().url


def test_the_password_is_masked_as_it_is_and_as_a_url_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    connection(monkeypatch, host="h", login="u", password="p@ss word")
    masked: list[str] = []
    monkeypatch.setattr(warehouse_module, "mask_secret", masked.append)
    _ = WarehouseHook().url
    assert {"p@ss word", "p%40ss%20word", "p%40ss+word", "p%40ss word"} == set(masked)


def test_the_connection_test_says_what_is_wrong_without_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    connection(monkeypatch, host="/nowhere", login="u", password="hidden", schema="d")
    ok, message = WarehouseHook().test_connection()
    assert not ok
    assert "cannot reach the warehouse" in message
    assert "hidden" not in message
