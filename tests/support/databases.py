"""Databases with an empty ledger, one for each test that needs one, reused if the test has left the ledger's schema unchanged.

Creating a database with a ledger takes longer than most tests of the ledger. After a test its connections are terminated, its
tables dropped and the ledger's truncated; a database whose ledger has itself changed (columns, triggers, versions, the database's
settings) is not used again.

In a conftest.py: `from tests.support.databases import ledger_databases, warehouse_url  # noqa: F401`, and the server's fixtures.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import psycopg
import pytest
from logbus.loads.embedded import EmbeddedPostgres
from logbus.loads.engine import connect, libpq_uri
from logbus.windows.migrations import create_ledger

KEPT = ("alembic_version",)
CLEAN_LOCK_TIMEOUT = "5s"

END_THE_OTHERS = (
    "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
)

# Everything about the ledger that a test may change and that truncating its tables does not restore.
SHAPE = """
    select md5(concat(
        (select string_agg(concat(relname, attnum, attname, atttypid, attnotnull, attisdropped, atthasdef), ',' order by relname, attnum)
         from pg_attribute join pg_class c on c.oid = attrelid where relnamespace = 'logbus'::regnamespace),
        (select string_agg(concat(conrelid::regclass, conname), ',' order by conrelid::regclass::text, conname)
         from pg_constraint where connamespace = 'logbus'::regnamespace),
        (select count(*) from pg_trigger where not tgisinternal),
        (select count(*) from pg_proc where pronamespace not in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)),
        (select string_agg(version_num, ',') from logbus.alembic_version),
        (select count(*) from pg_event_trigger), (select count(*) from pg_db_role_setting)
    ))
"""

_numbers = itertools.count(1)


class LedgerDatabases:
    """The databases of one server, taken and given back by name."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._server = server
        self._free: list[str] = []
        self._shape: str | None = None

    def take(self) -> str:
        if self._free:
            return self._free.pop()
        name = f"ledger_{next(_numbers)}"
        engine = connect(self._server.create_database(name))
        create_ledger(engine)
        engine.dispose()
        if self._shape is None:
            with self._connection(name) as connection:
                self._shape = shape_of(connection)
        return name

    def give_back(self, name: str) -> None:
        """Empties the database for the next test, or abandons it."""
        try:
            with self._connection(name) as connection:
                empty(connection)
                if shape_of(connection) == self._shape:
                    self._free.append(name)
        except psycopg.Error:
            return

    def url(self, name: str) -> str:
        return self._server.url(name)

    def _connection(self, name: str) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(libpq_uri(self._server.url(name)))


def shape_of(connection: psycopg.Connection[tuple[object, ...]]) -> str:
    row = connection.execute(SHAPE).fetchone()
    assert row is not None
    return str(row[0])


def empty(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    connection.execute(END_THE_OTHERS)
    connection.execute(f"set local lock_timeout = '{CLEAN_LOCK_TIMEOUT}'")
    tables = connection.execute("select tablename from pg_tables where schemaname = 'logbus'").fetchall()
    names = ", ".join(f'logbus."{name}"' for (name,) in tables if name not in KEPT)
    connection.execute(f"truncate {names} restart identity cascade")  # type: ignore[call-overload]
    others = "select nspname from pg_namespace where nspname !~ '^pg_' and nspname not in ('information_schema', 'logbus')"
    for (schema,) in connection.execute(others).fetchall():
        connection.execute(f'drop schema "{schema}" cascade')  # type: ignore[call-overload]
    for schema in ("public", "logbus_staging", "logbus_leaf"):
        connection.execute(f"create schema {schema}")  # type: ignore[call-overload]


@pytest.fixture(scope="session")
def ledger_databases(postgres_server: EmbeddedPostgres) -> LedgerDatabases:
    return LedgerDatabases(postgres_server)


@pytest.fixture
def warehouse_url(ledger_databases: LedgerDatabases) -> Iterator[str]:
    """The URL of a database that holds an empty ledger and nothing else."""
    name = ledger_databases.take()
    yield ledger_databases.url(name)
    ledger_databases.give_back(name)
