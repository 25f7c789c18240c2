"""A broker in a controlled shutdown: what it waits for, and which in-sync sets it leaves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from logbus_broker.cluster.dynamic_config import ImageSettings
from logbus_broker.cluster.metadata_image import NO_LEADER, BrokerNode, ClusterTopic, MetadataImage, PartitionState
from logbus_broker.cluster.znodes import decode_state, state_path
from logbus_broker.errors import BrokerError
from logbus_broker.replication.lifecycle import WITHDRAW_RETRY_SECONDS, WITHDRAW_SECONDS, ControlledShutdown
from logbus_broker.settings import LogConfig

from tests.support.manual_clock import ManualClock

ME = 1


def image(
    *states: PartitionState, brokers: tuple[int, ...] = (1, 2, 3), leaving: tuple[int, ...] = (ME,), **others: Any
) -> MetadataImage:
    topic = ClusterTopic(name="t", topic_id=UUID(int=1), replicas=((1, 2, 3),) * len(states), states=states, version=0)
    nodes = {broker: BrokerNode(broker_id=broker, incarnation=0, endpoints={}) for broker in brokers}
    return MetadataImage(topics={"t": topic}, brokers=nodes, leaving=frozenset(leaving), **others)


def state(leader: int, isr: tuple[int, ...], **others: Any) -> PartitionState:
    return PartitionState(leader=leader, leader_epoch=4, isr=isr, version=6, **others)


class Scene:
    def __init__(self, first_image: MetadataImage, *, minimum: int = 1) -> None:
        self.clock = ManualClock()
        self.announced: Any = None
        self.commits: list[Any] = []
        self.over = self.stopped = 0
        registration = SimpleNamespace(leave=lambda then: setattr(self, "announced", then))
        store = SimpleNamespace(commit=lambda operations, then: self.commits.append(operations))
        self.member = SimpleNamespace(broker_id=ME, image=first_image, registration=registration, store=store, away_since=None)
        self.leaving = ControlledShutdown(
            cast(Any, self.member),
            cast(Any, SimpleNamespace(stop_following=self._stop)),
            ImageSettings(LogConfig(min_insync_replicas=minimum), ME),
            self.clock,
            seconds_max=30.0,
            session_seconds=6.0,
            then=self._end,
        )

    def _stop(self) -> None:
        self.stopped += 1

    def _end(self) -> None:
        self.over += 1

    def work(self) -> None:
        self.leaving.work(self.clock.monotonic())

    def written(self, index: int = 0) -> PartitionState:
        """The state of a partition that the last transaction writes."""
        (data,) = (one.data for one in self.commits[-1] if getattr(one, "path", "") == state_path("t", index))
        return decode_state(data, 7)


def test_it_goes_on_until_it_leads_nothing_that_another_could_lead() -> None:
    scene = Scene(image(state(ME, (1, 2))))
    scene.work()
    scene.announced(None)
    scene.work()
    assert (scene.stopped, scene.over) == (0, 0)
    scene.member.image = image(state(2, (1, 2)))
    scene.work()
    assert (scene.stopped, scene.over) == (1, 0)
    assert scene.written() == PartitionState(leader=2, leader_epoch=4, isr=(2,), version=7)
    scene.member.image = image(state(2, (2,)))
    scene.work()
    scene.work()
    assert scene.over == 1


def test_it_does_not_wait_for_brokers_that_leave_as_well() -> None:
    scene = Scene(image(state(ME, (1, 2)), leaving=(1, 2, 3)))
    scene.announced(None)
    scene.work()
    assert (scene.over, scene.commits) == (1, [])


@pytest.mark.parametrize("leader", [3, NO_LEADER])
def test_it_stays_in_a_set_whose_leader_is_dead(leader: int) -> None:
    """The remaining members of the set may never come back."""
    scene = Scene(image(state(leader, (1, 3)), brokers=(1, 2)))
    scene.announced(None)
    scene.work()
    assert (scene.over, scene.commits) == (1, [])


def test_it_stays_eligible_where_the_set_becomes_too_small() -> None:
    scene = Scene(image(state(2, (1, 2), handover_to=ME)), minimum=2)
    scene.announced(None)
    scene.work()
    new = scene.written()
    assert (new.isr, new.eligible, new.handover_to) == ((2,), (1,), None)


def test_it_asks_again_and_goes_when_its_time_is_over() -> None:
    scene = Scene(image(state(2, (1, 2))))
    scene.announced(None)
    scene.work()
    scene.work()
    assert len(scene.commits) == 1
    scene.clock.advance_ms(int(WITHDRAW_RETRY_SECONDS * 1000))
    scene.work()
    assert len(scene.commits) == 2
    scene.clock.advance_ms(int(WITHDRAW_SECONDS * 1000))
    scene.work()
    assert (scene.over, len(scene.commits)) == (1, 2)


def test_nobody_is_waited_for_where_nobody_could_be_told() -> None:
    scene = Scene(image(state(ME, (1, 2))))
    scene.announced(BrokerError("ZooKeeper is away"))
    scene.work()
    assert (scene.stopped, scene.over) == (1, 1)


def test_nothing_is_waited_for_once_zookeeper_has_been_away_for_a_session() -> None:
    scene = Scene(image(state(ME, (1, 2))))
    scene.announced(None)
    scene.member.away_since = scene.clock.monotonic()
    scene.clock.advance_ms(5_999)
    scene.work()
    assert (scene.stopped, scene.over) == (0, 0), "it may be back in time"
    scene.clock.advance_ms(1)
    assert scene.leaving.due <= scene.clock.monotonic()
    scene.work()
    scene.work()
    assert (scene.stopped, scene.over, scene.commits) == (1, 1, [])
