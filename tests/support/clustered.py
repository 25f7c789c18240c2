"""Brokers of a cluster, for clients' requests about topics and settings: engines without logs on the simulated ZooKeeper."""

from __future__ import annotations

import uuid
from pathlib import Path
from random import Random
from typing import Any

from broker.api.cluster_metadata import ClusterMetadata
from broker.api.handler import Parts, Pending
from broker.cluster.controller import ClusterController
from broker.cluster.membership import ClusterMember
from broker.cluster.metadata_image import BrokerNode, Endpoint
from broker.config.settings import BrokerConfig
from broker.errors import BrokerError
from broker.protocol.api import ApiKey
from broker.protocol.framing import Origin, Request
from tests.sim.world import Timeline
from tests.sim.zookeeper import SimStore, SimZooKeeper
from tests.support.engine import Harness

SESSION_TIMEOUT_MS = 6_000
LISTENER = "PLAINTEXT"


class ClusteredBroker(Harness):
    """One broker. It is registered and follows the image, but leads no partition."""

    def __init__(self, timeline: Timeline, zookeeper: SimZooKeeper, directory: Path, broker_id: int, **settings: Any) -> None:
        self._is_stopped = False
        self.timeline = timeline
        self.store: SimStore = zookeeper.client(f"broker {broker_id}", self._wake, SESSION_TIMEOUT_MS)
        node = BrokerNode(
            broker_id=broker_id,
            incarnation=-1,
            endpoints={LISTENER: Endpoint(host=f"host{broker_id}", port=9090 + broker_id)},
            directory_id=f"directory {broker_id}",
        )
        self.member = ClusterMember(
            self.store,
            node,
            cluster_id="",
            new_cluster_id="c1",
            clock=timeline,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            on_fenced=self._fail,
        )
        settings = {"zookeeper_connect": "zk:2181", "broker_id": broker_id, **settings}
        config = BrokerConfig(log_dirs=directory, **settings)
        ids = iter(range(broker_id * 1_000, broker_id * 1_000 + 1_000))
        metadata_source = ClusterMetadata(self.member, config, lambda: uuid.UUID(int=next(ids), version=4))
        super().__init__(directory, metadata_source=metadata_source, **settings)
        self.controller = ClusterController(
            self.store,
            broker_id,
            timeline,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            minimum_of=lambda topic: 1,
            is_unclean_allowed=lambda topic: False,
        )
        self.member.elect = lambda keys, is_unclean: self.controller.elect(keys, is_unclean=is_unclean)
        self.member.watcher.listen(lambda image, _: self.controller.image_changed(image))
        self.member.begin([self.controller])
        self.member.registration.enter(self._entered)
        self._tick()

    def bytes_of(self, answer: Parts | Pending) -> bytes:
        """The response's body, once ZooKeeper has answered everything that it needs."""
        if isinstance(answer, Pending):
            self.timeline.run_until(lambda: self._settled(answer), 120)
        return super().bytes_of(answer)

    def dispatch(self, api_key: ApiKey, version: int, body: bytes | bytearray) -> Parts | Pending:
        origin = Origin("10.0.0.1", LISTENER)
        return self.engine.dispatch(Request(int(api_key), version, 1, "test", memoryview(body), origin=origin))

    def stop(self) -> None:
        self._is_stopped = True
        self.store.kill()
        self.close()

    def _settled(self, answer: Pending) -> bool:
        self.settle()
        return answer.done

    def _tick(self) -> None:
        if self._is_stopped:
            return
        self.member.work(self.timeline.monotonic())
        if self.controller.due <= self.timeline.monotonic():
            self.controller.work()
        self.timeline.after(0.2, self._tick)

    def _wake(self) -> None:
        self.timeline.after(0, self.store.drain)

    def _entered(self, error: BrokerError | None) -> None:
        self._fail(error)
        self.member.registration.register(self._fail)

    @staticmethod
    def _fail(error: BrokerError | None) -> None:
        assert error is None


class ClusterOfBrokers:
    """Several brokers, registered, that see each other."""

    def __init__(self, directory: Path, count: int = 3, **settings: Any) -> None:
        self.timeline = Timeline()
        self.zookeeper = SimZooKeeper(self.timeline, Random(0))
        self._directory = directory
        self._settings = settings
        self.brokers: dict[int, ClusteredBroker] = {}
        for broker_id in range(1, count + 1):
            self.start(broker_id)

    def start(self, broker_id: int) -> ClusteredBroker:
        directory = self._directory / str(broker_id)
        directory.mkdir()
        broker = ClusteredBroker(self.timeline, self.zookeeper, directory, broker_id, **self._settings)
        self.brokers[broker_id] = broker
        self.timeline.run_until(self._is_complete, 30)
        return broker

    def kill(self, broker_id: int) -> None:
        broker = self.brokers.pop(broker_id)
        broker.stop()
        self.timeline.run_until(self._is_complete, 60)

    def _is_complete(self) -> bool:
        images = [broker.member.image for broker in self.brokers.values()]
        return all(image.brokers.keys() == self.brokers.keys() and image.controller.broker_id in self.brokers for image in images)

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.stop()
