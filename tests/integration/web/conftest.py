from __future__ import annotations

from tests.support.broker import broker  # noqa: F401
from tests.support.databases import ledger_databases, warehouse_url  # noqa: F401
from tests.support.ledgers import shared_world  # noqa: F401
from tests.support.postgres import empty_warehouse_url, postgres_server, server_directory  # noqa: F401
from tests.support.real_pipeline import engine  # noqa: F401
from tests.support.ui_client import client  # noqa: F401
