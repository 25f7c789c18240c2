"""PostgreSQL's errors when it refuses or does not answer: the SQLSTATEs we depend on, and their translation to our errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, ProgrammingError

from logbus.errors import LedgerMissing, LedgerOutdated, UserError, WarehouseUnavailable

UNDEFINED_TABLE = "42P01"
UNDEFINED_COLUMN = "42703"
INVALID_SCHEMA = "3F000"
INSUFFICIENT_PRIVILEGE = "42501"
CHECK_VIOLATION = "23514"  # of a partition's bounds, too
DUPLICATE_TABLE = "42P07"
DEPENDENT_OBJECTS = "2BP01"  # a DROP without CASCADE
OVERLAPPING_PARTITION = "42P17"
LOCK_NOT_AVAILABLE = "55P03"
DEADLOCK_DETECTED = "40P01"
SERIALIZATION_FAILURE = "40001"  # what a snapshot shows was changed by another transaction since
DISK_FULL = "53100"
READ_ONLY_TRANSACTION = "25006"  # on a standby, for one
QUERY_CANCELED = "57014"  # by statement_timeout, or by somebody's pg_cancel_backend

SERVER_WENT_AWAY = ("08", "57P")  # classes: connection exceptions; shutdown by an operator or after a crash


def sqlstate_of(error: DBAPIError) -> str | None:
    """Five characters; None if the connection died before the server answered."""
    state: str | None = getattr(error.orig, "sqlstate", None)
    return state


def reason_of(error: DBAPIError) -> str:
    """The first line: the others repeat the statement, or the same error for each address that was tried."""
    lines = str(error.orig or "").strip().splitlines() or ["no answer"]
    return lines[0]


@contextmanager
def ledger_errors() -> Iterator[None]:
    """Wraps queries of a ledger that may be missing, outdated or unreachable."""
    try:
        yield
    except ProgrammingError as error:
        state = sqlstate_of(error)
        if state in (UNDEFINED_TABLE, INVALID_SCHEMA):
            raise LedgerMissing("this warehouse holds no ledger yet") from error
        if state == UNDEFINED_COLUMN:
            raise LedgerOutdated("the ledger is of an older version: `logbus ledger upgrade` brings it up to date") from error
        raise WarehouseUnavailable(f"the warehouse refused a query: {reason_of(error)}") from error
    except DBAPIError as error:
        raise WarehouseUnavailable(f"the warehouse did not answer a query: {reason_of(error)}") from error


def refusal_of(error: Exception) -> UserError | None:
    """Why the server did not carry out a statement, for people; None if the statement itself is wrong, which is a bug."""
    if not isinstance(error, DBAPIError):
        return None
    if sqlstate_of(error) in (INSUFFICIENT_PRIVILEGE, READ_ONLY_TRANSACTION):
        return UserError(f"the database does not allow this: {reason_of(error)}")
    if isinstance(error, OperationalError | InterfaceError):
        return WarehouseUnavailable(f"the database did not carry out a statement: {reason_of(error)}")
    return None
