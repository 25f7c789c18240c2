"""A follower for tests: real logs, a fetcher, and peers whose answers the test provides."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from logbus_broker.cluster.metadata_image import Endpoint
from logbus_broker.log.partition import Partition
from logbus_broker.protocol import replica_fetch
from logbus_broker.replication.interfaces import PeerRequest, ReplicationQuota, Then
from logbus_broker.replication.replica_fetcher import ReplicaFetcher
from logbus_broker.replication.replicas import FollowedPartition, FollowerHooks
from logbus_broker.settings import BrokerConfig

from tests.support.batches import plain_batch, stamped
from tests.support.engine import ManualThreadPool
from tests.support.logs import flush, open_log
from tests.support.manual_clock import ManualClock

LEADER, ME, INCARNATION = 2, 1, 7
TOPIC_ID = UUID(int=7)


class ScriptedPeers:
    """Implements `replication.peers.Peers`; requests wait in `sent` for the test."""

    def __init__(self) -> None:
        self.due = math.inf
        self.reached: dict[int, None] = {}
        self.sent: deque[tuple[replica_fetch.ReplicaFetch, Then]] = deque()

    def know(self, addresses: Mapping[int, Endpoint]) -> None: ...

    def is_reached(self, broker: int) -> bool:
        return broker in self.reached

    def send(self, broker: int, request: PeerRequest, then: Then) -> None:
        assert broker == LEADER
        assert (request.api_key, request.version) == (1, 17)
        fetch = replica_fetch.parse_replica_fetch(memoryview(request.body))
        assert fetch is not None
        self.sent.append((fetch, then))

    def work(self, now: float) -> None: ...


def batches(offset: int, *counts: int, epoch: int = 0) -> bytes:
    """Batches as a leader sends them, of `counts` records each, from `offset` on."""
    out = b""
    for count in counts:
        view, _ = stamped(plain_batch(count), offset, epoch)
        out += bytes(view)
        offset += count
    return out


def row(
    index: int = 0,
    records: bytes = b"",
    *,
    error: int = 0,
    visible: int = 0,
    start: int = 0,
    diverging: tuple[int, int] | None = None,
    wanted: int = replica_fetch.NO_OFFSET,
) -> tuple[replica_fetch.ReplicaAnswer, bytes]:
    return replica_fetch.ReplicaAnswer(TOPIC_ID.bytes, index, error, visible, start, len(records), diverging, wanted), records


class FollowerScene:
    """Broker 1, a follower of partitions of one topic led by broker 2."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.thread_pool = ManualThreadPool()
        self.peers = ScriptedPeers()
        self.wants_flush: list[int] = []
        self.written: list[int] = []
        self.offline: list[int] = []
        self.refused: list[int] = []
        self.cut: list[int] = []
        self.partitions: dict[int, Partition] = {}
        self.replicas: dict[int, FollowedPartition] = {}
        self._directory = directory
        self.quota = ReplicationQuota(ME)
        self.fetcher = ReplicaFetcher(
            LEADER,
            BrokerConfig(broker_id=ME),
            incarnation=INCARNATION,
            cluster_id="aCluster",
            peers=self.peers,
            monotonic=self.clock.monotonic,
            quota=self.quota,
        )

    def open(self, index: int = 0) -> FollowedPartition:
        """Open the log of a partition, new or as it was left."""
        log = open_log(self._directory / f"clicks-{index}", is_replica=True)
        partition = self.partitions[index] = Partition("clicks", index, TOPIC_ID, log)
        hooks = FollowerHooks(
            written=lambda partition, size: self.written.append(partition.index),
            want_flush=lambda partition: self.wants_flush.append(partition.index),
            offline=lambda partition: self.offline.append(partition.index),
            cut=lambda partition: self.cut.append(partition.end_offset),
            refused=lambda partition, error: self.refused.append(partition.index),
        )
        replica = self.replicas[index] = FollowedPartition(partition, thread_pool=self.thread_pool, hooks=hooks)
        return replica

    def follow(self, index: int = 0, epoch: int = 0) -> FollowedPartition:
        replica = self.replicas.get(index) or self.open(index)
        self.partitions[index].become_follower(LEADER, epoch)
        self.fetcher.follow(replica)
        return replica

    def reach(self) -> None:
        self.peers.reached[LEADER] = None
        self.fetcher.reached()
        self.turn()

    def turn(self, milliseconds: int = 0) -> None:
        """Time passes, and a turn of the loop ends."""
        self.clock.advance_ms(milliseconds)
        while self.fetcher.due <= self.clock.monotonic():
            self.fetcher.work(self.clock.monotonic())

    def run_jobs(self) -> None:
        self.thread_pool.run()
        self.thread_pool.drain()
        self.turn()

    def flush(self, index: int = 0) -> None:
        flush(self.partitions[index].log)
        self.replicas[index].flushed()
        self.fetcher.changed(self.replicas[index].key)
        self.turn()

    def asked(self) -> replica_fetch.ReplicaFetch:
        """The oldest unanswered request."""
        return self.peers.sent[0][0]

    def named(self) -> list[replica_fetch.ReplicaPartition]:
        """The partitions that the newest request names."""
        return list(self.peers.sent[-1][0].partitions)

    def answer(self, *rows: tuple[replica_fetch.ReplicaAnswer, bytes], error: int = 0, session_id: int = 5) -> None:
        """Answer the oldest request, and end the turn."""
        self.answer_with(encode(rows, error=error, session_id=session_id))
        self.turn()

    def answer_with(self, body: bytes | None) -> None:
        _, then = self.peers.sent.popleft()
        then(None if body is None else memoryview(body))

    def close_connection(self) -> None:
        self.peers.reached.clear()
        while self.peers.sent:
            self.answer_with(None)
        self.fetcher.closed()
        self.turn()


def encode(rows: tuple[tuple[replica_fetch.ReplicaAnswer, bytes], ...], *, error: int, session_id: int) -> bytes:
    heads = replica_fetch.encode_replica_answer([answer for answer, _ in rows], session_id=session_id, error=error)
    return b"".join(head + records for head, (_, records) in zip(heads, rows, strict=False)) + heads[-1]
