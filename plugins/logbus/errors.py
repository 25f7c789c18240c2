"""What can go wrong, split by who can mend it.

Every error the library raises on purpose is a `LogbusError`. A `UserError` is one the caller can mend (a server that
is not running, a wrong name); the others report a fact about the data (records lost, an audit that does not add up)
or about a load. The command line prints all of them as `error: ...` without a traceback; so a message says what
happened and what to do next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class LogbusError(Exception):
    """Base of everything logbus raises on purpose."""


class UserError(LogbusError):
    """The caller can mend it: a name, a setting, a server that is not running."""


class WarehouseUnavailable(UserError):
    """The warehouse cannot be reached, or is too old."""


class LedgerMissing(UserError):
    """The warehouse answers, and holds no ledger yet."""


class LedgerOutdated(UserError):
    """The ledger has the tables of an older logbus."""


class BrokerUnavailable(UserError):
    """The broker did not answer in time."""


class BrokerNotReady(BrokerUnavailable):
    """The broker says that it will know soon: a leader or a coordinator is being chosen."""


class AccessDenied(BrokerUnavailable):
    """The broker does not let in this connection (TLS), this login (SASL), or this user's request (ACL)."""


class TopicMissing(UserError):
    """The broker does not know the topic."""


class GroupMissing(UserError):
    """The broker knows no consumer group of that name."""


class GroupActive(UserError):
    """The consumer group has members, which would not notice that their offsets were changed under them."""


class PipelineUnknown(UserError):
    """No pipeline of that name is registered."""


class PipelineConflict(UserError):
    """A pipeline of that name is registered with another topic, table or start."""


class TooManyWindows(UserError):
    """More windows than are begun without a word."""


class LoadFailed(LogbusError):
    """A load did not put its windows into the warehouse."""


class AttemptSuperseded(LoadFailed):
    """A newer attempt at the same window has begun; this one may not commit any more."""


class EquationMismatch(LoadFailed):
    """What was staged is not exactly what the window's ranges hold; nothing became public."""


class ErrorBudgetExceeded(LoadFailed):
    """More records of a window do not parse than its pipeline allows; nothing became public. `samples`: which, and why."""

    def __init__(self, message: str, *, samples: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.samples = samples or {}


class OtherRecords(LoadFailed):
    """A window that is loaded would be replaced by other records than it was loaded from; nothing became public."""


class ShortRead(LoadFailed):
    """The broker delivered fewer records than a range holds."""


class WindowError(LogbusError):
    """A window cannot be frozen or loaded as asked."""


class WindowNotClosed(WindowError):
    """The clock has not passed the window's end plus the allowed lateness."""


class WindowUnknown(WindowError):
    """No window with that start is frozen."""


class WindowNotLoaded(WindowError):
    """The window is frozen, but no attempt at it has committed yet."""


class WindowBusy(WindowError):
    """Another run is at work on the window."""


class WindowOverlap(WindowError):
    """The interval overlaps a frozen window with other limits, or lies before the pipeline's start."""


class RecordsLost(WindowError):
    """Retention has deleted records that belong to a window which is not loaded."""

    def __init__(self, message: str, *, lost: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.lost = tuple(lost)


class TopicRecreated(WindowError):
    """The topic was deleted and made again: its offsets mean other records now."""


class TransactionOpen(WindowError):
    """Whether records of the window count is not decided yet: their transaction has not ended."""


class LogChanged(WindowError):
    """The log is not the one that the ledger remembers: it ends too early, or holds other records at the same offsets."""


class AnotherCluster(UserError):
    """The broker that answers is not of the cluster on which the pipeline's windows are."""


class AuditMismatch(LogbusError):
    """The table, the ledger and the broker do not agree on a window."""


class Behind(LogbusError):
    """A pipeline is further behind than whoever asked allows."""


class UnderReplicated(LogbusError):
    """A partition of the cluster has no leader, or a replica that is not in sync."""


class RetentionOverdue(LogbusError):
    """A pipeline holds records back for longer than it may, or records were deleted before they were loaded."""


class ProduceFailed(LogbusError):
    """A record was not acknowledged; those before it may well be stored."""
