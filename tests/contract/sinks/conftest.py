from __future__ import annotations

import pytest
from logbus.warehouse.embedded import EmbeddedPostgres

from tests.support.ledgers import world  # noqa: F401
from tests.support.postgres import emptied, postgres_server, server_directory  # noqa: F401
from tests.support.sinks import bench  # noqa: F401


@pytest.fixture(scope="session")
def shared_url(postgres_server: EmbeddedPostgres) -> str:  # noqa: F811
    return postgres_server.create_database("sinks")


@pytest.fixture
def warehouse_url(shared_url: str) -> str:
    """One database for all of these tests: making one each takes longer than most of them."""
    return emptied(shared_url)
