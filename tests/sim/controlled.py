"""Brokers that run only coordination and the controller, over the simulated ZooKeeper."""

from __future__ import annotations

from uuid import UUID

from broker.cluster import metadata_writes, znodes
from broker.cluster.controller import ClusterController
from broker.cluster.metadata_image import ClusterTopic, PartitionState
from broker.cluster.store import Node
from tests.sim.coordinated import SESSION_TIMEOUT_MS, Coordinated, World

LOOP_SECONDS = 0.01


class Controlled:
    """One process; `settings` holds each topic's min.insync.replicas, and whether elections may be unclean."""

    def __init__(self, world: World, broker_id: int, *, minimum: int = 1, is_unclean_allowed: bool = False) -> None:
        self.world = world
        self.process: Coordinated = world.started(broker_id)
        self.controller = ClusterController(
            self.process.store,
            broker_id,
            world.timeline,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            minimum_of=lambda _: minimum,
            is_unclean_allowed=lambda _: is_unclean_allowed,
        )
        self._is_alive = True
        self.controller.connected(self.process.store.session_id)
        self._follower_connected = self.process.watcher.connected
        self.process.watcher.connected = self._connected  # type: ignore[method-assign]
        self.process.watcher.listen(lambda image, _: self.controller.image_changed(image))
        self._turn()

    def _connected(self, session_id: int) -> None:
        self.controller.connected(session_id)
        self._follower_connected(session_id)

    def kill(self) -> None:
        self._is_alive = False
        self.process.kill()

    def _turn(self) -> None:
        if not self._is_alive:
            return
        if self.controller.due <= self.world.timeline.monotonic():
            self.controller.work()
        self.world.timeline.after(LOOP_SECONDS, self._turn)


def create(
    world: World, broker: Controlled, name: str, replicas: tuple[int, ...], partitions: int = 3, number: int = 1
) -> ClusterTopic:
    """A topic led by its first replica, with all replicas in sync."""
    state = PartitionState(leader=replicas[0], leader_epoch=0, isr=replicas, version=0)
    topic = ClusterTopic(
        name=name,
        topic_id=UUID(int=number),
        replicas=(replicas,) * partitions,
        states=(state,) * partitions,
        version=0,
    )
    world.answered(broker.process, metadata_writes.create_topic(topic, {}))
    world.run(0.1)  # until every broker has read it
    return topic


def stored(world: World, name: str, index: int = 0) -> PartitionState:
    """The state of a partition as stored in ZooKeeper."""
    node = world.zookeeper.read(znodes.state_path(name, index))
    assert isinstance(node, Node)
    return znodes.decode_state(node.data, node.version)
