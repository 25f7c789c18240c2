"""What is currently wrong with this broker, and the guard around everything that belongs to one partition, one connection or one
periodic task: it fails alone, is logged once, and is retried; the process continues.

`attempt` is that guard. A failure stays in `troubles`, which /health and the metrics show, until the same thing succeeds. An
exception that is neither an OSError nor one of the broker's own errors is a defect: it is logged with its traceback and counted.

This guard must not be used between a write to a log and the bookkeeping that follows it: there the partition itself goes offline
(`PartitionLog.append`), because what its file holds is no longer known.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from logbus_broker import errors, logs

logger = logging.getLogger("broker.health")

_EXPECTED = (errors.BrokerError, OSError)


class Health:
    """All methods run on the loop's thread."""

    def __init__(self) -> None:
        self._troubles: dict[str, str] = {}
        self.defects = 0  # unexpected exceptions since the start

    @property
    def troubles(self) -> Mapping[str, str]:
        """What is failing at the moment, each with its latest reason."""
        return self._troubles

    def attempt(self, what: str, action: Callable[[], object]) -> bool:
        """Run `action`; returns whether it succeeded. `what` is its readable name: "the checkpoint", "retention of clicks-0"."""
        try:
            action()
        except Exception as error:
            self.fails(what, error)
            return False
        self.succeeds(what)
        return True

    def fails(self, what: str, error: BaseException) -> None:
        """Note a failure. Only the first of consecutive failures with the same reason is logged."""
        reason = str(error) or type(error).__name__
        is_news = self._troubles.get(what) != reason
        self._troubles[what] = reason
        if not isinstance(error, _EXPECTED):
            self.defect(what, error)
        elif is_news:
            logger.error("%s failed: %s", what, reason)

    def succeeds(self, what: str) -> None:
        """What failed before works again, or no longer exists."""
        if self._troubles and self._troubles.pop(what, None) is not None:
            logger.info("%s works again", what)

    def defect(self, what: str, error: BaseException) -> None:
        """Count and log an unexpected exception."""
        self.defects += 1
        logs.log_bug("%s failed", what, error=error)
