"""Which partition of __consumer_offsets holds a group: the leader of that partition coordinates the group.

Clients do not compute this, but Kafka's own tools and people who read the topic do, so it is Kafka's rule. It depends on the
number of partitions, which therefore never changes once the topic is created.
"""

from __future__ import annotations

OFFSETS_TOPIC = "__consumer_offsets"


def partition_of_group(group_id: str, partition_count: int) -> int:
    """abs(Java's hash of the id) % partitions."""
    return _absolute(_java_hash(group_id)) % partition_count


def _java_hash(text: str) -> int:
    """String.hashCode: over UTF-16 code units, as a signed 32-bit integer."""
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _absolute(number: int) -> int:
    """Kafka's absolute value: the smallest integer has no positive counterpart in 32 bits, and counts as 0."""
    return 0 if number == -(1 << 31) else abs(number)
