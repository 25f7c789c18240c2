from __future__ import annotations

from tests.support.databases import ledger_databases, warehouse_url  # noqa: F401
from tests.support.ledgers import world  # noqa: F401
from tests.support.postgres import empty_warehouse_url, postgres_server, server_directory  # noqa: F401
from tests.support.quiet_hours import quiet  # noqa: F401
