"""What the broker deletes of a topic by itself, asking nobody: by age, by size, or nothing.

A topic keeps its two limits whatever its `cleanup.policy`, and where that is `compact` alone neither is applied: the last record
of each key stays, whatever its age. So nobody reads `retention.ms` by itself; what is in force is asked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

CLEANUP_POLICY, DELETE_POLICY = "cleanup.policy", "delete"
RETENTION_MS, RETENTION_BYTES = OWN_LIMITS = ("retention.ms", "retention.bytes")

# What a topic must answer for, so that its limits are known.
LIMIT_SETTINGS = (*OWN_LIMITS, CLEANUP_POLICY)

NO_LIMIT = "-1"  # how Kafka says it
LONGEST_MS = 10**14  # three thousand years; a longer one is no limit, and no datetime either


def deletes(settings: Mapping[str, str]) -> bool:
    """Whether records of the topic are deleted for being old or many, or by order. A broker that does not say so deletes."""
    return DELETE_POLICY in settings.get(CLEANUP_POLICY, DELETE_POLICY).split(",")


def limits_in_force(settings: Mapping[str, str]) -> dict[str, int]:
    """The limits that the broker applies: milliseconds and bytes (of each partition) under Kafka's names."""
    limits = {name: int(settings.get(name, NO_LIMIT)) for name in OWN_LIMITS if deletes(settings)}
    return {name: limit for name, limit in limits.items() if limit >= 0 and not (name == RETENTION_MS and limit > LONGEST_MS)}


def age_kept(settings: Mapping[str, str]) -> timedelta | None:
    """How old the topic's records become before the broker deletes them; None where they become any age."""
    milliseconds = limits_in_force(settings).get(RETENTION_MS)
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)


def end_of(since: datetime, kept: timedelta) -> datetime | None:
    """When something kept so long goes; None behind the end of all datetimes, which is never."""
    try:
        return since + kept
    except OverflowError:
        return None
