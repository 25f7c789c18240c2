"""Images of several brokers over the simulated ZooKeeper: whatever happens to the journal and the connections, each ends equal to
a full read of ZooKeeper; on the way no image goes back, and those at one position are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from logbus_broker.cluster import metadata_writes, znodes
from logbus_broker.cluster.metadata_image import EVERY_BROKER, ClusterTopic, MetadataImage, StateChange, TopicDeleted
from logbus_broker.cluster.metadata_log import entry_path, log_entry, state_writes
from logbus_broker.cluster.store import Delete, Operation

from tests.sim.coordinated import Coordinated, World, topic
from tests.support.examples import examples

NAMES = ("access", "errors", "audit")


class _History:
    """Random writes of three brokers, and faults."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World(seed)
        self.brokers = [self.world.started(broker_id) for broker_id in (1, 2, 3)]
        self.next_id = 1
        self.images: dict[int, tuple[object, ...]] = {}  # the persistent part, by position
        for broker in self.brokers:
            broker.watcher.listen(self._checks(broker))

    def _checks(self, broker: Coordinated) -> Callable[[MetadataImage, object], None]:
        seen: dict[tuple[object, int], int] = {}
        position = -1

        def check(image: MetadataImage, _: object) -> None:
            nonlocal position
            assert image.position >= position, "the image went back"
            position = image.position
            persistent = (image.topics, image.topic_settings, image.broker_settings, image.incarnations, image.deleting)
            assert self.images.setdefault(position, persistent) == persistent, "images of one position differ"
            for known in image.topics.values():
                for index, state in enumerate(known.states):
                    assert state.version >= seen.get((known.topic_id, index), -1), "a state went back"
                    seen[(known.topic_id, index)] = state.version

        return check

    def step(self) -> None:
        acts = (self.make, self.make, self.grow, self.set, self.change, self.change, self.change, self.mark, self.remove)
        faults = (self.trim, self.drop, self.expire, self.lose, self.elect, self.restart)
        act = self.random.choice(acts if self.random.random() < 0.8 else faults)
        act()
        self.world.run(self.random.choice((0.0, 0.001, 0.003, 0.02, 0.5)))

    def heal(self) -> None:
        self.world.zookeeper.answer_loss = 0.0
        self.world.run(30)

    def _broker(self) -> Coordinated:
        return self.random.choice(self.brokers)

    def _known(self, broker: Coordinated) -> ClusterTopic | None:
        topics = list(broker.image.topics.values())
        return self.random.choice(topics) if topics else None

    def make(self) -> None:
        made = topic(self.random.choice(NAMES), self.next_id, self.random.choice((1, 3, 40)))
        self.next_id += 1
        self._broker().ask(metadata_writes.create_topic(made, {"made": str(self.next_id)}))

    def grow(self) -> None:
        broker = self._broker()
        if known := self._known(broker):
            more = topic(known.name, 0, 2)
            broker.ask(metadata_writes.grow_topic(known.name, known.topic_id, known.partition_count, more.replicas, more.states))

    def set(self) -> None:
        broker = self._broker()
        if known := self._known(broker):
            value = str(self.random.random())
            broker.ask(metadata_writes.change_topic_settings(known.name, known.topic_id, lambda old: {**old, "set": value}))
        broker.ask(metadata_writes.change_broker_settings(EVERY_BROKER, lambda old: {**old, "x": str(self.random.random())}))

    def change(self) -> None:
        broker = self._broker()
        if known := self._known(broker):
            index = self.random.randrange(known.partition_count)
            old = known.states[index]
            if old.version < 0:
                return
            state = type(old)(
                leader=self.random.choice((1, 2)), leader_epoch=old.leader_epoch + 1, isr=(1, 2), version=old.version + 1
            )
            change = StateChange(topic=known.name, topic_id=known.topic_id, index=index, state=state)
            broker.store.commit(state_writes([change]), lambda outcome: None)

    def mark(self) -> None:
        broker = self._broker()
        if known := self._known(broker):
            broker.ask(metadata_writes.delete_topic(known.name, known.topic_id))

    def remove(self) -> None:
        """As the controller does, but in one transaction."""
        broker = self._broker()
        known = self._known(broker)
        if known is None or known.name not in broker.image.deleting:
            return
        operations: list[Operation] = []
        for index in range(known.partition_count):
            operations += [
                Delete(path=znodes.state_path(known.name, index)),
                Delete(path=znodes.partition_path(known.name, index)),
            ]
        operations += [
            Delete(path=znodes.partitions_path(known.name)),
            Delete(path=znodes.topic_path(known.name), version=known.version),
            Delete(path=znodes.topic_id_path(known.topic_id)),
            Delete(path=znodes.topic_settings_path(known.name)),
            Delete(path=znodes.deletion_path(known.name)),
            log_entry([TopicDeleted(topic=known.name, topic_id=known.topic_id)]),
        ]
        broker.store.commit(operations, lambda outcome: None)

    def trim(self) -> None:
        """Delete any entries but the newest."""
        for position in self.world.zookeeper.log_positions()[:-1]:
            if self.random.random() < 0.6:
                self._broker().store.commit([Delete(path=entry_path(position))], lambda outcome: None)

    def drop(self) -> None:
        self._broker().store.drop(before_all=self.random.random() < 0.5)

    def expire(self) -> None:
        self.world.zookeeper.expire(self._broker().store.session_id)

    def lose(self) -> None:
        self.world.zookeeper.answer_loss = self.random.choice((0.0, 0.2))

    def elect(self) -> None:
        if self.world.zookeeper.is_serving:
            self.world.zookeeper.elect(self.random.uniform(0.01, 3))

    def restart(self) -> None:
        index = self.random.randrange(len(self.brokers))
        broker = self.brokers[index]
        broker.kill()
        self.brokers[index] = again = self.world.start(broker.registration.node.broker_id)
        again.watcher.listen(self._checks(again))


@settings(max_examples=examples(60))
@given(st.integers(0, 2**32))
def test_every_image_is_in_the_end_what_zookeeper_holds(seed: int) -> None:
    history = _History(seed)
    for _ in range(60):
        history.step()
    history.heal()
    positions = {broker.image.position for broker in history.brokers}
    assert len(positions) == 1
    truth = history.world.truth(positions.pop())
    for broker in history.brokers:
        assert broker.fenced is None
        assert broker.image == truth
