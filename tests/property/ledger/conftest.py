from __future__ import annotations

from tests.support.in_process import without_spark  # noqa: F401
from tests.support.postgres import postgres_server, server_directory  # noqa: F401
