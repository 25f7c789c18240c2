"""The part of the consumers' own data that the broker reads: the topics that a consumer subscribes to, and the partitions that it
is assigned. The bytes of other kinds of members are not read.

In every version, Kafka's ConsumerProtocolSubscription begins with a version and an array of topic names, and its
ConsumerProtocolAssignment with a version and an array of topics with their partitions; what follows is not read. Administration
needs the former: a topic's offsets may not be deleted, and do not expire, while a member reads the topic. The latter is shown in
the paper's registries.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from broker.errors import ProtocolError
from broker.protocol.primitives import read_string

CONSUMER_PROTOCOL = "consumer"
_HEAD = Struct(">hi")  # version, how many topics
_COUNT = Struct(">i")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics, or None if the bytes have another format."""
    view = memoryview(metadata)
    try:
        _, count = _HEAD.unpack_from(view)
        if not 0 <= count <= len(view):
            return None
        topics, position = [], _HEAD.size
        for _ in range(count):
            topic, position = read_string(view, position)
            topics.append(topic or "")
        return frozenset(topics)
    except (StructError, ProtocolError):
        return None


def assigned_partitions(assignment: bytes) -> list[tuple[str, int]]:
    """Topics and partitions; empty if the bytes have another format."""
    view = memoryview(assignment)
    try:
        _, topic_count = _HEAD.unpack_from(view)
        places, position = [], _HEAD.size
        for _ in range(_plausible(topic_count, view)):
            topic, position = read_string(view, position)
            (count,) = _COUNT.unpack_from(view, position)
            position += _COUNT.size
            for _ in range(_plausible(count, view)):
                places.append((topic or "", _COUNT.unpack_from(view, position)[0]))
                position += _COUNT.size
        return places
    except (StructError, ProtocolError):
        return []


def _plausible(count: int, view: memoryview) -> int:
    if not 0 <= count <= len(view):
        raise ProtocolError(f"{count} entries in {len(view)} bytes")
    return count
