"""Which leader may acknowledge what no other replica has written yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from uuid import UUID

import pytest
from logbus_broker.cluster.metadata_log import STATES_MAX
from logbus_broker.cluster.store import Check, Committed, Operation, Outcome, Reason, Refused, Unknown
from logbus_broker.cluster.znodes import state_path, topic_id_path
from logbus_broker.replication.isr import CHECK_SECONDS, Confirmation, confirmed_until
from logbus_broker.replication.led_partition import LedPartition

from tests.sim.world import Timeline
from tests.support.leading import TOPIC_ID
from tests.unit.broker.replication.test_isr import STATE, led_partition

SAME_TOPIC = Check(path=topic_id_path(UUID(bytes=TOPIC_ID)), version=-1)


def followed(times: dict[int, float]) -> Callable[[int, LedPartition], float]:
    return lambda broker, led: times.get(broker, -inf)


def test_as_long_as_every_other_member_has_followed_lately() -> None:
    led = led_partition(state=replace(STATE, isr=(0, 1, 2)))
    assert confirmed_until(led, followed({1: 5.0, 2: 4.0}), 3.0) == 7.0
    assert confirmed_until(led, followed({1: 5.0}), 3.0) == -inf


def test_as_long_as_zookeeper_has_accepted_a_transaction_lately() -> None:
    led = led_partition()
    led.stored_at = 6.0
    assert confirmed_until(led, followed({}), 3.0) == 9.0
    assert confirmed_until(led, followed({1: 8.0}), 3.0) == 11.0


def test_for_ever_where_nobody_else_could_be_elected() -> None:
    assert confirmed_until(led_partition(state=replace(STATE, isr=(0,))), followed({}), 3.0) == inf


def test_not_by_followers_where_somebody_else_is_eligible() -> None:
    led = led_partition(state=replace(STATE, isr=(0,), eligible=(1,)))
    assert confirmed_until(led, followed({1: 5.0}), 3.0) == -inf
    led = led_partition(state=replace(STATE, isr=(0, 1), eligible=(2,)))
    assert confirmed_until(led, followed({1: 5.0}), 3.0) == -inf, "members and leader may be cut off together"


def test_whoever_may_have_joined_by_now_has_to_follow_too() -> None:
    led = led_partition(state=replace(STATE, isr=(0,)))
    led.progress.fetched(1, 1, 10, 10, 1.0)
    led.progress.propose({1: 1})
    assert confirmed_until(led, followed({}), 3.0) == -inf
    assert confirmed_until(led, followed({1: 2.0}), 3.0) == 5.0


class ScriptedStore:
    """A store that only records the commits, so that the test can give the answers."""

    def __init__(self) -> None:
        self.questions: list[tuple[Sequence[Operation], Callable[[Outcome], None]]] = []

    def commit(self, operations: Sequence[Operation], then: Callable[[Outcome], None]) -> None:
        self.questions.append((operations, then))


class Scene:
    def __init__(self) -> None:
        self.timeline = Timeline()
        self.timeline.run(100)
        self.store = ScriptedStore()
        self.times: dict[int, float] = {}
        self.confirmation = Confirmation(
            self.store,  # type: ignore[arg-type]
            self.timeline,
            lambda broker, led: self.times.get(broker, -inf),
            confirm_seconds=3.0,
        )

    def is_confirmed(self, led: LedPartition) -> bool:
        return self.confirmation.is_confirmed(led, self.timeline.now)

    def ask(self, *unconfirmed: LedPartition) -> None:
        for led in unconfirmed:
            assert not self.is_confirmed(led)
        self.confirmation.send()

    def answer(self, outcome: Outcome) -> None:
        self.store.questions[-1][1](outcome)


@pytest.fixture
def scene() -> Scene:
    return Scene()


COMMITTED = Committed(versions=(), paths=())


def test_a_leader_that_is_followed_asks_nobody(scene: Scene) -> None:
    led = led_partition()
    scene.times[1] = 99.0
    assert scene.is_confirmed(led)
    scene.confirmation.send()
    assert scene.store.questions == []


def test_zookeeper_is_asked_at_once_and_then_once_a_second(scene: Scene) -> None:
    led = led_partition()
    scene.ask(led)
    assert scene.store.questions[0][0] == [SAME_TOPIC, Check(path=state_path("clicks", 0), version=0)]
    scene.timeline.run(0.1)
    scene.answer(COMMITTED)
    assert scene.is_confirmed(led)
    assert led.confirmed_until == 103.0, "since it was sent, not since it was answered"
    scene.timeline.run(0.2)
    led.confirmed_until = led.stored_at = -inf
    scene.ask(led)
    assert len(scene.store.questions) == 1
    assert scene.confirmation.next_question == 100 + CHECK_SECONDS
    scene.timeline.run(1)
    scene.confirmation.send()
    assert len(scene.store.questions) == 2


def test_zookeeper_is_asked_about_the_version_that_the_image_has_shown(scene: Scene) -> None:
    """Any other may be the state in which another broker leads; only the topic's id may have any version, if it exists."""
    led = led_partition(state=replace(STATE, version=4))
    for version in (4, 5):
        led.progress.learn(replace(STATE, version=version), (0, 1, 2), 1, 0.0)
        scene.ask(led)
        assert scene.store.questions[-1][0] == [SAME_TOPIC, Check(path=state_path("clicks", 0), version=version)]
        scene.answer(Unknown(detail="lost"))
        scene.timeline.run(CHECK_SECONDS)


def test_zookeeper_is_asked_before_what_it_said_has_run_out(scene: Scene) -> None:
    led = led_partition()
    scene.ask(led)
    scene.answer(COMMITTED)
    scene.timeline.run(2.2)
    assert scene.is_confirmed(led)
    assert scene.confirmation.next_question == inf
    scene.timeline.run(0.1)
    assert scene.is_confirmed(led)
    scene.confirmation.send()
    scene.answer(COMMITTED)
    scene.timeline.run(1)
    assert scene.is_confirmed(led), "nobody was refused meanwhile"


def test_one_that_is_led_elsewhere_does_not_keep_the_others_from_being_confirmed(scene: Scene) -> None:
    led = [led_partition(index) for index in range(3)]
    scene.ask(*led)
    scene.answer(Refused(index=2, reason=Reason.BAD_VERSION))
    paths = [operation.path for operation in scene.store.questions[-1][0]]
    assert paths == [SAME_TOPIC.path, state_path("clicks", 0), state_path("clicks", 2)]
    scene.answer(COMMITTED)
    assert [scene.is_confirmed(partition) for partition in led] == [True, False, True]


def test_a_topic_that_was_made_again_confirms_nothing_of_the_one_before(scene: Scene) -> None:
    led = led_partition()
    scene.ask(led)
    scene.answer(Refused(index=0, reason=Reason.NO_NODE))
    assert len(scene.store.questions) == 1, "nobody else waits"
    assert not scene.is_confirmed(led)


def test_an_unknown_outcome_confirms_nothing(scene: Scene) -> None:
    led = led_partition()
    scene.ask(led)
    scene.answer(Unknown(detail="lost"))
    assert not scene.is_confirmed(led)
    scene.timeline.run(CHECK_SECONDS)
    scene.confirmation.send()
    assert len(scene.store.questions) == 2


def test_many_are_asked_for_in_more_than_one_transaction(scene: Scene) -> None:
    led = [led_partition(index) for index in range(STATES_MAX + 1)]
    scene.ask(*led)
    scene.answer(COMMITTED)
    assert [len(operations) for operations, _ in scene.store.questions] == [1 + STATES_MAX, 1 + 1], "one after the other, at once"
    scene.answer(COMMITTED)
    assert all(scene.is_confirmed(partition) for partition in led)


def test_zookeeper_is_asked_when_a_lead_begins(scene: Scene) -> None:
    led, alone = led_partition(), led_partition(1, state=replace(STATE, isr=(0,)))
    for partition in (led, alone):
        scene.confirmation.lead_begins(partition)
    scene.confirmation.send()
    (question,) = scene.store.questions
    assert question[0] == [SAME_TOPIC, Check(path=state_path("clicks", 0), version=0)], "nobody else could lead the other"
    scene.answer(COMMITTED)
    assert scene.is_confirmed(led)


def test_consumers_are_served_for_longer(scene: Scene) -> None:
    led = led_partition()
    scene.times[1] = 95.0
    assert not scene.is_confirmed(led)
    assert scene.confirmation.is_confirmed(led, 100.0, grace_seconds=12.0)
    assert not scene.confirmation.is_confirmed(led, 111.0, grace_seconds=12.0)
