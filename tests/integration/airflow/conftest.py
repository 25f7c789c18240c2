from __future__ import annotations

import json

import pytest
from logbus.cli.maintenance import warehouse_connection
from logbus.loads.engine import warehouse_url as parse

from tests.support.databases import ledger_databases, warehouse_url  # noqa: F401
from tests.support.ledgers import World, world  # noqa: F401
from tests.support.postgres import postgres_server, server_directory  # noqa: F401


@pytest.fixture(autouse=True)
def connection(warehouse_url: str, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The ledger's database, as a connection of Airflow."""
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE_DEFAULT", json.dumps(warehouse_connection(parse(warehouse_url))))
