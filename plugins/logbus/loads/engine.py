"""Connections to the warehouse: any PostgreSQL of version 14 or newer, named by one URL.

The URL may have any of the usual forms: `postgresql://user:password@host/database`, `postgres://...`, or
SQLAlchemy's own `postgresql+psycopg://...` with `?host=/directory` for a unix socket. SQLAlchemy gets psycopg 3, ADBC
gets a libpq URI; an error never shows the password, wherever in the URL it is.

What a server, a database, a role or the environment sets for a session must not change what is loaded, so each session sets it
itself (`SESSION`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, OperationalError, ProgrammingError

from logbus import errors, waiting
from logbus.windows.sql_errors import reason_of

# 14 is the oldest release that still gets fixes, and the one the ledger's statements are tested against.
SERVER_VERSION_MIN = 14

# For each address of the host, unless the URL has a `connect_timeout` of its own. A server that swaps or was stopped for a minute
# has accepted through its kernel and answers late; an address that drops packets never does, and TCP gives up on it as late.
CONNECT_TIMEOUT_SECONDS = 120

PING_TIMEOUT_SECONDS = 5  # only for a server that has just answered: libpq keeps Python's lock, so every thread waits for it

# A server takes its time zone from its host. In a zone with summer time psycopg returns instants that Python does not find equal
# to the same instants in UTC (the two hours of an autumn night), PostgreSQL adds a day of 23 hours to an instant, and its
# calendar ends some hours earlier. Dates and intervals in other styles cannot be read.
SESSION = "set timezone = 'UTC'; set datestyle = 'ISO, MDY'; set intervalstyle = 'postgres'; set client_encoding = 'UTF8'"

# Records are UTF-8. A database in another encoding has no character for some of them, or does not know what its bytes mean.
# ADBC's COPY sends UTF-8 whatever the session expects: a task's connection says so, or other texts would be stored.
ENCODING = "UTF8"

# libpq takes these as parameters too, where nothing would hide them.
FIELDS_IN_QUERY = ("user", "password")
SHOWN_INSTEAD = "hidden"

DRIVERS = {"postgres", "postgresql", "postgresql+psycopg", "postgresql+psycopg2", "postgresql+asyncpg"}


def warehouse_url(url: str | URL) -> URL:
    """The URL for SQLAlchemy with psycopg 3, whatever PostgreSQL driver it was written for."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise errors.UserError(
            "the warehouse URL cannot be parsed; it should look like postgresql://user:password@host:5432/database"
        ) from None
    if parsed.drivername not in DRIVERS:
        raise errors.UserError(
            f"the warehouse is PostgreSQL, reached by postgresql://...; {parsed.drivername}:// is something else"
        )
    # Here once, and not where each of them is shown or stored. Like libpq: a parameter is taken before what the address says,
    # and the last of several.
    given = map(parsed.query.get, FIELDS_IN_QUERY)
    user, password = (value[-1] if isinstance(value, tuple) else value for value in given)
    return parsed.difference_update_query(FIELDS_IN_QUERY).set(
        drivername="postgresql+psycopg",
        username=parsed.username if user is None else user,
        password=parsed.password if password is None else password,
    )


def shown_url(url: URL) -> str:
    """The URL for people: without passwords, and without what may be one under a mistyped name."""
    from psycopg.pq import Conninfo  # only an error needs it

    display_marks = {option.keyword.decode(): option.dispchar for option in Conninfo.get_defaults()}
    hidden = {name for name in url.query if name == "passfile" or display_marks.get(name, b"*") == b"*"}
    shown = url.update_query_dict(dict.fromkeys(hidden, SHOWN_INSTEAD)) if hidden else url
    return shown.render_as_string(hide_password=True)


def libpq_uri(url: str | URL, **settings: str) -> str:
    """The same database as a libpq URI, which ADBC and psql take; `settings` are more of libpq's keywords. It holds the password:
    never print it. `url`: as a user writes it, or as `warehouse_url` returns it and engines have it."""
    parsed = (url if isinstance(url, URL) else warehouse_url(url)).set(drivername="postgresql")
    # libpq reads %20 as a space, but not the plus sign that SQLAlchemy writes in a query and the space that it writes before it.
    without_query = parsed.set(query={}).render_as_string(hide_password=False).replace(" ", "%20")
    query = urlencode({**parsed.query, **settings}, doseq=True, quote_via=quote, safe="")
    return f"{without_query}?{query}" if query else without_query


# Of ADBC's connections. Its COPY sends UTF-8 whatever the session expects: other encodings would store other texts. The name is
# for pg_stat_activity, unless the URL sets another.
COPY_SETTINGS = {"client_encoding": ENCODING, "fallback_application_name": "logbus task"}


class ServerStarting(Exception):
    """A server is there that takes no connections yet: it starts, or recovers after a crash."""


def connect(url: str | URL, *, timeout_seconds: int = CONNECT_TIMEOUT_SECONDS, say: waiting.Say = waiting.logged) -> Engine:
    """An engine on a warehouse that answered and is new enough; otherwise `WarehouseUnavailable`.

    A server that is slow or starting is waited for, within the limit of each connection attempt. One that refuses, a name that
    cannot be resolved and a wrong password are errors at once.
    """
    parsed = warehouse_url(url)
    server = f"the warehouse at {shown_url(parsed)}"
    limit = {} if "connect_timeout" in parsed.query else {"connect_timeout": timeout_seconds}
    try:
        engine = create_engine(parsed, pool_pre_ping=True, connect_args=limit)
    except ArgumentError as error:
        raise errors.UserError(f"the warehouse URL {shown_url(parsed)} cannot be used: {error}") from None
    event.listen(engine, "do_connect", _begin_session)

    def look() -> tuple[int, str]:
        try:
            with engine.connect() as connection:
                version = int(connection.execute(text("show server_version_num")).scalar_one()) // 10_000
                return version, connection.execute(text("show server_encoding")).scalar_one()
        except OperationalError as error:
            if _is_starting(parsed, error):
                raise ServerStarting(reason_of(error)) from error
            raise

    try:
        version, encoding = waiting.wait_until(
            look, what=server, timeout_seconds=timeout_seconds, not_yet=ServerStarting, say=say
        )
    except errors.NotInTime as error:
        engine.dispose()
        raise errors.WarehouseUnavailable(str(error)) from None
    except ProgrammingError as error:  # psycopg has refused a parameter that libpq does not know
        engine.dispose()
        raise errors.UserError(f"the warehouse URL {shown_url(parsed)} cannot be used: {reason_of(error)}") from None
    except OperationalError as error:
        engine.dispose()
        raise errors.WarehouseUnavailable(
            f"cannot reach the warehouse at {shown_url(parsed)}: {reason_of(error)}. "
            "Check that the server runs and that the URL is right; `logbus up` starts one of its own"
        ) from None
    if version < SERVER_VERSION_MIN:
        engine.dispose()
        raise errors.WarehouseUnavailable(
            f"the warehouse at {shown_url(parsed)} is PostgreSQL {version}; "
            f"logbus needs {SERVER_VERSION_MIN} or newer: upgrade the server"
        )
    if encoding != ENCODING:
        engine.dispose()
        raise errors.WarehouseUnavailable(
            f"the database at {shown_url(parsed)} has the encoding {encoding}, and records are {ENCODING}: create another with "
            f"`createdb --encoding {ENCODING} --template template0 NAME`"
        )
    return engine


def _is_starting(url: URL, error: OperationalError) -> bool:
    """Of a failed connection libpq tells only the message, in the server's language. Asked this way, it looks at the SQLSTATE."""
    from psycopg.pq import PGconn, Ping  # only an error needs it

    if getattr(error.orig, "pgconn", None) is None:
        return False  # no server has answered: the name is unknown, or the time has passed
    return PGconn.ping(libpq_uri(url, connect_timeout=str(PING_TIMEOUT_SECONDS)).encode()) == Ping.REJECT


def _begin_session(dialect: Any, record: object, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """A connection with the settings of `SESSION`. They are not set in a transaction: its rollback would undo them."""
    connection = dialect.connect(*arguments, **keywords)
    connection.autocommit = True
    connection.execute(SESSION)
    connection.autocommit = False
    return connection
