from __future__ import annotations

from tests.support.databases import ledger_databases, warehouse_url  # noqa: F401
from tests.support.ledgers import world  # noqa: F401
from tests.support.sinks import bench  # noqa: F401
