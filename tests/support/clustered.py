"""Brokers of a cluster, for clients' requests about topics and settings: engines without logs on the simulated ZooKeeper."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from logbus_broker.api.cluster_metadata import ClusterMetadata
from logbus_broker.api.handler import Parts, Pending
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.framing import Origin, Request
from logbus_broker.settings import BrokerConfig

from tests.sim.coordinated import Controlled, World
from tests.support.engine import Harness


class ClusteredBroker(Harness):
    """One broker. It is registered and follows the image, but leads no partition."""

    def __init__(self, world: World, directory: Path, broker_id: int, **settings: Any) -> None:
        self.timeline = world.timeline
        self.process = Controlled(world, broker_id)
        self.store, self.member, self.controller = self.process.store, self.process.member, self.process.controller
        settings = {"zookeeper_connect": "zk:2181", "broker_id": broker_id, **settings}
        config = BrokerConfig(log_dirs=directory, **settings)
        ids = iter(range(broker_id * 1_000, broker_id * 1_000 + 1_000))
        metadata_source = ClusterMetadata(self.member, config, lambda: uuid.UUID(int=next(ids), version=4))
        super().__init__(directory, metadata_source=metadata_source, **settings)

    def bytes_of(self, answer: Parts | Pending) -> bytes:
        """The response's body, once ZooKeeper has answered everything that it needs."""
        if isinstance(answer, Pending):
            self.timeline.run_until(lambda: self._settled(answer), 120)
        return super().bytes_of(answer)

    def dispatch(self, api_key: ApiKey, version: int, body: bytes | bytearray) -> Parts | Pending:
        origin = Origin("10.0.0.1", "PLAINTEXT")
        return self.engine.dispatch(Request(int(api_key), version, 1, "test", memoryview(body), origin=origin))

    def stop(self) -> None:
        self.process.kill()
        self.close()

    def _settled(self, answer: Pending) -> bool:
        self.settle()
        return answer.done


class ClusterOfBrokers:
    """Several brokers, registered, that see each other."""

    def __init__(self, directory: Path, count: int = 3, **settings: Any) -> None:
        self.world = World()
        self.timeline = self.world.timeline
        self._directory = directory
        self._settings = settings
        self.brokers: dict[int, ClusteredBroker] = {}
        for broker_id in range(1, count + 1):
            self.start(broker_id)

    def start(self, broker_id: int) -> ClusteredBroker:
        directory = self._directory / str(broker_id)
        directory.mkdir()
        broker = ClusteredBroker(self.world, directory, broker_id, **self._settings)
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
