from __future__ import annotations

from tests.support.airflow_context import runs  # noqa: F401
from tests.support.cluster_loads import start_task  # noqa: F401
from tests.support.databases import ledger_databases, warehouse_url  # noqa: F401
from tests.support.in_process import without_spark  # noqa: F401
from tests.support.ledgers import world  # noqa: F401
from tests.support.postgres import postgres_server, server_directory  # noqa: F401
