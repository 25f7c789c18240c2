from __future__ import annotations

from collections.abc import Callable

import adbc_driver_postgresql
import pytest
from click.testing import CliRunner, Result
from logbus.cli import main

from tests.support.databases import ledger_databases, warehouse_url  # noqa: F401
from tests.support.in_process import kept_database, without_spark  # noqa: F401
from tests.support.ledgers import World, shared_world, world  # noqa: F401
from tests.support.postgres import empty_warehouse_url, postgres_server, server_directory  # noqa: F401


@pytest.fixture(autouse=True)
def types_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task's connection asks the server for all its types, which takes longer than most loads here."""
    monkeypatch.setattr(adbc_driver_postgresql, "connect", kept_database)


@pytest.fixture
def run(world: World) -> Callable[..., Result]:  # noqa: F811
    """Runs a command; its warehouse is the world's."""
    runner = CliRunner(env={"LOGBUS_WAREHOUSE_URL": world.url, "LOGBUS_BOOTSTRAP_SERVER": None, "COLUMNS": "200"})
    return lambda *words: runner.invoke(main, words, catch_exceptions=False)
