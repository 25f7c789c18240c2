"""When committed offsets are forgotten: offsets.retention.minutes after the last sign of use (KIP-211), or with their partition.

Use is a commit, or a member. While a group has members, the offsets of topics that they read do not expire, however old a commit
is. Without members, the retention time must have passed twice: since the commit, on the wall clock that stamped it, and since the
group was last seen with members, on the monotonic clock, which starts again with each coordinator: so offsets never expire
earlier than in Apache Kafka, and a wall clock that jumps does not expire any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from broker.groups.committed_offsets import CommittedOffsets
from broker.groups.coordinator import GroupCoordinator
from broker.groups.offset_records import OffsetKey


def expired_offsets(
    group: str,
    offsets: CommittedOffsets,
    groups: GroupCoordinator,
    *,
    exists: Callable[[str, int], bool],
    now: float,
    now_ms: int,
    retention_ms: int,
) -> Iterator[OffsetKey]:
    """The offsets of the group that may be forgotten."""
    for (topic, partition), value in offsets.of_group(group).items():
        if not exists(topic, partition):
            yield OffsetKey(group, topic, partition)
        elif now_ms - value.committed_at_ms < retention_ms or groups.reads(group, topic):
            continue
        elif groups.is_active(group) or (now - groups.empty_since(group, offsets.ours_since)) * 1000 >= retention_ms:
            yield OffsetKey(group, topic, partition)
