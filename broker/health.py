"""What is wrong with this broker just now, and the guard around everything that belongs to one partition, one connection or one
periodic task: that one fails, is told once, and is tried again; the process goes on.

`attempt` is that guard. A failure stays in `troubles`, which /health and the metrics show, until the same thing succeeds. What is
neither a refusal of the disk nor one of the broker's own errors is a defect: it is logged with its traceback and counted.

What may not be guarded like this is anything between a write to a log and the bookkeeping that follows from it: there the
partition itself goes offline (`PartitionLog.append`), since nobody knows any more what its file holds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from broker.errors import BrokerError

logger = logging.getLogger("broker.health")

_EXPECTED = (BrokerError, OSError)


class Health:
    """All methods run on the loop's thread."""

    def __init__(self) -> None:
        self._troubles: dict[str, str] = {}
        self.defects = 0  # exceptions that nobody expected, since the start

    @property
    def troubles(self) -> Mapping[str, str]:
        """What fails at the moment, each with the newest reason."""
        return self._troubles

    def attempt(self, what: str, action: Callable[[], object]) -> bool:
        """Run `action`; whether it succeeded. `what` names it for a person: "the checkpoint", "retention of clicks-0"."""
        try:
            action()
        except Exception as error:
            self.fails(what, error)
            return False
        self.succeeds(what)
        return True

    def fails(self, what: str, error: BaseException) -> None:
        """Note a failure. The log tells the first of a row; a new reason is a new row."""
        reason = str(error) or type(error).__name__
        is_news = self._troubles.get(what) != reason
        self._troubles[what] = reason
        if not isinstance(error, _EXPECTED):
            self.defect(what, error)
        elif is_news:
            logger.error("%s failed: %s", what, reason)

    def succeeds(self, what: str) -> None:
        """What failed before works again, or there is nothing any more that could fail."""
        if self._troubles and self._troubles.pop(what, None) is not None:
            logger.info("%s works again", what)

    def defect(self, what: str, error: BaseException) -> None:
        """Count and tell an exception that nobody expected."""
        self.defects += 1
        logger.error("%s failed; this is a defect of the broker", what, exc_info=error)
