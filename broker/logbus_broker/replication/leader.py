"""The partitions this broker leads, in one place: how far each follower is, what is safe, and what to change in ZooKeeper.

It is the `Watermarks` of log/high_watermark.py: each write, flush and request for a flush is passed here and returns what is
safe now; what a follower's fetch moves is reported by `on_moved`. `ReplicaManager` calls `lead`, `learn` and `end`, in the order
in which the image shows them; the loop calls `work` after the writes of each turn.

No step walks all partitions: those with followers that lack something, or short of in-sync replicas, are looked at once a second;
all others only when something happens to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from typing import NamedTuple

from logbus_broker.clock import Clock
from logbus_broker.cluster.metadata_image import MetadataImage, PartitionState
from logbus_broker.cluster.store import Store
from logbus_broker.errors import BrokerError, NotLeaderOrFollower
from logbus_broker.log.partition import Partition, Waiting
from logbus_broker.protocol.replica_fetch import ReplicaFetch
from logbus_broker.replication import interfaces, led_partition, replica_server
from logbus_broker.replication.isr import (
    Confirmation,
    Proposals,
    propose_handover,
    propose_isr,
    propose_stepping_down,
    takes_records,
)
from logbus_broker.settings import BrokerConfig

LOOK_SECONDS = 1.0
_GONE_LOOK_SECONDS = 0.1  # while the connection of some follower is closed: acks=all may wait for it


class _Deletion(NamedTuple):
    """A request that waits until everything below `offset` is deleted by every member."""

    offset: int
    then: Callable[[BrokerError | None], None]
    waiting: Waiting


class Leader:
    """See the module docstring."""

    def __init__(
        self,
        config: BrokerConfig,
        store: Store,
        clock: Clock,
        *,
        cluster_id: str,
        code_of: Callable[[BrokerError], int],
        session_ids: Iterator[int],
    ) -> None:
        self.me = config.broker_id
        self.led: dict[interfaces.TopicIdPartition, led_partition.LedPartition] = {}
        self.on_moved: Callable[[Partition, int, int], None] = lambda partition, replicated, visible: None
        self._clock = clock
        self._lag_seconds = config.replica_lag_ms_max / 1000
        self._gone_seconds = config.replica_gone_ms / 1000
        self._partitions: dict[interfaces.TopicIdPartition, Partition] = {}
        self._image = MetadataImage()
        # Those to which something happened in this turn, and those of which some replica lacks something.
        self._changed: dict[interfaces.TopicIdPartition, led_partition.LedPartition] = {}
        self._watched: dict[interfaces.TopicIdPartition, led_partition.LedPartition] = {}
        self._deletions: dict[interfaces.TopicIdPartition, list[_Deletion]] = {}
        self._look_at = -inf
        self.isr_shrinks = self.isr_expands = 0  # of partitions led here, since the start
        self._is_stirred = False  # something was written or requested that `turn_ends` has not handled
        # By identity: the connections that followers fetch on.
        self._origins: dict[int, tuple[object, led_partition.FetchSession]] = {}
        self.server = replica_server.ReplicaServer(
            self.led, config, cluster_id=cluster_id, code_of=code_of, session_ids=session_ids
        )
        self._proposals = Proposals(store, clock)
        self._confirmation = Confirmation(store, clock, self.server.alive_at, confirm_seconds=config.confirm_ms / 1000)
        self.server.on_moved = self._proposals.on_moved = self._tell_moved
        self.on_suspect: Callable[[Partition, int, int, int], None] = lambda partition, offset, size, epoch: None
        self.server.on_suspect = lambda led, *what: self.on_suspect(self._partitions[led.key], *what)
        self.server.on_candidate = self._note_change
        self.server.on_deleted = self._tell_deleted

    # Roles

    def lead(self, partition: Partition, state: PartitionState, replicas: Sequence[int], insync_min: int) -> None:
        """This broker begins to lead a partition, in an epoch in which no process has led it before.
        `ReplicatedHighWatermark.lead` is called next, and asks at once what is safe."""
        log = partition.log
        progress = led_partition.PartitionProgress(
            self.me,
            state,
            replicas,
            insync_min=insync_min,
            end_offset=log.end_offset,
            flushed_offset=log.flushed_offset,
            visible_offset=partition.visible_offset,
            now=self._clock.monotonic(),
        )
        key = partition.topic_id.bytes, partition.index
        assert key not in self.led, "the lead before has to end first"
        led = led_partition.LedPartition(partition.topic, partition.topic_id.bytes, partition.index, log, progress)
        self.led[key], self._partitions[key] = led, partition
        progress.is_impaired = bool(partition.impaired_reason)
        partition.lacks_replicas = progress.lacks_replicas
        self._confirmation.lead_begins(led)
        self._note_change(led)

    def learn(self, partition: Partition, state: PartitionState, replicas: Sequence[int], insync_min: int) -> None:
        """The image shows a new state, assignment or min.insync.replicas for a partition still led in the same epoch."""
        led = self._led(partition)
        before = led.progress.state.isr
        self.isr_expands += any(broker not in before for broker in state.isr)
        self.isr_shrinks += any(broker not in state.isr for broker in before)
        led.progress.learn(state, replicas, insync_min, self._clock.monotonic())
        led.confirmed_until = -inf  # others may be members or eligible now: whether they follow has to be looked up again
        partition.lacks_replicas = led.progress.lacks_replicas
        self._proposals.learnt(led)
        self.server.reassigned(led)
        self.server.moved(led)
        self._tell_moved(led)
        self._note_change(led)

    def end(self, partition: Partition) -> None:
        """Leadership has ended: another broker leads, none does, or this one in a later epoch."""
        led = self._led(partition)
        del self.led[led.key], self._partitions[led.key]
        self._changed.pop(led.key, None)
        self._watched.pop(led.key, None)
        self._proposals.forget(led)
        self.server.ended(led)
        for deletion in self._deletions.pop(led.key, ()):
            deletion.then(NotLeaderOrFollower(f"this broker no longer leads {partition.name}"))
        self._is_stirred = True  # followers that wait for it are answered at the end of the turn

    def learn_brokers(self, image: MetadataImage) -> None:
        """The image shows which brokers are registered, as which process, and which are being stopped."""
        raised = {
            broker: incarnation
            for broker, incarnation in image.incarnations.items()
            if incarnation > self._image.incarnations.get(broker, -1)
        }
        self._image = image
        now = self._clock.monotonic()
        for broker, incarnation in raised.items():
            self.server.restarted(broker, incarnation, now)
            for led in self.led.values():
                led.progress.restarted(broker, incarnation)

    # What happens to a partition: `Watermarks`

    def written(self, partition: Partition) -> tuple[int, int]:
        led = self._led(partition)
        self._is_stirred = True
        led.progress.written(partition.log.end_offset, self._clock.monotonic())
        self.server.written(led)
        self._watched[led.key] = led
        return led.progress.replicated_offset, led.progress.visible_offset

    def flushed(self, partition: Partition) -> tuple[int, int]:
        led = self._led(partition)
        led.progress.flushed(partition.log.flushed_offset)
        self.server.moved(led)
        return led.progress.replicated_offset, led.progress.visible_offset

    def flush_requested(self, partition: Partition) -> None:
        led = self._led(partition)
        led.progress.wanted(partition.log.end_offset, self._clock.monotonic())
        self.server.flush_requested(led)
        self._is_stirred = True

    def impaired(self, partition: Partition) -> None:
        """Its records can no longer be stored here, or can be again."""
        led = self._led(partition)
        led.progress.is_impaired = bool(partition.impaired_reason)
        self._note_change(led)

    def log_start_moved(self, partition: Partition) -> None:
        """Retention has deleted records; the followers learn it with their next answers."""
        self.server.moved(self._led(partition))

    def when_deleted(
        self, partition: Partition, offset: int, then: Callable[[BrokerError | None], None], waiting: Waiting
    ) -> None:
        """The log here begins at `offset` or later: call `then` when that of every member does, too, at once if it already
        does. If `waiting` is over before that, the call may be omitted."""
        led = self._led(partition)
        led.progress.deleted(offset)
        self._deletions.setdefault(led.key, []).append(_Deletion(offset, then, waiting))
        self.server.deleted(led)
        self._is_stirred = True
        self._tell_deleted(led)

    def log_start_of_members(self, partition: Partition) -> int:
        """The lowest log start offset of the in-sync replicas, as far as known."""
        followers = self._led(partition).progress.log_start_of_followers
        return partition.log_start_offset if followers is None else min(partition.log_start_offset, followers)

    def takes_records(self, partition: Partition) -> bool:
        """Called before the write of each turn: whether producers of this partition are served, with whatever acks."""
        led, now = self._led(partition), self._clock.monotonic()
        return (
            self._confirmation.is_confirmed(led, now)
            and takes_records(led.progress, now)
            and not self._proposals.is_handing_over(led)
        )

    def serves_consumers(self, partition: Partition, grace_seconds: float) -> bool:
        """Without confirmation, consumers are served for longer than producers: what they see is true, only perhaps old."""
        led, now = self._led(partition), self._clock.monotonic()
        return self._confirmation.is_confirmed(led, now, grace_seconds=grace_seconds)

    # Followers

    def fetch(self, fetch: ReplicaFetch, origin: object, answer: led_partition.Answer) -> None:
        """A follower's request; `answer` is called once, now or later. `origin` is an object that stands for its connection."""
        session = self.server.fetch(fetch, answer, self._clock.monotonic())
        if session is not None:
            self._origins[id(origin)] = origin, session

    def closed(self, origin: object) -> None:
        """A connection was closed, a follower's or any other."""
        origin_session = self._origins.pop(id(origin), None)
        if origin_session is not None:
            self.disconnected(origin_session[1])

    def disconnected(self, session: led_partition.FetchSession) -> None:
        """The connection of a follower's session was closed."""
        now = self._clock.monotonic()
        self.server.disconnected(session, now)
        self._look_at = min(self._look_at, now + _GONE_LOOK_SECONDS)

    # The loop

    def work(self, now: float) -> None:
        """At the end of each turn, after its writes: in most turns there is nothing to do."""
        if now >= self.due:
            self.turn_ends()
            if now >= self.due:
                self.tick()

    def turn_ends(self) -> None:
        """After the writes of a turn, so that proposals take everything that was staged into account."""
        changed, self._changed = self._changed, {}
        self._is_stirred = False
        for led in changed.values():
            self._consider(led)
        self._proposals.send()
        self._confirmation.send()
        self.server.answer_woken(self._clock.monotonic())

    def tick(self) -> None:
        """What is due because time has passed."""
        now = self._clock.monotonic()
        self.server.expire(now)
        if self._watched and now >= self._look_at:
            self._look_at = now + (_GONE_LOOK_SECONDS if self.server.gone_since else LOOK_SECONDS)
            for key, led in list(self._watched.items()):
                if not (led.progress.has_laggards or led.progress.is_short):
                    del self._watched[key]  # until its next write
                self._consider(led)
        self._proposals.send()
        self._confirmation.send()

    @property
    def due(self) -> float:
        """When `work` has something to do."""
        if self._is_stirred or self._changed:
            return -inf
        look_at = self._look_at if self._watched else inf
        return min(look_at, self.server.next_deadline, self._proposals.next_retry, self._confirmation.next_question)

    def _led(self, partition: Partition) -> led_partition.LedPartition:
        return self.led[partition.topic_id.bytes, partition.index]

    def _note_change(self, led: led_partition.LedPartition) -> None:
        self._changed[led.key] = led
        if led.progress.is_short:
            self._watched[led.key] = led

    def _tell_moved(self, led: led_partition.LedPartition) -> None:
        progress = led.progress
        self.on_moved(self._partitions[led.key], progress.replicated_offset, progress.visible_offset)
        self._tell_deleted(led)

    def _tell_deleted(self, led: led_partition.LedPartition) -> None:
        """The last member that had to delete something may have done so, or may no longer be a member."""
        deletions = self._deletions.get(led.key)
        if not deletions:
            return
        start_offset = self.log_start_of_members(self._partitions[led.key])
        left = [deletion for deletion in deletions if deletion.offset > start_offset and not deletion.waiting.is_over]
        if left:
            self._deletions[led.key] = left
        else:
            del self._deletions[led.key]
        for deletion in deletions:
            if deletion.offset <= start_offset and not deletion.waiting.is_over:
                deletion.then(None)

    def _consider(self, led: led_partition.LedPartition) -> None:
        """Propose a change if the state should be different."""
        if led.is_over or self._proposals.is_pending(led):
            return
        now = self._clock.monotonic()
        departures = led.progress.departures(
            now,
            lag_seconds=self._lag_seconds,
            gone_seconds=self._gone_seconds,
            gone_since=lambda broker: self.server.gone_since.get(broker, inf),
        )
        may_belong = partial(self._may_belong, led)
        # Members first: once those that are gone have left, whoever is left can take over. An impaired leader does not wait for
        # the broker that it was asked to hand over to.
        proposal = (
            propose_isr(led.progress, departures, may_belong)
            or propose_stepping_down(led.progress, may_belong)
            or propose_handover(led.progress, now)
        )
        if proposal is not None:
            self._proposals.offer(led, proposal)

    def _may_belong(self, led: led_partition.LedPartition, broker: int, incarnation: int) -> bool:
        """A broker that no longer follows must not be added for its earlier progress: its disk may have failed, and it left."""
        node = self._image.brokers.get(broker)
        return (
            node is not None
            and broker in led.followed
            and node.incarnation == incarnation == self._image.incarnations.get(broker, incarnation)
            and broker not in self._image.leaving
            and broker not in self.server.gone_since
        )
