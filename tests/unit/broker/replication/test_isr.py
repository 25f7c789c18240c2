"""Changes of the in-sync set: what is proposed, and the outcome over a simulated ZooKeeper.

A leader hands leadership over to another broker once that one has everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from logbus_broker.cluster.metadata_image import PartitionState
from logbus_broker.cluster.metadata_log import STATES_MAX, decode_changes
from logbus_broker.cluster.store import Operation, Outcome, Unknown
from logbus_broker.cluster.znodes import CHANGES
from logbus_broker.replication.isr import (
    RETRY_SECONDS,
    Proposal,
    Proposals,
    propose_handover,
    propose_isr,
    propose_stepping_down,
    takes_records,
)
from logbus_broker.replication.led_partition import Departures, LedPartition, PartitionProgress

from tests.support.leading import ME, TOPIC_ID, StoredStates

STATE = PartitionState(leader=ME, leader_epoch=1, isr=(0, 1), version=0)


class NoLog:
    """No test here reads a log."""


def led_partition(index: int = 0, state: PartitionState = STATE, *, insync_min: int = 1) -> LedPartition:
    progress = PartitionProgress(
        ME, state, (0, 1, 2), insync_min=insync_min, end_offset=10, flushed_offset=10, visible_offset=10, now=0.0
    )
    return LedPartition("clicks", TOPIC_ID, index, NoLog(), progress)  # type: ignore[arg-type]


def anybody(broker: int, incarnation: int) -> bool:
    return True


NOBODY_LEAVES = Departures()


def proposed(led: LedPartition, departures: Departures = NOBODY_LEAVES) -> Proposal:
    proposal = propose_isr(led.progress, departures, anybody)
    assert proposal is not None
    return proposal


# What is proposed


def test_a_replica_that_has_everything_joins_with_its_incarnation() -> None:
    led = led_partition()
    led.progress.fetched(2, 7, 10, 10, 1.0)
    proposal = proposed(led)
    assert proposal.state == replace(STATE, isr=(0, 1, 2), version=1)
    assert (proposal.additions, proposal.incarnations) == ({2: 7}, {2: 7})


def test_who_is_being_stopped_or_not_registered_does_not_join() -> None:
    led = led_partition()
    led.progress.fetched(2, 7, 10, 10, 1.0)
    candidates: list[tuple[int, int]] = []
    assert propose_isr(led.progress, NOBODY_LEAVES, lambda *who: bool(candidates.append(who))) is None
    assert candidates == [(2, 7)]


def test_who_would_have_to_leave_at_once_does_not_join() -> None:
    led = led_partition()
    led.progress.fetched(2, 7, 10, 10, 1.0)
    assert propose_isr(led.progress, Departures(late=(2,)), anybody) is None


@pytest.mark.parametrize(
    ("state", "insync_min", "departures", "new"),
    [
        (STATE, 2, Departures(behind=(1,)), {"isr": (0,), "eligible": (1,)}),
        (STATE, 2, Departures(lost=(1,)), {"isr": (0,)}),
        (replace(STATE, isr=(0, 1, 2)), 2, Departures(behind=(1,)), {"isr": (0, 2)}),
        (replace(STATE, handover_to=1), 1, Departures(behind=(1,)), {"isr": (0,), "handover_to": None}),
    ],
    ids=["stays eligible where too few are left", "has lost something", "enough are left", "was to take over"],
)
def test_who_leaves(state: PartitionState, insync_min: int, departures: Departures, new: dict[str, Any]) -> None:
    assert proposed(led_partition(state=state, insync_min=insync_min), departures).state == replace(state, **new, version=1)


def test_the_write_that_makes_the_set_large_enough_ends_all_eligibility() -> None:
    led = led_partition(state=replace(STATE, isr=(0,), eligible=(1,)), insync_min=2)
    led.progress.fetched(2, 7, 10, 10, 1.0)
    assert proposed(led).state == replace(STATE, isr=(0, 2), version=1)


def test_where_min_insync_is_lowered_eligibility_ends_before_anything_moves() -> None:
    led = led_partition(state=replace(STATE, isr=(0,), eligible=(1,)), insync_min=2)
    led.progress.written(20, 1.0)
    led.progress.learn(led.progress.state, (0, 1, 2), 1, 2.0)
    assert led.progress.replicated_offset == 10
    proposal = proposed(led)
    assert proposal.state == replace(STATE, isr=(0,), version=1)
    led.progress.learn(proposal.state, (0, 1, 2), 1, 3.0)
    assert led.progress.replicated_offset == 20


def test_the_recovery_from_an_unclean_election_ends_when_all_replicas_are_in_sync() -> None:
    led = led_partition(state=replace(STATE, isr=(0,), is_recovering=True))
    led.progress.fetched(1, 7, 10, 10, 1.0)
    assert proposed(led).state == replace(STATE, isr=(0, 1), is_recovering=True, version=1)
    led.progress.fetched(2, 7, 10, 10, 1.0)
    assert not proposed(led).state.is_recovering


def test_where_nothing_should_change_nothing_is_proposed() -> None:
    assert propose_isr(led_partition().progress, NOBODY_LEAVES, anybody) is None
    eligible = replace(STATE, isr=(0,), eligible=(1, 2))
    assert propose_isr(led_partition(state=eligible, insync_min=2).progress, NOBODY_LEAVES, anybody) is None


ALL = replace(STATE, isr=(0, 1, 2))
END = 10


@pytest.mark.parametrize(
    ("state", "insync_min", "written", "impaired", "new"),
    [
        (ALL, 2, (END, END), (), {"leader": 1, "isr": (1, 2)}),
        (ALL, 2, (END - 1, END), (), {"leader": 2, "isr": (1, 2)}),
        (ALL, 2, (END, END), (1,), {"leader": 2, "isr": (1, 2)}),
        (STATE, 2, (END, END), (), {"leader": 1, "isr": (1,), "eligible": (0,)}),
        (replace(STATE, isr=(0, 2), handover_to=2), 1, (END, END), (), {"leader": 2, "isr": (2,), "handover_to": None}),
        (ALL, 2, (END - 1, END - 1), (), None),
        (ALL, 2, (END, END), (1, 2), None),
        (replace(STATE, isr=(0,)), 1, (END, END), (), None),
    ],
    ids=[
        "the first replica in sync",
        "one that has everything",
        "one that can store something",
        "also where too few are left",
        "whoever was asked to take over",
        "nobody before he has everything",
        "nobody who is no better off",
        "nobody out of sync",
    ],
)
def test_to_whom_a_leader_that_can_store_nothing_gives_its_lead(
    state: PartitionState, insync_min: int, written: tuple[int, int], impaired: tuple[int, ...], new: dict[str, Any] | None
) -> None:
    progress = led_partition(state=state, insync_min=insync_min).progress
    for broker, end in enumerate(written, 1):
        progress.fetched(broker, 7, end, end, 1.0, is_impaired=broker in impaired)
    assert propose_stepping_down(progress, anybody) is None, "its disk is well"
    progress.is_impaired = True
    assert takes_records(progress, 1.0) == (len(state.isr) == 1), "nobody else could store them"
    proposal = propose_stepping_down(progress, anybody)
    after = None if new is None else replace(state, **new, leader_epoch=state.leader_epoch + 1, version=1)
    assert (None if proposal is None else proposal.state) == after
    assert proposal is None or proposal.incarnations == {proposal.state.leader: 7}
    assert propose_stepping_down(progress, lambda broker, incarnation: False) is None


# The outcome


class Scene(StoredStates):
    """The states of some partitions, and a leader's proposals."""

    def __init__(self, partitions: int = 1) -> None:
        super().__init__(*[STATE] * partitions)
        self.led = [led_partition(index) for index in range(partitions)]
        self.outcomes: list[int] = []
        self.zookeeper.observers.append(lambda name, operations, outcome: self.outcomes.append(len(operations)))
        self.proposals = Proposals(self.store, self.timeline)

    def offer(self, led: LedPartition, incarnation: int = 1) -> None:
        """Propose that broker 2 joins."""
        led.progress.fetched(2, incarnation, 10, 10, self.timeline.now)
        self.proposals.offer(led, proposed(led))

    def send(self, seconds: float = 0.2) -> None:
        self.proposals.send()
        self.timeline.run(seconds)

    def learn(self, led: LedPartition) -> None:
        led.progress.learn(self.stored(led.index), (0, 1, 2), 1, self.timeline.now)
        self.proposals.learnt(led)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_proposal_is_stored_with_a_journal_entry_and_over_when_the_image_shows_it(scene: Scene) -> None:
    (led,) = scene.led
    scene.offer(led)
    scene.send()
    assert scene.stored(led.index) == replace(STATE, isr=(0, 1, 2), version=1)
    entry = scene.zookeeper.node(f"{CHANGES}/c-0000000000")
    (change,) = decode_changes(entry.data)
    assert change.state == scene.stored(led.index)  # type: ignore[union-attr]
    assert scene.proposals.is_pending(led), "only the image says what became of it"
    assert led.progress.additions == {2: 1}
    scene.learn(led)
    assert not scene.proposals.is_pending(led)
    assert led.progress.additions == {}


def test_an_accepted_change_says_when_the_lead_was_certain(scene: Scene) -> None:
    (led,) = scene.led
    scene.offer(led)
    sent_at = scene.timeline.now
    scene.send()
    assert led.stored_at == sent_at < scene.timeline.now


def test_many_partitions_change_in_one_transaction_and_check_a_broker_once() -> None:
    scene = Scene(partitions=STATES_MAX + 10)
    for led in scene.led:
        scene.offer(led)
    scene.send(2)
    assert scene.outcomes == [STATES_MAX + 3, 10 + 3]
    assert all(scene.stored(led.index).version == 1 for led in scene.led)


def test_a_state_that_somebody_else_has_changed_waits_for_the_image_and_others_go_on() -> None:
    scene = Scene(partitions=3)
    for led in scene.led:
        scene.offer(led)
    scene.overwrite(replace(STATE, isr=(0,)), 1)
    scene.send()
    assert [scene.stored(led.index).version for led in scene.led] == [0, 1, 0]
    scene.send()
    assert [scene.stored(led.index).isr for led in scene.led] == [(0, 1, 2), (0,), (0, 1, 2)]
    scene.send(5)
    assert scene.outcomes == [1, 5], "who waits for the image asks nothing"
    assert scene.led[1].progress.additions == {2: 1}, "an earlier attempt may be what changed it"
    scene.learn(scene.led[1])
    assert not scene.proposals.is_pending(scene.led[1])


def test_a_broker_that_was_restarted_does_not_slip_into_the_set() -> None:
    scene = Scene(partitions=2)
    moved: list[int] = []
    scene.proposals.on_moved = lambda led: moved.append(led.index)
    scene.offer(scene.led[0], incarnation=1)
    scene.offer(scene.led[1], incarnation=0)
    scene.send()
    assert [scene.stored(led.index).version for led in scene.led] == [0, 0]
    assert (scene.proposals.is_pending(scene.led[1]), scene.led[1].progress.additions, moved) == (False, {}, [1])
    scene.send()
    assert [scene.stored(led.index).isr for led in scene.led] == [(0, 1, 2), (0, 1)]


class LosingAnswers:
    """Sits between the proposals and their store: the next answers are lost, before or after the commit."""

    def __init__(self, scene: Scene) -> None:
        self._store = scene.store
        self.lost: list[str] = []
        self.late: list[Callable[[], None]] = []

    def commit(self, operations: Sequence[Operation], then: Callable[[Outcome], None]) -> None:
        how = self.lost.pop(0) if self.lost else "answered"
        if how == "answered":
            self._store.commit(operations, then)
        elif how == "after":
            self._store.commit(operations, lambda outcome: then(Unknown(detail="lost")))
        else:  # it arrives much later
            self.late.append(lambda: self._store.commit(operations, lambda outcome: None))
            then(Unknown(detail="late"))


@pytest.mark.parametrize("how", ["after", "late"])
def test_a_proposal_whose_answer_was_lost_counts_and_is_sent_again_until_the_image_moves(scene: Scene, how: str) -> None:
    (led,) = scene.led
    store = LosingAnswers(scene)
    store.lost = [how]
    scene.proposals = Proposals(store, scene.timeline)  # type: ignore[arg-type]
    scene.offer(led)
    scene.send()
    led.progress.written(20, scene.timeline.now)
    led.progress.fetched(1, 1, 20, 20, scene.timeline.now)
    assert led.progress.replicated_offset == 10, "broker 2 may be a member"
    assert 0 < scene.proposals.next_retry - scene.timeline.now <= RETRY_SECONDS
    scene.timeline.run(RETRY_SECONDS)
    scene.send()
    assert scene.stored(led.index) == replace(STATE, isr=(0, 1, 2), version=1)
    for send in store.late:
        send()
    scene.timeline.run(1)
    assert scene.stored(led.index).version == 1, "it cannot happen twice"
    assert led.progress.additions == {2: 1}
    scene.learn(led)
    assert not scene.proposals.is_pending(led)


def test_a_proposal_of_a_lead_that_is_over_is_not_sent_again(scene: Scene) -> None:
    (led,) = scene.led
    scene.offer(led)
    scene.proposals.forget(led)
    scene.send()
    assert scene.outcomes == []


HANDING_OVER = replace(STATE, isr=(0, 1, 2), handover_to=1)


def handing_over() -> PartitionProgress:
    progress = led_partition(state=HANDING_OVER).progress
    progress.written(20, 0.0)
    return progress


def test_producers_are_served_until_the_heir_keeps_up() -> None:
    progress = handing_over()
    progress.fetched(1, 3, 12, 12, 5.0)
    assert takes_records(progress, 5.0)
    progress.fetched(1, 3, 20, 12, 6.0)
    assert not takes_records(progress, 6.0)


def test_no_records_are_taken_once_the_heir_has_everything() -> None:
    progress = handing_over()
    progress.fetched(1, 3, 20, 20, 5.0)
    assert not takes_records(progress, 500.0)


def test_the_lead_is_given_to_the_process_that_has_everything() -> None:
    progress = handing_over()
    progress.fetched(1, 3, 19, 19, 5.0)
    assert propose_handover(progress, 5.0) is None
    progress.fetched(1, 3, 20, 10, 6.0)
    proposal = propose_handover(progress, 6.0)
    assert proposal is not None
    assert proposal.state == replace(HANDING_OVER, leader=1, leader_epoch=2, handover_to=None, version=1)
    assert (proposal.additions, proposal.incarnations) == ({}, {1: 3})


def test_a_member_that_keeps_up_is_waited_for_so_that_producers_have_their_answers() -> None:
    progress = handing_over()
    for broker in (1, 2):
        progress.fetched(broker, 3, 20, 20, 5.0)
    progress.written(30, 6.0)
    progress.fetched(1, 3, 30, 30, 6.1)
    assert propose_handover(progress, 6.9) is None
    assert propose_handover(progress, 7.1) is not None, "it has not kept up"
    progress.fetched(2, 3, 30, 30, 7.2)
    assert progress.replicated_offset == 30
    assert propose_handover(progress, 7.2) is not None


def test_the_lead_is_not_given_to_one_that_is_not_in_sync() -> None:
    progress = led_partition(state=replace(HANDING_OVER, isr=(0, 2))).progress
    progress.fetched(1, 3, 10, 10, 5.0)
    assert propose_handover(progress, 5.0) is None
    assert takes_records(progress, 5.0)


def test_who_is_asked_for_nothing_gives_nothing() -> None:
    progress = led_partition().progress
    progress.fetched(1, 3, 10, 10, 5.0)
    assert propose_handover(progress, 5.0) is None
    assert takes_records(progress, 5.0)
