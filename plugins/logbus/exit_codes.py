"""Exit statuses of the `logbus` command, for scripts: one small table, shown in docs/cli.md.

0 to 2 mean what they mean everywhere. 3 and 4 tell a script whether waiting helps: what is not there must be made, what does not
answer may come back. 5 is an answer, not a failure: the command looked, and what it looked at is not as it should be. Signals
give 128 plus their number, as shells report them.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from enum import IntEnum

from logbus import errors


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
    errors.TopicMissing: ExitCode.NOT_FOUND,
    errors.GroupMissing: ExitCode.NOT_FOUND,
    errors.PipelineUnknown: ExitCode.NOT_FOUND,
    errors.WindowUnknown: ExitCode.NOT_FOUND,
    errors.AggregateUnknown: ExitCode.NOT_FOUND,
    errors.StreamUnknown: ExitCode.NOT_FOUND,
    errors.AccessDenied: ExitCode.FAILED,  # waiting does not help
    errors.BrokerUnavailable: ExitCode.UNREACHABLE,
    errors.NotInTime: ExitCode.UNREACHABLE,
    errors.WarehouseUnavailable: ExitCode.UNREACHABLE,
    errors.AuditMismatch: ExitCode.CHECK_FAILED,
    errors.RetentionOverdue: ExitCode.CHECK_FAILED,
    errors.LinesOutOfSight: ExitCode.CHECK_FAILED,
    errors.Behind: ExitCode.CHECK_FAILED,
    errors.UnderReplicated: ExitCode.CHECK_FAILED,
}


def of_error(error: BaseException) -> ExitCode:
    """The status that reports this error."""
    return next((BY_ERROR[kind] for kind in type(error).__mro__ if kind in BY_ERROR), ExitCode.FAILED)
