"""When committed offsets are forgotten: offsets.retention.minutes after the last sign of use (KIP-211), or with their partition.

Use is a commit, or a member. While a group has members nothing expires of the topics that they read, however long ago the commit
was. Without members both must be over: the time since the commit, on the wall clock that stamped it, and the time since the group
was last seen with members, on the monotonic clock, which begins anew with the broker: never earlier than Apache Kafka, and a wall
clock that jumps forgets nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from broker.groups.coordinator import GroupCoordinator
from broker.groups.offset_store import OffsetStore
from broker.groups.records import OffsetKey


def expired_offsets(
    offsets: OffsetStore,
    groups: GroupCoordinator,
    *,
    exists: Callable[[str, int], bool],
    now: float,
    now_ms: int,
    retention_ms: int,
) -> Iterator[OffsetKey]:
    """The offsets that may go."""
    for key, value in offsets:
        if not exists(key.topic, key.partition):
            yield key
        elif now_ms - value.committed_at_ms >= retention_ms and not groups.reads(key.group, key.topic):
            is_active = groups.is_active(key.group)
            if is_active or (now - groups.empty_since(key.group)) * 1000 >= retention_ms:
                yield key
