"""Random histories of one leader, its followers and ZooKeeper: every electable replica has what was acknowledged and seen.

Followers are killed and come back as new processes, their connections break, answers of transactions are lost, the image is
late, and a controller removes members. The leader is real, with a real log; what followers have is counted here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from broker.coordination.image import BrokerNode, PartitionState
from broker.coordination.store import Node, Set
from broker.coordination.znodes import encode_state, incarnation_path, state_path
from broker.records.batch import BATCH_HEADER_BYTES, LENGTH_END, read_header
from tests.support.leading import Follower, wants
from tests.unit.broker.replication.test_leader import STATE, Scene

INSYNC_MIN = 2


class Replica:
    """A follower that keeps the rules: at most two fetches in flight, each naming the partition and reporting what it has."""

    def __init__(self, scene: Scene, broker_id: int) -> None:
        self.scene = scene
        self.broker_id = broker_id
        self.incarnation = 1
        self.written = self.flushed = 0
        self.visible = 0
        self.link: Follower | None = None
        self.handled = 0

    def round(self, flushes: bool) -> None:
        """Process what has arrived, then fetch more."""
        link = self.link
        if link is None or (link.answers and link.last().error):
            link = self.link = Follower(self.scene, self.broker_id, self.incarnation)
            self.handled = 0
        for answer in link.answers[self.handled :]:
            for row in answer.partitions:
                self._store(row.records)
                self.visible = max(self.visible, min(row.visible_offset, self.flushed))
        self.handled = len(link.answers)
        if flushes:
            self.flushed = self.written
        if link.epoch - len(link.answers) < 2:
            link.send(wants(0, self.written, flushed=self.flushed, epoch=1, last_epoch=1 if self.written else -1))

    def _store(self, records: memoryview) -> None:
        position = 0
        while len(records) - position >= BATCH_HEADER_BYTES:
            header = read_header(records, position)
            position += LENGTH_END + header.length
            if position <= len(records) and header.base_offset == self.written:
                self.written += header.last_offset_delta + 1

    def restart(self) -> None:
        """Killed, and back at once with the same disk; it vouches for what it has."""
        self.break_connection()
        path = incarnation_path(self.broker_id)
        self.incarnation += 1
        while (node := self.scene.zookeeper.read(path)) and isinstance(node, Node) and node.version < self.incarnation:
            self.scene.commit([Set(path=path, data=b"", version=node.version)])

    def break_connection(self) -> None:
        if self.link is not None and self.link.session is not None:
            self.scene.leader.disconnected(self.link.session)
        self.link = None


class History:
    def __init__(self, directory: Path, seed: int) -> None:
        self.random = Random(seed)
        self.scene = Scene(directory, STATE)
        self.replicas = {broker: Replica(self.scene, broker) for broker in (1, 2)}
        self.scene.zookeeper.answer_loss = 0.3
        self.seen = (0, 0)
        self.joined = 0

    def step(self) -> None:
        random, scene = self.random, self.scene
        replica = self.replicas[random.choice((1, 2))]
        drawn = random.random()
        if drawn < 0.20:
            scene.append(random.randint(1, 3))
        elif drawn < 0.30:
            scene.flush()
        elif drawn < 0.65:
            replica.round(flushes=random.random() < 0.6)
        elif drawn < 0.75:
            scene.leader.turn_ends()
            scene.timeline.run(random.choice((0.0, 0.001, 0.02)))
        elif drawn < 0.83:
            self.learn()
        elif drawn < 0.90:
            scene.timeline.run(random.choice((0.1, 1.0, 8.0)))
            scene.leader.tick()
        elif drawn < 0.94:
            replica.break_connection()
        elif drawn < 0.96:
            replica.restart()
        elif drawn < 0.975:
            self.replace_disk(replica)
        else:
            self.remove(replica.broker_id)

    def learn(self) -> None:
        scene = self.scene
        before = scene.leader.led[next(iter(scene.leader.led))].progress.state
        scene.learn()
        self.joined += len(scene.stored().isr) > len(before.isr)
        incarnations = {broker: replica.incarnation for broker, replica in self.replicas.items()}
        brokers = {
            broker: BrokerNode(broker_id=broker, incarnation=incarnation, endpoints={})
            for broker, incarnation in incarnations.items()
        }
        scene.leader.learn_brokers(replace(scene.image, incarnations=incarnations, brokers=brokers))

    def replace_disk(self, replica: Replica) -> None:
        """It comes back with nothing, cannot vouch for what it had, and removes itself before anything else."""
        scene, broker = self.scene, replica.broker_id
        replica.restart()
        replica.written = replica.flushed = replica.visible = 0
        while broker in (*(state := scene.stored()).isr, *state.eligible):
            isr, eligible = (tuple(one for one in members if one != broker) for members in (state.isr, state.eligible))
            data = encode_state(replace(state, isr=isr, eligible=eligible))
            scene.commit([Set(path=state_path("clicks", 0), data=data, version=state.version)])

    def remove(self, broker: int) -> None:
        """The controller considers it dead."""
        state = self.scene.stored()
        if broker in state.isr:
            isr = tuple(member for member in state.isr if member != broker)
            eligible = (*state.eligible, broker) if len(isr) < INSYNC_MIN else ()
            data = encode_state(replace(state, isr=isr, eligible=eligible))
            self.scene.commit([Set(path=state_path("clicks", 0), data=data, version=state.version)])

    def check(self) -> None:
        (led,) = self.scene.leader.led.values()
        progress = led.progress
        safe = progress.replicated_offset, progress.visible_offset
        assert safe[1] <= safe[0] <= progress.end_offset
        assert safe >= self.seen
        self.seen = safe
        state: PartitionState = self.scene.stored()
        assert state.leader == 0
        for broker in (*state.isr, *state.eligible):
            if broker != 0:
                replica = self.replicas[broker]
                assert replica.written >= safe[0], f"broker {broker} could be elected"
                assert replica.flushed >= safe[1], f"broker {broker} could be elected"
        for replica in self.replicas.values():
            assert replica.visible <= safe[1]


@pytest.mark.parametrize("seed", range(25))
def test_whoever_could_be_elected_has_what_is_safe(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path / "clicks-0", seed)
    for _ in range(250):
        history.step()
        history.check()
    heal(history)


def heal(history: History) -> None:
    """All faults end: every replica is in sync again, and everything is safe."""
    scene = history.scene
    scene.zookeeper.answer_loss = 0.0
    (led,) = scene.leader.led.values()
    for _ in range(200):
        scene.flush()
        for replica in history.replicas.values():
            replica.round(flushes=True)
        scene.leader.turn_ends()
        scene.timeline.run(0.1)
        scene.leader.tick()
        history.learn()
        history.check()
    assert set(scene.stored().isr) == {0, 1, 2}
    assert scene.stored().eligible == ()
    assert led.progress.visible_offset == led.progress.end_offset
    assert scene.leader.takes_records(scene.partition)
