"""What replication needs from outside: connections to other brokers (`Peers`: `network/peer.py` implements it over sockets, tests
over a network of their own), and the logs that it follows (`Replica`: `replicas.py` implements it); and how fast replicas that
are moved are copied (KIP-73): Kafka's four settings, which `kafka-reassign-partitions --throttle` sets and `--verify` removes.

    leader.replication.throttled.replicas, follower...     of a topic: `PARTITION:BROKER,...`, or `*` for all
    leader.replication.throttled.rate, follower...         of a broker: bytes a second for all of these together

A leader sends, and a follower asks for, no more records of moved replicas than that. Replicas in sync are never held up:
acknowledgements wait for them. One `ReplicationQuota` is one direction at one broker. Pure: time is passed in.

Everything is called on the loop's thread. No method calls back before it has returned: answers and events come from `work`, or
when the loop finds something on a socket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import NamedTuple, Protocol

from logbus_broker.cluster.metadata_image import Endpoint
from logbus_broker.errors import BrokerError

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


# What replication needs from outside: connections to other brokers (`Peers`: `network/peer.py` implements it over sockets,
# tests over a network of their own), and the logs that it follows (`Replica`: `replicas.py` implements it).


Then = Callable[[memoryview | None], None]


class PeerRequest(NamedTuple):
    """A request without its header, which the connection adds."""

    api_key: int
    version: int
    body: bytes


class PeerEvents(Protocol):
    """What happens to connections."""

    def reached(self, broker: int) -> None:
        """There is a connection, and a broker has answered on it."""

    def closed(self, broker: int) -> None:
        """The connection is lost, and with it every outstanding answer; another connection is tried at once."""

    def refused(self, broker: int) -> None:
        """Its machine refused the connection: the process is gone. Called again for each attempt."""


class Peers(Protocol):
    """One connection to each known broker, made and kept open without being requested: a connection that closes, followed by one
    that is refused, shows within milliseconds that a process has died, without waiting for a session to expire."""

    due: float  # when, on the monotonic clock, `work` has something to do

    def know(self, addresses: Mapping[int, Endpoint]) -> None:
        """These are the other brokers: a connection to each is wanted, and no others. A new address for a known broker means
        another process: its old connection is dropped without an event."""

    def is_reached(self, broker: int) -> bool:
        """Whether there is a connection to it that takes requests."""

    def send(self, broker: int, request: PeerRequest, then: Then) -> None:
        """`then(body)` is called once with the answer, which may be kept; with None if there is no connection, or it is lost
        before the answer. Answers of one broker arrive in the order of their requests."""

    def work(self, now: float) -> None:
        """Send what is queued, end what has waited too long, reconnect."""


TopicIdPartition = tuple[bytes, int]  # topic id and partition


class Replica(Protocol):
    """One followed partition, as its log is now."""

    name: str
    key: TopicIdPartition
    is_in_sync: bool  # as far as this broker has seen

    @property
    def leader_epoch(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def flushed_offset(self) -> int: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def last_epoch(self) -> int:
        """The newest epoch in the log; -1: none."""

    @property
    def is_offline(self) -> bool:
        """Whether nothing can be stored in it until the broker is restarted."""

    @property
    def is_impaired(self) -> bool:
        """Whether nothing can be stored in it at the moment: the disk is full or does not answer."""

    def append(self, records: memoryview) -> None:
        """Check and store what the leader sent. ReplicationRefused: it is damaged or does not follow; none of it is stored.
        StorageError: the write failed."""

    def learn(self, visible_offset: int, log_start_offset: int) -> None:
        """The leader's visible offset and log start offset."""

    def want_flush(self, offset: int) -> None:
        """A request at the leader waits until everything below `offset` is flushed."""

    def cut(self, epoch: int, end_offset: int, then: Callable[[BrokerError | None], None]) -> None:
        """The leader's log diverges from ours: `epoch` is the largest it has up to our last one, and ends there at `end_offset`.
        `then` is called when fetching may resume, or with an error if the log is as it was."""

    def reset(self, offset: int, then: Callable[[BrokerError | None], None]) -> None:
        """Start over at `offset`, the leader's log start offset; `then` as for `cut`."""
