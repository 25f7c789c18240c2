"""Which process may use a broker id, and that a broker stays registered, over the simulated ZooKeeper."""

from __future__ import annotations

from logbus_broker.cluster import znodes
from logbus_broker.cluster.registration import IdTaken, RunningElsewhere
from logbus_broker.cluster.store import Delete, Node, commit
from logbus_broker.errors import StartupError

from tests.sim.coordinated import SESSION_TIMEOUT_MS, Coordinated, World


def _registered(world: World, broker_id: int = 1) -> Node | None:
    node = world.zookeeper.read(znodes.broker_path(broker_id))
    return node if isinstance(node, Node) else None


def _is_registered(world: World, broker: Coordinated) -> bool:
    node = _registered(world, broker.registration.node.broker_id)
    return node is not None and node.ephemeral_owner == broker.store.session_id


def test_the_first_broker_makes_the_cluster_and_is_seen(world: World) -> None:
    broker = world.started(1)
    assert broker.registration.cluster_id == "cluster of d1"
    world.run(1)
    assert broker.image.cluster_id == "cluster of d1"
    assert broker.image.brokers == {1: broker.registration.node}
    assert broker.image.incarnations == {1: 0}
    for path in znodes.BASE_PATHS:
        assert isinstance(world.zookeeper.read(path), Node)


def test_brokers_that_start_at_once_agree_on_one_cluster() -> None:
    world = World(seed=3)
    brokers = [world.start(broker_id) for broker_id in (1, 2, 3)]
    world.run(5)
    assert len({broker.registration.cluster_id for broker in brokers}) == 1
    assert all(sorted(broker.image.brokers) == [1, 2, 3] for broker in brokers)


def test_a_directory_of_another_cluster_is_refused_with_a_sentence(world: World) -> None:
    world.started(1)
    stranger = world.start(2, cluster_id="another")
    world.run(1)
    assert isinstance(stranger.entered.error, StartupError)
    assert "belongs to cluster another, but ZooKeeper has cluster cluster of d1: set zookeeper.connect" in str(
        stranger.entered.error
    )
    assert _registered(world, 2) is None


def test_a_directory_of_this_cluster_makes_its_id_where_zookeeper_has_none(world: World) -> None:
    assert world.started(1, cluster_id="ours").registration.cluster_id == "ours"


def test_a_dead_predecessors_registration_is_replaced_at_once(world: World) -> None:
    world.started(1).kill()
    begin = world.timeline.now
    broker = world.started(1)
    assert world.timeline.now - begin < 1.5
    assert _is_registered(world, broker)
    world.run(3 * SESSION_TIMEOUT_MS / 1000)
    assert _is_registered(world, broker), "the end of the predecessor's session took the new registration along"
    assert broker.image.brokers[1].incarnation == 1


def test_a_second_process_with_the_id_of_a_live_broker_is_refused_and_disturbs_nobody(world: World) -> None:
    first = world.started(1)
    second = world.start(1, directory="other")
    world.run(SESSION_TIMEOUT_MS / 1000 - 1)
    assert not second.entered.is_there, "the other may be about to go"
    world.run(3)
    assert isinstance(second.entered.error, RunningElsewhere)
    assert "broker 1 is running elsewhere, at host1:9091" in str(second.entered.error)
    assert _is_registered(world, first)
    assert first.registration.incarnation == 0
    assert first.fenced is None
    assert first.image.incarnations == {1: 0}


def test_a_copy_of_a_live_brokers_directory_is_refused_and_one_of_a_dead_brokers_is_not(world: World) -> None:
    first = world.started(1)
    world.listening.update(first.registration.node.endpoints.values())
    copy = world.start(1, host="elsewhere")
    world.run(SESSION_TIMEOUT_MS / 1000 + 5)
    assert isinstance(copy.entered.error, RunningElsewhere)
    assert "is a copy of its own: stop that one first" in str(copy.entered.error)
    assert (first.registration.incarnation, first.fenced) == (0, None)
    assert _is_registered(world, first)

    first.kill()
    world.listening.clear()
    assert _is_registered(world, world.started(1, host="elsewhere"))


def test_a_start_knows_the_number_of_the_last_one_in_its_directory(world: World) -> None:
    first = world.started(1)
    assert (first.registration.was_member, first.registration.last_start) == (False, -1)
    first.kill()
    second = world.started(1)
    assert (second.registration.was_member, second.registration.last_start) == (True, 0)
    second.kill()
    world.run(2 * SESSION_TIMEOUT_MS / 1000)
    other = world.started(1, directory="other")
    assert (other.registration.was_member, other.registration.last_start) == (False, -1)


def test_a_strangers_session_has_all_its_time_again_after_zookeeper_was_away() -> None:
    """No session ends while ZooKeeper is down: afterwards the old registration is still there, though its owner is long dead."""
    world = World()
    world.started(1).kill()
    moved = world.start(1, directory="other")
    world.run(1)
    world.zookeeper.stop()
    world.run(60)
    world.zookeeper.start()
    world.run(3 * SESSION_TIMEOUT_MS / 1000)
    assert moved.entered.error is None
    assert _is_registered(world, moved)


def test_of_two_directories_that_start_with_one_id_one_is_refused() -> None:
    for seed in range(30):
        world = World(seed)
        both = [world.start(1, directory=name) for name in ("a", "b")]
        world.run(3 * SESSION_TIMEOUT_MS / 1000)
        winners = [broker for broker in both if broker.registered.is_there and broker.registered.error is None]
        assert len(winners) == 1
        assert _is_registered(world, winners[0])
        (loser,) = [broker for broker in both if broker is not winners[0]]
        assert isinstance(loser.entered.error or loser.registered.error or loser.fenced, (RunningElsewhere, IdTaken))


def test_a_broker_whose_session_ended_registers_again_under_its_incarnation(world: World) -> None:
    broker = world.started(1)
    session_id = broker.store.session_id
    world.zookeeper.expire(session_id)
    world.run(2)
    assert broker.store.session_id != session_id
    assert _is_registered(world, broker)
    assert broker.registration.incarnation == 0


def test_a_broker_that_slept_while_another_took_its_id_stops(world: World) -> None:
    sleeper = world.started(1)
    sleeper.store.pause()
    world.run(2 * SESSION_TIMEOUT_MS / 1000)
    other = world.started(1, directory="other")
    sleeper.store.resume()
    world.run(2)
    assert isinstance(sleeper.fenced, IdTaken)
    assert _is_registered(world, other)


def test_lost_answers_leave_one_registration_and_a_growing_incarnation() -> None:
    for seed in range(40):
        world = World(seed)
        world.zookeeper.answer_loss = 0.4
        broker = world.start(1)
        world.timeline.run_until(lambda: broker.registered.is_there, 60)  # noqa: B023
        world.zookeeper.answer_loss = 0.0
        world.run(3)
        assert broker.fenced is None
        assert _is_registered(world, broker)
        assert broker.image.incarnations[1] == broker.registration.incarnation == broker.image.brokers[1].incarnation


def test_a_leaving_broker_says_so_until_its_session_ends(world: World) -> None:
    first, second = world.started(1), world.started(2)
    first.registration.leave(lambda error: None)
    world.run(1)
    assert second.image.leaving == {1}
    world.zookeeper.expire(first.store.session_id)
    world.run(2)
    assert second.image.leaving == {1}, "it leaves in its new session too"
    first.stop()
    world.run(1)
    assert second.image.leaving == frozenset()
    assert sorted(second.image.brokers) == [2]


def test_a_new_process_does_not_inherit_that_its_predecessor_was_leaving(world: World) -> None:
    first = world.started(1)
    first.registration.leave(lambda error: None)
    world.run(1)
    first.kill()
    second = world.started(1)
    world.run(1)
    assert second.image.leaving == frozenset()


def test_a_broker_whose_node_was_removed_by_hand_registers_again(world: World) -> None:
    broker = world.started(1)
    world.answered(broker, commit([Delete(path=znodes.broker_path(1))]))
    world.run(1)
    assert _is_registered(world, broker)
    assert broker.image.brokers == {1: broker.registration.node}


def test_of_two_processes_with_copies_of_one_directory_the_older_stops(world: World) -> None:
    first = world.started(1)
    second = world.started(1)
    world.run(1)
    assert isinstance(first.fenced, IdTaken)
    assert "do not copy data directories" in str(first.fenced)
    assert second.fenced is None
    assert _is_registered(world, second)
