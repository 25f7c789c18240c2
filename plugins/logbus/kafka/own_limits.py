"""What the broker itself deletes of a topic, without asking logbus: by age, by size, or nothing.

A topic has both limits whatever its `cleanup.policy`, but where that is `compact` alone neither is applied: the last record
of each key stays, whatever its age. So no code should read `retention.ms` directly; the limits in force are computed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

CLEANUP_POLICY, DELETE_POLICY = "cleanup.policy", "delete"
RETENTION_MS, RETENTION_BYTES = OWN_LIMITS = ("retention.ms", "retention.bytes")

# The settings to read from a topic to compute its limits.
LIMIT_SETTINGS = (*OWN_LIMITS, CLEANUP_POLICY)

NO_LIMIT = "-1"  # Kafka's value for it
LONGEST_MS = 10**14  # three thousand years; a longer one is as good as none, and would overflow a datetime


def deletes(settings: Mapping[str, str]) -> bool:
    """Whether records are deleted by age, size or DeleteRecords. If the policy is unknown the answer is yes, Kafka's default."""
    return DELETE_POLICY in settings.get(CLEANUP_POLICY, DELETE_POLICY).split(",")


def limits_in_force(settings: Mapping[str, str]) -> dict[str, int]:
    """The limits that the broker applies, milliseconds and bytes per partition, under Kafka's names."""
    limits = {name: int(settings.get(name, NO_LIMIT)) for name in OWN_LIMITS if deletes(settings)}
    return {name: limit for name, limit in limits.items() if limit >= 0 and not (name == RETENTION_MS and limit > LONGEST_MS)}


def age_kept(settings: Mapping[str, str]) -> timedelta | None:
    """The age at which the broker deletes the topic's records; None where there is no such limit."""
    milliseconds = limits_in_force(settings).get(RETENTION_MS)
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)


def end_of(since: datetime, kept: timedelta) -> datetime | None:
    """When what is kept for this long is deleted; None, meaning never, past the last possible datetime."""
    try:
        return since + kept
    except OverflowError:
        return None
