"""How fast replicas that are moved are copied (KIP-73): Kafka's four settings, which `kafka-reassign-partitions --throttle` sets
and `--verify` removes.

    leader.replication.throttled.replicas, follower...     of a topic: `PARTITION:BROKER,...`, or `*` for all
    leader.replication.throttled.rate, follower...         of a broker: bytes a second for all of these together

A leader sends, and a follower asks for, no more records of them than that. Replicas in sync are never held up: acknowledgements
wait for them. One `ReplicationQuota` is one direction at one broker. Pure: time is passed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from logbus_broker.replication.interfaces import TopicIdPartition

BURST_SECONDS = 1.0  # what was not used of the last second may be used at once
EVERY = "*"

_Partitions = frozenset[int] | None  # of one topic; None: all
_NONE: frozenset[int] = frozenset()


class ReplicationQuota:
    """The partitions that are held up, and until when."""

    def __init__(self, broker_id: int) -> None:
        self.is_active = False  # whether any partition is listed
        self._broker_id = broker_id
        self._listed: Mapping[bytes, _Partitions] = {}
        self._rate = 0
        self._used_until = -inf  # when what was copied so far will have taken its time

    def learn(self, rate: int, replicas: Mapping[bytes, str]) -> bool:
        """What is set now: the rate, and the lists of the topics that have one; whether that is news."""
        listed = {topic_id: self._partitions_in(text) for topic_id, text in replicas.items() if text}
        if (rate, listed) == (self._rate, self._listed):
            return False
        self._used_until = -inf  # a wait at the rate before may be endless
        self._rate, self._listed, self.is_active = rate, listed, bool(listed)
        return True

    def is_listed(self, key: TopicIdPartition) -> bool:
        partitions = self._listed.get(key[0], _NONE)
        return partitions is None or key[1] in partitions

    def free_at(self) -> float:
        """From when on records of listed partitions may be copied again; a time in the past: now."""
        return self._used_until

    def take(self, byte_count: int, now: float) -> None:
        """So much of listed partitions is being copied."""
        seconds = byte_count / self._rate if self._rate else BURST_SECONDS
        self._used_until = max(self._used_until, now - BURST_SECONDS) + seconds

    def _partitions_in(self, text: str) -> _Partitions:
        pairs = [pair.split(":") for pair in text.split(",")] if text != EVERY else None
        return None if pairs is None else frozenset(int(index) for index, broker in pairs if int(broker) == self._broker_id)
