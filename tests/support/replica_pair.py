"""Two brokers that replicate partitions to each other, with real logs: leaders are elected elsewhere and learnt late, and
messages between the two are delivered late or lost."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from uuid import UUID

from broker.coordination.image import Endpoint, PartitionState
from broker.handlers.error_codes import code_of
from broker.partitions.partition import Partition
from broker.protocol.replica_fetch import parse_replica_fetch
from broker.replication.fetcher import FetchLimits, LeaderFetcher
from broker.replication.follower import FollowedPartition, FollowerHooks
from broker.replication.peers import PeerRequest, Then
from broker.replication.progress import PartitionProgress
from broker.replication.serve import ReplicaServer
from broker.replication.sessions import FetchSession, Led
from broker.storage.file_slice import FileSlice
from tests.support.batches import produced, validated
from tests.support.engine import ManualHelpers
from tests.support.leading import bytes_of
from tests.support.logs import flush, open_log
from tests.support.manual_clock import ManualClock

TOPIC_ID = UUID(int=7)
BOTH = (0, 1)


class Link:
    """The connection from one broker to the other; implements `replication.peers.Peers`. The test delivers each message."""

    def __init__(self, source: PairedBroker) -> None:
        self.due = math.inf
        self.source = source
        self.target: PairedBroker | None = None
        self.requests: deque[tuple[bytes, Then]] = deque()
        self.answers: deque[tuple[bytes, Then]] = deque()
        self.unanswered: deque[Then] = deque()
        self.is_up = False
        self.session: FetchSession | None = None
        self.generation = 0

    def know(self, addresses: Mapping[int, Endpoint]) -> None: ...

    def work(self, now: float) -> None: ...

    def is_reached(self, broker: int) -> bool:
        return self.is_up

    def send(self, broker: int, request: PeerRequest, then: Then) -> None:
        self.requests.append((request.body, then))
        assert len(self.requests) + len(self.unanswered) + len(self.answers) <= 3, "two of one session, and a last of another"

    def deliver_request(self) -> bool:
        if not self.requests or self.target is None:
            return False
        body, then = self.requests.popleft()
        fetch = parse_replica_fetch(memoryview(body))
        assert fetch is not None
        self.unanswered.append(then)
        target = self.target
        self.session = target.server.fetch(fetch, partial(self._answered, self.generation, then), target.now) or self.session
        return True

    def _answered(self, generation: int, then: Then, parts: list[bytes | FileSlice]) -> None:
        body = bytes_of(parts)
        if generation == self.generation:
            assert self.unanswered.popleft() is then, "answers leave in the order of their requests"
            self.answers.append((body, then))

    def deliver_answer(self) -> bool:
        if not self.answers:
            return False
        body, then = self.answers.popleft()
        then(memoryview(body))
        return True

    def connect(self) -> None:
        if not self.is_up:
            self.is_up = True
            self.source.fetcher.reached()

    def lose(self) -> None:
        if not self.is_up:
            return
        self.is_up = False
        self.generation += 1
        lost = [*[then for _, then in self.answers], *self.unanswered, *[then for _, then in self.requests]]
        for queue in (self.answers, self.unanswered, self.requests):
            queue.clear()
        for then in lost:
            then(None)
        self.source.fetcher.closed()
        if self.session is not None and self.target is not None:
            self.target.server.disconnected(self.session, self.target.now)
            self.session = None


class PairedBroker:
    """One of the two: leads the partitions it has learnt that it leads, and follows the rest."""

    def __init__(self, me: int, directory: Path, partition_count: int, clock: ManualClock) -> None:
        self.me = me
        self.clock = clock
        self.helpers = ManualHelpers()
        self.link = Link(self)
        self.led: dict[tuple[bytes, int], Led] = {}
        self.server = ReplicaServer(self.led, cluster_id="aCluster", code_of=code_of, session_ids=itertools.count(1 + me, 2))
        self.server.on_moved = self._moved
        self.fetcher = LeaderFetcher(
            1 - me,
            me=me,
            incarnation=1,
            cluster_id="aCluster",
            peers=self.link,
            monotonic=clock.monotonic,
            limits=FetchLimits(partition_bytes_max=400, response_bytes_max=600),
        )
        hooks = FollowerHooks(written=lambda partition, size: None, want_flush=self.flush, offline=self._offline)
        self.partitions: list[Partition] = []
        self.replicas: list[FollowedPartition] = []
        for index in range(partition_count):
            log = open_log(directory / f"{me}-clicks-{index}", segment_bytes=2_000, is_replica=True)
            self.partitions.append(Partition("clicks", index, TOPIC_ID, log))
            self.replicas.append(FollowedPartition(self.partitions[-1], helpers=self.helpers, hooks=hooks))

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def _offline(self, partition: Partition) -> None:
        raise AssertionError(f"{partition.name} of broker {self.me} went offline: {partition.log.offline_reason}")

    def _moved(self, led: Led) -> None:
        self.partitions[led.index].visible_offset = led.progress.visible_offset

    def learn(self, index: int, leader: int, epoch: int) -> None:
        """Learn a partition's leader; no effect if it is known already."""
        partition, replica = self.partitions[index], self.replicas[index]
        if epoch == partition.leader_epoch and (partition.is_led or partition.leader >= 0):
            return
        self.fetcher.forget(replica.key)
        led = self.led.pop(replica.key, None)
        if led is not None:
            self.server.ended(led)
        while replica.is_changing:
            self.run_helpers()
        if leader != self.me:
            partition.become_follower(leader, epoch)
            self.fetcher.follow(replica)
            return
        partition.become_leader(epoch)
        progress = PartitionProgress(
            self.me,
            PartitionState(leader=self.me, leader_epoch=epoch, isr=BOTH, version=epoch),
            BOTH,
            insync_min=1,
            end_offset=partition.end_offset,
            flushed_offset=partition.log.flushed_offset,
            visible_offset=partition.visible_offset,
            now=self.now,
        )
        self.led[replica.key] = Led("clicks", TOPIC_ID.bytes, index, partition.log, progress)

    def append(self, index: int, producer_id: int, count: int) -> None:
        partition = self.partitions[index]
        partition.stage(validated(produced(producer_id, 0, count), now_ms=self.clock.now_ms()))
        partition.write_staged()
        led = self.led[self.replicas[index].key]
        led.progress.written(partition.end_offset, self.now)
        self.server.written(led)

    def flush(self, partition: Partition) -> None:
        if partition.log.is_being_cut:
            return
        flush(partition.log)
        replica = self.replicas[partition.index]
        led = self.led.get(replica.key)
        if led is not None:
            led.progress.flushed(partition.log.flushed_offset)
            self.server.moved(led)
        else:
            replica.flushed()
            self.fetcher.flushed(replica.key)

    def end_turn(self) -> None:
        self.server.answer_woken(self.now)
        self.server.expire(self.now)
        while self.fetcher.due <= self.now:
            self.fetcher.work(self.now)

    def run_helpers(self) -> None:
        self.helpers.run()
        self.helpers.drain()

    def content(self, index: int, start_offset: int, end_offset: int) -> bytes:
        """The bytes of the whole batches between two offsets."""
        found = []
        for batch in self.partitions[index].log.batches_from(start_offset):
            base_offset = int.from_bytes(batch[:8], "big")
            if base_offset >= end_offset:
                break
            if base_offset >= start_offset:
                found.append(batch)
        return b"".join(found)
