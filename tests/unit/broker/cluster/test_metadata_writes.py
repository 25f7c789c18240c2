"""Topic changes that clients request and any broker can write, over the simulated ZooKeeper.

No producer id is assigned twice in a cluster.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace

import pytest
from logbus_broker.cluster import metadata_writes, znodes
from logbus_broker.cluster.metadata_image import EVERY_BROKER, ClusterTopic, PartitionState, StateChange
from logbus_broker.cluster.metadata_log import state_writes
from logbus_broker.cluster.metadata_writes import cluster_producer_ids, create_topic, delete_topic, grow_topic
from logbus_broker.cluster.store import Create, Delete, Node, NoNode, Refused, Set, commit
from logbus_broker.errors import InvalidPartitions, InvalidTopic, RequestTimedOut, TopicAlreadyExists, UnknownTopicOrPartition

from tests.sim.coordinated import Coordinated, World, topic


def _make(world: World, broker: Coordinated, new: ClusterTopic, settings: Mapping[str, str] | None = None) -> None:
    world.answered(broker, create_topic(new, settings or {}))
    world.run(0.5)


def _is_there(world: World, path: str) -> bool:
    return isinstance(world.zookeeper.read(path), Node)


def test_a_topic_is_there_with_all_its_leaders_for_every_broker(world: World) -> None:
    brokers = [world.started(broker_id) for broker_id in (1, 2)]
    access = topic("access", 1)
    _make(world, brokers[0], access, {"retention.ms": "1"})
    for broker in brokers:
        assert broker.image.topics == {"access": access}
        assert broker.image.topic_settings["access"].values == {"retention.ms": "1"}
        (news,) = [news for news in broker.news if any(change for change in news.changes)][-1:]
        assert not news.is_everything


def test_settings_that_a_tool_left_behind_do_not_keep_a_topic_from_being_made(world: World, broker: Coordinated) -> None:
    leftover = Create(path=znodes.topic_settings_path("access"), data=znodes.encode_settings({"stale": "1"}))
    world.answered(broker, commit([leftover]))
    _make(world, broker, topic("access", 1), {"fresh": "1"})
    assert broker.image.topic_settings["access"].values == {"fresh": "1"}
    assert broker.image == world.truth(broker.image.position)


def test_a_topic_of_many_partitions_begins_small_and_is_grown(world: World, broker: Coordinated) -> None:
    access = topic("a" * 249, 1, partitions=2_600)
    sizes: list[int] = []
    broker.watcher.listen(lambda image, _: sizes.extend(each.partition_count for each in image.topics.values()))
    _make(world, broker, access)
    assert sizes == sorted(sizes)
    assert len(sizes) > 2
    assert broker.image.topics[access.name].replicas == access.replicas
    assert all(state.leader == 1 for state in broker.image.topics[access.name].states)
    assert broker.image == world.truth(broker.image.position)


def test_more_partitions_than_one_node_can_name_are_refused(world: World, broker: Coordinated) -> None:
    with pytest.raises(InvalidPartitions, match="more than the topic's znode can hold"):
        world.answered(broker, create_topic(topic("access", 1, partitions=40_000), {}))
    assert not _is_there(world, znodes.topic_path("access"))


def test_a_topic_grows_only_from_what_its_writer_saw(world: World, broker: Coordinated) -> None:
    access = topic("access", 1, partitions=2)
    _make(world, broker, access)
    more = topic("access", 1, partitions=3)
    world.answered(broker, grow_topic("access", access.topic_id, 2, more.replicas, more.states))
    other = replace(more, replicas=((2, 1),) * 3)
    with pytest.raises(InvalidPartitions, match="to 5 partitions"):
        world.answered(broker, grow_topic("access", access.topic_id, 2, other.replicas, other.states))
    world.run(0.5)
    assert broker.image.topics["access"].partition_count == 5


def test_what_is_asked_of_another_topic_of_the_name_is_refused(world: World, broker: Coordinated) -> None:
    _make(world, broker, topic("access", 1))
    other = uuid.UUID(int=2)
    with pytest.raises(UnknownTopicOrPartition):
        world.answered(broker, grow_topic("access", other, 3, ((1,),), topic("access", 2, 1).states))
    with pytest.raises(UnknownTopicOrPartition):
        world.answered(broker, metadata_writes.change_topic_settings("access", other, dict))
    world.answered(broker, delete_topic("access", other))
    assert not _is_there(world, znodes.deletion_path("access")), "the topic that is there was not meant"


def test_a_topic_is_marked_once_however_often_it_is_deleted(world: World) -> None:
    brokers = [world.started(broker_id) for broker_id in (1, 2)]
    access = topic("access", 1)
    _make(world, brokers[0], access)
    for broker in (*brokers, *brokers):
        world.answered(broker, delete_topic("access", access.topic_id))
    world.run(0.5)
    assert all(broker.image.deleting == {"access"} for broker in brokers)


def test_a_late_write_does_not_pass_for_one_of_the_topic_that_was_made_again(world: World, broker: Coordinated) -> None:
    old, new = topic("access", 1, partitions=1), topic("access", 2, partitions=1)
    _make(world, broker, old)
    paths = [
        znodes.state_path("access", 0),
        znodes.partition_path("access", 0),
        znodes.partitions_path("access"),
        znodes.topic_path("access"),
        znodes.topic_settings_path("access"),
        znodes.topic_id_path(old.topic_id),
    ]
    broker.store.commit([Delete(path=path) for path in paths], lambda outcome: None)
    world.run(0.5)
    world.answered(broker, create_topic(new, {}))
    late = PartitionState(leader=2, leader_epoch=9, isr=(2,), version=1)
    outcomes: list[object] = []
    change = StateChange(topic="access", topic_id=old.topic_id, index=0, state=late)
    broker.store.commit(state_writes([change]), outcomes.append)
    world.run(0.5)
    assert isinstance(outcomes[0], Refused)
    assert world.zookeeper.state("access") == new.states[0]


def test_settings_of_two_writers_at_once_are_both_kept(world: World) -> None:
    brokers = [world.started(broker_id) for broker_id in (1, 2, 3)]
    _make(world, brokers[0], topic("access", 1))
    answers = [
        broker.ask(
            metadata_writes.change_topic_settings("access", uuid.UUID(int=1), lambda old, name=str(number): {**old, name: "x"})
        )
        for number, broker in enumerate(brokers)
    ]
    answers += [
        broker.ask(metadata_writes.change_broker_settings(EVERY_BROKER, lambda old, name=str(number): {**old, name: "x"}))
        for number, broker in enumerate(brokers)
    ]
    world.run(1)
    assert [answer.error for answer in answers] == [None] * 6
    for broker in brokers:
        assert broker.image.topic_settings["access"].values == {"0": "x", "1": "x", "2": "x"}
        assert broker.image.broker_settings[EVERY_BROKER].values == {"0": "x", "1": "x", "2": "x"}


@pytest.mark.parametrize("is_committed", [True, False])
def test_each_write_whose_answer_is_lost_is_done_once(world: World, is_committed: bool) -> None:
    broker = world.started(1)
    access = topic("access", 1, partitions=2)
    more = topic("access", 1, partitions=1)
    for script in (
        create_topic(access, {"a": "1"}),
        grow_topic("access", access.topic_id, 2, more.replicas, more.states),
        metadata_writes.change_topic_settings("access", access.topic_id, lambda old: {**old, "n": old.get("n", "") + "x"}),
        metadata_writes.change_broker_settings("1", lambda old: {**old, "n": old.get("n", "") + "x"}),
        delete_topic("access", access.topic_id),
    ):
        broker.store.lose_answer(is_committed=is_committed)
        world.answered(broker, script)
        world.run(1)
    image = broker.image
    assert image.topics["access"].partition_count == 3
    assert image.topic_settings["access"].values == {"a": "1", "n": "x"}
    assert image.broker_settings["1"].values == {"n": "x"}
    assert image.deleting == {"access"}
    assert image == world.truth(image.position)


def test_of_two_brokers_that_make_one_topic_one_succeeds_whatever_answers_are_lost() -> None:
    for seed in range(40):
        world = World(seed)
        brokers = [world.started(broker_id) for broker_id in (1, 2)]
        world.zookeeper.answer_loss = 0.3
        answers = [broker.ask(create_topic(topic("access", number), {})) for number, broker in enumerate(brokers, 1)]
        world.run(40)
        world.zookeeper.answer_loss = 0.0
        world.run(10)
        assert all(answer.is_there for answer in answers)
        winners = [number for number, answer in enumerate(answers, 1) if answer.error is None]
        assert len(winners) <= 1, "both believe that the topic is theirs"
        if winners:
            assert brokers[0].image.topics["access"].topic_id == uuid.UUID(int=winners[0])
        for answer in answers:
            assert answer.error is None or isinstance(answer.error, (TopicAlreadyExists, RequestTimedOut))


def test_of_two_brokers_that_make_names_which_collide_one_succeeds() -> None:
    for seed in range(20):
        world = World(seed)
        brokers = [world.started(broker_id) for broker_id in (1, 2)]
        names = ("page_views.raw", "page.views_raw")
        answers = [
            broker.ask(create_topic(topic(name, number), {}))
            for number, (broker, name) in enumerate(zip(brokers, names, strict=True), 1)
        ]
        world.run(5)
        (winner,) = [name for name, answer in zip(names, answers, strict=True) if answer.error is None]
        (refused,) = [answer.error for answer in answers if answer.error is not None]
        assert isinstance(refused, InvalidTopic)
        assert f"collides with {winner!r}" in str(refused)
        assert [list(broker.image.topics) for broker in brokers] == [[winner], [winner]]


def test_a_client_is_told_when_zookeeper_does_not_answer(world: World, broker: Coordinated) -> None:
    world.zookeeper.stop()
    with pytest.raises(RequestTimedOut):
        world.answered(broker, create_topic(topic("access", 1), {}))
    assert world.zookeeper.read(znodes.topic_path("access")) == NoNode()


class _Taker:
    def __init__(self, broker: Coordinated) -> None:
        self.blocks = cluster_producer_ids(broker.store, broker.registration.node.broker_id)
        self.ids: list[int] = []
        self.errors: list[BaseException] = []

    def take(self, count: int) -> None:
        for _ in range(count):
            self.blocks.take(self._taken)

    def _taken(self, producer_id: int, error: BaseException | None) -> None:
        if error is None:
            self.ids.append(producer_id)
        else:
            assert producer_id == -1
            self.errors.append(error)


def test_the_next_block_is_there_before_the_first_is_used_up(world: World, broker: Coordinated) -> None:
    taker = _Taker(broker)
    taker.take(1)
    world.run(1)
    for _ in range(50):
        taker.take(100)
        assert not taker.blocks._waiting, "a producer had to wait for ZooKeeper"
        world.run(0.1)
    assert taker.ids == list(range(5_001))


def test_a_block_whose_answer_was_lost_is_left_alone(world: World, broker: Coordinated) -> None:
    taker = _Taker(broker)
    broker.store.lose_answer(is_committed=True)
    taker.take(1)
    world.run(1)
    assert len(taker.errors) == 1
    taker.take(1)
    world.run(1)
    assert taker.ids == [1_000]


def test_lost_answers_cost_ids_and_never_give_one_twice() -> None:
    for seed in range(20):
        world = World(seed)
        takers = [_Taker(world.started(broker_id)) for broker_id in (1, 2)]
        world.zookeeper.answer_loss = 0.3
        for _ in range(20):
            for taker in takers:
                taker.take(300)
            world.run(0.2)
        ids = [producer_id for taker in takers for producer_id in taker.ids]
        assert len(ids) == len(set(ids))
        assert all(len(taker.ids) + len(taker.errors) + len(taker.blocks._waiting) == 6_000 for taker in takers)


def test_blocks_go_on_behind_those_that_kafka_took(world: World, broker: Coordinated) -> None:
    taker = _Taker(broker)
    theirs = znodes.ProducerIdBlock(broker_id=9, start=7_000, end=8_000)
    data = znodes.encode_producer_id_block(theirs)
    world.answered(broker, commit([Set(path=znodes.PRODUCER_ID_BLOCK, data=data, version=0)]))
    taker.take(1)
    world.run(1)
    assert taker.ids == [8_000]
