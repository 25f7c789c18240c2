"""What is wrong with a warehouse, a ledger or a connection, and how much of it a viewer is told."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import OperationalError, ProgrammingError

from logbus.errors import BrokerUnavailable, TopicMissing, UserError, WarehouseUnavailable

UNDEFINED_TABLE, INVALID_SCHEMA, UNDEFINED_COLUMN = "42P01", "3F000", "42703"

logger = logging.getLogger("logbus.ui")


class NoLedger(UserError):
    """The warehouse answers and holds no ledger yet."""


class LedgerOutdated(UserError):
    """The ledger has tables of an older logbus."""


class NotConfigured(WarehouseUnavailable, BrokerUnavailable):
    """An Airflow connection is missing or does not fit. What this says may be shown: it names no place."""


@contextmanager
def ledger_errors() -> Iterator[None]:
    """What PostgreSQL says about a ledger that is not there, is older, or does not answer, in our words."""
    try:
        yield
    except OperationalError as error:
        logger.warning("the warehouse does not answer: %s", error.orig)
        raise WarehouseUnavailable("the warehouse does not answer") from error
    except ProgrammingError as error:
        state = getattr(error.orig, "sqlstate", None)
        if state in (UNDEFINED_TABLE, INVALID_SCHEMA):
            raise NoLedger("this warehouse holds no ledger yet") from error
        if state == UNDEFINED_COLUMN:
            raise LedgerOutdated("the ledger is of an older version: `logbus ledger upgrade` brings it up to date") from error
        raise


def shown(error: Exception, otherwise: str) -> str:
    """What a viewer is told. Where a connection leads, and what is wrong with it, is for the log."""
    if isinstance(error, NoLedger | LedgerOutdated | NotConfigured):
        return str(error)
    if isinstance(error, TopicMissing):
        return "the broker has no topic of that name any more: what is loaded stays, and nothing of it can be loaded again"
    logger.warning("%s", error)
    return otherwise
