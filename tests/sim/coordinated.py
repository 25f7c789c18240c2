"""Brokers that run only coordination, over the simulated ZooKeeper: tests of following the image and of registration."""

from __future__ import annotations

import uuid
from random import Random
from typing import Any

from broker.cluster import znodes
from broker.cluster.membership import EventFan
from broker.cluster.metadata_image import BrokerNode, ClusterTopic, Endpoint, MetadataDelta, MetadataImage, PartitionState
from broker.cluster.metadata_watcher import MetadataWatcher, read_controller, read_image
from broker.cluster.registration import Registration
from broker.cluster.store import Node, Script, run_script
from broker.errors import BrokerError
from tests.sim.world import Timeline
from tests.sim.zookeeper import SimZooKeeper

SESSION_TIMEOUT_MS = 6_000


def topic(name: str, number: int, partitions: int = 3) -> ClusterTopic:
    """A topic whose id is the number, led by broker 1."""
    return ClusterTopic(
        name=name,
        topic_id=uuid.UUID(int=number),
        replicas=((1, 2),) * partitions,
        states=(PartitionState(leader=1, leader_epoch=0, isr=(1, 2), version=0),) * partitions,
        version=0,
    )


class Answer:
    """The result of a script."""

    def __init__(self) -> None:
        self.is_there = False
        self.value: Any = None
        self.error: BrokerError | None = None

    def take(self, value: Any, error: BrokerError | None) -> None:
        assert not self.is_there, "answered twice"
        self.is_there, self.value, self.error = True, value, error


class Coordinated:
    """One process."""

    def __init__(self, world: World, broker_id: int, *, directory: str, cluster_id: str = "") -> None:
        self.world = world
        self.store = world.zookeeper.client(f"{broker_id} {directory}", self._wake, SESSION_TIMEOUT_MS)
        self.news: list[MetadataDelta] = []
        self.entered: Answer = Answer()
        self.registered: Answer = Answer()
        self.fenced: BrokerError | None = None
        node = BrokerNode(
            broker_id=broker_id,
            incarnation=-1,
            endpoints={"PLAINTEXT": Endpoint(host="localhost", port=9092 + broker_id)},
            directory_id=directory,
        )
        self.registration = Registration(
            self.store,
            node,
            cluster_id=cluster_id,
            new_cluster_id=f"cluster of {directory}",
            clock=world.timeline,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            on_fenced=self._was_fenced,
        )
        self.watcher = MetadataWatcher(self.store)
        self.watcher.listen(lambda _, news: self.news.append(news))
        self.watcher.listen(lambda image, _: self.registration.seen(image))
        self.store.begin(EventFan([self.registration, self.watcher]))
        self._is_alive = True
        self.registration.enter(self._entered)
        self._tick()

    @property
    def image(self) -> MetadataImage:
        return self.watcher.image

    def ask(self, script: Script[Any]) -> Answer:
        answer = Answer()
        run_script(self.store, script, answer.take)
        return answer

    def kill(self) -> None:
        self._is_alive = False
        self.store.kill()

    def stop(self) -> None:
        self._is_alive = False
        self.registration.close()
        self.store.close(lambda: None)

    def _wake(self) -> None:
        self.world.timeline.after(0, self.store.drain)

    def _tick(self) -> None:
        if self._is_alive:
            self.registration.tick()
            self.watcher.tick()
            self.world.timeline.after(1, self._tick)

    def _entered(self, error: BrokerError | None) -> None:
        self.entered.take(None, error)
        if error is None:
            self.registration.register(lambda error: self.registered.take(None, error))

    def _was_fenced(self, error: BrokerError) -> None:
        self.fenced = error
        self.kill()


class World:
    """An ensemble, its brokers and a clock."""

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)
        self.timeline = Timeline()
        self.zookeeper = SimZooKeeper(self.timeline, self.random)
        self.run = self.timeline.run

    def start(self, broker_id: int, *, directory: str = "", cluster_id: str = "") -> Coordinated:
        return Coordinated(self, broker_id, directory=directory or f"d{broker_id}", cluster_id=cluster_id)

    def started(self, broker_id: int, **settings: str) -> Coordinated:
        broker = self.start(broker_id, **settings)
        self.timeline.run_until(lambda: broker.registered.is_there and broker.watcher.is_known, 30)
        assert broker.registered.error is None
        return broker

    def answered(self, broker: Coordinated, script: Script[Any]) -> Any:
        answer = broker.ask(script)
        self.timeline.run_until(lambda: answer.is_there, 60)
        if answer.error is not None:
            raise answer.error
        return answer.value

    def truth(self, position: int) -> MetadataImage:
        """The image as a full read of the leading server's tree shows it."""
        image = self._run(read_image(position))
        brokers = self.zookeeper.children(znodes.BROKERS)
        leaving = self.zookeeper.children(znodes.LEAVING)
        assert isinstance(brokers, tuple)
        assert isinstance(leaving, tuple)
        nodes: dict[int, BrokerNode] = {}
        for name in brokers:
            node = self.zookeeper.read(f"{znodes.BROKERS}/{name}")
            assert isinstance(node, Node)
            nodes[int(name)] = znodes.decode_broker(int(name), node.data)
        return MetadataImage(
            cluster_id=image.cluster_id,
            brokers=nodes,
            incarnations=image.incarnations,
            controller=self._run(read_controller()),
            topics=image.topics,
            topic_settings=image.topic_settings,
            broker_settings=image.broker_settings,
            deleting=image.deleting,
            leaving=frozenset(map(int, leaving)),
            position=position,
        )

    def _run(self, script: Script[Any]) -> Any:
        answer = Answer()
        run_script(_TruthStore(self.zookeeper), script, answer.take)
        assert answer.is_there
        assert answer.error is None
        return answer.value


class _TruthStore:
    """Answers at once, from the leading server's tree."""

    session_id = 0

    def __init__(self, zookeeper: SimZooKeeper) -> None:
        self._zookeeper = zookeeper

    def read(self, path: str, then: Any, *, watch: bool = False) -> None:
        then(self._zookeeper.read(path))

    def children(self, path: str, then: Any, *, watch: bool = False) -> None:
        then(self._zookeeper.children(path))

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the truth is only read: {name}")
