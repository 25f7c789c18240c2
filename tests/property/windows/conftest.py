from __future__ import annotations

from tests.support.postgres import postgres_server, server_directory  # noqa: F401
