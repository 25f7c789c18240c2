"""The topics that a consumer's metadata names: the one place where the broker looks into what members write for each other.

Kafka's ConsumerProtocolSubscription begins with a version and an array of topic names in every version; what follows is not
read. Administration needs it: a topic's offsets may not be deleted, and do not expire, while a member reads the topic.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from broker.errors import ProtocolError
from broker.protocol.primitives import read_string

CONSUMER_PROTOCOL = "consumer"
_HEAD = Struct(">hi")  # version, how many topics


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics, or None where the bytes are of another kind."""
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
