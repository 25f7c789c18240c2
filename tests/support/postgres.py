"""One embedded PostgreSQL for the whole test session, and a new database for each test that needs one.

In a conftest.py: `from tests.support.postgres import postgres_server, server_directory, warehouse_url  # noqa: F401`
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from logbus.warehouse.embedded import EmbeddedPostgres, running_postmaster

# A test does not need its data to survive a crash of the machine.
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

# What a commit wrote is with the operating system, which is not killed: no flush to the disk is needed.
SURVIVES_A_KILL = {"fsync": "off"}

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server_directory() -> Iterator[Path]:
    """Not one of pytest's directories: under root the server runs as another account, and every start of pytest makes its
    directories inaccessible to other accounts."""
    with tempfile.TemporaryDirectory(prefix="logbus-test-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def postgres_server(server_directory: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(server_directory / "pg", settings=FAST) as server:
        yield server


@pytest.fixture
def warehouse_url(postgres_server: EmbeddedPostgres) -> str:
    """The URL of an empty database for this test only."""
    return postgres_server.create_database(f"test_{next(_numbers)}")


@pytest.fixture
def empty_warehouse_url(postgres_server: EmbeddedPostgres) -> str:
    """The same, for modules in which `warehouse_url` has a ledger (tests.support.databases)."""
    return postgres_server.create_database(f"test_{next(_numbers)}")


def crash(server: EmbeddedPostgres) -> None:
    """kill -9 the server and all its sessions at once; returns after the server is up again and has recovered."""
    pid = running_postmaster(server.data_directory)
    assert pid is not None
    postmaster = psutil.Process(pid)
    family = [*postmaster.children(recursive=True), postmaster]
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, timeout=30)
    server.stop()
    server.start()
