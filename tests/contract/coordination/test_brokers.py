"""Brokers find each other and agree on topics, on the simulated ZooKeeper and on a real one."""

from __future__ import annotations

from typing import Any

from broker.cluster import metadata_writes
from broker.cluster.membership import EventFan
from broker.cluster.metadata_image import EVERY_BROKER, BrokerNode, Endpoint, PartitionState, StateChange
from broker.cluster.metadata_log import state_writes
from broker.cluster.metadata_watcher import MetadataWatcher
from broker.cluster.metadata_writes import cluster_producer_ids
from broker.cluster.registration import Registration, RunningElsewhere
from broker.cluster.store import Committed, Refused, Script, commit, run_script
from broker.errors import BrokerError
from tests.sim.coordinated import topic
from tests.sim.world import Timeline
from tests.support.stores import SESSION_TIMEOUT_MS, Stores


class _Broker:
    """The coordination of one process. Its clock stands still: nothing waits on it except a stranger that registers."""

    def __init__(self, stores: Stores, broker_id: int, directory: str = "") -> None:
        self.stores = stores
        self.clock = Timeline()
        self.client = stores.client(session_timeout_ms=SESSION_TIMEOUT_MS)
        self.outcomes: list[BrokerError | None] = []
        self.fenced: list[BrokerError] = []
        node = BrokerNode(
            broker_id=broker_id,
            incarnation=-1,
            endpoints={"PLAINTEXT": Endpoint(host="localhost", port=9092 + broker_id)},
            directory_id=directory or f"d{broker_id}",
        )
        self.registration = Registration(
            self.client.store,
            node,
            cluster_id="",
            new_cluster_id="new",
            clock=self.clock,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            on_fenced=self.fenced.append,
        )
        self.watcher = MetadataWatcher(self.client.store)
        self.watcher.listen(lambda image, _: self.registration.seen(image))
        fan = EventFan([self.registration, self.watcher])
        self.client.connected = fan.connected  # type: ignore[method-assign]
        self.client.suspended = fan.suspended  # type: ignore[method-assign]
        self.client.changed = fan.changed  # type: ignore[method-assign]
        fan.connected(self.client.store.session_id)
        self.registration.enter(self._entered)

    def _entered(self, error: BrokerError | None) -> None:
        if error is None:
            self.registration.register(self.outcomes.append)
        else:
            self.outcomes.append(error)

    def until(self, condition: Any) -> None:
        def holds() -> bool:
            self.registration.tick()
            self.watcher.tick()
            return bool(condition())

        self.stores.until(holds)

    def started(self) -> _Broker:
        self.until(lambda: self.outcomes and self.watcher.is_known)
        assert self.outcomes == [None]
        return self

    def answered(self, script: Script[Any]) -> Any:
        answers: list[tuple[Any, BrokerError | None]] = []
        run_script(self.client.store, script, lambda value, error: answers.append((value, error)))
        self.until(lambda: answers)
        assert answers[0][1] is None
        return answers[0][0]

    def state(self, name: str, index: int) -> PartitionState | None:
        """None until the broker has read the topic: others see a write only later."""
        found = self.watcher.image.topics.get(name)
        return None if found is None else found.states[index]

    def settings(self, name: str) -> dict[str, str] | None:
        found = self.watcher.image.topic_settings.get(name)
        return None if found is None else dict(found.values)

    def settings_of_all(self) -> dict[str, str] | None:
        found = self.watcher.image.broker_settings.get(EVERY_BROKER)
        return None if found is None else dict(found.values)


def test_brokers_see_each_other_and_what_each_writes(stores: Stores) -> None:
    first = _Broker(stores, 1).started()
    second = _Broker(stores, 2).started()
    first.until(lambda: sorted(first.watcher.image.brokers) == [1, 2])
    made = topic("access", 1, partitions=300)
    first.answered(metadata_writes.create_topic(made, {"retention.ms": "1"}))
    second.until(lambda: second.watcher.image.topics == {"access": made})
    state = PartitionState(leader=2, leader_epoch=1, isr=(2,), version=1)
    changes = [StateChange(topic="access", topic_id=made.topic_id, index=index, state=state) for index in range(250)]
    assert isinstance(second.answered(commit(state_writes(changes))), Committed)
    assert isinstance(second.answered(commit(state_writes(changes))), Refused)
    first.until(lambda: first.state("access", 249) == state)
    more = topic("access", 1, partitions=2)
    second.answered(metadata_writes.grow_topic("access", made.topic_id, 300, more.replicas, more.states))
    second.answered(metadata_writes.change_topic_settings("access", made.topic_id, lambda old: {**old, "a": "b"}))
    second.answered(metadata_writes.change_broker_settings(EVERY_BROKER, lambda old: {**old, "c": "d"}))
    second.answered(metadata_writes.delete_topic("access", made.topic_id))
    late = _Broker(stores, 3).started()
    for broker in (first, second, late):
        broker.until(lambda broker=broker: broker.watcher.image.deleting == {"access"})
        broker.until(lambda broker=broker: broker.settings("access") == {"retention.ms": "1", "a": "b"})
        broker.until(lambda broker=broker: broker.settings_of_all() == {"c": "d"})
    first.until(lambda: len(first.watcher.image.topics["access"].states) == 302)
    for broker in (second, late):
        broker.until(lambda broker=broker: broker.watcher.image.topics == first.watcher.image.topics)


def test_a_predecessor_is_replaced_and_a_stranger_refused(stores: Stores) -> None:
    first = _Broker(stores, 1).started()
    stores.cut(first.client)  # as far as the others can see, it is gone
    second = _Broker(stores, 1).started()
    assert second.registration.incarnation == first.registration.incarnation + 1
    stranger = _Broker(stores, 1, "another")
    stranger.until(lambda: stranger.registration._stranger_since is not None)
    stranger.clock.run(SESSION_TIMEOUT_MS / 1000 + 1)
    stranger.until(lambda: stranger.outcomes)
    assert isinstance(stranger.outcomes[0], RunningElsewhere)
    second.until(lambda: second.watcher.image.brokers == {1: second.registration.node})
    stores.heal(first.client)
    first.until(lambda: first.fenced)
    assert second.fenced == []


def test_writes_whose_answers_are_lost_are_done_once(stores: Stores) -> None:
    broker = _Broker(stores, 1).started()
    made = topic("access", 1)
    stores.lose_answer(broker.client, is_committed=True)
    broker.answered(metadata_writes.create_topic(made, {}))
    stores.lose_answer(broker.client, is_committed=True)
    broker.answered(metadata_writes.change_topic_settings("access", made.topic_id, lambda old: {"n": old.get("n", "") + "x"}))
    broker.until(lambda: broker.settings("access") == {"n": "x"})
    ids: list[int] = []
    cluster_producer_ids(broker.client.store, 1).take(lambda producer_id, error: ids.append(producer_id))
    broker.until(lambda: ids)
    assert ids == [0]


def test_a_broker_that_leaves_in_good_order_is_gone_at_once(stores: Stores) -> None:
    first = _Broker(stores, 1).started()
    second = _Broker(stores, 2).started()
    second.registration.leave(second.outcomes.append)
    first.until(lambda: first.watcher.image.leaving == {2})
    second.registration.close()
    second.client.close()
    first.until(lambda: sorted(first.watcher.image.brokers) == [1] and not first.watcher.image.leaving)
