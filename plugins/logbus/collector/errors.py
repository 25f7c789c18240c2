"""What can go wrong while shipping, under the library's own tree."""

from __future__ import annotations

from logbus.errors import LogbusError, UserError


class UnreadableLog(UserError):
    """A file is missing, a directory, not readable, or damaged."""


class LogGone(UnreadableLog):
    """A file is not there, or not there any more: rotation renames files while they are looked at."""


class UndatedLog(UserError):
    """Most lines of a file have no time that is understood."""


class StateInUse(UserError):
    """Another run ships with the same state file."""


class StateUnusable(UserError):
    """The state file cannot be read or written."""


class TopicShortened(UserError):
    """The topic ends before what a run noted as acknowledged, and which lines are gone cannot be told."""


class DeliveryFailed(LogbusError):
    """The broker did not acknowledge everything; the next run goes on from the last position that it did."""
