"""What can go wrong while shipping, as part of the library's own error tree."""

from __future__ import annotations

from logbus.errors import LogbusError, UserError


class UnreadableLog(UserError):
    """A file is missing, a directory, not readable, or damaged."""


class LogGone(UnreadableLog):
    """A file does not exist, or no longer: rotation may rename a file while it is being read."""


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
