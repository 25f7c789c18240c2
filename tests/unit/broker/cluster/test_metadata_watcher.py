"""How one broker keeps its image up to date: what listeners get, what is read, and when the journal is not enough."""

from __future__ import annotations

import pytest
from logbus_broker.cluster import metadata_writes, znodes
from logbus_broker.cluster.metadata_image import (
    EVERY_BROKER,
    IncarnationRaised,
    MetadataDelta,
    MetadataImage,
    PartitionState,
    StateChange,
)
from logbus_broker.cluster.metadata_log import entry_path, state_writes
from logbus_broker.cluster.store import READS_AT_ONCE, Create, Delete, Set, commit

from tests.sim.coordinated import Coordinated, World, topic


def _make(world: World, broker: Coordinated, *names: str) -> None:
    for number, name in enumerate(names, 1):
        world.answered(broker, metadata_writes.create_topic(topic(name, number), {}))
    world.run(1)


def _reads(broker: Coordinated) -> list[str]:
    """A list to which the path of every further read of the broker is added."""
    paths: list[str] = []
    read = broker.store.read

    def noted(path: str, *arguments: object, **options: object) -> None:
        paths.append(path)
        read(path, *arguments, **options)  # type: ignore[arg-type]

    broker.store.read = noted  # type: ignore[method-assign]
    return paths


def test_the_first_thing_told_is_everything(world: World) -> None:
    first = world.started(1)
    _make(world, first, "access")
    second = world.started(2)
    assert second.news[0].is_everything
    assert list(second.image.topics) == ["access"]
    deltas: list[MetadataDelta] = []
    second.watcher.listen(lambda image, news: deltas.append(news))
    assert deltas == [MetadataDelta(is_everything=True)]


def test_a_change_costs_one_read_of_the_journal(world: World) -> None:
    first, second = world.started(1), world.started(2)
    _make(world, first, "access", "errors")
    paths = _reads(second)
    state = PartitionState(leader=2, leader_epoch=1, isr=(2,), version=1)
    topic_id = first.image.topics["access"].topic_id
    changes = [StateChange(topic="access", topic_id=topic_id, index=index, state=state) for index in range(3)]
    world.answered(first, commit(state_writes(changes)))
    world.run(1)
    assert paths == [entry_path(world.zookeeper.log_positions()[-1])]
    assert second.news[-1] == MetadataDelta(changes=tuple(changes))
    assert second.image.topics["access"].states == (state,) * 3


def test_a_reconnection_within_the_session_reads_only_what_is_new(world: World) -> None:
    first, second = world.started(1), world.started(2)
    _make(world, first, "access")
    second.news.clear()
    paths = _reads(second)
    second.store.drop()
    world.answered(first, metadata_writes.delete_topic("access", topic("access", 1).topic_id))
    world.run(2)
    assert not any(path.startswith(znodes.TOPICS) for path in paths)
    assert second.image.deleting == {"access"}
    assert not any(news.is_everything for news in second.news)


def test_a_new_session_reads_everything_and_finds_what_tools_wrote(world: World, broker: Coordinated) -> None:
    _make(world, broker, "access")
    data = znodes.encode_settings({"by": "hand"})
    world.answered(broker, commit([Set(path=znodes.topic_settings_path("access"), data=data, version=0)]))
    world.run(1)
    assert broker.image.topic_settings["access"].values == {}
    world.zookeeper.expire(broker.store.session_id)
    world.run(2)
    assert broker.image.topic_settings["access"].values == {"by": "hand"}


def test_an_entry_of_a_newer_broker_means_that_everything_is_read(world: World) -> None:
    first, second = world.started(1), world.started(2)
    entry = Create(path=f"{znodes.CHANGES}/c-", data=b'{"version":1,"changes":[{"kind":"from the future"}]}', is_sequential=True)
    data = znodes.encode_settings({"new": "1"})
    world.answered(first, commit([Create(path=znodes.broker_settings_path("1"), data=data), entry]))
    world.run(1)
    assert second.image.broker_settings["1"].values == {"new": "1"}
    assert second.image.position == world.zookeeper.log_positions()[-1]


def test_one_topic_that_cannot_be_read_leaves_the_others_served(world: World, caplog: pytest.LogCaptureFixture) -> None:
    first = world.started(1)
    _make(world, first, "access", "errors")
    writes = [
        Set(path=znodes.topic_path("access"), data=b"{}", version=0),
        Set(path=znodes.state_path("errors", 1), data=b"?", version=0),
        Create(path=znodes.broker_path(7), data=b"", is_ephemeral=True),
    ]
    world.answered(first, commit(writes))
    second = world.started(2)
    assert list(second.image.topics) == ["errors"]
    assert [state.leader for state in second.image.topics["errors"].states] == [1, -1, 1]
    assert sorted(second.image.brokers) == [1, 2]
    assert "ignoring topic access" in caplog.text


def test_an_image_never_goes_back_where_zookeeper_lost_its_data(world: World, caplog: pytest.LogCaptureFixture) -> None:
    broker = world.started(1)
    _make(world, broker, "access")
    image = broker.image
    paths = [entry_path(position) for position in world.zookeeper.log_positions()]
    world.answered(broker, commit([Delete(path=path) for path in paths]))
    world.zookeeper.expire(broker.store.session_id)
    world.run(3)
    assert broker.image.topics == image.topics
    assert "ZooKeeper has lost data" in caplog.text


def test_one_turn_asks_for_so_much_and_no_more(world: World) -> None:
    first = world.started(1)
    for number in range(20):
        world.answered(first, metadata_writes.create_topic(topic(f"t{number}", number + 1, partitions=50), {}))
    second = world.start(2)
    under_way = most = 0
    read = second.store.read

    def counted(path: str, then: object, **options: object) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)

        def answered(node: object) -> None:
            nonlocal under_way
            under_way -= 1
            then(node)  # type: ignore[operator]

        read(path, answered, **options)  # type: ignore[arg-type]

    second.store.read = counted  # type: ignore[method-assign, assignment]
    world.timeline.run_until(lambda: second.watcher.is_known, 30)
    assert second.image.topics == first.image.topics
    assert most <= READS_AT_ONCE + 10  # plus the ephemeral nodes, which are read in parallel


def test_a_deposed_controller_never_sees_its_successors_epoch_as_its_own(world: World) -> None:
    brokers = [world.started(broker_id) for broker_id in (1, 2, 3)]
    wrong: list[object] = []
    owners = {0: -1}
    for broker in brokers:
        broker.watcher.listen(
            lambda image, _: (
                wrong.append(image.controller) if image.controller.broker_id not in (-1, owners[image.controller.epoch]) else None
            )
        )
    for epoch in range(1, 60):
        broker = brokers[epoch % 3]
        owners[epoch] = broker.registration.node.broker_id
        world.answered(
            broker,
            commit(
                [
                    *([] if epoch == 1 else [Delete(path=znodes.CONTROLLER)]),
                    Create(path=znodes.CONTROLLER, data=znodes.encode_controller(owners[epoch], 0), is_ephemeral=True),
                    Set(path=znodes.CONTROLLER_EPOCH, data=znodes.encode_controller_epoch(epoch), version=-1),
                ]
            ),
        )
        world.run(world.random.choice((0, 0.0005, 0.002)))
    world.run(1)
    assert wrong == []
    assert {broker.image.controller.epoch for broker in brokers} == {59}


def test_who_raised_an_incarnation_is_news_before_it_is_registered(world: World) -> None:
    first = world.started(1)
    second = world.start(2)
    world.timeline.run_until(lambda: second.entered.is_there, 10)
    world.run(1)
    raised = IncarnationRaised(broker_id=2, incarnation=0)
    assert any(raised in news.changes for news in first.news)


@pytest.mark.parametrize("path", [znodes.topic_path("access"), znodes.topic_settings_path("access")])
def test_a_topic_that_cannot_be_read_is_neither_gone_nor_without_settings(world: World, broker: Coordinated, path: str) -> None:
    """Its logs would be removed, or the default retention would delete its records."""
    _make(world, broker, "access", "errors")
    world.answered(broker, commit([Set(path=path, data=b"{}", version=0)]))
    world.zookeeper.expire(broker.store.session_id)
    world.run(2)
    assert (list(broker.image.topics), broker.image.unreadable) == (["errors"], {"access"})


def test_where_the_brokers_settings_cannot_be_read_the_old_ones_hold_until_they_can(world: World, broker: Coordinated) -> None:
    path = znodes.broker_settings_path(EVERY_BROKER)
    world.answered(broker, metadata_writes.change_broker_settings(EVERY_BROKER, lambda old: {"log.retention.ms": "-1"}))
    world.run(1)
    world.answered(broker, commit([Set(path=path, data=b"{}", version=-1)]))
    world.zookeeper.expire(broker.store.session_id)
    world.run(5)
    assert broker.image.broker_settings[EVERY_BROKER].values == {"log.retention.ms": "-1"}
    world.answered(broker, commit([Set(path=path, data=znodes.encode_settings({"log.retention.ms": "7"}), version=-1)]))
    world.run(5)
    assert broker.image.broker_settings[EVERY_BROKER].values == {"log.retention.ms": "7"}


def test_a_node_of_a_strangers_among_the_incarnations_keeps_nobody_from_reading(world: World) -> None:
    first = world.started(1)
    world.answered(first, commit([Create(path=f"{znodes.INCARNATIONS}/notes")]))
    second = world.started(2)
    assert second.image.incarnations == {1: 0, 2: 0}


def test_who_fails_to_act_on_news_is_told_everything_later_and_holds_up_nobody(world: World, defects: list[str]) -> None:
    broker = world.started(1)
    deltas: list[MetadataDelta] = []
    after: list[list[str]] = []

    def fails_once(image: MetadataImage, news: MetadataDelta) -> None:
        deltas.append(news)
        if len(deltas) == 2:
            raise ZeroDivisionError

    broker.watcher.listen(fails_once)
    broker.watcher.listen(lambda image, news: after.append(list(image.topics)))
    _make(world, broker, "access", "errors")
    world.run(2)
    assert list(broker.image.topics) == ["access", "errors"]
    assert after[-1] == ["access", "errors"]
    assert deltas[2].is_everything
    assert "ZeroDivisionError" in defects[0]
    defects.clear()
