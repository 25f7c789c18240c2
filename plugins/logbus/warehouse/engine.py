"""Connections to the warehouse: any PostgreSQL of version 14 or newer, named by one URL.

The URL may have any of the usual forms: `postgresql://user:password@host/database`, `postgres://...`, or
SQLAlchemy's own `postgresql+psycopg://...` with `?host=/directory` for a unix socket. SQLAlchemy gets psycopg 3, ADBC
gets a libpq URI; an error never shows the password.
"""

from __future__ import annotations

from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, OperationalError

from logbus.errors import UserError, WarehouseUnavailable
from logbus.ledger.sql_errors import reason_of

# 14 is the oldest release that still gets fixes, and the one the ledger's statements are tested against.
SERVER_VERSION_MIN = 14

# A host that drops packets never answers; without a limit a connect hangs for minutes.
CONNECT_TIMEOUT_SECONDS = 10

DRIVERS = {"postgres", "postgresql", "postgresql+psycopg", "postgresql+psycopg2", "postgresql+asyncpg"}


def warehouse_url(url: str | URL) -> URL:
    """The URL for SQLAlchemy with psycopg 3, whatever PostgreSQL driver it was written for."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise UserError("the warehouse URL cannot be read; it looks like postgresql://user:password@host:5432/database") from None
    if parsed.drivername not in DRIVERS:
        raise UserError(f"the warehouse is PostgreSQL, reached by postgresql://...; {parsed.drivername}:// is something else")
    return parsed.set(drivername="postgresql+psycopg")


def libpq_uri(url: str | URL) -> str:
    """The same database as a libpq URI, which ADBC and psql take. It holds the password: never print it."""
    return warehouse_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def connect(url: str) -> Engine:
    """An engine on a warehouse that answered and is new enough; otherwise `WarehouseUnavailable`."""
    parsed = warehouse_url(url)
    engine = create_engine(parsed, pool_pre_ping=True, connect_args={"connect_timeout": CONNECT_TIMEOUT_SECONDS})
    shown = parsed.render_as_string(hide_password=True)
    try:
        with engine.connect() as connection:
            version = int(connection.execute(text("show server_version_num")).scalar_one()) // 10_000
    except OperationalError as error:
        engine.dispose()
        raise WarehouseUnavailable(
            f"cannot reach the warehouse at {shown}: {reason_of(error)}. "
            "Check that the server runs and that the URL is right; `logbus up` starts one of its own"
        ) from None
    if version < SERVER_VERSION_MIN:
        engine.dispose()
        raise WarehouseUnavailable(
            f"the warehouse at {shown} is PostgreSQL {version}; logbus needs {SERVER_VERSION_MIN} or newer: upgrade the server"
        )
    return engine
