from __future__ import annotations

from tests.support.broker import broker  # noqa: F401
from tests.support.in_process import without_spark  # noqa: F401
from tests.support.postgres import postgres_server, server_directory, warehouse_url  # noqa: F401
from tests.support.schema_registry import registry  # noqa: F401
from tests.support.spark import load_in_process, remote_session, spark_connect, spark_session  # noqa: F401
