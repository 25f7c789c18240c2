"""Brokers that are members of a cluster and nothing else, over the simulated ZooKeeper."""

from __future__ import annotations

import uuid
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from logbus_broker.cluster import metadata_writes, znodes
from logbus_broker.cluster.controller import ClusterController
from logbus_broker.cluster.leader_election import KAFKAS_BALANCING, LeaderBalancing
from logbus_broker.cluster.membership import ClusterMember
from logbus_broker.cluster.metadata_image import BrokerNode, ClusterTopic, Endpoint, MetadataDelta, MetadataImage, PartitionState
from logbus_broker.cluster.metadata_watcher import read_controller, read_image
from logbus_broker.cluster.store import Script, run_script
from logbus_broker.errors import BrokerError

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


Process = TypeVar("Process", bound="Coordinated")


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
    """One process: a member of the cluster."""

    loop_seconds = 0.2

    def __init__(self, world: World, broker_id: int, *, directory: str = "", cluster_id: str = "", host: str = "") -> None:
        directory = directory or f"d{broker_id}"
        self.world = world
        self.broker_id = broker_id
        self.store = world.zookeeper.client(f"{broker_id} {directory}", self._wake, SESSION_TIMEOUT_MS)
        self.news: list[MetadataDelta] = []
        self.entered: Answer = Answer()
        self.registered: Answer = Answer()
        self.fenced: BrokerError | None = None
        node = BrokerNode(
            broker_id=broker_id,
            incarnation=-1,
            endpoints={"PLAINTEXT": Endpoint(host=host or f"host{broker_id}", port=9090 + broker_id)},
            directory_id=directory,
        )
        self.member = ClusterMember(
            self.store,
            node,
            cluster_id=cluster_id,
            new_cluster_id=f"cluster of {directory}",
            clock=world.timeline,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            on_fenced=self._was_fenced,
            answers=lambda address, then: then(address in world.listening),
        )
        self.registration, self.watcher = self.member.registration, self.member.watcher
        self.watcher.listen(lambda _, news: self.news.append(news))
        self._is_alive = True
        self.begin()
        self.registration.enter(self._entered)
        self._turn()

    def begin(self) -> None:
        self.member.begin()

    def work(self, now: float) -> None:
        self.member.work(now)

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

    def _turn(self) -> None:
        if self._is_alive:
            self.work(self.world.timeline.monotonic())
            self.world.timeline.after(self.loop_seconds, self._turn)

    def _entered(self, error: BrokerError | None) -> None:
        self.entered.take(None, error)
        if error is None:
            self.registration.register(lambda error: self.registered.take(None, error))

    def _was_fenced(self, error: BrokerError) -> None:
        self.fenced = error
        self.kill()


class Controlled(Coordinated):
    """One that may be the controller. `minimum` is each topic's min.insync.replicas."""

    loop_seconds = 0.01

    def __init__(self, world: World, broker_id: int, *, minimum: int = 1, balancing: LeaderBalancing = KAFKAS_BALANCING) -> None:
        self._minimum, self._balancing = minimum, balancing
        super().__init__(world, broker_id)

    def begin(self) -> None:
        self.controller = ClusterController(
            self.store,
            self.broker_id,
            self.world.timeline,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            minimum_of=lambda _: self._minimum,
            is_unclean_allowed=lambda _: False,
            balancing=self._balancing,
        )
        self.member.elect = lambda keys, is_unclean: self.controller.elect(keys, is_unclean=is_unclean)
        self.watcher.listen(lambda image, _: self.controller.image_changed(image))
        self.member.begin([self.controller])

    def work(self, now: float) -> None:
        super().work(now)
        if self.controller.due <= now:
            self.controller.work()


class World:
    """An ensemble, its brokers and a clock."""

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)
        self.timeline = Timeline()
        self.zookeeper = SimZooKeeper(self.timeline, self.random)
        self.run = self.timeline.run
        self.listening: set[Endpoint] = set()  # where a connection is taken

    def start(self, broker_id: int, *, directory: str = "", cluster_id: str = "", host: str = "") -> Coordinated:
        return Coordinated(self, broker_id, directory=directory, cluster_id=cluster_id, host=host)

    def started(self, broker_id: int, **settings: str) -> Coordinated:
        return self.joined(self.start(broker_id, **settings))

    def joined(self, broker: Process) -> Process:
        """Once it is registered."""
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
        zookeeper = self.zookeeper
        return replace(
            self._run(read_image(position)),
            brokers={
                int(name): znodes.decode_broker(int(name), zookeeper.node(f"{znodes.BROKERS}/{name}").data)
                for name in zookeeper.names(znodes.BROKERS)
            },
            controller=self._run(read_controller()),
            leaving=frozenset(map(int, zookeeper.names(znodes.LEAVING))),
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
        then(self._zookeeper.names(path))

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the truth is only read: {name}")


def create(
    world: World, broker: Controlled, name: str, replicas: tuple[int, ...], partitions: int = 3, number: int = 1
) -> ClusterTopic:
    """A topic led by its first replica, with all replicas in sync."""
    state = PartitionState(leader=replicas[0], leader_epoch=0, isr=replicas, version=0)
    created = ClusterTopic(
        name=name,
        topic_id=uuid.UUID(int=number),
        replicas=(replicas,) * partitions,
        states=(state,) * partitions,
        version=0,
    )
    world.answered(broker, metadata_writes.create_topic(created, {}))
    world.run(0.1)  # until every broker has read it
    return created
