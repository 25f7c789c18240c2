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
    USAGE = 2  # the command line cannot be meant; nothing was done
    NOT_THERE = 3  # a topic, group, pipeline or window of that name
    NOT_REACHABLE = 4  # broker or warehouse: trying again later may help
    NOT_AS_IT_SHOULD_BE = 5  # behind, not exact, different, overdue, an error found
    INTERRUPTED = 128 + signal.SIGINT
    BROKEN_PIPE = 128 + signal.SIGPIPE
    TERMINATED = 128 + signal.SIGTERM


# Looked up along an error's own ancestors; what is not named here has failed.
BY_ERROR: Mapping[type[BaseException], ExitCode] = {
    errors.TopicMissing: ExitCode.NOT_THERE,
    errors.GroupMissing: ExitCode.NOT_THERE,
    errors.PipelineUnknown: ExitCode.NOT_THERE,
    errors.WindowUnknown: ExitCode.NOT_THERE,
    errors.AccessDenied: ExitCode.FAILED,  # waiting does not help
    errors.BrokerUnavailable: ExitCode.NOT_REACHABLE,
    errors.NotInTime: ExitCode.NOT_REACHABLE,
    errors.WarehouseUnavailable: ExitCode.NOT_REACHABLE,
    errors.AuditMismatch: ExitCode.NOT_AS_IT_SHOULD_BE,
    errors.RetentionOverdue: ExitCode.NOT_AS_IT_SHOULD_BE,
    errors.LinesOutOfSight: ExitCode.NOT_AS_IT_SHOULD_BE,
    errors.Behind: ExitCode.NOT_AS_IT_SHOULD_BE,
    errors.UnderReplicated: ExitCode.NOT_AS_IT_SHOULD_BE,
}


def of_error(error: BaseException) -> ExitCode:
    """The status that reports this error."""
    return of_kind(type(error))


def of_kind(kind: type[BaseException]) -> ExitCode:
    """The status that reports errors of this kind."""
    return next((BY_ERROR[above] for above in kind.__mro__ if above in BY_ERROR), ExitCode.FAILED)
