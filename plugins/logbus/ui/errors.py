"""How much a viewer is told of what is wrong with a warehouse, a ledger or a connection."""

from __future__ import annotations

import logging

from logbus.errors import BrokerUnavailable, LedgerMissing, LedgerOutdated, TopicMissing, WarehouseUnavailable

logger = logging.getLogger("logbus.ui")


class NotConfigured(WarehouseUnavailable, BrokerUnavailable):
    """An Airflow connection is missing or does not fit. What this says may be shown: it names no place."""


def shown(error: Exception, otherwise: str) -> str:
    """What a viewer is told. Where a connection leads, and what is wrong with it, is for the log."""
    if isinstance(error, LedgerMissing | LedgerOutdated | NotConfigured):
        return str(error)
    if isinstance(error, TopicMissing):
        return "the broker has no topic of that name any more: what is loaded stays, and nothing of it can be loaded again"
    logger.warning("%s", error)
    return otherwise
