"""One embedded PostgreSQL for the whole test session, and a new database for each test that needs one.

In a conftest.py: `from tests.support.postgres import postgres_server, server_directory, warehouse_url  # noqa: F401`
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg
import pytest
from logbus.loads.embedded import EmbeddedPostgres, running_postmaster
from logbus.loads.engine import libpq_uri
from logbus.waiting import PATIENCE_SECONDS

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


@contextmanager
def new_database(server: EmbeddedPostgres) -> Iterator[str]:
    """The URL of an empty database. Its sessions are ended afterwards: engines that tests leave behind keep theirs until Python
    collects them, and a server has a hundred."""
    name = f"test_{next(_numbers)}"
    yield server.create_database(name)
    with suppress(psycopg.Error), psycopg.connect(libpq_uri(server.url("postgres")), autocommit=True) as connection:
        connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])


@pytest.fixture
def warehouse_url(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """The URL of an empty database for this test only."""
    with new_database(postgres_server) as url:
        yield url


@pytest.fixture
def empty_warehouse_url(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """The same, for modules in which `warehouse_url` has a ledger (tests.support.databases)."""
    with new_database(postgres_server) as url:
        yield url


def crash(server: EmbeddedPostgres) -> None:
    """kill -9 the server and all its sessions at once; returns after the server is up again and has recovered."""
    pid = running_postmaster(server.data_directory)
    assert pid is not None
    postmaster = psutil.Process(pid)
    family = [*postmaster.children(recursive=True), postmaster]
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, timeout=PATIENCE_SECONDS)
    server.stop()
    server.start()
