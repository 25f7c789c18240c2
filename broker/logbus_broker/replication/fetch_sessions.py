"""What a leader remembers of each follower between two of its fetches (KIP-227), so that a round costs only what has moved.

Kafka walks all partitions of a session for each request. Here each session has a *dirty* set: partitions that may have news for
the follower. Appends, flushes and role changes add to it (`Followed.mark`), and answers remove from it.

A follower has one session with each leader. In its requests it names partitions that are new or for which it got something
(records, an error, a divergence), moved or not: until it does, no more records are sent for them.

It has at most two requests in flight, so request k was sent after our answer to k - 2 had arrived. The time of that answer is
therefore one at which it still followed us in the epochs it had named: `alive_at`. The arrival time of the request proves
nothing, since it may have waited in a socket while this process was suspended. A session's id comes with the answer that opens
it, so request 1 was sent after the answer to request 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from logbus_broker.disk.filesystem import FileSlice
from logbus_broker.protocol.replica_fetch import FIRST_SESSION_EPOCH, NO_OFFSET, ReplicaFetch, next_session_epoch
from logbus_broker.replication.interfaces import TopicIdPartition
from logbus_broker.replication.led_partition import LedPartition

Answer = Callable[[list[bytes | FileSlice]], None]


@dataclass(slots=True, eq=False)
class Followed:
    """One partition in a session. Changed by every round, so not frozen."""

    session: FetchSession
    led: LedPartition
    named_in: int  # the first request that named it
    offset: int = 0
    flushed: int = 0
    bytes_max: int = 0
    is_awaited: bool = False  # records were sent: the follower has to report what became of them
    sent_in: int = NO_OFFSET  # the request that they answered
    sent_visible: int = NO_OFFSET
    sent_start: int = NO_OFFSET
    sent_wanted: int = NO_OFFSET

    def mark(self, *, wakes: bool) -> None:
        """There may be news of it; `wakes`: news for which a waiting fetch is answered."""
        session = self.session
        session.dirty[self.led.key] = self
        if wakes and not self.is_awaited:
            session.is_woken = True

    @property
    def is_urgent(self) -> bool:
        """Whether there is news for which a waiting fetch is answered. A new visible offset alone waits for the next answer, as
        in Kafka; so does a new log start offset, unless a request waits until all members have it."""
        led = self.led
        if led.is_over or self.session.replica_id not in led.progress.followers:
            return True
        return not self.is_awaited and (
            self.offset < led.log.end_offset
            or self.wanted_offset > self.sent_wanted
            or self.sent_start < led.progress.deleted_offset
        )

    @property
    def has_news(self) -> bool:
        return (
            self.is_urgent
            or self.sent_visible != self.led.progress.visible_offset
            or self.sent_start != self.led.log.log_start_offset
        )

    @property
    def wanted_offset(self) -> int:
        """Up to which offset the follower should flush now; NO_OFFSET: no request waits for that."""
        offset = self.led.progress.wanted_offset
        return offset if offset > self.flushed else NO_OFFSET


@dataclass(slots=True, eq=False)
class FetchSession:
    """The session of one follower: see the module docstring."""

    session_id: int
    replica_id: int
    replica_epoch: int
    session_epoch: int = FIRST_SESSION_EPOCH  # of the newest request
    followed: dict[TopicIdPartition, Followed] = field(default_factory=dict)
    dirty: dict[TopicIdPartition, Followed] = field(default_factory=dict)
    over_quota: dict[TopicIdPartition, Followed] = field(default_factory=dict)  # with news that has to wait
    held_in: dict[TopicIdPartition, int] = field(
        default_factory=dict
    )  # named while records for it were in flight: in which request
    is_woken: bool = False  # something urgent was marked since the last look
    waiting: WaitingReplicaFetch | None = None
    alive_at: float = -inf
    _answered_at: float = -inf
    _answered_before_at: float = -inf

    def continues(self, fetch: ReplicaFetch) -> bool:
        """Whether a request is the next one of this session; if so, it becomes the current one."""
        if fetch.session_epoch != next_session_epoch(self.session_epoch):
            return False
        is_first = self.session_epoch == FIRST_SESSION_EPOCH
        # A waiting fetch has no answer yet, so the newest answer is the one to its predecessor.
        self.alive_at = self._answered_at if is_first or self.waiting is not None else self._answered_before_at
        self.session_epoch = fetch.session_epoch
        return True

    def note_answer(self, now: float) -> None:
        """One of its requests is answered now."""
        self._answered_before_at, self._answered_at = self._answered_at, now

    def follow(self, led: LedPartition) -> Followed:
        """The entry of a partition that a request names."""
        self.held_in.pop(led.key, None)
        entry = self.followed.get(led.key)
        if entry is None or entry.led is not led:
            entry = self.followed[led.key] = led.followed[self.replica_id] = Followed(self, led, self.session_epoch)
        return entry

    def stop_holding(self) -> None:
        """Records held since two requests ago, and not named since, were not stored by the follower: they are sent again."""
        if not self.held_in:
            return
        for key, epoch in list(self.held_in.items()):
            if not epoch <= self.session_epoch < epoch + 2:
                del self.held_in[key]
                if key in self.followed:
                    self.followed[key].is_awaited = False
                    self.dirty[key] = self.followed[key]

    def go_on(self) -> None:
        """The quota allows records again."""
        self.dirty |= self.over_quota
        self.over_quota = {}

    def forget(self, key: TopicIdPartition) -> None:
        """The follower no longer fetches the partition, or has to name it again."""
        self.dirty.pop(key, None)
        self.over_quota.pop(key, None)
        entry = self.followed.pop(key, None)
        if entry is not None and entry.led.followed.get(self.replica_id) is entry:
            del entry.led.followed[self.replica_id]

    def close(self) -> None:
        for key in list(self.followed):
            self.forget(key)


@dataclass(slots=True, eq=False)
class WaitingReplicaFetch:
    """A request without an answer, until something happens, its time is over, or a newer request of the session arrives."""

    answer: Answer
    deadline: float
    bytes_max: int
