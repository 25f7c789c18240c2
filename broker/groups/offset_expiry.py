"""When committed offsets are forgotten: offsets.retention.minutes after the last sign of use (KIP-211), or with their partition.

Use is a commit, or a member. While a group has members, the offsets of topics that they read do not expire, however old a
commit is. Otherwise the retention time must have passed on two clocks: since the commit, on the wall clock that stamped it, and
on the monotonic clock, which starts again with each coordinator, since it took the commit (or loaded it) and last saw a member.
So offsets never expire earlier than in Apache Kafka, and a wall clock that jumps does not expire any. An offset does not expire
either while a newer commit is on its way to the replicas: its age is that of a commit which is about to be replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial

from broker.groups.committed_offsets import CommittedOffsets
from broker.groups.coordinator import GroupCoordinator
from broker.groups.offset_records import CommittedOffset, OffsetKey


def expired_offsets(
    group: str,
    places: Iterable[tuple[str, int]],
    offsets: CommittedOffsets,
    groups: GroupCoordinator,
    *,
    exists: Callable[[str, int], bool],
    now: float,
    now_ms: int,
    retention_ms: int,
) -> Iterator[tuple[OffsetKey, CommittedOffset]]:
    """The group's offsets for these partitions that may be forgotten."""
    reads = cache(partial(groups.reads, group))
    empty_since = 0.0 if groups.is_active(group) else groups.empty_since(group)
    for topic, partition in places:
        value = offsets.get(group, topic, partition)
        if value is None:
            continue
        unused_ms = min(now_ms - value.committed_at_ms, (now - max(value.received_at, empty_since)) * 1000)
        if exists(topic, partition) and (unused_ms < retention_ms or reads(topic)):
            continue
        key = OffsetKey(group, topic, partition)
        if offsets.newest(key) is value:
            yield key, value
