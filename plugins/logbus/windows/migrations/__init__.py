"""Creates and upgrades the ledger's tables: `create_ledger` may be called at any time, by several processes at once.

Each change of the tables is an alembic revision in `versions/`, a linear history of four-digit numbers; `REVISION` is the last.
All missing revisions run in one transaction under one lock: a crash leaves the ledger as it was, and a second caller finds
nothing to do. An up-to-date ledger costs one select. The revision is stored in `logbus.alembic_version`, so in a database shared
with Airflow, whose own version table is in another schema, the two do not collide.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import ProgrammingError

from logbus.errors import UserError
from logbus.windows.sql_errors import INSUFFICIENT_PRIVILEGE, UNDEFINED_TABLE, sqlstate_of
from logbus.windows.table_names import LEAF_SCHEMA, SCHEMA, STAGING_SCHEMA, quoted

# The last of versions/. If two branches each add a revision of the same number, a test fails when they are merged.
REVISION = "0008"
FIRST_REVISION = "0008"  # of the first release

STORED_REVISION = text(f"select version_num from {SCHEMA}.alembic_version")

# An arbitrary constant, the same for every process: two must not create or upgrade the ledger at the same time.
CREATE_LOCK = 0x6C6F67627573


# alembic keeps the context of a run in a module: threads that upgrade the ledgers of two databases must not run it at once.
ONE_AT_A_TIME = Lock()


def create_ledger(engine: Engine) -> None:
    """Creates whatever is missing. Concurrent calls wait for each other; a ledger of a newer logbus is refused."""
    revision = ledger_revision(engine)
    if revision == REVISION:
        return
    refuse_unknown(revision)
    try:
        with engine.begin() as connection:
            connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": CREATE_LOCK})
            upgrade(connection)
    except ProgrammingError as error:
        refuse_without_privilege(error)
        raise


def ledger_revision(engine: Engine) -> str | None:
    """The revision a ledger is at; None where there is no ledger."""
    try:
        with engine.connect() as connection:
            return connection.scalar(STORED_REVISION)
    except ProgrammingError as error:
        if sqlstate_of(error) == UNDEFINED_TABLE:
            return None
        refuse_without_privilege(error)
        raise


def refuse_without_privilege(error: ProgrammingError) -> None:
    if sqlstate_of(error) == INSUFFICIENT_PRIVILEGE:
        raise UserError(
            f"this user of the warehouse may not read or change the ledger ({str(error.orig).strip()}): run "
            f"`logbus ledger upgrade` as the database's owner, and grant the user the schemas "
            f"{SCHEMA}, {STAGING_SCHEMA} and {LEAF_SCHEMA}; or `logbus roles` as a superuser, and log in as one of those"
        ) from error


def refuse_unknown(revision: str | None) -> None:
    if revision is not None and revision > REVISION:
        raise UserError(f"the ledger has version {revision}, this logbus knows {REVISION}: install a newer logbus")
    if revision is not None and revision < FIRST_REVISION:
        raise UserError(
            f"the ledger has version {revision}, from before the first release, and cannot be upgraded: use a new database; "
            "the records are still in their topics, and `logbus load` loads them again"
        )


def upgrade(connection: Connection) -> None:
    """All missing revisions, in the caller's transaction, which holds the lock."""
    from alembic import command
    from alembic.config import Config

    for name in (SCHEMA, STAGING_SCHEMA, LEAF_SCHEMA):
        create_schema(connection, name)
    if connection.execute(text("select to_regclass(:name)"), {"name": f"{SCHEMA}.alembic_version"}).scalar_one() is not None:
        refuse_unknown(
            connection.scalar(STORED_REVISION)
        )  # another process may have created it while this one waited for the lock
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    with ONE_AT_A_TIME:
        command.upgrade(config, "head")


def create_schema(connection: Connection, name: str) -> None:
    """Creates the schema unless it exists. `if not exists` alone is refused to a role that may create no schema, though there is
    none to create."""
    if not connection.scalar(text("select exists(select from pg_namespace where nspname = :name)"), {"name": name}):
        connection.execute(text(f"create schema if not exists {quoted(name)}"))
