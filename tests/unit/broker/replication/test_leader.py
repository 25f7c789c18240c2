"""A whole leader: a real partition and its high_watermark, followers that send bytes, a simulated ZooKeeper."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from logbus_broker.api.error_codes import code_of
from logbus_broker.cluster.metadata_image import BrokerNode, MetadataImage, PartitionState
from logbus_broker.cluster.store import Set
from logbus_broker.cluster.znodes import incarnation_path
from logbus_broker.errors import BrokerError
from logbus_broker.log.high_watermark import ReplicatedHighWatermark
from logbus_broker.log.partition import Partition
from logbus_broker.protocol.replica_fetch import ReplicaPartition
from logbus_broker.replication.leader import Leader
from logbus_broker.settings import BrokerConfig

from tests.support.batches import plain_batch, validated
from tests.support.engine import Harness
from tests.support.leading import ME, TOPIC_ID, Follower, StoredStates, fetching, waiting, wants
from tests.support.logs import flush, open_log
from tests.support.replicas import append

REPLICAS = (0, 1, 2)
CONFIG = BrokerConfig(broker_id=ME)


class Scene(StoredStates):
    """Broker 0 leads one partition of three replicas; it learns what is stored in ZooKeeper when a test calls `learn`."""

    def __init__(self, directory: Path, state: PartitionState) -> None:
        super().__init__(state)
        self.leader = Leader(
            CONFIG, self.store, self.timeline, cluster_id="aCluster", code_of=code_of, session_ids=itertools.count(1)
        )
        self.image = MetadataImage(
            brokers={broker: BrokerNode(broker_id=broker, incarnation=1, endpoints={}) for broker in REPLICAS},
            incarnations=dict.fromkeys(REPLICAS, 1),
        )
        self.leader.learn_brokers(self.image)
        self.moved: list[tuple[int, int]] = []
        self.leader.on_moved = lambda partition, replicated, visible: self.moved.append((replicated, visible))
        self.partition = Partition("clicks", 0, UUID(bytes=TOPIC_ID), open_log(directory))
        self.partition.become_leader(state.leader_epoch)
        self.leader.lead(self.partition, state, REPLICAS, 2)
        self.server = self.leader.server  # what the followers talk to

    def learn(self) -> None:
        self.leader.learn(self.partition, self.stored(), REPLICAS, 2)

    def append(self, count: int = 1) -> tuple[int, int]:
        self.partition.stage(validated(plain_batch(count)))
        self.partition.write_staged()
        return self.leader.written(self.partition)

    def flush(self) -> tuple[int, int]:
        flush(self.partition.log)
        return self.leader.flushed(self.partition)

    def run(self, seconds: float) -> None:
        """Let time pass, with turns of the loop."""
        end = self.now + seconds
        while self.now < end:
            self.leader.work(self.now)
            self.timeline.run(min(max(self.leader.due - self.now, 0.01), end - self.now))
        self.leader.work(self.now)


STATE = PartitionState(leader=ME, leader_epoch=1, isr=REPLICAS, version=0)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "clicks-0", STATE)


def asks(offset: int, flushed: int = 0, topic_id: bytes = TOPIC_ID) -> ReplicaPartition:
    return wants(0, offset, flushed=flushed, epoch=1, last_epoch=1 if offset else -1, topic_id=topic_id)


def test_a_killed_follower_holds_up_acks_all_for_half_a_second(scene: Scene) -> None:
    first, second = (fetching(scene, asks(0), broker_id=broker) for broker in (1, 2))
    scene.append(3)
    scene.flush()
    first.send(asks(3, 3))
    assert second.session is not None
    scene.leader.disconnected(second.session)
    scene.run(0.3)
    assert scene.stored().version == 0, "it may come back"
    scene.run(0.5)
    assert scene.stored() == replace(STATE, isr=(0, 1), version=1)
    assert scene.moved == []
    scene.learn()
    assert scene.moved == [(3, 3)]


def test_a_killed_follower_of_an_idle_partition_disturbs_nobody(scene: Scene) -> None:
    second = fetching(scene, asks(0), broker_id=2)
    assert second.session is not None
    scene.leader.disconnected(second.session)
    scene.run(20)
    assert scene.stored().version == 0


def test_a_member_that_does_not_keep_up_leaves_after_the_lag(scene: Scene) -> None:
    first, _ = (fetching(scene, asks(0), broker_id=broker) for broker in (1, 2))
    scene.append(1)
    first.send(asks(1, 0))
    scene.run(CONFIG.replica_lag_ms_max / 1000 - 1)
    assert scene.stored().version == 0
    scene.run(3)
    assert scene.stored().isr == (0, 1)


@pytest.fixture
def short(tmp_path: Path) -> Scene:
    """Only the leader is in sync; broker 1 is eligible."""
    return Scene(tmp_path / "clicks-0", replace(STATE, isr=(0,), eligible=(1,)))


def test_a_follower_that_has_everything_joins_and_acks_all_is_taken_again(short: Scene) -> None:
    assert short.partition.lacks_replicas
    fetching(short, asks(0))
    short.run(0.2)
    assert short.stored() == replace(STATE, isr=(0, 1), version=1)
    short.learn()
    assert not short.partition.lacks_replicas


def test_a_follower_that_was_idle_joins_when_it_is_registered(short: Scene) -> None:
    short.leader.learn_brokers(replace(short.image, brokers={0: short.image.brokers[0]}))
    fetching(short, asks(0))
    short.run(3)
    assert short.stored().version == 0
    short.leader.learn_brokers(short.image)
    short.run(2)
    assert short.stored().isr == (0, 1)


def test_a_replica_that_gives_the_partition_up_does_not_join_however_much_it_had(short: Scene) -> None:
    """Its disk has failed, and it has left the set. The leader used to add it again, some hundred times a second."""
    follower = fetching(short, asks(0))
    follower.send(forgotten=[(TOPIC_ID, 0)])
    short.run(3)
    assert short.stored().version == 0


def test_a_broker_that_is_being_stopped_does_not_join(short: Scene) -> None:
    short.leader.learn_brokers(replace(short.image, leaving=frozenset({1})))
    fetching(short, asks(0))
    short.run(3)
    assert short.stored().version == 0


def test_a_process_that_has_a_successor_is_not_taken_in(short: Scene) -> None:
    fetching(short, asks(0))
    short.commit(Set(path=incarnation_path(1), data=b"", version=1))
    short.run(3)
    assert short.stored().version == 0, "ZooKeeper knows better than our image"
    short.leader.learn_brokers(replace(short.image, incarnations={0: 1, 1: 2, 2: 1}))
    assert short.leader.led[TOPIC_ID, 0].progress.followers[1].written == -1


def test_the_lead_is_handed_over_when_the_heir_has_everything(scene: Scene) -> None:
    scene.overwrite(replace(STATE, handover_to=2))
    heir, other = Follower(scene, 2), Follower(scene, 1)
    scene.append(5)
    heir.send(asks(0))
    other.send(asks(0))
    heir.send()
    other.send()
    assert scene.leader.takes_records(scene.partition)
    scene.learn()
    scene.run(0.2)
    assert not scene.leader.takes_records(scene.partition)
    assert scene.stored().version == 1
    heir.send(asks(5))
    scene.run(0.2)
    assert scene.stored().version == 1, "the other member is about to have it, too"
    other.send(asks(5))
    scene.run(0.2)
    assert scene.stored() == replace(STATE, leader=2, leader_epoch=2, version=2)
    heir.send(asks(0))
    assert not scene.leader.takes_records(scene.partition), "nothing is taken once the other may lead"


def test_a_leader_is_confirmed_before_its_first_client_comes(scene: Scene) -> None:
    scene.leader.turn_ends()
    scene.timeline.run(0.1)
    assert scene.leader.takes_records(scene.partition)


def test_a_leader_that_was_stopped_takes_no_records_until_it_is_confirmed(scene: Scene) -> None:
    followers = [waiting(scene, asks(0), broker_id=broker) for broker in (1, 2)]
    assert scene.leader.takes_records(scene.partition)
    scene.timeline.run(10)  # while the leader does not run
    for follower in followers:
        follower.send()
    assert not scene.leader.takes_records(scene.partition), "what comes now may have been sent long ago"
    assert scene.leader.serves_consumers(scene.partition, 12.0)
    scene.leader.turn_ends()
    scene.timeline.run(0.1)
    assert scene.leader.takes_records(scene.partition), "ZooKeeper says that nobody else leads"


def test_a_leader_that_was_deposed_is_not_confirmed_by_zookeeper(scene: Scene) -> None:
    scene.overwrite(replace(STATE, leader=1, leader_epoch=2))
    for _ in range(3):
        assert not scene.leader.takes_records(scene.partition)
        scene.run(1)


def test_when_the_lead_is_over_followers_are_told_and_nothing_is_proposed(scene: Scene) -> None:
    follower = waiting(scene, asks(0))
    scene.append(1)
    scene.leader.end(scene.partition)
    scene.run(60)
    assert [row.error for row in follower.last().partitions] == [6]
    assert scene.stored().version == 0
    assert scene.leader.led == {}


def test_it_is_the_high_watermarks_source(scene: Scene, tmp_path: Path) -> None:
    """acks=all is answered when every member has written; consumers see what every member has flushed."""
    broker = Harness(tmp_path / "broker", watermarks=scene.leader)
    broker.create("clicks")
    partition = broker.engine.partitions.held("clicks", 0)
    high_watermark = broker.engine.context.high_watermark
    assert partition is not None
    assert isinstance(high_watermark, ReplicatedHighWatermark)
    scene.leader.on_moved = high_watermark.moved
    scene.leader.lead(partition, STATE, REPLICAS, 2)
    broker.engine.partitions.lead(partition, 1)
    answers: list[tuple[str, BrokerError | None]] = []
    followers = [waiting(scene, asks(0, topic_id=partition.topic_id.bytes), broker_id=member) for member in (1, 2)]
    append(broker, partition, 2)
    high_watermark.when_replicated(partition, 2, lambda error: answers.append(("replicated", error)))
    high_watermark.when_visible(partition, 2, lambda error: answers.append(("visible", error)))
    scene.leader.turn_ends()
    assert [follower.last().partitions[0].wanted_offset for follower in followers] == [2, 2]
    for follower in followers:
        follower.send(asks(2, topic_id=partition.topic_id.bytes))
    assert answers == [("replicated", None)]
    broker.flush()
    for follower in followers:
        follower.send(asks(2, 2, topic_id=partition.topic_id.bytes))
    assert answers == [("replicated", None), ("visible", None)]
    assert partition.visible_offset == 2
    broker.close()
