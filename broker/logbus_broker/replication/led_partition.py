"""How far the followers of one led partition are, and what follows from that: what is safe, which brokers may join the in-sync
replicas, and which must leave; and what the leader remembers of each follower between two of its fetches (KIP-227), so that a
round costs only what has moved.

Kafka walks all partitions of a session for each request. Here each session has a *dirty* set: partitions that may have news for
the follower. Appends, flushes and role changes add to it (`Followed.mark`), and answers remove from it.

A follower has one session with each leader. In its requests it names partitions that are new or for which it got something
(records, an error, a divergence), moved or not: until it does, no more records are sent for them.

It has at most two requests in flight, so request k was sent after our answer to k - 2 had arrived. The time of that answer is
therefore one at which it still followed us in the epochs it had named: `alive_at`. The arrival time of the request proves
nothing, since it may have waited in a socket while this process was suspended. A session's id comes with the answer that opens
it, so request 1 was sent after the answer to request 0.

For each assigned follower the leader knows from its fetches in this epoch how far it has written (W) and flushed (F). Over M, the
committed in-sync replicas plus the proposed additions:

    replicated R = max(R, min W over M)    what acks=all waits for
    visible    V = max(V, min F over M)    what consumers see

Both move only while the committed set has min.insync.replicas members and no broker outside it is eligible (KIP-966). A removal
counts once the image shows it; an addition counts from the moment it is proposed until the image shows the outcome: a broker that
may already be a member in ZooKeeper, and so be elected, must have what is acknowledged. Always V <= R <= end, since F <= W.

A follower's W may fall: its latest fetch is authoritative, and a smaller W never makes anything safe that is not. A new epoch
gets a new object, and a new process of a follower begins with unknown offsets.

Pure: time is passed in, in seconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from logbus_broker.cluster.metadata_image import PartitionState
from logbus_broker.filesystem import FileSlice
from logbus_broker.protocol.replica_fetch import FIRST_SESSION_EPOCH, NO_OFFSET, ReplicaFetch, next_session_epoch
from logbus_broker.replication.interfaces import TopicIdPartition

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


# How far the followers of one led partition are, and what follows from that: what is safe, which brokers may join the
# in-sync replicas, and which must leave.


UNKNOWN = -1  # an offset that no fetch of this epoch has reported


@dataclass(slots=True, eq=False)
class FollowerProgress:
    """What is known of one follower. One per replica of a thousand partitions, and changed by each fetch: so not frozen."""

    caught_up_at: float  # when it last had the whole log
    replica_epoch: int = UNKNOWN  # the process whose fetches count
    written: int = UNKNOWN
    flushed: int = UNKNOWN
    log_start: int = UNKNOWN
    fetched_at: float = -inf
    end_at_fetch: float = inf  # the log end offset at its last fetch
    flush_owed: int | None = None  # the offset it was asked to flush up to
    flush_owed_at: float = -inf
    is_impaired: bool = False  # it has said that it can store nothing: its disk is full or does not answer

    def forget(self, replica_epoch: int) -> None:
        """It is another process now, which need not have what the earlier one had."""
        self.replica_epoch = replica_epoch
        self.written = self.flushed = self.log_start = UNKNOWN
        self.fetched_at, self.end_at_fetch = -inf, inf
        self.flush_owed, self.flush_owed_at = None, -inf
        self.is_impaired = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Departures:
    """Members that must leave the in-sync replicas. `lost` ones lack what was acknowledged: they may not stay eligible. `late`
    are brokers outside the set that would have to leave again as soon as they had joined."""

    behind: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    late: tuple[int, ...] = ()


class PartitionProgress:
    """`visible_offset` is what this broker had learnt before it led."""

    def __init__(
        self,
        me: int,
        state: PartitionState,
        replicas: Sequence[int],
        *,
        insync_min: int,
        end_offset: int,
        flushed_offset: int,
        visible_offset: int,
        now: float,
    ) -> None:
        assert visible_offset <= flushed_offset <= end_offset, "what was visible is on the disk"
        self.me = me
        self.epoch = state.leader_epoch
        self.start_offset = self.end_offset = end_offset  # where the epoch begins
        self.flushed_offset = flushed_offset
        self.replicated_offset = self.visible_offset = visible_offset
        # What was visible before us is not above our own flushed offset, though we may have learnt less of it. A broker that
        # joins must have all of it on disk, so followers are asked to flush up to here.
        self.flushed_at_start = self.wanted_offset = flushed_offset
        self.is_impaired = False  # our own disk is full or does not answer: another broker should lead
        self.deleted_offset = UNKNOWN  # a client has asked for everything below it to be deleted
        self.followers: dict[int, FollowerProgress] = {}
        self.additions: dict[int, int] = {}  # proposed, and not known to have failed: broker id to incarnation
        self._counted: tuple[FollowerProgress, ...] = ()
        self.state = state
        self.learn(state, replicas, insync_min, now)

    def learn(self, state: PartitionState, replicas: Sequence[int], insync_min: int, now: float) -> None:
        """The image shows this state of the same epoch. A newer version settles the proposed additions."""
        assert state.leader == self.me, "another broker leads"
        assert state.leader_epoch == self.epoch, "a new epoch begins with nothing known"
        if self.state.version < state.version:
            self.additions.clear()
        self.state, self.replicas, self.insync_min = state, tuple(replicas), insync_min
        # A member had everything when it joined: its lag time is counted from now.
        self.followers = {
            broker: self.followers.get(broker) or FollowerProgress(now if broker in state.isr else -inf)
            for broker in replicas
            if broker != self.me
        }
        self._count()

    @property
    def lacks_replicas(self) -> bool:
        """Whether acks=all is refused."""
        return len(self.state.isr) < self.insync_min

    def propose(self, additions: Mapping[int, int]) -> None:
        """These have been proposed as in-sync replicas: from now on nothing is safe that they do not have."""
        self.additions.update(additions)
        self._count()

    def withdraw_additions(self) -> None:
        """It is certain that the proposed additions did not happen, and never will."""
        self.additions.clear()
        self._count()

    def _count(self) -> None:
        members = dict.fromkeys((*self.state.isr, *self.additions))
        nobody = FollowerProgress(-inf)  # a member that is not a replica reports nothing, so nothing moves
        self._counted = tuple(self.followers.get(broker, nobody) for broker in members if broker != self.me)
        self._may_move = not self.lacks_replicas and not self.state.eligible
        self._advance()

    # What moves R and V

    def written(self, end_offset: int, now: float) -> None:
        """Our own log has a new end."""
        for follower in self.followers.values():
            if follower.written >= self.end_offset:
                follower.caught_up_at = now  # it had everything until now, however long nothing was written
        self.end_offset = end_offset
        self._advance()

    def flushed(self, flushed_offset: int) -> None:
        """More of our own log is on disk."""
        self.flushed_offset = flushed_offset
        self._advance()

    def wanted(self, offset: int, now: float) -> None:
        """A request waits until everything below `offset` is visible: ask the followers to flush."""
        self.wanted_offset = max(self.wanted_offset, offset)
        for follower in self.followers.values():
            if follower.flush_owed is None and follower.flushed < offset:
                follower.flush_owed, follower.flush_owed_at = offset, now

    def deleted(self, offset: int) -> None:
        """A request waits until everything below `offset` is deleted by every member."""
        self.deleted_offset = max(self.deleted_offset, offset)

    @property
    def log_start_of_followers(self) -> int | None:
        """The lowest log start offset of any other member, as far as known; None: there is no other member."""
        return min((follower.log_start for follower in self._counted), default=None)

    def fetched(
        self,
        broker: int,
        replica_epoch: int,
        written: int,
        flushed: int,
        now: float,
        *,
        log_start: int = UNKNOWN,
        is_impaired: bool = False,
    ) -> bool:
        """A fetch of this epoch, which does not diverge, reports how far a follower is. False: it does not count."""
        follower = self.followers.get(broker)
        if follower is None or replica_epoch < follower.replica_epoch:
            return False
        if replica_epoch > follower.replica_epoch:
            follower.forget(replica_epoch)
        follower.written, follower.flushed, follower.log_start = written, min(flushed, written), log_start
        follower.is_impaired = is_impaired
        if written >= self.end_offset:
            follower.caught_up_at = now
        elif written >= follower.end_at_fetch:
            follower.caught_up_at = max(follower.caught_up_at, follower.fetched_at)
        follower.fetched_at, follower.end_at_fetch = now, self.end_offset
        if follower.flush_owed is not None and follower.flushed >= follower.flush_owed:
            is_more_wanted = follower.flushed < self.wanted_offset
            follower.flush_owed, follower.flush_owed_at = (self.wanted_offset, now) if is_more_wanted else (None, -inf)
        self._advance()
        return True

    def restarted(self, broker: int, incarnation: int) -> None:
        """The image shows a newer process of a follower: fetches of earlier ones no longer count."""
        follower = self.followers.get(broker)
        if follower is not None and incarnation > follower.replica_epoch:
            follower.forget(incarnation)

    def _advance(self) -> None:
        if not self._may_move:
            return
        replicated, visible = self.end_offset, self.flushed_offset
        for follower in self._counted:
            if follower.written < replicated:
                replicated = follower.written
            if follower.flushed < visible:
                visible = follower.flushed
        if replicated > self.replicated_offset:
            self.replicated_offset = replicated
        if visible > self.visible_offset:
            self.visible_offset = visible

    # Which brokers belong to the in-sync replicas

    def may_join(self, broker: int) -> bool:
        """Whether it has everything acknowledged or visible, and has followed into this epoch: one that ends below the epoch's
        start could be elected without records that earlier leaders wrote (KAFKA-7128). The same holds for what is on its disk:
        the visible offset that we had learnt when we began may be lower than an earlier leader's. And it must have deleted what
        clients were told is deleted."""
        follower = self.followers.get(broker)
        return (
            follower is not None
            and broker not in self.state.isr
            and follower.written >= max(self.replicated_offset, self.start_offset)
            and follower.flushed >= max(self.visible_offset, self.flushed_at_start)
            and follower.log_start >= self.deleted_offset
        )

    def departures(
        self, now: float, *, lag_seconds: float, gone_seconds: float, gone_since: Callable[[int], float]
    ) -> Departures:
        """Which members must leave. `gone_since` returns since when a broker has had no connection to us; inf: it has one.

        A member that has everything never leaves, however long nothing was written (KAFKA-7152), even if it is gone: nothing
        waits for it. A member that does not flush although a request waits leaves too, or a hung disk there would hide new
        records here. One that says that it can store nothing leaves at once, and does not join before it can again.

        While the set is too small nothing moves, so a member that left for being late still has everything that is safe: without
        `late` it would join and leave again and again."""
        behind: list[int] = []
        lost: list[int] = []
        late: list[int] = []
        for broker, follower in self.followers.items():
            is_member = broker in self.state.isr
            has_all = follower.written >= self.end_offset
            if is_member and UNKNOWN < follower.written < self.replicated_offset:
                lost.append(broker)
            elif (
                follower.is_impaired
                or (not has_all and now - follower.caught_up_at > lag_seconds)
                or (follower.flush_owed is not None and now - follower.flush_owed_at > lag_seconds)
                or (not (has_all and follower.flushed >= self.end_offset) and now - gone_since(broker) > gone_seconds)
            ):
                (behind if is_member else late).append(broker)
        return Departures(behind=tuple(behind), lost=tuple(lost), late=tuple(late))

    @property
    def has_laggards(self) -> bool:
        """Whether some member lacks something, so that it may have to leave at some point."""
        return any(follower.flushed < self.end_offset for follower in self._counted)

    @property
    def is_short(self) -> bool:
        """Whether some replica is not in sync, so that it may join at some point; or a hand-over has been requested, or is
        needed."""
        return len(self.state.isr) <= len(self.followers) or self.state.handover_to is not None or self.is_impaired


class LedLog(Protocol):
    """What is needed of a led partition's log."""

    @property
    def end_offset(self) -> int: ...

    @property
    def log_start_offset(self) -> int: ...

    def locate(self, offset: int, max_bytes: int, *, upto_offset: int) -> FileSlice:
        """Up to `max_bytes`, but at least one whole batch; OffsetOutOfRange, StorageError."""

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch not above `epoch` and where it ends; (-1, -1) if nothing is known of it."""


@dataclass(slots=True, eq=False)
class LedPartition:
    """One partition that this broker leads, in one epoch. `followed` are the sessions' entries for it, by broker."""

    topic: str
    topic_id: bytes
    index: int
    log: LedLog
    progress: PartitionProgress
    key: TopicIdPartition = field(init=False)
    followed: dict[int, Followed] = field(default_factory=dict)
    is_over: bool = False  # another broker leads, or this one in another epoch
    confirmed_until: float = -inf  # isr.py
    stored_at: float = -inf  # when the last request was sent by which ZooKeeper confirmed this state

    def __post_init__(self) -> None:
        self.key = self.topic_id, self.index
