from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner
from logbus.cli import maintenance
from logbus.cli.maintenance import airflow_command, warehouse_connection
from logbus.hooks.warehouse import warehouse_url
from logbus.loads.engine import warehouse_url as parse
from logbus.spark_submit import LOAD_POOL

URLS = [
    "postgresql+psycopg://u:p%40ss@h:5433/d?sslmode=require",
    "postgresql+psycopg://u@/d?host=%2Frun%2Fpg",
    "postgresql+psycopg://h/d",
]


@pytest.mark.parametrize("url", URLS)
def test_the_connection_names_the_same_database_as_the_url(url: str) -> None:
    fields = warehouse_connection(parse(url))
    fields.pop("conn_type")
    assert parse(warehouse_url(database=fields.pop("schema"), **fields)) == parse(url)


def test_a_password_in_the_query_is_stored_as_the_connections_password() -> None:
    fields = warehouse_connection(parse("postgresql://h/d?user=u&password=p&sslmode=require"))
    assert (fields["login"], fields["password"], fields["extra"]) == ("u", "p", {"sslmode": "require"})


def test_it_makes_the_pool_our_loads_wait_for_and_says_what_it_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def make_connection(conn_id: str, fields: dict[str, Any], replace: bool) -> bool:
        made.append((conn_id, replace))
        return conn_id != "spark_default"

    monkeypatch.setattr(maintenance, "make_pool", made.append)
    monkeypatch.setattr(maintenance, "make_connection", make_connection)
    warehouse = {"LOGBUS_WAREHOUSE_URL": "postgresql://u:secret@h/d"}
    said = CliRunner(env=warehouse).invoke(airflow_command, ["setup", "--slots", "2"])
    assert said.exit_code == 0, said.output
    assert made == [2, ("kafka_default", False), ("warehouse_default", False), ("spark_default", False)]
    assert f"pool {LOAD_POOL}: 2 slots" in said.output
    assert "spark_default: already exists, unchanged" in said.output
    assert "secret" not in said.output
