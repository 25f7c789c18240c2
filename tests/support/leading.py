"""A leader for tests: real logs, a server without sockets, and followers that exchange bytes with it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from logbus_broker.api.error_codes import code_of
from logbus_broker.cluster import znodes
from logbus_broker.cluster.metadata_image import PartitionState
from logbus_broker.cluster.store import Create, Operation, Set, StoreEvents
from logbus_broker.filesystem import FileSlice
from logbus_broker.log.partition_log import PartitionLog
from logbus_broker.protocol import replica_fetch
from logbus_broker.replication.led_partition import FetchSession, LedPartition, PartitionProgress, TopicIdPartition
from logbus_broker.replication.replica_server import ReplicaServer
from logbus_broker.settings import BrokerConfig

from tests.sim.world import Timeline
from tests.sim.zookeeper import SimZooKeeper
from tests.support.batches import plain_batch, stamped
from tests.support.logs import flush, open_log

ME = 0
TOPIC_ID = bytes(15) + b"\x07"
STATE = PartitionState(leader=ME, leader_epoch=0, isr=(0, 1, 2), version=10)


def bytes_of(parts: Sequence[bytes | FileSlice]) -> bytes:
    """The bytes that the network would send."""
    out = b""
    for part in parts:
        if isinstance(part, FileSlice):
            out += os.pread(part.fileno(), part.length, part.position)
            part.release()
        else:
            out += part
    return out


class StoredStates:
    """A ZooKeeper with the states of the partitions of one topic, and brokers whose incarnations are 1."""

    def __init__(self, *states: PartitionState) -> None:
        self.timeline = Timeline()
        self.zookeeper = SimZooKeeper(self.timeline, Random(3), servers=1)
        self.store = self.zookeeper.client("leader", lambda: self.timeline.after(0, self.store.drain))
        self.store.begin(StoreEvents())
        self.timeline.run(1)
        incarnations = [znodes.incarnation_path(broker) for broker in STATE.isr]
        topic = [znodes.topic_id_path(UUID(bytes=TOPIC_ID)), znodes.topic_path("clicks"), znodes.partitions_path("clicks")]
        self.commit(*(Create(path=path) for path in (*znodes.BASE_PATHS, *incarnations, *topic)))
        self.commit(*(Set(path=path, data=b"", version=-1) for path in incarnations))
        for index, state in enumerate(states):
            path = znodes.state_path("clicks", index)
            partition = Create(path=znodes.partition_path("clicks", index))
            self.commit(partition, Create(path=path, data=znodes.encode_state(state)))

    @property
    def now(self) -> float:
        return self.timeline.now

    def commit(self, *operations: Operation) -> None:
        self.store.commit(operations, lambda outcome: None)
        self.timeline.run(0.1)

    def stored(self, index: int = 0) -> PartitionState:
        return self.zookeeper.state("clicks", index)

    def overwrite(self, state: PartitionState, index: int = 0) -> None:
        """Another broker writes it."""
        self.commit(Set(path=znodes.state_path("clicks", index), data=znodes.encode_state(state), version=-1))


class LeaderScene:
    """One broker that leads partitions of one topic."""

    def __init__(self, directory: Path, *, response_bytes_max: int = 1 << 20) -> None:
        self.directory = directory
        self.now = 100.0
        self.led: dict[TopicIdPartition, LedPartition] = {}
        self.moved: list[int] = []
        self.server = ReplicaServer(
            self.led,
            BrokerConfig(fetch_bytes_max=response_bytes_max),
            cluster_id="aCluster",
            code_of=code_of,
            session_ids=itertools.count(1),
        )
        self.server.on_moved = lambda led: self.moved.append(led.index)

    def lead(
        self, index: int = 0, *, state: PartitionState = STATE, replicas: tuple[int, ...] = (0, 1, 2), visible: int = 0
    ) -> LedPartition:
        log = open_log(self.directory / str(index), segment_bytes=1 << 20)
        progress = PartitionProgress(
            ME,
            state,
            replicas,
            insync_min=1,
            end_offset=log.end_offset,
            flushed_offset=log.flushed_offset,
            visible_offset=visible,
            now=self.now,
        )
        led = LedPartition("clicks", TOPIC_ID, index, log, progress)
        self.led[led.key] = led
        return led

    def append(self, led: LedPartition, *counts: int, epoch: int = 0, value: bytes = b"value") -> None:
        """Batches of `counts` records, written at the end of one turn."""
        assert isinstance(led.log, PartitionLog)
        offset, views, headers = led.log.end_offset, [], []
        for count in counts:
            view, header = stamped(plain_batch(count, value=value), offset, epoch)
            views.append(view)
            headers.append(header)
            offset += count
        led.log.append(views, headers)
        led.progress.written(led.log.end_offset, self.now)
        self.server.written(led)

    def flush(self, led: LedPartition) -> None:
        assert isinstance(led.log, PartitionLog)
        flush(led.log)
        led.progress.flushed(led.log.flushed_offset)

    def turn_ends(self) -> None:
        self.server.answer_woken(self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.server.expire(self.now)


class Follower:
    """Sends requests to the server of a scene, at the scene's time; `answers` are those received, in order."""

    def __init__(self, scene: Any, broker_id: int = 1, incarnation: int = 1) -> None:
        self.scene = scene
        self.broker_id = broker_id
        self.incarnation = incarnation
        self.session_id = 0
        self.epoch = 0
        self.answers: list[replica_fetch.ReplicaFetched] = []
        self.session: FetchSession | None = None
        self.cluster_id = "aCluster"
        self.bytes_max = 1 << 20

    def send(
        self, *partitions: replica_fetch.ReplicaPartition, forgotten: Sequence[tuple[bytes, int]] = (), epoch: int | None = None
    ) -> None:
        """The next request of its session; the first one opens it."""
        fetch = replica_fetch.ReplicaFetch(
            self.broker_id,
            self.incarnation,
            self.cluster_id,
            500,
            1,
            self.bytes_max,
            self.session_id,
            self.epoch if epoch is None else epoch,
            partitions,
            forgotten,
        )
        parsed = replica_fetch.parse_replica_fetch(memoryview(replica_fetch.encode_replica_fetch(fetch)))
        assert parsed is not None
        self.session = self.scene.server.fetch(parsed, self._answered, self.scene.now)
        self.epoch += 1

    def _answered(self, parts: list[bytes | FileSlice]) -> None:
        answer = replica_fetch.parse_replica_answer(memoryview(bytes_of(parts)))
        self.session_id = answer.session_id
        self.answers.append(answer)

    def last(self) -> replica_fetch.ReplicaFetched:
        return self.answers[-1]


def wants(
    index: int,
    offset: int,
    *,
    flushed: int = 0,
    epoch: int = 0,
    last_epoch: int = -1,
    bytes_max: int = 1 << 20,
    topic_id: bytes = TOPIC_ID,
    log_start: int = 0,
) -> replica_fetch.ReplicaPartition:
    return replica_fetch.ReplicaPartition(topic_id, index, epoch, offset, last_epoch, log_start, bytes_max, flushed)


def fetching(scene: Any, *partitions: replica_fetch.ReplicaPartition, **settings: Any) -> Follower:
    """A follower that has opened its session."""
    follower = Follower(scene, **settings)
    follower.send(*(partitions or (wants(0, 0),)))
    return follower


def waiting(scene: Any, *partitions: replica_fetch.ReplicaPartition, **settings: Any) -> Follower:
    """One whose second fetch has found nothing."""
    follower = fetching(scene, *partitions, **settings)
    follower.send()
    return follower
